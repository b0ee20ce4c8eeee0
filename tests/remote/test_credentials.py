"""Credentials that end in the middle of a run: a server gives new ones, as the agent of a container does."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError

from .http_store import Handler, HttpStore
from .numbers_provider import PROVIDER

JOB: dict[str, Any] = {"batch_size": 16, "seed": 3}
SECRET, ACCESS = "hush-secret-key", "hush-agent-token"


class Bucket:
    """Answers for a bucket of ``store`` and for the agent that issues tokens. A token is good for ``valid`` requests,
    and its agent says that it is valid for ``said`` seconds."""

    def __init__(self, store: HttpStore, valid: int, said: float) -> None:
        self.store, self.valid, self.said = store, valid, said
        self.issued = self.refused = 0
        self._left: dict[str | None, int] = {}
        self._lock = threading.Lock()
        store.always = self.answer

    def answer(self, handler: Handler, body: bytes) -> bool:
        with self._lock:
            if handler.path.startswith("/credentials"):
                return self._issue(handler)
            token = handler.headers.get("X-Amz-Security-Token")
            if self._left.get(token, 0) > 0:
                self._left[token] -= 1
                return False
            self.refused += 1
            handler.refuse(403)
            return True

    def _issue(self, handler: Handler) -> bool:
        if handler.headers.get("Authorization") != ACCESS:
            handler.refuse(401)
            return True
        self.issued += 1
        self._left[f"hush-token-{self.issued}"] = self.valid
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.said)
        plain = {
            "AccessKeyId": "somebody",
            "SecretAccessKey": SECRET,
            "Token": f"hush-token-{self.issued}",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        data = json.dumps(plain).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True


@pytest.fixture
def bucket(store: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], Bucket]:
    """``bucket(valid, said)``: a :class:`Bucket` with 48 files."""
    (tmp_path / "token").write_text(ACCESS)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": store.address,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{store.address}/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    store.files = {f"bucket/{n}.txt": b"".join(b"%d\n" % (n * 100 + i) for i in range(50)) for n in range(48)}
    return lambda valid, said: Bucket(store, valid, said)


URLS = [f"s3://bucket/{n}.txt" for n in range(48)]


def test_a_token_that_is_refused_in_mid_run_is_replaced(
    bucket: Callable[[int, float], Bucket], provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    has = bucket(20, 3600.0)
    with pydp2.load(URLS, provider_file(PROVIDER), workers=2, remote_cache=tmp_path / "cache", **JOB) as data:
        seen = sorted(number for batch in data for number in batch["n"].tolist())
        assert seen == [n * 100 + i for n in range(48) for i in range(50)]
        assert data.stats()["workers_lost"] == 0
    assert has.issued >= 2
    assert has.refused >= 1


def test_a_token_that_is_about_to_end_is_replaced_before_it_is_refused(
    bucket: Callable[[int, float], Bucket], provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    has = bucket(1000, 20.0)  # shorter than what any store's package takes for enough
    has.store.delay = 0.1
    with pydp2.load(URLS, provider_file(PROVIDER), workers=2, remote_cache=tmp_path / "cache", **JOB) as data:
        assert sum(len(batch["n"]) for batch in data) == 2400
    assert has.issued >= 2
    assert has.refused == 0


def test_tokens_that_are_refused_again_and_again_are_an_error_without_them(
    bucket: Callable[[int, float], Bucket], provider_file: Callable[[str], str], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    has = bucket(0, 3600.0)
    with (
        pydp2.load(URLS, provider_file(PROVIDER), workers=1, remote_cache=tmp_path / "cache", **JOB) as data,
        pytest.raises(ProviderError, match="s3 answered 403 Forbidden; credentials were looked for in") as error,
    ):
        list(data)
    assert has.issued >= 3
    shown = [str(error.value), *capfd.readouterr()]
    assert not any("hush" in text for text in shown)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush-token" in path.read_bytes()]

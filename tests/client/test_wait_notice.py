"""A trainer that waits long says on stderr what it waits for."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pydp2
from pydp2.client import wait_notice
from pydp2.client.wait_notice import describe_wait, write_notice
from tests.interruptions import Injector, insistently, with_its_own_exception_state
from tests.provider_code import numbers

SLOW = """
    import time
    def on_init(settings, **kwargs):
        time.sleep(HOOK)
    @provider(input_types=[integer_value(1000)], init_hook=on_init, pool_size=POOL)
    def process(settings, filename):
        for i in range(40):
            time.sleep(PAUSE)
            yield i
"""
WORKER = {
    "active": True, "samples_per_second": 120_000.0, "worker": 0, "file": "b.txt", "sample": 7, "sample_seconds": 0.0,
}  # fmt: skip


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come after 0.2 s, and what is not known by then soon after."""
    monkeypatch.setenv("PYDP2_NOTICE_SECONDS", "0.2")
    monkeypatch.setattr(wait_notice, "_AGAIN_SECONDS", 0.1)


def slow(hook: float = 0.0, pause: float = 0.0, pool: int = -1) -> str:
    """Code of a provider that waits."""
    return SLOW.replace("HOOK", str(hook)).replace("PAUSE", str(pause)).replace("POOL", str(pool))


def figures(workers: int = 1, **changes: Any) -> dict[str, Any]:
    """Statistics of a service whose pool takes a whole pass."""
    fill = {"weight": None, "pool_bytes": 1 << 30, "waits_for_all": False, "is_full": False, "file": "a.txt"}
    pool = {"samples": 1_234_567, "bytes": 310_000_000}
    for name, value in changes.items():
        (fill if name in fill else pool)[name] = value
    return {"workers": [WORKER] * workers, "jobs": {"j": {"fill": fill, "pool": pool, "ranks_to_come": 2}}}


def lines_of(capsys: pytest.CaptureFixture[str], what: str = "first batch") -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pydp2:") and what in line]


def test_a_pool_that_takes_a_whole_pass_names_samples_rate_limits_and_remedy() -> None:
    assert describe_wait(figures(), "j", 128) == (
        "pool",
        "1,234,567 samples (310 MB) in the pool, 120,000/s; the pool fills until the pass ends or pool_bytes=1 GiB; "
        "pool_size=4096 in @provider, or a smaller pool_bytes, starts earlier",
    )


def test_the_pool_size_that_is_proposed_is_one_that_would_have_been_enough_by_now() -> None:
    assert "pool_size=512 in" in describe_wait(figures(samples=700), "j", 16)[1]
    assert "pool_size=128 in" in describe_wait(figures(samples=3), "j", 16)[1]


@pytest.mark.parametrize(
    ("changes", "cause", "text"),
    [
        ({"workers": 0}, "workers", "no worker is ready"),
        ({"samples": 0}, "samples", "no sample came yet of a.txt"),
        ({"weight": 100_000}, "pool", "needs 100,000, or pool_bytes=1 GiB; a smaller pool_size in @provider starts"),
        ({"weight": 128}, "pool", "the first batch needs 128, or pool_bytes=1 GiB"),
        ({"waits_for_all": True}, "pool", "the pool takes all samples of a cached pass, or pool_bytes=1 GiB"),
        ({"is_full": True}, "ranks", "2 trainers of the job did not connect yet"),
    ],
)
def test_each_cause_has_a_text_of_its_own(changes: dict[str, Any], cause: str, text: str) -> None:
    found = describe_wait(figures(**changes), "j", 128)
    assert found[0] == cause
    assert text in found[1]


def test_a_sample_that_takes_long_is_named_before_the_pool() -> None:
    workers = {"workers": [WORKER, WORKER | {"worker": 1, "sample_seconds": 9.2}]}
    assert describe_wait(figures() | workers, "j", 128) == (
        "sample",
        "worker 1 is at sample 7 of b.txt for 9 s; sample_timeout ends it",
    )
    assert describe_wait(figures(is_full=True) | workers, "j", 128)[0] == "ranks"


def test_a_pass_that_did_not_begin_is_named() -> None:
    assert describe_wait({"workers": [WORKER], "jobs": {}}, "j", 128)[0] == "pass"


@with_its_own_exception_state
def test_a_wait_that_an_exception_cuts_off_anywhere_begins_anew_with_all_its_patience() -> None:
    looks: list[float] = []

    def ask(seconds: float) -> dict[str, Any]:
        looks.append(seconds)
        return {}

    notice = wait_notice.WaitNotice(ask, "j", None, {"batch_size": 8})
    assert insistently(Injector((wait_notice.__file__,)), lambda: notice.patience(1, 0, 5.0), lambda: None) == 5.0
    assert looks == []


@pytest.mark.usefixtures("soon")
def test_the_line_comes_once_while_the_pool_fills(
    provider_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pydp2.load(["a", "b"], provider_file(slow(pause=0.02)), batch_size=8, workers=1) as data:
        for _ in range(2):
            next(iter(data))
    pool = [line for line in lines_of(capsys) if "in the pool" in line]
    assert len(pool) == 1
    assert "the pool fills until the pass ends or pool_bytes=1 GiB; pool_size=64 in @provider" in pool[0]


def test_nothing_is_written_where_the_first_batch_comes_at_once(
    provider_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pydp2.load(["a"], provider_file(slow(pool=16)), batch_size=8, workers=1) as data:
        assert sum(1 for _ in data) == 5
    assert lines_of(capsys, "waiting") == []


@pytest.mark.usefixtures("soon")
def test_import_and_hook_of_a_provider_are_named_while_the_service_starts(
    provider_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    provider_file("import time\ntime.sleep(1.5)", "slow_to_import")
    address = provider_file("import slow_to_import\n" + slow(hook=1.5).replace("\n    ", "\n"))
    pydp2.load(["a"], address, batch_size=8, workers=1).close()
    found = lines_of(capsys, "the service starts")
    assert "pydp2: the service starts: importing slow_to_import" in found
    assert "pydp2: the service starts: running the init_hook" in found


@pytest.mark.usefixtures("soon")
def test_only_the_first_of_the_ranks_that_wait_writes_the_line(
    provider_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pydp2.launch(["a", "b"], provider_file(slow(pause=0.02)), workers=1) as service:
        ranks = [service.connect(batch_size=8, rank=rank, world_size=2) for rank in range(2)]
        readers = [threading.Thread(target=lambda data=data: next(iter(data))) for data in ranks]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        for data in ranks:
            data.close()
    assert len([line for line in lines_of(capsys) if "in the pool" in line]) == 1


def test_a_bar_of_tqdm_keeps_its_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    write_notice("waiting")
    assert capsys.readouterr().err == "\npydp2: waiting\n"


@pytest.mark.usefixtures("soon")
def test_a_closed_stderr_is_no_error(
    provider_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    held = numbers(40, before=f"while i == 20 and not os.path.exists({str(said)!r}): time.sleep(0.01)")

    def noted(text: str, *, job: str = "") -> None:
        write_notice(text, job=job)
        if "in the pool" in text:
            said.touch()

    monkeypatch.setattr(wait_notice, "write_notice", noted)
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        with pydp2.load(["a"], provider_file(held), batch_size=8, workers=1) as data:
            monkeypatch.setattr(sys, "stderr", stream)
            next(iter(data))
        said.unlink()

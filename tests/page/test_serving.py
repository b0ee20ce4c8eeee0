"""The page over HTTP: what it shows of a real service, and whom it keeps out."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import pydp2
from pydp2.errors import OptionError, ServiceUnreachable
from tests.raw_requests import RAW_REQUESTS
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS

pytest.importorskip("uvicorn")


class Asked:
    """Answer to a request."""

    def __init__(self, url: str, path: str = "", method: str = "GET", **headers: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path or f"/?{parts.query}", headers=given)
            answer = connection.getresponse()
            self.status, self.body = answer.status, answer.read().decode()
            self.headers = dict(answer.getheaders())
        finally:
            connection.close()


@pytest.fixture
def service(provider_file: Callable[[str], str], tmp_path: Path) -> Iterator[pydp2.Service]:
    files = [str(n) for n in range(40)]
    with pydp2.launch(
        files, provider_file(NUMBERS), workers=1, page="127.0.0.1:0", state_dir=tmp_path / "state"
    ) as running:
        yield running


def url(service: pydp2.Service) -> str:
    assert service.page_url is not None
    return service.page_url


def snapshot(service: pydp2.Service, more: str = "") -> dict[str, Any]:
    (token,) = parse_qs(urlsplit(url(service)).query)["token"]
    answer = Asked(url(service), f"/snapshot.json?token={token}{more}")
    assert answer.status == 200
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_the_page_says_who_waits_without_its_script(service: pydp2.Service) -> None:
    assert wait_until(lambda: "No trainer is attached." in Asked(url(service)).body)
    with service.connect(**OPTIONS) as data:
        stream = iter(data)
        for _ in range(6):
            next(stream)
            time.sleep(0.1)
        assert wait_until(lambda: '<h2 id="headline" aria-live="polite">T' in Asked(url(service)).body)


def test_the_page_says_without_its_script_since_when_the_service_does_not_answer(service: pydp2.Service) -> None:
    state = re.compile(r'<p id="state" role="status" class="(.*)">(.*)</p>')

    def shown() -> tuple[str | Any, ...]:
        found = state.search(Asked(url(service)).body)
        assert found is not None
        return found.groups()

    assert wait_until(lambda: "No trainer is attached." in Asked(url(service)).body)
    assert shown() == ("", "as of the time when this page was loaded")
    service._process.kill()
    assert wait_until(lambda: shown()[0] == "bad")
    assert re.fullmatch(r"the service does not answer, last seen \d+ s ago", shown()[1])


def test_a_snapshot_has_jobs_ranks_workers_and_points(service: pydp2.Service) -> None:
    with service.connect(job="train", **OPTIONS) as data:
        for _ in data:
            time.sleep(0.02)
        assert wait_until(lambda: all((snapshot(service)["view"] or {}).get(name) for name in ("jobs", "workers")))
        assert wait_until(lambda: bool(snapshot(service)["view"]["jobs"][0]["ranks"]))
        found = snapshot(service)
        (job,) = found["view"]["jobs"]
        assert job["name"] == "train"
        assert [rank["connected"] for rank in job["ranks"]] == [True]
        active = [worker["pid"] for worker in service.stats()["workers"] if worker["active"]]  # which was ready first
        assert [worker["pid"] for worker in found["view"]["workers"]] == active
        assert found["points"]
        assert "whole" not in found
        last = found["points"][-1]["time"]
        assert wait_until(lambda: any(point["time"] > last for point in snapshot(service, f"&after={last}")["points"]))
        assert snapshot(service, f"&after={last}&whole")["whole"][0]["time"] < last


WAITS = """
import os, time

def remember(settings, go, **_):
    settings.go = go

@provider(input_types=[integer_value(1000)], should_shuffle=False, init_hook=remember)
def process(settings, filename):
    while filename == "c" and not os.path.exists(settings.go):
        time.sleep(0.01)
    for i in range(40):
        yield i
"""


def test_what_is_left_of_a_pass_is_estimated_from_the_files_that_are_counted(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with (
        ThreadPoolExecutor(1) as trainer,
        pydp2.launch(
            ["a", "b", "c", "d"], provider_file(WAITS), workers=1, page="127.0.0.1:0", args={"go": str(go)}
        ) as service,
        service.connect(batch_size=20) as data,
    ):
        read = trainer.submit(lambda: len([*data]))  # it waits for the fifth batch, so the first four are used

        def job() -> dict[str, Any]:
            view = snapshot(service)["view"]
            found: dict[str, Any] = view["jobs"][0] if view and view["jobs"] else {"share": None}
            return found

        assert wait_until(lambda: job()["share"] == 0.5)
        assert job()["is_estimate"]
        go.touch()
        assert read.result(timeout=60) == 8
        assert wait_until(lambda: job()["share"] == 1.0)
        assert not job()["is_estimate"]


def test_a_pass_that_a_state_resumes_is_where_it_was(service: pydp2.Service) -> None:
    with service.connect(**OPTIONS) as data:
        whole = len([*data])  # the files are counted now
        stream = iter(data)
        for _ in range(whole - 2):
            next(stream)
        state = data.state_dict()
    with service.connect(job="again", prefetch=1, **OPTIONS) as data:
        data.load_state_dict(state)
        next(iter(data))

        def progress() -> dict[str, Any]:
            found = [job for job in snapshot(service)["view"]["jobs"] if job["name"] == "again"]
            return found[0] if found else {"batch": 0}

        assert wait_until(lambda: progress()["batch"] >= whole - 1)
        assert progress()["share"] > (whole - 2) / whole
        assert not progress()["is_estimate"]


def test_what_was_sent_ahead_of_a_trainer_is_neither_progress_nor_a_rate(service: pydp2.Service) -> None:
    with service.connect(**OPTIONS | {"batch_size": 2}) as data:
        stream = iter(data)
        next(stream)
        next(stream)

        def job() -> dict[str, Any]:
            found: dict[str, Any] = service.stats()["jobs"]["default"]
            return found

        assert wait_until(lambda: job()["ranks"][0]["batches_ahead"] > 30)
        found = job()
        assert found["batches"] > 30
        assert found["progress"]["batch"] <= 1
        assert found["batches_per_second"] <= 1
        assert found["samples_per_second"] <= 2


def test_only_those_with_the_token_see_the_service(service: pydp2.Service) -> None:
    for path in ("/", "/?token=", "/?token=x", "/snapshot.json", "/snapshot.json?token=%00"):
        assert Asked(url(service), path).status == 403
    for path in ("/page.js", "/page.css", "/icon.svg", "/healthz"):
        assert Asked(url(service), path).status == 200
    for path in ("/page.html", "/app.py", "/..%2fapp.py", "/../app.py", "//etc/passwd"):
        assert Asked(url(service), path).status == 404


@pytest.mark.parametrize("host", ["evil.com", "localhost.evil.com", "[::2]", "10.0.0.7", ""])
def test_a_page_that_leads_here_by_another_name_sees_nothing(service: pydp2.Service, host: str) -> None:
    for path in ("", "/page.js", "/healthz"):
        assert Asked(url(service), path, Host=host).status in (400, 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(service: pydp2.Service, method: str) -> None:
    assert Asked(url(service), method=method).status == 405


def test_requests_of_other_pages_are_refused(service: pydp2.Service) -> None:
    assert Asked(url(service), Origin="http://evil.com").status == 403
    assert Asked(url(service), Sec_Fetch_Site="cross-site").status == 403
    assert Asked(url(service), Sec_Fetch_Site="same-origin").status == 200


def test_the_browser_is_told_to_load_nothing_else(service: pydp2.Service) -> None:
    headers = {name.lower(): value for name, value in Asked(url(service)).headers.items()}
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers
    for name in ("/page.js", "/page.css", "/icon.svg", ""):
        assert "http://" not in Asked(url(service), name).body.replace("http://www.w3.org/2000/svg", "")


def connected(service: pydp2.Service) -> socket.socket:
    parts = urlsplit(url(service))
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)


def test_a_header_of_a_megabyte_ends_the_connection(service: pydp2.Service) -> None:
    with connected(service) as peer:
        try:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20))
            answer = peer.recv(1000)
        except OSError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert Asked(url(service)).status == 200


@pytest.mark.parametrize(("request_text", "status"), RAW_REQUESTS)
def test_a_request_is_answered_by_the_rules(service: pydp2.Service, request_text: bytes, status: int) -> None:
    with connected(service) as peer:
        peer.sendall(request_text.replace(b"{}", f"/?{urlsplit(url(service)).query}".encode()))
        answer = peer.recv(1000).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "server:" not in answer.lower()


def test_a_thousand_slow_readers_keep_nobody_out(service: pydp2.Service) -> None:
    peers = [connected(service) for _ in range(1000)]
    try:
        for peer in peers[::2]:
            peer.send(b"GET / HTTP/1.1\r\nHost: lo")
        assert Asked(url(service)).status == 200
        assert not snapshot(service)["error"]
        assert service.stats()["uptime_seconds"] > 0
    finally:
        for peer in peers:
            peer.close()


def test_many_readers_cost_the_service_one_look_a_second(service: pydp2.Service) -> None:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            snapshot(service)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    began, before = time.monotonic(), processor_seconds(service.pid)
    time.sleep(2.0)
    seconds, used = time.monotonic() - began, processor_seconds(service.pid) - before
    stop.set()
    for thread in threads:
        thread.join()
    assert used < 0.15 * seconds  # one look takes a hundredth of it


def processor_seconds(pid: int) -> float:
    """How long a process had a core: less than it was busy, where others had them."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_what_was_seen_outlives_the_service(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": 1, "page": "127.0.0.1:0", "state_dir": tmp_path / "state"}
    provider = provider_file(NUMBERS)
    with pydp2.launch(["1"], provider, **options) as service:
        assert wait_until(lambda: len(snapshot(service)["points"]) >= 2)
        times = [point["time"] for point in snapshot(service)["points"]]
    with pydp2.launch(["1"], provider, **options) as service:
        assert wait_until(lambda: len(snapshot(service)["points"]) > len(times))
        assert [point["time"] for point in snapshot(service)["points"]][: len(times)] == times


def test_the_page_ends_with_its_service(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1, page="127.0.0.1:0") as service:
        parts = urlsplit(url(service))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=2).close()


def test_an_address_that_is_taken_is_an_error_and_nothing_stays(provider_file: Callable[[str], str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceUnreachable, match=rf"cannot bind page=127\.0\.0\.1:{port}"):
            pydp2.launch(["1"], provider_file(NUMBERS), workers=1, page=f"127.0.0.1:{port}")
    with pytest.raises(OptionError, match="page must be HOST:PORT"):
        pydp2.launch(["1"], provider_file(NUMBERS), workers=1, page="everywhere")

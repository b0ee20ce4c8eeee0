"""The statistics of a service over HTTP, as Prometheus and Kubernetes ask for them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.server import metrics_endpoint
from pydp2.server.metrics_endpoint import MetricsEndpoint
from tests.raw_requests import RAW_REQUESTS
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS

parser = pytest.importorskip("prometheus_client.parser")


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_prometheus_finds_what_the_statistics_say(provider_file: Callable[[str], str]) -> None:
    files = [str(n) for n in range(4)]
    with pydp2.launch(files, provider_file(NUMBERS), workers=1, metrics="127.0.0.1:0") as service:
        address = service.stats()["metrics"]
        assert get(address, "/healthz") == (200, "ok\n")
        assert wait_until(lambda: get(address, "/readyz")[0] == 200)
        with service.connect(**OPTIONS) as data:
            count = sum(batch.size for batch in data)

            def found() -> dict[tuple[str, str], float]:
                status, text = get(address, "/metrics")
                assert status == 200
                families = parser.text_string_to_metric_families(text)
                return {
                    (sample.name, ",".join(sample.labels.values())): sample.value
                    for family in families
                    for sample in family.samples
                }

            assert wait_until(lambda: found().get(("pydp2_samples_total", "default")) == count)
            seen = found()
            assert seen["pydp2_batches_total", "default"] == service.stats()["jobs"]["default"]["batches"]
            assert seen["pydp2_workers", ""] == seen["pydp2_workers_wanted", ""] == 1
            assert seen["pydp2_workers_lost_total", ""] == 0
            assert seen["pydp2_pass_progress_ratio", "default"] == 1.0
            assert seen["pydp2_files_ended_early", "default"] == 0
            assert seen["pydp2_memory_bytes", ""] > 1e6
            assert ("pydp2_worker_busy_seconds_total", "0,0") in seen
            assert wait_until(lambda: len(service.stats()["workers"]) == 2), "the spare worker is there"
            published = service.stats()["uptime_seconds"]
            assert wait_until(lambda: found()["pydp2_uptime_seconds", ""] > published)
            assert [labels for name, labels in found() if name == "pydp2_worker_files"] == ["0,0"]
            assert ("pydp2_trainer_waited_seconds_total", "default") in seen
        assert get(address, "/elsewhere")[0] == 404
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5)


DEPLOY = Path(__file__).resolve().parents[2] / "docs/deploy"
NAME = re.compile(r"\bpydp2_\w+")


def test_dashboard_and_alerts_name_metrics_that_there_are(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service,
        service.connect(**OPTIONS) as data,
    ):
        next(iter(data))
        stats = service.stats()
    remote = dict.fromkeys((*metrics_endpoint._REMOTE, "memory", "waiting_seconds"), 0) | {"waits_for": "s3://b"}
    known = {
        f"{name}_total" if kind == "counter" else name
        for kind, name, _, _, _ in metrics_endpoint._metrics(stats | {"remote": remote})
    }
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    shown = {
        name for panel in dashboard["panels"] for target in panel["targets"] for name in NAME.findall(target["expr"])
    }
    alerts = re.findall(r"expr: (.*)", (DEPLOY / "prometheus-alerts.yml").read_text())
    watched = {name for alert in alerts for name in NAME.findall(alert)}
    assert len(alerts) == 3
    assert len(shown) > 8
    assert shown | watched <= known


def test_a_loop_that_stands_still_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0")
    try:
        assert endpoint.answer("/healthz")[0] == 200
        assert endpoint.answer("/readyz")[0] == 503
        assert get(endpoint.address, "/metrics") == (200, ""), "nothing was published yet"
        monkeypatch.setattr(metrics_endpoint, "_STALE_SECONDS", 0.0)
        assert endpoint.answer("/healthz")[0] == 503
    finally:
        endpoint.close()


@pytest.mark.parametrize(("request_text", "status"), RAW_REQUESTS)
def test_a_request_is_answered_by_the_rules_of_the_page(request_text: bytes, status: int) -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0")
    host, _, port = endpoint.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5) as peer:
            peer.sendall(request_text.replace(b"{}", b"/metrics"))
            answer = peer.recv(1000).decode()
    finally:
        endpoint.close()
    assert answer.startswith(f"HTTP/1.0 {status} ")
    assert "text/plain" in answer
    assert "server:" not in answer.lower()


def test_megabytes_of_headers_are_not_read() -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0")
    host, _, port = endpoint.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5) as peer, pytest.raises(ConnectionError):
            peer.sendall(b"GET /metrics HTTP/1.1\r\n" + (b"X: " + b"x" * 60_000 + b"\r\n") * 1000)
        assert get(endpoint.address, "/healthz")[0] == 200
    finally:
        endpoint.close()


def test_a_peer_that_sends_no_request_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "_REQUEST_SECONDS", 60.0)
    endpoint = MetricsEndpoint("127.0.0.1:0")
    host, _, port = endpoint.address.rpartition(":")
    try:
        silent = [socket.create_connection((host, int(port)), 5) for _ in range(20)]
        assert get(endpoint.address, "/healthz")[0] == 200
        began = time.monotonic()
        endpoint.close()
        assert time.monotonic() - began < 20
        for each in silent:
            each.close()
    finally:
        endpoint.close()


def test_strangers_take_few_descriptors_and_each_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "_REQUEST_SECONDS", 60.0)
    endpoint = MetricsEndpoint("127.0.0.1:0")
    host, _, port = endpoint.address.rpartition(":")
    before = descriptors()
    strangers = [socket.create_connection((host, int(port)), 5) for _ in range(60)]
    for each in strangers:
        each.setblocking(False)
    try:
        assert wait_until(lambda: sum(map(is_closed, strangers)) == 60 - 16)
        assert wait_until(lambda: len(endpoint._server._began) == 16)
        assert descriptors() - before - len(strangers) <= 16 + 2
        assert get(endpoint.address, "/healthz")[0] == 200
        monkeypatch.setattr(metrics_endpoint, "_REQUEST_SECONDS", 1.0)
        dripping = [each for each in strangers if not is_closed(each)]
        deadline = time.monotonic() + 30
        while dripping and time.monotonic() < deadline:  # each sends a byte in time, and no request
            for each in dripping:
                with contextlib.suppress(OSError):
                    each.send(b"G")
            time.sleep(0.1)
            dripping = [each for each in dripping if not is_closed(each)]
        assert not dripping
        assert wait_until(lambda: not endpoint._server._began)
    finally:
        for each in strangers:
            each.close()
        endpoint.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_closed(peer: socket.socket) -> bool:
    """Whether the other end has ended the connection."""
    try:
        return not peer.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_it_listens_on_an_address_of_version_six() -> None:
    endpoint = MetricsEndpoint("[::1]:0")
    try:
        assert get(endpoint.address, "/healthz")[0] == 200
    finally:
        endpoint.close()


def test_an_address_that_is_taken_is_said_at_the_start(provider_file: Callable[[str], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServiceUnreachable, match=f"cannot bind metrics={address}: {os.strerror(errno.EADDRINUSE)}"):
            pydp2.launch(["1"], provider_file(NUMBERS), workers=1, metrics=address)


@pytest.mark.parametrize("value", ["9100", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":9100", "a b:1"])
def test_what_is_no_address_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="metrics must be HOST:PORT"):
        pydp2.launch(["1"], "p.process", metrics=value)


def test_without_the_library_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(OptionError, match=r"pip install 'prometheus-client>="):
        MetricsEndpoint("127.0.0.1:0")

"""Export the statistics of a service over HTTP: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for programs
that start and end services (docs/watching.md).

A thread answers requests with the statistics that the loop published last. It touches nothing of the loop, so a request
cannot delay a batch. The library is an extra, imported when an endpoint is made.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.system.http_guard import HEADER_BYTES, TOO_LARGE, machine_names, refusal

_REQUEST_SECONDS = 5.0  # seconds that a peer has to send its request and to read the answer
_MOST_REQUESTS = 16  # connections at a time; trainers and workers need the other descriptors
_STALE_SECONDS = 10.0  # seconds without published statistics after which the loop counts as hanging
_POLL_SECONDS = 0.2

# name, help text, key in the statistics of a job
_JOB_COUNTERS = (
    ("pydp2_samples", "samples delivered", "samples"),
    ("pydp2_batches", "batches delivered", "batches"),
)
_JOB_GAUGES = (
    ("pydp2_samples_per_second", "samples that trainers use a second", "samples_per_second"),
    ("pydp2_pass", "number of the pass", "pass"),
    ("pydp2_dropped_samples", "bad samples dropped in this pass or the one before", "dropped"),
    ("pydp2_files_ended_early", "files of this pass or the one before whose rest was left out", "ended_early"),
)
_WORKER_COUNTERS = (
    ("pydp2_worker_busy_seconds", "seconds that a worker spent on samples", "busy_seconds"),
    ("pydp2_worker_idle_seconds", "seconds that a worker had nothing to do", "idle_seconds"),
)
_WORKER_GAUGES = (
    ("pydp2_worker_samples_per_second", "samples that a worker sends a second", "samples_per_second"),
    ("pydp2_worker_files", "files that a worker has", "files"),
    ("pydp2_worker_memory_bytes", "memory of a worker of this machine", "memory"),
)
_RANK_GAUGES = (
    ("pydp2_rank_exposed_ratio", "share of its last steps that a rank waited for batches", "exposed"),
    ("pydp2_rank_exposed_p50_ratio", "median of that share over the steps", "exposed_p50"),
    ("pydp2_rank_exposed_p99_ratio", "99th percentile of that share over the steps", "exposed_p99"),
    ("pydp2_rank_step_seconds", "seconds of a step of a rank, waiting included", "step_seconds"),
    ("pydp2_rank_waiting_seconds", "seconds that a rank has been waiting, 0 if it does not wait", "waiting_seconds"),
    ("pydp2_rank_connected", "1 if a process is connected as the rank", "connected"),
    ("pydp2_rank_batches_ahead", "batches that a rank has and has not begun", "batches_ahead"),
    ("pydp2_rank_silent_seconds", "seconds since a rank was heard", "silent_seconds"),
)
_HOST_GAUGES = (
    ("pydp2_host_workers", "workers that a host has room for", "places"),
    ("pydp2_host_silent_seconds", "seconds since a host was heard", "silent_seconds"),
    ("pydp2_host_waiting_bytes", "bytes that wait on a host to be sent", "waiting_bytes"),
    ("pydp2_host_rows", "rows that stay on a host until trainers have them", "rows_kept"),
    ("pydp2_host_memory_bytes", "memory of the workers of a host", "memory"),
)


class MetricsEndpoint:
    """HTTP server at ``address``, a text HOST:PORT (port 0: any). Raises OptionError if the extra ``metrics`` is not
    installed, ServiceUnreachable if the address cannot be bound."""

    def __init__(self, address: str) -> None:
        require_prometheus()
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)  # as a collector: it calls collect()
        self._latest: Callable[[], bytes] = lambda: generate_latest(registry)
        self._published: tuple[float, Mapping[str, Any], bool] = (time.monotonic(), {}, False)
        host, _, port = address.rpartition(":")
        endpoint, names = self, machine_names(host)

        class _Request(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS
            command, request_version = "", "HTTP/1.0"  # of a request that cannot be parsed
            default_request_version = "HTTP/1.0"

            def handle_one_request(self) -> None:
                """Answer a request, whatever its method is."""
                self.close_connection = True
                with self.rfile as lines:
                    head = _head(lines)
                self.rfile = io.BytesIO(head)
                self.raw_requestline = self.rfile.readline()
                if len(head) > HEADER_BYTES:
                    self._write(TOO_LARGE.status, TOO_LARGE.text.encode())
                elif self.parse_request():
                    headers = [(name.lower(), value) for name, value in self.headers.items()]
                    refused = refusal(self.command, self.path, headers, names, host)
                    self._write(*(endpoint.answer(self.path) if refused is None else (refused[0], refused[1].encode())))

            def _write(self, status: int, text: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
                """Answer a request that cannot be parsed."""
                self._write(code, f"{HTTPStatus(code).phrase}\n".encode())

            def log_message(self, *args: Any) -> None:
                """Log no requests."""

        try:
            self._server = _HttpServer((host.strip("[]"), int(port)), _Request)
        except OSError as error:
            raise ServiceUnreachable(
                f"cannot bind metrics={address}: {error.strerror or error}; choose an address that is free"
            ) from None
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="pydp2-metrics", daemon=True
        )
        self._thread.start()

    def publish(self, stats: Mapping[str, Any], *, ready: bool) -> None:
        """Answer requests with ``stats``, the statistics of the service, from now on. ``ready``: a trainer would get
        batches."""
        self._published = (time.monotonic(), stats, ready)

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and text of the answer to a request for ``path``."""
        when, _, ready = self._published
        match path.partition("?")[0]:
            case "/metrics":
                return 200, self._latest()
            case "/healthz":
                silent = time.monotonic() - when
                return (200, b"ok\n") if silent < _STALE_SECONDS else (503, b"the service does not respond\n")
            case "/readyz":
                return (200, b"ok\n") if ready else (503, b"no worker is ready\n")
        return 404, b"there are /metrics, /healthz and /readyz\n"

    def collect(self) -> Iterator[Any]:
        """Return the metrics, as a collector of prometheus_client does."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        _, stats, _ = self._published
        if not stats:
            return
        families: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for kind, name, text, labels, values in _metrics(stats):
            family: Any = families[kind](name, text, labels=labels)
            for labelled, value in values:
                family.add_metric(labelled, value)
            yield family

    def close(self) -> None:
        """End the thread."""
        self._server.shutdown()
        self._thread.join(_REQUEST_SECONDS)
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    """Server that limits the number of connections and the time of each, so that strangers who reach the port cannot
    use up descriptors."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._began: dict[socket.socket, float] = {}  # open connections, and when they were opened
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in [*self._began][: max(0, len(self._began) + 1 - _MOST_REQUESTS)]:
            _end(oldest)  # not the new one: a request of Kubernetes must not fail because strangers hold the port
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._began.pop(request, None)

    def service_actions(self) -> None:
        """End connections that are open for too long, however often they send a byte."""
        limit = time.monotonic() - _REQUEST_SECONDS
        for request in [request for request, began in [*self._began.items()] if began < limit]:
            _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: that a peer disconnects in the middle of its request is no error of this service."""


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just ended by itself
        request.shutdown(socket.SHUT_RDWR)


def _head(lines: io.BufferedIOBase) -> bytes:
    """Return the lines of a request up to an empty one; of what is too large, a byte more than it may have."""
    head = b""
    while line := lines.readline(HEADER_BYTES + 1 - len(head)):
        head += line
        if line in (b"\r\n", b"\n"):
            break
    return head


_Metric = tuple[str, str, str, list[str], list[tuple[list[str], float]]]


def _metrics(stats: Mapping[str, Any]) -> Iterator[_Metric]:
    """Yield each metric: kind, name, help text, names of its labels, and pairs of label values and number."""
    jobs = stats["jobs"]
    of_jobs = [([name], job) for name, job in jobs.items()]
    active = [worker for worker in stats["workers"] if worker["active"]]  # not the spare one
    workers = [([str(worker["worker"]), str(worker["host"])], worker) for worker in active]
    hosts = [([str(host["host"])], host) for host in stats["hosts"]]
    for kind, rows, labels, named in (
        ("counter", _JOB_COUNTERS, ["job"], of_jobs),
        ("gauge", _JOB_GAUGES, ["job"], of_jobs),
        ("counter", _WORKER_COUNTERS, ["worker", "host"], workers),
        ("gauge", _WORKER_GAUGES, ["worker", "host"], workers),
        ("gauge", _HOST_GAUGES, ["host"], hosts),
    ):
        for name, text, key in rows:
            yield kind, name, text, labels, [(label, float(figures.get(key, 0))) for label, figures in named]
    shares = [([name], job["progress"]["share"]) for name, job in jobs.items()]
    known = [(label, float(share)) for label, share in shares if share is not None]
    yield (
        "gauge",
        "pydp2_pass_progress_ratio",
        "share of the pass that trainers have used, if known",
        ["job"],
        known,
    )
    for what in ("waited", "worked"):
        yield (
            "counter",
            f"pydp2_trainer_{what}_seconds",
            f"seconds that trainers {what}",
            ["job"],
            [([name], job["trainer"][f"{what}_seconds"]) for name, job in jobs.items()],
        )
    ranks = [([name, rank["name"]], rank) for name, job in jobs.items() for rank in job["ranks"]]
    for name, text, key in _RANK_GAUGES:
        yield "gauge", name, text, ["job", "rank"], [(labels, float(rank[key])) for labels, rank in ranks]
    for what in ("samples", "bytes"):
        yield (
            "gauge",
            f"pydp2_pool_{what}",
            f"{what} in the pool",
            ["job"],
            [([name], float(job["pool"].get(what, 0))) for name, job in jobs.items()],
        )
    for what in ("budget", "used"):
        text = f"bytes of read-ahead credit, {what}"
        yield "gauge", f"pydp2_read_ahead_{what}_bytes", text, [], [([], float(stats["read_ahead"][what]))]
    scaling = stats["scaling"]
    yield "gauge", "pydp2_workers", "workers that there are to be", [], [([], float(scaling["workers"]))]
    yield "gauge", "pydp2_workers_wanted", "workers that there should be", [], [([], float(scaling["wanted"]))]
    refused: Counter[tuple[str, str]] = Counter()
    for peer in stats["refused"]:
        refused[peer["port"], peer["reason"]] += peer["count"]
    yield (
        "counter",
        "pydp2_refused_peers",
        "peers that were not let in, or sent away",
        ["port", "reason"],
        [([*labels], float(count)) for labels, count in refused.items()],
    )
    if (remote := stats["remote"]) is not None:
        for name, what in _REMOTE.items():
            yield "counter", f"pydp2_remote_{name}", what, [], [([], float(remote[name]))]
        yield (
            "gauge",
            "pydp2_remote_memory_bytes",
            "memory of the process that fetches remote files",
            [],
            [([], float(remote["memory"]))],
        )
        waiting, labels = float(remote["waiting_seconds"]), [remote["waits_for"]]
        yield (
            "gauge",
            "pydp2_remote_waiting_seconds",
            "how long a store has not answered",
            ["store"],
            [(labels, waiting)],
        )
    yield "counter", "pydp2_workers_lost", "workers that died", [], [([], float(stats["workers_lost"]))]
    yield "gauge", "pydp2_memory_bytes", "memory of the server process", [], [([], float(stats["memory"]))]
    yield "gauge", "pydp2_uptime_seconds", "seconds since the start", [], [([], float(stats["uptime_seconds"]))]


_REMOTE = {
    "requests": "requests to the stores of remote files",
    "bytes": "bytes of remote files that came from their stores",
    "hits": "blocks of remote files that were on the disk when they were needed",
    "retries": "requests that were made again",
}


def require_prometheus() -> None:
    """Raise OptionError if prometheus_client is not installed."""
    with contextlib.suppress(ImportError):
        import prometheus_client  # noqa: F401

        return
    raise OptionError("metrics needs prometheus-client, which is not installed; pip install 'prometheus-client>=0.20'")

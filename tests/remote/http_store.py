"""A web server with ranges and ETags on loopback, which fails as it is told to."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Fault = Callable[["Handler", bytes], bool]
"""A function that answers a request for a body in place of the server, and returns True; or returns False."""


@dataclass
class HttpStore:
    """What the server has, and what was asked of it. ``faults``: the answers of the next requests for a body."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    ranges: bool = True
    delay: float = 0.0
    address: str = ""
    log: list[tuple[str, str, str]] = field(default_factory=list)
    changed: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def counts(self) -> Counter[str]:
        """Requests by method."""
        return Counter(method for method, _, _ in self.log)

    def sent(self) -> int:
        """Bytes of bodies that were asked for."""
        total = 0
        for method, name, wanted in self.log:
            size = len(self.files.get(name, b""))
            if method == "GET" and name in self.files:
                start, stop = parsed(wanted, size) if wanted else (0, size)
                total += max(0, stop - start)
        return total


def parsed(wanted: str, size: int) -> tuple[int, int]:
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1, size)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: HttpStore

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        store, name = self.store, self.path.partition("?")[0].lstrip("/")
        wanted = self.headers.get("Range", "") if store.ranges else ""
        store.log.append((self.command, name, wanted))
        time.sleep(store.delay)
        body = store.files.get(name)
        fault = store.faults.pop(0) if store.faults and has_body else store.always
        if fault is not None and fault(self, body or b""):
            return
        if body is None:
            self.refuse(404)
            return
        tag = etag(body)
        if (match := self.headers.get("If-Match")) is not None and match != tag:
            self.refuse(412)
            return
        start, stop = parsed(wanted, len(body)) if wanted else (0, len(body))
        if wanted and start >= len(body):
            self.refuse(416)
            return
        self.begin(len(body), start, stop, tag, partial=bool(wanted))
        if has_body:
            self.wfile.write(body[start:stop])

    def begin(self, size: int, start: int, stop: int, tag: str, *, partial: bool) -> None:
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()

    def refuse(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reset(self) -> None:
        """Reset the connection."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def status(number: int, **headers: str) -> Fault:
    """An answer without a body."""

    def answer(handler: Handler, body: bytes) -> bool:
        handler.refuse(number, **headers)
        return True

    return answer


def cut(handler: Handler, body: bytes) -> bool:
    """The body ends in the middle, in order."""
    wanted = handler.headers.get("Range", "")
    start, stop = parsed(wanted, len(body)) if wanted else (0, len(body))
    handler.begin(len(body), start, stop, etag(body), partial=bool(wanted))
    handler.wfile.write(body[start : (start + stop) // 2])
    handler.close_connection = True
    return True


def reset(handler: Handler, body: bytes) -> bool:
    """The connection breaks in the middle of the body."""
    cut(handler, body)
    handler.reset()
    return True


def other_body(handler: Handler, body: bytes) -> bool:
    """The answer is of another file."""
    wanted = handler.headers.get("Range", "")
    start, stop = parsed(wanted, len(body)) if wanted else (0, len(body))
    handler.begin(len(body), start, stop, '"another"', partial=bool(wanted))
    handler.wfile.write(bytes(stop - start))
    return True


def slow(handler: Handler, body: bytes) -> bool:
    """The body comes in small pieces."""
    wanted = handler.headers.get("Range", "")
    start, stop = parsed(wanted, len(body)) if wanted else (0, len(body))
    handler.begin(len(body), start, stop, etag(body), partial=bool(wanted))
    for at in range(start, stop, 1 << 17):
        handler.wfile.write(body[at : min(at + (1 << 17), stop)])
        handler.wfile.flush()
        time.sleep(0.005)
    return True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def http_store() -> Iterator[HttpStore]:
    """A store that runs in the block."""
    store = HttpStore()
    handler = type("_Handler", (Handler,), {"store": store})
    with _Server(("127.0.0.1", 0), handler) as server:
        store.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()

"""Run the page: a thread that looks at the service, and an HTTP server in the thread of the caller."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydp2.diagnostics.live import Stats
from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.page.watch import LookAtSamples, Watch
from pydp2.system.http_guard import HEADER_BYTES, machine_names

_MOST_CONNECTIONS = 64
_REQUEST_SECONDS = 5.0  # that a browser has for its request, and that a connection may be idle
_ANSWER_SECONDS = 20.0  # that it has to read an answer
_END_SECONDS = 2
_BACKLOG = 128


def require_page() -> None:
    """Raise OptionError unless the packages of the page are installed."""
    try:
        import starlette
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OptionError(
            f"the page needs packages that cannot be imported ({error}): pip install 'starlette>=0.37' 'uvicorn>=0.29'"
        ) from None
    del starlette


class PageServer:
    """HTTP server of a page, bound to ``address`` (HOST:PORT, port 0: any free one). ``url``: with its token.

    Raises OptionError if its packages are not installed, ServiceUnreachable if the address cannot be bound."""

    def __init__(self, address: str) -> None:
        require_page()
        host, _, port = address.rpartition(":")
        self._host, name = host, host.strip("[]")
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        self._listener = socket.socket(family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((name, int(port)))
            self._listener.listen(_BACKLOG)  # a browser may come before the server runs
        except OSError as error:
            self._listener.close()
            raise ServiceUnreachable(
                f"cannot bind page={address}: {error.strerror or error}; choose an address that is free"
            ) from None
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._token = secrets.token_urlsafe(24)
        self.url = f"http://{self.address}/?token={self._token}"

    def run(
        self,
        look: Callable[[], Stats],
        file: Path | None,
        patience: float,
        stop: threading.Event,
        look_at_samples: LookAtSamples | None = None,
    ) -> None:
        """Serve until ``stop`` is set, or the service that ``look`` asks is gone for ``patience`` seconds. The other
        arguments are those of :class:`pydp2.page.watch.Watch`."""
        import uvicorn

        from pydp2.page.app import make_app

        watch = Watch(look, file, patience, look_at_samples)
        app = make_app(watch, self._token, machine_names(self._host), self._host)
        config = uvicorn.Config(
            app, http=_protocol(), ws="none", lifespan="off", log_level="critical", access_log=False,
            server_header=False, date_header=False, timeout_keep_alive=int(_REQUEST_SECONDS),
            h11_max_incomplete_event_size=HEADER_BYTES, timeout_graceful_shutdown=_END_SECONDS,
        )  # fmt: skip
        server = uvicorn.Server(config)
        waiter = threading.Thread(target=_await_end, args=(server, watch, stop), daemon=True)
        waiter.start()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[self._listener])
        finally:
            stop.set()
            watch.close()
            waiter.join()
            self._listener.close()


def _await_end(server: Any, watch: Watch, stop: threading.Event) -> None:
    while not stop.wait(0.2) and not watch.ended.is_set():
        pass
    server.should_exit = True


def _protocol() -> type[Any]:
    """Return a protocol that ends connections which take too long, and the oldest one if there are too many: strangers
    who reach the port cannot keep others out."""
    import asyncio

    from uvicorn.protocols.http.h11_impl import H11Protocol

    open_connections: dict[Any, None] = {}

    class _Protocol(H11Protocol):  # type: ignore[misc]  # it has no types where uvicorn is not installed
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(_REQUEST_SECONDS, transport.abort)
            open_connections[self] = None
            while len(open_connections) > _MOST_CONNECTIONS:
                oldest = next(iter(open_connections))
                del open_connections[oldest]
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                # a whole request came: it has a while to read the answer
                self._deadline.cancel()
                self._deadline = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self.transport.abort)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._deadline.cancel()
            if not self.transport.is_closing():
                self._deadline = asyncio.get_running_loop().call_later(_REQUEST_SECONDS, self.transport.abort)

        def connection_lost(self, error: Exception | None) -> None:
            self._deadline.cancel()
            open_connections.pop(self, None)
            super().connection_lost(error)

    return _Protocol

"""Run the page of a service in a process of its own, which the program that started the service starts. It ends when
that program closes its end of their channel, or ends."""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path

from pydp2.client import Target, ask_samples, ask_stats
from pydp2.errors import Error, to_wire
from pydp2.options.service_spec import receive_plain, send_plain
from pydp2.page.serving import PageServer
from pydp2.transport.keys import KeyPair

_LOOK_TIMEOUT = 5.0
_PATIENCE = 60.0  # seconds without a service


def main(descriptor: int) -> int:
    """Serve the page of the service that the first message names; answer with its URL, or an error. ``descriptor``: a
    socket to the program."""
    channel = socket.socket(fileno=descriptor)
    given = receive_plain(channel)
    keys = given["keys"]
    target = Target(given["address"], None if keys is None else KeyPair(*keys), given["local_address"])
    stop = threading.Event()
    try:
        server = PageServer(given["listen"])
    except Error as error:
        send_plain(channel, {"error": to_wire(error)})
        return 1
    send_plain(channel, {"url": server.url})
    threading.Thread(target=_await_end, args=(channel, stop), daemon=True).start()
    history = given["history"]
    look_at_samples = partial(ask_samples, target, timeout=_LOOK_TIMEOUT) if given["samples"] else None
    look = partial(ask_stats, target, _LOOK_TIMEOUT)
    server.run(look, history and Path(history), _PATIENCE, stop, look_at_samples)
    return 0


def _await_end(channel: socket.socket, stop: threading.Event) -> None:
    channel.recv(1)  # nothing comes but the end
    stop.set()

"""A trainer that speaks the protocol by itself, and so may ask for what no client asks for, and read nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from pydp2.protocol import messages as m
from pydp2.transport.admission import request_admission
from pydp2.transport.service_address import ipc_path


class RawTrainer:
    """A bare socket at the ``ipc://`` address of a service."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 1)  # what it does not read stays at the service
        self._socket.setsockopt(zmq.RCVBUF, 1 << 16)
        path = ipc_path(address)
        assert path is not None
        self._socket.connect(f"ipc://{request_admission(path, time.monotonic() + 30)}")

    def say(self, message: m.Message) -> None:
        """Send it."""
        self._socket.send_multipart([m.encode(message)])

    def hear(self, seconds: float = 30.0) -> m.Message | None:
        """The next message that is no probe; None: nothing came in time."""
        deadline = time.monotonic() + seconds
        while self._socket.poll(max(0, int(1000 * (deadline - time.monotonic())))):
            message, _ = m.decode(self._socket.recv_multipart())
            if not isinstance(message, m.Probe):
                return message
        return None

    def attach(
        self, job: str = "default", rank: int = 0, world_size: int = 1, session: str = "s", **options: Any
    ) -> m.Message | None:
        """Ask for a place, and hear the answer."""
        self.say(m.Attach(m.WIRE_VERSION, job, rank, world_size, session, options, 1))
        return self.hear()

    def begin(self, run: int = 1, pass_id: int = 0, *, credit: int = 2, ahead: Any = (), loaded: str = "") -> None:
        """Ask for a pass from its start."""
        self.say(m.BeginPass(run, pass_id, 0, credit, {}, 0, list(ahead), loaded))

    def close(self) -> None:
        """Go without a word."""
        self._socket.close()


@contextmanager
def raw_trainers(address: str) -> Iterator[Any]:
    """Makes a :class:`RawTrainer` at ``address`` with each call, and closes all of them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[RawTrainer] = []

    def one_more() -> RawTrainer:
        made.append(RawTrainer(context, address))
        return made[-1]

    try:
        yield one_more
    finally:
        for each in made:
            each.close()
        context.destroy(linger=0)

"""A peer of a service that has a key of it, and says whatever a test wants."""

from __future__ import annotations

import contextlib
import os
from random import Random
from typing import Any

import zmq

from pydp2.host.list_entries import sampled_entries
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.system.release import RELEASE
from pydp2.transport.keys import KeyPair, secure_client
from pydp2.transport.service_address import split_key

from .simulated.hostile import broken


class Liar:
    """Connections to ``address`` with the key ``pair``, over which anything can be said."""

    def __init__(self, address: str, pair: KeyPair, count: int = 2) -> None:
        self._context = zmq.Context()
        self.lines: list[zmq.Socket[bytes]] = []
        endpoint, server_key = split_key(address)
        for _ in range(count):
            line = self._context.socket(zmq.DEALER)
            for option, value in ((zmq.LINGER, 0), (zmq.SNDTIMEO, 5_000), (zmq.RECONNECT_IVL, -1)):
                line.setsockopt(option, value)
            secure_client(line, pair, server_key)
            self.lines.append(line)
        self._monitors = [line.get_monitor_socket(zmq.EVENT_DISCONNECTED) for line in self.lines]
        for line in self.lines:
            line.connect(endpoint)

    def say(self, line: int, *frames: Any) -> None:
        with contextlib.suppress(zmq.Again):  # the connection has ended
            self.lines[line].send_multipart([m.encode(f) if isinstance(f, m.Message) else f for f in frames])

    def heard(self, line: int = 0, seconds: float = 30.0) -> m.Message | None:
        """What the service says next."""
        if not self.lines[line].poll(int(1000 * seconds)):
            return None
        return m.decode(self.lines[line].recv_multipart())[0]

    def join(self, files: int, name: str = "liar", worker_slots: int = 1) -> None:
        """Become a host of a service with so many files that is ready, but for its workers."""
        session = os.urandom(8).hex()
        self.say(0, m.Join(m.WIRE_VERSION, RELEASE, name, worker_slots, session, "", {}))
        assert isinstance(answer := self.heard(), m.Spec), answer
        self.say(1, m.OpenData(session))
        while not isinstance(answer := self.heard(), m.DataOpened):
            assert isinstance(answer, m.HostReceived), answer
        self.say(0, m.Prepared([0] * len(sampled_entries(FileList.of(map(str, range(files)))))))

    def is_cut(self, line: int = 0, seconds: float = 30.0) -> bool:
        """True if the service ends the connection within ``seconds``."""
        return bool(self._monitors[line].poll(int(1000 * seconds)))

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was said has ``linger_ms`` to leave."""
        if not self._context.closed:
            for line in self.lines:
                line.disable_monitor()
            self._context.destroy(linger=linger_ms)


def lie(liar: Liar, files: int, kinds: dict[str, list[list[bytes]]], choose: Random) -> int:
    """Go on to a state of a host of a service with so many files, and say some messages of ``kinds`` there, broken; how
    many."""
    stage = choose.randrange(4)
    if stage:
        liar.join(files)
    answers = [liar.heard(seconds=0.05) for _ in range(3)] if stage > 1 else []
    for said in answers:
        if isinstance(said, m.StartWorker):
            liar.say(1, m.WorkerStarted(said.worker, 77))
            liar.say(1, m.FromWorker(said.worker, []), m.Hello(m.WIRE_VERSION, said.worker, 77))
    if stage > 2:
        liar.say(0, m.Drain())
    count = choose.choice([1, 2, 5])
    for _ in range(count):
        message = choose.choice(kinds[choose.choice([*kinds])])
        liar.say(choose.randrange(2), *(broken(choose, message) or [b""]))
    return count

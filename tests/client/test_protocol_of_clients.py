"""A client before a server that says what it should not: always an error of ours, never a hang, never a wrong batch."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import pydp2
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import Slots, dense_vector, integer_value
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    Error,
    FileCondemned,
    JobTaken,
    RemoteProtocolError,
    ServiceLost,
    ServiceUnreachable,
    to_wire,
)
from pydp2.protocol import messages as m
from pydp2.transport import Hub, PeerGone, Poller
from pydp2.transport.sockets import new_context
from tests.protocol.test_broken_frames import mutated_frames
from tests.runs import wait_until
from tests.transport.conftest import start_zeromq_thread

SLOTS = Slots((dense_vector(2), integer_value(10)), ("x", "y"))
DECLARED = Schema(
    slots=SLOTS, shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=False, cache=0,
    check=False, check_fail_continue=False,
)  # fmt: skip
Frames = Sequence[Any]
Answer = Callable[[m.Message], list[Frames]]


def columns(rows: int) -> Columns:
    packer = Packer(SLOTS, strict=False)
    for i in range(rows):
        packer.add([[float(i), 0.5], i % 10])
    return packer.finish().columns


def said(message: m.Message, frames: Frames = ()) -> Frames:
    return [m.encode(message), *frames]


def welcome() -> Frames:
    return said(m.Welcome(DECLARED.to_wire(), {"files": 1, "workers": 1, "shuffle": True}))


def head(index: int = 0, rows: int = 3, run: int = 1, saved: dict[str, Any] | None = None) -> m.BatchHead:
    return m.BatchHead(run, index, rows, rows, rows, 0, 0, index + 1, [], saved or {}, 0)


def batch(index: int = 0, rows: int = 3, run: int = 1) -> Frames:
    return said(head(index, rows, run), columns(rows).frames())


def end(batches: int, run: int = 1) -> Frames:
    return said(m.PassEnd(run, batches, 3 * batches, 0, True))


class Scripted:
    """Answers each message of a client with frames; ``close()`` goes away without a word."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._zmq = new_context()
        self.hub = Hub(self._zmq, f"ipc://{folder}/s", -1)
        self.heard: list[m.Message] = []
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poll = Poller()
        for handle in (self.hub.handle, *self.hub.listeners):
            poll.add(handle)
        try:
            while not self._stop.is_set():
                poll.wait(10)
                self.hub.accept(time.monotonic())
                while (received := self.hub.receive()) is not None:
                    self._hear(*received)
        finally:
            self.hub.close(100)

    def _hear(self, peer: bytes, frames: Frames) -> None:
        message, _ = m.decode(frames)
        self.heard.append(message)
        with contextlib.suppress(PeerGone):  # it did not like what it was told before
            for answer in self._answer(message):
                self.hub.send(peer, answer)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._zmq.term()


@pytest.fixture(scope="module", autouse=True)
def _zeromq_has_its_thread() -> None:
    start_zeromq_thread()


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Answer], Scripted]]:
    """``served(answer)`` is a server that answers what ``answer`` says."""
    made: list[Scripted] = []

    def serve(answer: Answer) -> Scripted:
        made.append(Scripted(tmp_path_factory.mktemp("s"), answer))
        return made[-1]

    yield serve
    for one in made:
        one.close()


def connected(server: Scripted, **options: Any) -> pydp2.Client:
    return pydp2.connect(server.hub.address, timeout=30, **{"batch_size": 3} | options)


def in_pass(*answers: Frames) -> Answer:
    """A good greeting; then ``answers`` to the beginning of each pass."""

    def answer(message: m.Message) -> list[Frames]:
        match message:
            case m.Attach():
                return [welcome()]
            case m.BeginPass():
                return list(answers)
        return []

    return answer


def test_a_pass_as_it_should_be(served: Callable[[Answer], Scripted]) -> None:
    server = served(in_pass(batch(0), said(m.Probe()), batch(1), end(2)))
    with connected(server) as data:
        batches = list(data)
        assert [one["y"].tolist() for one in batches] == [[0, 1, 2]] * 2
        assert len(data) == 2
    assert wait_until(lambda: isinstance(server.heard[-1], m.Detach))
    needs = [message for message in server.heard if isinstance(message, m.Need)]
    others = [message for message in server.heard if not isinstance(message, m.Need)]
    assert [type(message) for message in others] == [m.Attach, m.BeginPass, m.Detach]
    assert needs[0] == m.Need(1, 1, 0, 0, 0)
    assert needs[1].used_batches == 1
    assert others[-1] == m.Detach(1, 2)


BAD_BATCHES: dict[str, Frames] = {
    "no header": [b""],
    "no msgpack": [b"\xc1\xc1"],
    "a header that is too large": [bytes(m.HEADER_LIMIT + 1)],
    "an unknown message": [msgpack.packb(["Pickle", 1])],
    "a message of a worker": said(m.Hello(m.WIRE_VERSION, 1, 1)),
    "a message of a client": said(m.Need(0, 1, 1, 1, 1)),
    "a second welcome": welcome(),
    "figures that nobody asked for in this state": said(m.Stats()),
    "a batch without columns": said(head()),
    "a column too few": said(head(), columns(3).frames()[:1]),
    "a column too many": said(head(), [*columns(3).frames(), b""]),
    "columns of another length": said(head(rows=4), columns(3).frames()),
    "more rows than there are bytes in the world": said(head(rows=2**62 - 1), columns(3).frames()),
    "columns in another order": said(head(), columns(3).frames()[::-1]),
    "batches beyond it that are no numbers": said(
        m.BatchHead(1, 0, 3, 3, 3, 0, 0, 0, [[]], {}, 0), columns(3).frames()
    ),
    "rows of a cache that it did not show": said(replace(head(), shared_rows=9), [bytes(24)]),
    "origins that it does not have": said(replace(head(), has_origins=True), columns(3).frames()),
    "origins of other rows": said(replace(head(), has_origins=True), [*columns(3).frames(), bytes(16)]),
    "origins that it does not name": said(head(), [*columns(3).frames(), bytes(48)]),
    "a saved point without its pool": said(head(saved={"index": 0})),
    "frames where none belong": [m.encode(m.PassEnd(1, 1, 1, 0, True)), b"x"],
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_what_cannot_be_a_batch_is_an_error_of_the_other_side(served: Callable[[Answer], Scripted], name: str) -> None:
    data = connected(served(in_pass(batch(0), BAD_BATCHES[name])))
    batches = []
    with pytest.raises(RemoteProtocolError), data:
        batches += list(data)
    assert batches == []
    assert data.samples == 3, "the good one came before it"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (said(m.Refused(to_wire(JobTaken("another trainer reads this job")))), JobTaken),
        (said(m.Refused({"kind": "Nonsense"})), Error),
        (said(m.Closing("it ended", {})), ServiceLost),
        (said(m.Closing("it ended", to_wire(FileCondemned("file a ...")))), FileCondemned),
        (said(m.Stats()), RemoteProtocolError),
        (said(m.PassEnd(0, 1, 1, 0, True)), RemoteProtocolError),
        (said(m.Welcome({}, {})), RemoteProtocolError),
        (said(m.Welcome(DECLARED.to_wire(), {"position": {"pass": "x"}})), RemoteProtocolError),
        (said(m.Welcome(DECLARED.to_wire() | {"slots": [[[2, 0, 0, ",1", None]], None]}, {})), RemoteProtocolError),
        ([b"nonsense"], RemoteProtocolError),
    ],
)
def test_a_greeting_that_is_none_leaves_no_client(
    served: Callable[[Answer], Scripted], answer: Frames, kind: type[Error]
) -> None:
    with pytest.raises(kind):
        connected(served(lambda message: [answer]))


def test_silence_ends_with_the_timeout(served: Callable[[Answer], Scripted]) -> None:
    server = served(lambda message: [])
    with pytest.raises(ServiceUnreachable, match=r"no service answers at ipc://.* \(tried for .* s\)"):
        pydp2.connect(server.hub.address, timeout=0.3, batch_size=3)


def test_a_server_that_goes_away_in_the_middle_is_noticed(served: Callable[[Answer], Scripted]) -> None:
    server = served(in_pass(batch(0)))
    with connected(server) as data:
        passing = iter(data)
        next(passing)
        server.close()
        with pytest.raises(ServiceLost, match="ended without a message"):
            next(passing)
        server._zmq = new_context()  # for the fixture


@pytest.mark.parametrize("seed", range(4))
def test_broken_answers_give_batches_or_errors_of_ours(served: Callable[[Answer], Scripted], seed: int) -> None:
    choose = random.Random(seed)

    def answer(message: m.Message) -> list[Frames]:
        match message:
            case m.Attach():
                return [welcome()]
            case m.BeginPass(run):
                answers = [batch(0, 3, run), batch(1, 3, run), end(2, run)]
                at = choose.randrange(3)
                uninterrupted = [bytes(np.ascontiguousarray(frame)) if isinstance(frame, np.ndarray) else bytes(frame)
                         for frame in answers[at]]  # fmt: skip
                answers[at] = mutated_frames(choose, uninterrupted) or [b""]
                return [*answers, end(2, run), said(m.Failed(run, {"kind": "FileCondemned", "message": "end"}))]
        return []

    server = served(answer)
    seen: set[str] = set()
    for _ in range(60):
        try:
            with connected(server) as data:
                for _ in range(3):
                    for one in data:
                        assert one["x"].shape == (len(one), 2)
                        assert one["y"].shape == (len(one),)
                    seen.add("whole")
        except Error as error:
            seen.add(type(error).__name__)
    assert "whole" in seen
    assert "RemoteProtocolError" in seen

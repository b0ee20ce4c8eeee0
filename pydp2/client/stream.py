"""A trainer's end of a job: iterating is one pass, and the stream's state lives here.

No thread: batches that were granted arrive in ZeroMQ's own while the trainer computes (:mod:`.ahead` says how many),
and are turned into arrays when they are asked for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from pydp2.client.ahead import Ahead
from pydp2.client.arrived import Arrived, arrived
from pydp2.client.comeback import come_back
from pydp2.client.connection import ask_stats, connect_once, part, welcomed
from pydp2.client.position import Position
from pydp2.errors import (
    ClientUseError,
    Error,
    ProtocolError,
    RemoteProtocolError,
    StateMismatch,
    from_wire,
)
from pydp2.inputs import Batch, Slots
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.entries import entries
from pydp2.inputs.placed import Moved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import to_frames

_BEATS = 4  # signs of life per lease while a batch is waited for


class Client:
    """The batches of one job. Iterating gives one pass; leaving a loop and iterating again gives the next one.

    A client belongs to the thread that iterates it and to the process that made it. Raises ClientUseError when it is
    used otherwise, ServiceLost when the service goes away, and the errors of the data (ProviderError, BadSample,
    FileCondemned, NotRepeatable, SampleTooLarge) at their place in the stream.
    """

    def __init__(
        self,
        address: str,
        options: Mapping[str, Any],
        *,
        job: str = "default",
        rank: int = 0,
        world_size: int = 1,
        timeout: float = 10.0,
        on_close: Callable[[], None] | None = None,
        gone: Callable[[], bool] | None = None,
    ) -> None:
        self.address = address
        self._pid = os.getpid()
        self._shared = world_size > 1 or options.get("share") == "dynamic"
        self._ahead = Ahead(int(options["prefetch"]), alone=not self._shared)
        self._lease = float(options["lease"])
        self._spoke = time.monotonic()
        self.owner: object = None
        """Kept as long as this client is."""
        session = secrets.token_hex(8)
        self._attach = m.Attach(m.WIRE_VERSION, job, rank, world_size, session, dict(options), self._pid)
        connection, answer = connect_once(address, self._attach, time.monotonic() + timeout, gone)
        try:
            welcome = welcomed(answer)
            started = Position.from_welcome(welcome.service.get("position", {}))
            self._declaration = Declaration.from_wire(welcome.declaration)
        except Error:
            connection.close()
            raise
        connection.borrow(self._declaration.shown)
        self._connection = connection
        # At the latest when the program ends: what is left to the interpreter's last moments can hang there.
        self._end = weakref.finalize(self, part, connection, on_close, self._pid)
        self._fits: dict[str, Any] = welcome.service.get("fits", {})
        self._durable = welcome.service.get("durable") is True  # it can be started again and go on
        self._run = 0
        self._position = started
        self._loaded = ""  # the state that was loaded, until the service has answered
        self._named = False  # the service was told
        self._inbox: deque[tuple[m.Message, list[memoryview]]] = deque()  # came, and was not asked for yet
        self._ready: deque[Arrived] = deque()  # of this run, and before what is in the inbox
        self._lost: Error | None = None
        self._between = True  # no pass is under way: the next iteration begins at the position
        self._length: int | None = None
        self._current: weakref.ref[Pass] | None = None
        self._waited = self._worked = 0.0
        self._told = (0.0, 0.0)
        self._left_at: float | None = None
        self.batch_size = int(options["batch_size"])
        """What a batch of the job weighs, the last ones may weigh less."""
        self.samples = 0
        """Samples delivered so far, over all passes."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the slots, or None where they have none."""
        return self._declaration.slots.names

    @property
    def slots(self) -> Slots:
        """What the slots are: types and names."""
        return self._declaration.slots

    def __iter__(self) -> Iterator[Batch]:
        self._usable()
        current = self._current() if self._current is not None else None
        if current is not None and not current.over:
            raise ClientUseError(
                "this client is in the middle of a pass: a second iteration would mix two; leave the first loop, or "
                "close() its iterator, before the next pass begins"
            )
        if not self._between:
            self._position = self._position.next_pass()  # the one before was left
        self._between = False
        self._begin()
        one = Pass(self, self._position.pass_id)
        self._left_at = None
        self._current = weakref.ref(one)
        return one

    def _begin(self) -> None:
        """Ask for the pass from the position on."""
        self._run += 1
        self._ready.clear()
        at = self._position
        point, pool = ({}, b"") if at.point is None else (at.point.saved, at.point.pool)
        facts = to_frames(at.facts)
        credit = self._ahead.begin()
        begin = m.BeginPass(
            self._run, at.pass_id, at.batch, credit, point, len(facts), at.beyond, self._loaded, at.buckets, self._named
        )
        frames = [pool[i : i + m.HEADER_LIMIT] for i in range(0, len(pool), m.HEADER_LIMIT)]
        self._say(begin, [*frames, *facts])
        self._connection.progress = (self._run, 0)
        self._named = bool(self._loaded)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError(
                "the number of batches is not known: it is after one full pass, and only where every sample weighs 1"
            )
        return self._length

    def reader(self) -> Callable[[], Iterator[tuple[Any, ...]]]:
        """A reader of samples: each call is one pass, whose batches are taken apart again.

        A sample is the tuple of its slot values, also of a single slot; rows that only fill a batch up are left out. So
        ``batch_size`` is how many samples travel together, and decorators and :func:`pydp2.reader.batch` see single
        ones. A pass that is left is left at the service too. See docs/readers.md.
        """

        def read() -> Iterator[tuple[Any, ...]]:
            one = iter(self)
            try:
                for batch in one:
                    yield from entries(batch)
            finally:
                one.close()  # type: ignore[attr-defined]  # it is a Pass

        return read

    def state_dict(self) -> dict[str, Any]:
        """Where this trainer stands, as plain JSON-able data: put it into the checkpoint, beside the model.

        Inside the body of a loop it counts the batch in hand as delivered: what follows a restore is the next one. It
        is made here, so it works without the service too. See docs/order.md, "State".

        Raises:
            StateMismatch: in the middle of a pass with ``order="relaxed"``, which has no state there.
        """
        if self._fits.get("order") == "relaxed" and self._position.batch:
            raise StateMismatch('order="relaxed" has no state in the middle of a pass; take it between passes')
        return self._position.to_state(self._fits)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go to where ``state`` was taken: the next iteration continues there, on any number of workers.

        What follows is what would have followed then, bit by bit. A pass under way is left.

        Args:
            state: what :meth:`state_dict` returned, here or in another process, on this or another service.
            allow: differences to accept, ``"provider_source"`` or ``"args"``, for changed code that yields the same.

        Raises:
            StateMismatch: the state belongs to another list, seed, option, provider or release; the text says what
                differs. Nothing has changed then.
        """
        self._usable()
        position = Position.from_state(state, self._fits, allow)
        current = self._current() if self._current is not None else None
        if current is not None:
            current.close()
        self._position = position
        self._loaded, self._named = position.name, False
        self._between = True

    def stats(self) -> dict[str, Any]:
        """How the service is doing, as plain data; see ``Service.stats``."""
        self._usable()
        return ask_stats(self.address)

    def close(self) -> None:
        """Leave the job. A service that :func:`pydp2.load` started ends with it. Closing twice is fine."""
        self._end()
        self._ready.clear()  # what is gathered here from the memory of the service would keep that
        self._inbox.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- what a pass asks for --------------------------------------------------------------------------------------
    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise ClientUseError(
                "this client was made before a fork and belongs to the parent process; call connect() in each process "
                "(with torch's DataLoader: num_workers=0)"
            )
        if not self._end.alive:
            raise ClientUseError("this client is closed; connect() again for more passes")

    def _next_batch(self) -> Batch | None:
        began = time.perf_counter()
        if self._left_at is not None:
            self._worked += began - self._left_at
        if time.monotonic() - self._spoke > self._lease:
            self._begin()  # what waits here may have been given to others
        self._ask()
        moved = False
        while True:
            received = self._receive()
            run, done = self._connection.progress
            if isinstance(received, Arrived):
                try:
                    return self._deliver(received, done, began)
                except Moved:
                    if moved and time.monotonic() - self._spoke <= self._lease:
                        raise RemoteProtocolError("BatchHead: rows that were given away as soon as they came") from None
                    moved = True
                    self._begin()  # this trainer was away so long that they were given to others
                    continue
            if received is None:
                self._ask()
                continue
            message, body = received
            if getattr(message, "run", None) == run:
                self._loaded, self._named = "", False
            match message:
                case m.BatchHead() if message.run == run:
                    self._ready.extend(arrived(self._declaration.slots, message, body, self._connection.shown))
                case m.PassEnd() if message.run == run:
                    self._position = self._position.next_pass()
                    self._between = True
                    self._length = message.batches if message.uniform else None
                    return None
                case m.Failed() if message.run == run:
                    raise from_wire(message.error)
                case m.PassEnd() | m.Failed():
                    self._connection.stale()
                case m.BatchHead():
                    pass  # of a pass that was left
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} in the middle of a pass")

    def _ask(self, *, waits: bool = False) -> None:
        """Before a batch is taken: ask for more, if it is time for that. ``waits``: there is none."""
        count = self._ahead.due(now=waits or time.monotonic() - self._spoke > self._lease / _BEATS)
        if count is not None:
            waited, worked = self._waited - self._told[0], self._worked - self._told[1]
            self._told = (self._waited, self._worked)
            self._need(count, int(waited * 1e6), int(worked * 1e6))

    def _need(self, count: int = 0, waited: int = 0, worked: int = 0) -> None:
        """Ask for ``count`` more; after a silence beyond the lease for all anew: others may have what was sent."""
        now = time.monotonic()
        if now - self._spoke > self._lease:
            self._begin()
        else:
            self._say(m.Need(self._run, count, self._connection.progress[1], waited, worked))
            self._spoke = now  # who is stopped in between was silent since then

    def _receive(self) -> Arrived | tuple[m.Message, list[memoryview]] | None:
        """The next batch that is there, or message; before all others one that says that this run is not the job's any
        more. None: the service had gone and is back, and a new run has begun."""
        while True:
            if self._shared or not self._ready:
                self._fetch(0.0)
            run = self._run
            for received in self._inbox:
                message = received[0]
                if isinstance(message, m.Failed) and message.run == run and message.error.get("kind") == "Rewound":
                    self._inbox.clear()
                    return received
            if self._ready:
                return self._ready.popleft()
            if self._inbox:
                return self._inbox.popleft()
            if self._lost is not None:
                self._come_back(self._lost)
                return None
            self._ask(waits=True)
            self._fetch(self._lease / _BEATS)
            if time.monotonic() - self._spoke > self._lease / _BEATS:
                self._need()  # it waits, but lives

    def _come_back(self, lost: Error) -> None:
        """Go on with the service once it is started again. Raises ``lost`` where it cannot be waited for."""
        relaxed = self._fits.get("order") == "relaxed" and self._position.batch
        if not (self._durable and self._connection.away) or relaxed:
            raise lost
        come_back(self._connection, self._attach, self._fits, self._lease, self._declaration.shown)
        self._lost = None
        self._begin()

    def _fetch(self, patience: float) -> None:
        """Take in what came; or with ``patience``, the first that comes within so many seconds."""
        try:
            while (
                self._lost is None and (received := self._connection.receive(time.monotonic() + patience)) is not None
            ):
                self._inbox.append(received)
                if patience:
                    return
        except Error as error:  # comes after what came before it
            self._lost = error

    def _say(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        if self._lost is None:  # else that is said in its turn
            self._connection.send(message, frames)
        self._spoke = time.monotonic()

    def _deliver(self, batch: Arrived, done: int, began: float) -> Batch:
        made = batch.batch(self._position.pass_id)
        self._position.taken(batch.head, batch.pool, batch.facts)
        self._ahead.took(batch.nbytes, shown=batch.shown)
        self.samples += batch.head.rows - batch.head.padding
        self._connection.progress = (self._run, done + 1)
        self._left_at = time.perf_counter()
        self._waited += self._left_at - began
        return made

    def _leave(self, unused: int) -> None:
        if self._end.alive and self._pid == os.getpid():
            run, done = self._connection.progress
            with contextlib.suppress(ProtocolError):  # the service ended first
                self._connection.send(m.LeavePass(run, max(done - unused, 0)))


class Pass(Iterator[Batch]):
    """The iterator of one pass."""

    def __init__(self, client: Client, pass_id: int) -> None:
        self._client = client
        self._thread = threading.get_ident()
        self.pass_id = pass_id
        self.over = False

    def __next__(self) -> Batch:
        if self.over:
            raise StopIteration
        self._client._usable()
        if threading.get_ident() != self._thread:
            raise ClientUseError(
                "this pass was begun in another thread; a client is used by one thread: hand batches over, or start "
                "the loop in the thread that needs them"
            )
        try:
            batch = self._client._next_batch()
        except Error:
            self.over = True
            raise
        if batch is None:
            self.over = True
            raise StopIteration
        return batch

    def close(self, *, unused: bool = False) -> None:
        """Leave the pass: its rest is not wanted. ``unused``: nor is the batch in hand, which in a job with
        ``share="dynamic"`` goes to another trainer."""
        if not self.over:
            self.over = True
            self._client._leave(int(unused))

    def __del__(self) -> None:
        self.close()

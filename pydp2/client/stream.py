"""A trainer's end of a job: iterating is one pass, and the stream's state lives here.

No thread: batches that were granted arrive in ZeroMQ's own while the trainer computes (:mod:`.ahead` says how many),
and are turned into arrays when they are asked for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydp2.client.ahead import Ahead
from pydp2.client.arrived import Arrived, arrived
from pydp2.client.comeback import come_back
from pydp2.client.connection import CLOSE_SECONDS, ask_stats, connect_once, part, welcomed
from pydp2.client.position import Position
from pydp2.client.progress import Loop, PassState, Progress
from pydp2.client.session import Session
from pydp2.errors import (
    ClientUseError,
    Error,
    OutOfMemory,
    ProtocolError,
    RemoteProtocolError,
    Rewound,
    StateMismatch,
    from_wire,
)
from pydp2.inputs import Batch, Slots
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.entries import entries
from pydp2.inputs.placed import Moved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import to_frames

if TYPE_CHECKING:
    _Batches = map[Batch]
else:
    _Batches = map
_BEATS = 4  # signs of life per lease while a batch is waited for


class Client:
    """The batches of one job. Iterating gives one pass; leaving a loop and iterating again gives the next one.

    Threads may use a client one after the other; other processes must not use it. If a signal handler raises an
    exception in a call, the next call continues behind the batch that was returned last.

    Raises ClientUseError when it is used otherwise, ServiceLost when the service goes away, and the errors of the data
    (ProviderError, BadSample, FileCondemned, NotRepeatable, SampleTooLarge) at their place in the stream.
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
        self._shared = world_size > 1 or options.get("share") == "dynamic"
        self._ahead = Ahead(int(options["prefetch"]), int(options["prefetch_bytes"]), alone=not self._shared)
        self._lease = float(options["lease"])
        self._spoke = time.monotonic()
        self.owner: object = None
        """Kept as long as this client is."""
        self._session = Session(Progress(Position()))
        name = os.urandom(8).hex()
        self._attach = m.Attach(m.WIRE_VERSION, job, rank, world_size, name, dict(options), self._session.pid)
        try:
            connection, answer = connect_once(address, self._attach, time.monotonic() + timeout, gone, self._session)
            try:
                welcome = welcomed(answer)
                self._session.progress = Progress(Position.from_welcome(welcome.service.get("position", {})))
                self._declaration = Declaration.from_wire(welcome.declaration)
            except Error:
                connection.close()
                raise
        except BaseException:
            self._session.release()
            raise
        connection.borrow(self._declaration.shown)
        self._connection = connection
        # At the latest when the program ends: what is left to the interpreter's last moments can hang there.
        self._end = weakref.finalize(self, part, self._session, connection, on_close)
        self._fits: dict[str, Any] = welcome.service.get("fits", {})
        self._durable = welcome.service.get("durable") is True  # it can be started again and go on
        self._loaded = ""  # the state that was loaded, until the service has answered
        self._named = False  # the service was told
        self._lost: Error | None = None
        self._length: int | None = None
        self._waited = self._worked = 0.0
        self._told = (0.0, 0.0)
        self._left_at: float | None = None
        self.batch_size = int(options["batch_size"])
        """What a batch of the job weighs, the last ones may weigh less."""

    @property
    def samples(self) -> int:
        """Samples delivered so far, over all passes."""
        return self._session.progress.samples

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the slots, or None where they have none."""
        return self._declaration.slots.names

    @property
    def slots(self) -> Slots:
        """What the slots are: types and names."""
        return self._declaration.slots

    def __iter__(self) -> Iterator[Batch]:
        session, token = self._session, [threading.get_ident()]
        try:
            session.enter(token)
            one, progress = self._open()
            session.progress = progress
            return one
        finally:
            if 0 in session.inside and session.inside[0] is token:
                del session.inside[0]

    def _open(self) -> tuple[Pass, Progress]:
        """The iterator of the pass that :class:`PassState` tells, and what has come of that."""
        session = self._session
        now = session.progress
        if now.state is PassState.RUNNING and now.cut_off:
            session.progress = now._replace(state=PassState.ENTERED)
        elif now.state is PassState.RUNNING and now.loop is not None and now.loop.held:
            if self._has_next(now.loop):
                raise ClientUseError(
                    "this client is in the middle of a pass: a second iteration would mix two; leave the first loop, "
                    "or close() its iterator, before the next pass begins"
                )
            now.loop.over = True
        self._left_at = None
        now = session.progress
        if now.state is not PassState.ENTERED:
            begins = now.state is PassState.BETWEEN
            self._connection.torn = True  # until the service is asked for it
            session.progress = now = now._replace(
                position=now.position if begins else now.position.next_pass(),
                state=PassState.ENTERED,
                loop=None,
                origin=object(),
            )
        if self._connection.torn:
            self._begin()
            now = session.progress
        loop = Loop()
        one = Pass(self, now.position.pass_id, loop)
        loop.iterator = weakref.ref(one)
        return one, now._replace(state=PassState.RUNNING, loop=loop, calls=0)

    def _begin(self) -> None:
        """Ask for the pass from the position on."""
        connection, session = self._connection, self._session
        connection.torn = True
        session.progress = now = session.progress._replace(run=session.progress.run + 1, done=0)
        at = now.position
        point, pool = ({}, b"") if at.point is None else (at.point.saved, at.point.pool)
        facts = to_frames(at.facts)
        credit = self._ahead.begin()
        begin = m.BeginPass(
            now.run, at.pass_id, at.batch, credit, point, len(facts), at.beyond, self._loaded, at.buckets, self._named
        )
        frames = [pool[i : i + m.HEADER_LIMIT] for i in range(0, len(pool), m.HEADER_LIMIT)]
        self._named = bool(self._loaded)  # or about to be
        self._say(begin, [*frames, *facts])
        connection.torn = False

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

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Return where this trainer stands, as plain JSON-able data: put it into the checkpoint, beside the model.

        Inside the body of a loop it counts the batch in hand as delivered: what follows a restore is the next one. It
        is made here, so it works without the service too. See docs/order.md, "State".

        Args:
            after: a batch of the present pass; the state is the one that this method returned when the batch had just
                been delivered, however many others were taken since. Use it if another thread prefetches batches.

        Raises:
            StateMismatch: in the middle of a pass with ``order="relaxed"``, which has no state there.
            ClientUseError: ``after`` is no batch of this client, or of a pass before.
        """
        now = self._session.progress
        position = now.position if after is None else _behind(after, now)
        if self._fits.get("order") == "relaxed" and position.batch:
            raise StateMismatch('order="relaxed" has no state in the middle of a pass; take it between passes')
        return position.to_state(self._fits)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go to where ``state`` was taken: the next iteration continues there, on any number of workers.

        What follows is what would have followed then, bit by bit. A pass under way is left.

        Args:
            state: what :meth:`state_dict` returned, here or in another process, on this or another service.
            allow: differences to accept, ``"provider_source"`` or ``"args"``, for changed code that yields the same.

        Raises:
            StateMismatch: the state belongs to another list, seed, option, provider or release; the text says what
                differs. Nothing has changed then.
            ClientUseError: another thread is inside this client, or it is closed.
        """
        session, token = self._session, [threading.get_ident()]
        try:
            session.enter(token)
            position = Position.from_state(state, self._fits, allow)
            name = position.name
            self._leave()
            now = session.progress
            loaded = now._replace(position=position, state=PassState.BETWEEN, loop=None, origin=None)
            self._loaded, self._named = name, False
            session.progress = loaded
        finally:
            if 0 in session.inside and session.inside[0] is token:
                del session.inside[0]

    def stats(self) -> dict[str, Any]:
        """Return how the service is doing, as plain data; see ``Service.stats``."""
        self._session.check_process()
        self._session.check()
        return ask_stats(self.address)

    def close(self) -> None:
        """Leave the job. A service that :func:`pydp2.load` started ends with it. Closing twice is fine.

        Any thread may call it. A thread that waits for a batch meanwhile gets a ClientUseError, and this call waits for
        that; if it takes longer than 5 seconds, this call raises ClientUseError too.
        """
        session = self._session
        if self._end.alive and session.here:
            if not session.stop(CLOSE_SECONDS):
                raise ClientUseError(
                    f"another thread has been inside this client for {CLOSE_SECONDS:g} s and does not come out; see "
                    "what it does there, and close the client again"
                )
            if session.mine:
                return  # a signal handler, in the middle of a call, which closes when it goes on
        self._end()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- what a pass asks for --------------------------------------------------------------------------------------
    def _deliver(self, loop: Loop, _: None) -> Batch:
        """What next() returns. Between storing how far the client has come with a batch and returning that there is no
        call, and so no place where an exception of a signal handler could come."""
        if loop.over:
            raise StopIteration
        session, token = self._session, [threading.get_ident()]
        try:
            session.enter(token)
            batch, progress = self._next(loop)
            session.progress = progress
            if batch is not None:
                return batch
            loop.over = True
            raise StopIteration
        finally:
            if 0 in session.inside and session.inside[0] is token:
                del session.inside[0]

    def _next(self, loop: Loop) -> tuple[Batch | None, Progress]:
        """The next batch, None at the end of the pass, and how far the client has come with it."""
        began = time.perf_counter()
        session = self._session
        now = session.progress
        if now.loop is not loop:
            raise ClientUseError("a newer loop over this client has taken its pass over; go on with that one")
        if now.state is PassState.BETWEEN:
            return None, now  # it has ended
        session.progress = now._replace(state=PassState.ENTERED)
        if self._left_at is not None:
            self._worked += began - self._left_at
            self._left_at = None
        try:
            batch, made = self._await_batch()
        except Error:
            self._failed(loop)
            raise
        except MemoryError as error:
            self._failed(loop)
            raise OutOfMemory(
                f"this process has no memory for the next batch ({error or 'it is not told how much'}); drop batches "
                "that are not used any more, lower batch_size or prefetch, or raise what limits it (`ulimit -v`)"
            ) from error
        now = session.progress
        if batch is None or made is None:
            return None, self._ended()
        position = now.position.after(batch.head, batch.pool, batch.facts)
        made._resume = (now.origin, position)
        self._ahead.took(batch.nbytes, batch.column_bytes, shown=batch.shown)
        self._left_at = time.perf_counter()
        self._waited += self._left_at - began
        samples = now.samples + batch.head.rows - batch.head.padding
        return made, Progress(
            position, PassState.RUNNING, now.run, now.done + 1, samples, loop, loop.calls[0], now.origin
        )  # fmt: skip

    def _await_batch(self) -> tuple[Arrived | None, Batch | None]:
        """The batch that comes next, as it came and as the trainer gets it; None: the pass has no more."""
        moved = False
        while (batch := self._await_front()) is not None:
            try:
                return batch, batch.batch(self._session.progress.position.pass_id)
            except Moved:
                if moved and time.monotonic() - self._spoke <= self._lease:
                    raise RemoteProtocolError("BatchHead: rows that were given away as soon as they came") from None
                moved = True
                self._begin()  # this trainer was away so long that they were given to others
        return None, None

    def _has_next(self, loop: Loop) -> bool:
        """Whether there is another batch of the pass: waits until that is known. Where there is none, it is over."""
        try:
            batch = self._await_front()
        except Error:
            self._failed(loop)
            raise
        if batch is None:
            self._session.progress = self._ended()
        return batch is not None

    def _ended(self) -> Progress:
        """Behind the end of the pass."""
        now = self._session.progress
        return now._replace(position=now.position.next_pass(), state=PassState.BETWEEN)

    def _failed(self, loop: Loop) -> None:
        """An error of ours ends an iterator. Unless the data gave it, the pass goes on in a new one."""
        loop.over = True
        if self._session.closing:
            self._end()
        elif self._session.progress.state is not PassState.FAILED:
            self._connection.torn = True
            self._session.progress = self._session.progress._replace(state=PassState.ENTERED, loop=None)

    def _await_front(self) -> Arrived | None:
        """The batch that is to be delivered next, which stays where it is; None: the pass has no more."""
        self._connection.mend()
        if self._connection.torn or time.monotonic() - self._spoke > self._lease:
            self._begin()  # else what waits here may have been given to others
        self._ask()
        while True:
            first = self._receive()
            if isinstance(first, Arrived):
                return first
            if first is None:
                self._ask()
            elif self._take_in(*first):
                return None

    def _take_in(self, message: m.Message, body: Sequence[memoryview]) -> bool:
        """Do what the first message in the inbox asks for. True: the pass is over, which stays there to be seen."""
        session, connection = self._session, self._connection
        now, inbox = session.progress, connection.inbox
        if getattr(message, "run", None) == now.run:
            self._loaded, self._named = "", False
        match message:
            case m.BatchHead() if message.run == now.run:
                inbox[:1] = arrived(self._declaration.slots, message, body, connection.shown, now.done)
            case m.PassEnd() if message.run == now.run:
                if message.uniform:
                    self._length = message.batches
                return True
            case m.Failed() if message.run == now.run:
                error = from_wire(message.error)
                failed = now._replace(state=PassState.FAILED)
                if not isinstance(error, Rewound):
                    session.progress = failed
                raise error
            case m.PassEnd() | m.Failed():
                connection.stale()
                del inbox[0]
            case m.BatchHead():  # of a pass that was left
                self._ahead.left()
                del inbox[0]
            case m.Closing():
                self._lost = connection.closed(message)
                del inbox[0]
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} in the middle of a pass")
        return False

    def _ask(self, *, waits: bool = False) -> None:
        """Before a batch is taken: ask for more, if it is time for that. ``waits``: there is none."""
        now = waits or time.monotonic() - self._spoke > self._lease / _BEATS
        count = self._ahead.due(self._session.progress.done, now=now)
        if count is not None:
            waited, worked = self._waited - self._told[0], self._worked - self._told[1]
            self._told = (self._waited, self._worked)
            self._need(count, int(waited * 1e6), int(worked * 1e6))

    def _need(self, count: int = 0, waited: int = 0, worked: int = 0) -> None:
        """Ask for ``count`` more; after a silence beyond the lease for all anew: others may have what was sent."""
        now = time.monotonic()
        if now - self._spoke > self._lease:
            self._begin()
            return
        self._connection.torn = True
        run, done = self._session.progress.run, self._session.progress.done
        self._say(m.Need(run, count, done, waited, worked))
        self._ahead.told(count, done)
        self._spoke = now  # who is stopped in between was silent since then
        self._connection.torn = False

    def _receive(self) -> Arrived | tuple[m.Message, list[memoryview]] | None:
        """The first in the inbox, which stays there: a batch, or a message; before all others one that says that this
        run is not the job's any more. None: the service had gone and is back, and a new run has begun."""
        inbox = self._connection.inbox
        while True:
            self._session.check()
            now = self._session.progress
            while inbox and isinstance(inbox[0], Arrived) and inbox[0].taken(now.run, now.done):
                del inbox[0]
            if self._shared or not (inbox and isinstance(inbox[0], Arrived)):
                self._fetch(0.0)
            for came in inbox:
                if isinstance(came, tuple) and _rewinds(came[0], now.run):
                    self._take_in(*came)
            if inbox and not self._connection.undecoded(inbox[0]):
                first: Arrived | tuple[m.Message, list[memoryview]] = inbox[0]
                return first
            if self._lost is not None:
                self._come_back(self._lost)
                return None
            self._ask(waits=True)
            self._fetch(self._lease / _BEATS)
            if time.monotonic() - self._spoke > self._lease / _BEATS:
                self._need()  # it waits, but lives

    def _come_back(self, lost: Error) -> None:
        """Go on with the service once it is started again. Raises ``lost`` where it cannot be waited for."""
        relaxed = self._fits.get("order") == "relaxed" and self._session.progress.position.batch
        if not (self._durable and self._connection.away) or relaxed:
            raise lost
        try:
            come_back(self._connection, self._attach, self._fits, self._lease, self._declaration.shown)
        except Error:
            self._session.check()  # it was closed meanwhile
            raise
        self._lost = None
        self._begin()

    def _fetch(self, patience: float) -> None:
        """Take in what came; or with ``patience``, the first that comes within so many seconds."""
        try:
            if self._lost is None:
                self._connection.fetch(time.monotonic() + patience if patience else None)
        except Error as error:  # comes after what came before it
            self._session.check()
            self._lost = error

    def _say(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        if self._lost is None:  # else that is said in its turn
            self._connection.send(message, frames)
        self._spoke = time.monotonic()

    def _leave(self, *, unused: bool = False) -> None:
        """Leave the pass, if one is under way. ``unused``: the batch in hand is not used."""
        now = self._session.progress
        if now.state not in (PassState.RUNNING, PassState.ENTERED):
            return
        if now.loop is not None:
            now.loop.over = True
        unused = unused and now.state is PassState.RUNNING  # once the next one was asked for it is used
        self._session.progress = now._replace(state=PassState.LEFT)
        if self._end.alive and now.loop is not None:  # after an error there is nothing to leave
            with contextlib.suppress(ProtocolError):  # the service ended first
                self._connection.send(m.LeavePass(now.run, max(now.done - unused, 0)))


class Pass(_Batches):
    """The iterator of one pass. Threads may call it one after the other.

    A :class:`map`, because that is C code: it notes that it is called before any Python code runs for that, where
    already an exception of a signal handler may come.
    """

    def __new__(cls, client: Client, pass_id: int, loop: Loop) -> Pass:
        """``loop``: what the client knows of it."""
        return super().__new__(cls, partial(client._deliver, loop), map(loop.calls.append, count(1)))

    def __init__(self, client: Client, pass_id: int, loop: Loop) -> None:
        self._client = client
        self._loop = loop
        self.pass_id = pass_id

    @property
    def over(self) -> bool:
        """It gives nothing more: the pass has ended, with an error too, or was left."""
        return self._loop.over

    def close(self, *, unused: bool = False) -> None:
        """Leave the pass: its rest is not wanted. ``unused``: nor is the batch in hand, which in a job with
        ``share="dynamic"`` goes to another trainer. Raises ClientUseError while another thread is inside the client."""
        loop, session, token = self._loop, self._client._session, [threading.get_ident()]
        if loop.over or session.closing or not session.here:
            loop.over = True
            return
        try:
            session.enter(token)
            if session.progress.loop is loop:
                self._client._leave(unused=unused)
            loop.over = True
        finally:
            if 0 in session.inside and session.inside[0] is token:
                del session.inside[0]

    def __del__(self) -> None:
        if not hasattr(self, "pass_id") or self._loop.over:
            return
        loop, session, token = self._loop, self._client._session, [threading.get_ident()]
        if session.closing or not session.here:
            return
        try:  # where a call is inside, it sees by itself that nobody holds this iterator
            if session.inside.setdefault(0, token) is token:
                now = session.progress
                if now.loop is loop and now.state is PassState.RUNNING:
                    if now.cut_off:
                        session.progress = now._replace(state=PassState.ENTERED)
                    else:
                        self._client._leave()
        finally:
            if 0 in session.inside and session.inside[0] is token:
                del session.inside[0]


def _rewinds(message: m.Message, run: int) -> bool:
    return isinstance(message, m.Failed) and message.run == run and message.error.get("kind") == "Rewound"


def _behind(batch: Batch, now: Progress) -> Position:
    """Where the stream goes on behind ``batch``. Raises ClientUseError where that is none of the present pass."""
    resume = getattr(batch, "_resume", None)
    if resume is None:
        raise ClientUseError(
            f"after must be a batch that this client delivered, and a copy of one is not; got {batch!r:.80}"
        )
    origin, position = resume
    if origin is not now.origin:
        raise ClientUseError(
            f"batch {batch.index} of pass {batch.pass_id} is not of the present pass of this client, which is at pass "
            f"{now.position.pass_id}: take the state behind a batch before the next pass begins, another state is "
            "loaded, or from the client that delivered it"
        )
    known: Position = position
    return known

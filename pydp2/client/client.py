"""Iterate over the batches of a job: one iteration is one pass, and the stream's state lives here.

Batches that were granted arrive in ZeroMQ's own thread while the trainer computes (:mod:`.prefetch_window` says how
many), and are turned into arrays when they are asked for. If the trainer's steps take long enough, rows that lie in
memory of the service are gathered a batch ahead, and converted for a loader of a framework (:mod:`.look_ahead`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from socket import gethostname
from typing import Any

from pydp2.client.connection import CLOSE_SECONDS, Target, ask_stats, connect_once, detach, parse_welcome
from pydp2.client.describe import Fact, client_facts
from pydp2.client.length import PassLength
from pydp2.client.loaded_state import LoadedState
from pydp2.client.pass_iterator import Pass
from pydp2.client.prefetch_window import PrefetchWindow
from pydp2.client.progress import LoopHandle, LoopState, Progress, position_after
from pydp2.client.received import (
    Conversion,
    ReceivedBatch,
    convert_lot,
    ends_run,
    is_rewind,
    is_second_prepared,
    replace_by_batches,
    second_batch,
)
from pydp2.client.reconnect import reconnect
from pydp2.client.saved_state import load_stream_state, save_stream_state
from pydp2.client.session import ClientGuard
from pydp2.client.stream import Stream
from pydp2.client.wait_notice import WaitNotice
from pydp2.data.columns.batch import Batch
from pydp2.data.rowstore.handles import StaleRows
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    ClientUseError,
    Error,
    OutOfMemory,
    ProtocolError,
    RemoteProtocolError,
    from_wire,
)
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.figures import microseconds
from pydp2.system.stdlib import time

_LONG_STEP = 0.001  # seconds of a step from which on the next batch is prepared meanwhile
_DELAY_PART, _MAX_DELAY = 1 / 8, 0.001  # part of the step, and seconds, that pass before
_SKIPPED_STEPS = 32  # in which nothing is converted, because it could not be
_LOT_SECONDS = 0.002  # in which batches that came with the next one are converted, too: their values may be large
_COUNTS_SECONDS = 5.0  # for which the length is waited for, as long as the service looks for counts on its disk
_COUNTS_POLL_SECONDS = 0.01  # between two questions whether it has them
_ROWS_SECONDS = 0.1  # between two looks whether rows of hosts are overdue
_MAX_UNREACHABLE = 32  # row servers that are told at once: their addresses have to fit into a header
_BEATS_PER_LEASE = 4  # signs of life per lease while a batch is waited for


class Client(Stream):
    """Batches of one job. Iterating gives one pass; leaving a loop and iterating again gives the next one.

    Threads may use a client one after the other; other processes must not use it. If a signal handler raises an
    exception in a call, the next call continues behind the batch that was returned last.

    Raises ClientUseError for any other use, ServiceLost when the service goes away, and the errors of the data
    (ProviderError, BadSample, FileCondemned, NotRepeatable, SampleTooLarge) at their place in the stream.
    """

    def __init__(
        self,
        target: Target,
        options: Mapping[str, Any],
        *,
        job: str = "default",
        rank: int = 0,
        world_size: int = 1,
        timeout: float = 10.0,
        on_close: Callable[[], None] | None = None,
        gone: Callable[[], bool] | None = None,
    ) -> None:
        self._target, self.address = target, target.address
        self._dynamic = options.get("share") == "dynamic"
        self._shared = world_size > 1 or self._dynamic
        self._window = PrefetchWindow(
            int(options["prefetch"]), int(options["prefetch_bytes"]), prompt=self._shared, grows=not self._dynamic,
            remote=target.is_secured,
        )  # fmt: skip
        self._lease = float(options["lease"])
        self._spoke = time.monotonic()
        self._session = ClientGuard(Progress(StreamState()))
        self._attach = m.Attach(
            m.WIRE_VERSION, job, rank, world_size, os.urandom(8).hex(), dict(options), self._session.pid,
            host=gethostname() if target.is_secured else "",
        )  # fmt: skip
        try:
            connection, answer, _ = connect_once(target, self._attach, time.monotonic() + timeout, gone, self._session)
            try:
                welcome = parse_welcome(answer)
                self._session.progress = Progress(StreamState.from_welcome(welcome.service.get("position", {})))
                self._declaration = Schema.from_wire(welcome.schema)
            except Error:
                connection.close()
                raise
        except BaseException:
            self._session.release()
            raise
        connection.map_shared_rows(self._declaration.slots)
        self._connection = connection
        # At the latest when the program ends: what is left until the interpreter exits can hang there.
        self._end = weakref.finalize(self, detach, self._session, connection, on_close)
        self._stream_identity: dict[str, Any] = welcome.service.get("stream_identity", {})
        # Restarted with a state_dir, or over a path that was cut and is mended.
        self._may_return = welcome.service.get("durable") is True or target.is_secured
        self._loaded = LoadedState(dynamic=self._dynamic)
        self._lost_error: Error | None = None
        self._length = PassLength(options, rank, world_size)
        self._length.learn(welcome.service.get("counts"))
        self._waited = self._worked = self._step = 0.0  # seconds; the last: that the trainer took for its last batch
        self._left_at: float | None = None
        self._conversion: Conversion | None = None  # that the loop of the last pass asked for,
        self._skips = 0  # and the number of steps in which nothing is converted
        self._notice = WaitNotice(partial(ask_stats, target), job, None if self._dynamic else rank, options)
        self.batch_size = int(options["batch_size"])
        """Weight of a batch of the job; the last ones may weigh less."""

    @property
    def slots(self) -> Slots:
        """Types and names of the slots."""
        return self._declaration.slots

    def _open(self) -> tuple[Pass, Progress]:
        one = super()._open()
        self._left_at = self._conversion = None
        return one

    @property
    def _is_damaged(self) -> bool:
        return self._connection.is_damaged

    @_is_damaged.setter
    def _is_damaged(self, value: bool) -> None:
        self._connection.is_damaged = value

    def _begin(self, unreachable: Sequence[str] = ()) -> None:
        """Ask for the pass from the position on. ``unreachable``: row servers from which rows could not be fetched."""
        connection, session = self._connection, self._session
        connection.is_damaged = True
        if connection.row_fetcher is not None:
            connection.row_fetcher.forget()
        session.progress = now = session.progress._replace(run=session.progress.run + 1, done=0)
        begin, frames = now.position.to_wire(now.run, self._window.start_pass())
        loaded = self._loaded
        begin = replace(
            begin, unreachable=[*unreachable[:_MAX_UNREACHABLE]], state_name=loaded.name, is_repeat=loaded.is_repeat,
            after_pass=loaded.after_pass, was_answered=loaded.was_answered,
        )  # fmt: skip
        loaded.note_asked()
        self._send(begin, frames)
        connection.is_damaged = False

    def __len__(self) -> int:
        """Return the number of batches that this trainer has in a whole pass, if the files are counted and every sample
        weighs 1 (docs/caching.md, "Counts"). Raises TypeError if it is not known, with the remedy."""
        self._learn_counts()
        if (known := self._length.exact) is None:
            raise TypeError(self._length.reason())
        return known

    def _learn_counts(self, *, again: bool = False) -> None:
        """Wait for the counts that the service looks for. ``again``: ask for them, because there are more by now."""
        session, deadline = self._session, time.monotonic() + _COUNTS_SECONDS
        with contextlib.suppress(Error):  # without an answer it is not known
            while (again or self._length.is_loading) and not session.closing and session.in_own_process:
                again = False
                self._length.learn(ask_stats(self._target, max(0.0, deadline - time.monotonic())).get("counts"))
                time.sleep(_COUNTS_POLL_SECONDS if self._length.is_loading else 0.0)

    def _rows_of_pass(self) -> int:
        self._learn_counts(again=True)  # the service may have found since that a count was wrong
        if (known := self._length.rows) is None:
            raise TypeError(self._length.reason(of_rows=True))
        return known

    def __length_hint__(self) -> int:
        """Return an estimate of that number: from the files that are counted, or the batches of the last pass."""
        known = self._length.estimate
        return NotImplemented if known is None else known

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Return where this trainer stands, as plain JSON-able data: put it into the checkpoint, beside the model.

        Inside the body of a loop it counts the batch in hand as delivered: what follows a restore is the next one. The
        state is made in this process, so the call works without the service too. See docs/order.md, "State".

        Args:
            after: a batch of the present pass; the state is the one that this method returned when the batch had just
                been delivered, however many others were taken since. Use it if another thread prefetches batches.

        Raises:
            StateMismatch: in the middle of a pass with ``order="relaxed"``, which has no state there.
            ClientUseError: ``after`` is no batch of this client, or of a pass before.
        """
        now = self._session.progress
        return self._state_at(now.position if after is None else position_after(after, now))

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go to where ``state`` was taken: the next iteration continues there, on any number of workers.

        The same batches follow as would have followed then, bit by bit. A pass under way is left.

        Args:
            state: what :meth:`state_dict` returned, here or in another process, on this or another service.
            allow: differences to accept, ``"provider_source"`` or ``"args"``, for changed code that yields the same.

        Raises:
            StateMismatch: the state belongs to another list, seed, option, provider or release; the text says what
                differs. Nothing has changed then.
            OptionError, OptionTypeError: ``allow`` names what may not differ.
            ClientUseError: another thread is inside this client, or it is closed.
        """
        session, token = self._session, [threading.get_ident()]
        try:
            session.enter(token)
            position = self._position_of(state, allow)
            name = position.name
            self._leave()
            now = session.progress
            loaded = now._replace(position=position, state=LoopState.BETWEEN, loop=None, origin=None)
            self._loaded.load(name)
            session.progress = loaded
        finally:
            if 0 in session.current_call and session.current_call[0] is token:
                del session.current_call[0]

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the service, as plain data; see ``Service.stats``."""
        self._session.check_process()
        self._session.check()
        return ask_stats(self._target)

    def close(self) -> None:
        """Leave the job. A service that :func:`pydp2.load` started ends with it. Closing twice is allowed.

        Any thread may call it. A thread that waits for a batch meanwhile gets a ClientUseError, and this call waits for
        that; if it takes longer than 5 seconds, this call raises ClientUseError too.
        """
        session = self._session
        if self._end.alive and session.in_own_process:
            if not session.stop(CLOSE_SECONDS):
                raise ClientUseError(
                    f"another thread has been inside this client for {CLOSE_SECONDS:g} s; find out what it "
                    "does there, and close the client again"
                )
            if session.is_reentrant:
                return  # called by a signal handler in the middle of a call, which closes the client when it goes on
        self._end()

    def _facts(self) -> list[Fact]:
        return client_facts(self.address, self._attach, self.batch_size)

    # -- what a pass asks for --------------------------------------------------------------------------------------
    @property
    def _rank(self) -> tuple[int, int]:
        return self._attach.rank, self._attach.world_size

    def _state_of(self, position: StreamState, *, rows_behind: bool = False) -> dict[str, Any]:
        known = position.with_later_checksums() if rows_behind else position
        return save_stream_state(known, self._stream_identity)

    def _position_of(self, state: Any, allow: Collection[str]) -> StreamState:
        return load_stream_state(state, self._stream_identity, allow)

    def _before_pass(self, position: StreamState, pass_id: int) -> StreamState:
        return position.before_pass(pass_id)

    def _lacks_state(self) -> bool:
        return self._loaded.is_lacking

    def _jump(self, position: StreamState) -> None:
        self._loaded.load(position.name, after_pass=True)

    def _next(self, loop: LoopHandle) -> tuple[Batch | None, Progress]:
        """Return the next batch, None at the end of the pass, and the progress with it."""
        began = time.perf_counter()
        session = self._session
        now = session.progress
        if now.loop is not loop:
            raise ClientUseError("a newer loop over this client has taken over its pass; continue that loop")
        if now.state is LoopState.BETWEEN:
            return None, now  # the pass has ended
        session.progress = now._replace(state=LoopState.ENTERED)
        if self._left_at is not None:
            self._step = began - self._left_at
            self._worked += self._step
            self._left_at = None
        try:
            batch, made = self._await_batch()
        except Error:
            self._failed(loop)
            raise
        except MemoryError as error:
            self._failed(loop)
            raise OutOfMemory(
                f"this process has no memory for the next batch ({error or 'the amount is unknown'}); drop batches "
                "that are not used any more, lower batch_size or prefetch, or raise what limits it (`ulimit -v`)"
            ) from error
        now = session.progress
        if batch is None or made is None:
            return None, self._ended()
        position = now.position.after(batch.head, batch.pool, batch.early_ends, batch.checksums)
        made._resume = (now.origin, position)
        if self._conversion is None:
            made._ready = None  # of a loop that was left
        self._loaded.note_batch()
        self._window.note_taken(batch.nbytes, batch.column_bytes, shown=batch.is_shared)
        conversion = None if self._skips else self._conversion
        self._skips = max(self._skips - 1, 0)
        if self._step >= _LONG_STEP and not is_second_prepared(self._connection.inbox, conversion is not None):
            delay = min(self._step * _DELAY_PART, _MAX_DELAY)
            work = partial(self._prepare, now.run, now.done + 1, now.position.pass_id, conversion)
            session.look_ahead.give(work, delay=delay)
        self._left_at = time.perf_counter()
        self._waited += self._left_at - began
        samples = now.samples + batch.head.rows - batch.head.padding
        now = Progress(position, LoopState.RUNNING, now.run, now.done + 1, samples, loop, loop.calls[0], now.origin)
        return made, now

    def _convert_beside_steps(self, conversion: Conversion | None) -> None:
        self._conversion, self._skips = conversion, 0

    def _prepare(self, run: int, number: int, pass_id: int, conversion: Conversion | None) -> None:
        """Receive batch ``number`` of ``run``, which comes behind the present one, gather its rows and convert them."""
        connection, look_ahead = self._connection, self._session.look_ahead
        if len(connection.inbox) == 1:  # the batch in hand
            connection.fetch_second(self._step / 2, look_ahead)
        following = second_batch(
            connection.inbox, self._declaration.slots, connection.shared_rows, run, number, connection.row_fetcher
        )
        if following is not None and following.awaits_rows:
            connection.wait_for_rows(0.0)
        if following is None or following.awaits_rows:
            return
        following.columns()  # gathers them
        if conversion is not None:
            until = time.perf_counter() + min(self._step / 2, _LOT_SECONDS)
            self._skips = _SKIPPED_STEPS  # unless it can be converted
            if convert_lot(
                connection.inbox, conversion, pass_id,
                lambda: not look_ahead.is_wanted_back and time.perf_counter() < until,
            ):  # fmt: skip
                self._skips = 0

    def _await_batch(self) -> tuple[ReceivedBatch | None, Batch | None]:
        """Return the batch that comes next, as received and as the trainer gets it; both None at the end."""
        moved = False
        while (batch := self._await_first()) is not None:
            try:
                if not batch.awaits_rows or self._await_rows(batch):
                    return batch, batch.to_batch(self._session.progress.position.pass_id)
            except StaleRows:
                if moved and time.monotonic() - self._spoke <= self._lease:
                    raise RemoteProtocolError("BatchHead: rows that were given away as soon as they came") from None
                moved = True
                self._begin()  # this trainer was away so long that its cells were given to others
        return None, None

    def _await_rows(self, batch: ReceivedBatch) -> bool:
        """Wait until the rows of ``batch`` have come from their hosts. Return False if a new run has begun."""
        run, seconds = self._session.progress.run, 0.0
        while batch.awaits_rows:
            self._session.check()
            self._connection.wait_for_rows(seconds)
            self._fetch(0.0)
            if self._end_run_if_told() or self._session.progress.run != run:
                return False
            if self._lost_error is not None:
                self._reconnect(self._lost_error)
                return False
            if (fetcher := self._connection.row_fetcher) is not None and (addresses := batch.unreachable(fetcher)):
                self._begin(addresses)
                return False
            self._show_life()  # over a slow line a batch may take long; after a silence this begins anew
            seconds = _ROWS_SECONDS
        return self._session.progress.run == run

    def _end_run_if_told(self) -> bool:
        """Begin anew, or raise, if the service says that this run is over whatever waits here of it."""
        run = self._session.progress.run
        told = [each for each in self._connection.inbox if isinstance(each, tuple) and ends_run(each[0], run)]
        if told:
            self._handle_message(*told[0])
        return bool(told)

    def _has_next(self, loop: LoopHandle) -> bool:
        """Return True if there is another batch of the pass; wait until that is known. If not, end the pass."""
        try:
            batch = self._await_first()
        except Error:
            self._failed(loop)
            raise
        if batch is None:
            self._session.progress = self._ended()
        return batch is not None

    def _ended(self) -> Progress:
        """Return the progress behind the end of the pass."""
        now = self._session.progress
        self._loaded.note_pass_end()
        return now._replace(position=now.position.next_pass(), state=LoopState.BETWEEN)

    def _failed(self, loop: LoopHandle) -> None:
        """End an iterator after an error of ours. Unless the data gave the error, the pass goes on in a new one."""
        loop.is_over = True
        if self._session.closing:
            self._end()
        elif self._session.progress.state is not LoopState.FAILED:
            self._connection.is_damaged = True
            self._session.progress = self._session.progress._replace(state=LoopState.ENTERED, loop=None)

    def _await_first(self) -> ReceivedBatch | None:
        """Return the batch that is to be delivered next, which stays in the inbox; None: the pass has no more."""
        self._connection.check_damage()
        if self._connection.is_damaged or time.monotonic() - self._spoke > self._lease:
            self._begin()  # else the batches that wait here may have been given to others
        self._ask()
        while True:
            first = self._receive()
            if isinstance(first, ReceivedBatch):
                return first
            if first is None:
                self._ask()
            elif self._handle_message(*first):
                return None

    def _handle_message(self, message: m.Message, body: Sequence[memoryview]) -> bool:
        """Handle the first message in the inbox. Return True if the pass is over; it stays in the inbox then."""
        session, connection = self._session, self._connection
        now, inbox = session.progress, connection.inbox
        if getattr(message, "request_id", None) == now.run:
            self._loaded.note_answered()
        match message:
            case m.BatchHead() | m.BeginAgain():
                self._handle_batches(message, body, now)
            case m.PassEnd() if message.request_id == now.run:
                session.progress = now._replace(position=now.position.with_buckets(message.buckets))
                # Of a pass that a state took up, other ranks, and another number of them, may have had a part. One
                # without batches that is not uniform was over before this trainer began.
                if now.is_whole_pass and (message.uniform or message.batches):
                    self._length.note_pass(message.batches, is_repeated=message.uniform)
                return True
            case m.Failed() if message.request_id == now.run and self._loaded.rejoin(message.state_name):
                self._begin()  # what waits here, this message too, is of a run that was left now
            case m.Failed() if message.request_id == now.run:
                lost = is_rewind(message, now.run)
                self._loaded.is_lacking = lost and message.state_name != ""
                if not lost:
                    position = now.position.with_buckets(message.buckets)
                    session.progress = now._replace(position=position, state=LoopState.FAILED)
                raise from_wire(message.error)
            case m.PassEnd() | m.Failed():
                connection.stay_in_pass()
                del inbox[0]
            case m.Closing():
                self._lost_error = connection.service_closing(message)
                del inbox[0]
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} in the middle of a pass")
        return False

    def _handle_batches(self, message: m.BatchHead | m.BeginAgain, body: Sequence[memoryview], now: Progress) -> None:
        """Handle the first message in the inbox: batches, or that those which came are void."""
        connection = self._connection
        match message:
            case m.BeginAgain() if message.request_id == now.run:
                self._begin()
            case m.BatchHead() if message.request_id == now.run:
                slots, fetcher = self._declaration.slots, connection.row_fetcher
                replace_by_batches(connection.inbox, 0, slots, connection.shared_rows, now.done, fetcher)
            case m.BatchHead():  # of a pass that was left
                self._window.note_abandoned()
                if connection.row_fetcher is not None:
                    connection.row_fetcher.drop(message.request_id, message.batch_index)
                del connection.inbox[0]
            case _:
                del connection.inbox[0]

    def _ask(self, *, waits: bool = False) -> None:
        """Ask for more before a batch is taken, if it is time for that. ``waits``: no batch is here."""
        run, done = self._session.progress.run, self._session.progress.done
        if self._shared:
            self._window.prompt = not self._connection.show_used(run, done) or self._dynamic
        now = waits or time.monotonic() - self._spoke > self._lease / _BEATS_PER_LEASE
        count = self._window.next_request(done, now=now)
        if count is not None:
            waited, worked, self._waited, self._worked = self._waited, self._worked, 0.0, 0.0
            self._request(count, microseconds(waited), microseconds(worked))

    def _request(self, count: int = 0, waited: int = 0, worked: int = 0) -> None:
        """Ask for ``count`` more; after a silence beyond the lease begin anew, as others may have what was sent."""
        now = time.monotonic()
        if now - self._spoke > self._lease:
            self._begin()
            return
        self._connection.is_damaged = True
        run, done = self._session.progress.run, self._session.progress.done
        self._send(m.Need(run, count, done, waited, worked))
        self._window.note_requested(count, done)
        self._spoke = now  # a process that is stopped in between was silent since then
        self._connection.is_damaged = False

    def _receive(self) -> ReceivedBatch | tuple[m.Message, list[memoryview]] | None:
        """Return the first item of the inbox, which stays there: a batch, or a message; before all others one that says
        that this run is not the job's any more. Return None if the service is back, and a new run has begun."""
        inbox = self._connection.inbox
        while True:
            self._session.check()
            now = self._session.progress
            while inbox and isinstance(inbox[0], ReceivedBatch) and inbox[0].is_outdated(now.run, now.done):
                del inbox[0]
            if self._looks_for_more or not (inbox and isinstance(inbox[0], ReceivedBatch)):
                self._fetch(0.0)
                if self._end_run_if_told():
                    continue
            if inbox and not self._connection.is_undecoded(inbox[0]):
                first: ReceivedBatch | tuple[m.Message, list[memoryview]] = inbox[0]
                return first
            if self._lost_error is not None:
                self._reconnect(self._lost_error)
                return None
            self._ask(waits=True)
            self._fetch(self._notice.patience(now.run, now.done, self._lease / _BEATS_PER_LEASE))
            self._show_life()

    def _show_life(self) -> None:
        """Say in good time that this trainer waits, but lives."""
        if time.monotonic() - self._spoke > self._lease / _BEATS_PER_LEASE:
            self._request()

    @property
    def _looks_for_more(self) -> bool:
        """True if messages are read before they are needed: others may end this run, or rows are to be asked for."""
        return self._shared or self._connection.row_fetcher is not None

    def _reconnect(self, lost: Error) -> None:
        """Go on with the service once it is started again. Raises ``lost`` if it cannot be waited for."""
        relaxed = self._is_relaxed and self._session.progress.position.batch
        if not (self._may_return and self._connection.is_away) or relaxed:
            raise lost
        try:
            reconnect(self._connection, self._attach, self._stream_identity, self._lease, self._declaration.slots)
        except Error:
            self._session.check()  # the client was closed meanwhile
            raise
        self._lost_error = None
        self._begin()

    def _fetch(self, patience: float) -> None:
        """Take in what came; with ``patience``, wait so many seconds for the first message."""
        try:
            if self._lost_error is None:
                self._connection.fetch(time.monotonic() + patience if patience else None)
        except Error as error:  # raised after what came before it
            self._session.check()
            self._lost_error = error

    def _send(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        if self._lost_error is None:  # else the error is raised in its turn
            self._connection.send(message, frames)
        self._spoke = time.monotonic()

    def _leave(self, *, unused: bool = False) -> None:
        """Leave the pass, if one is under way. ``unused``: the batch in hand is not used."""
        for received in self._connection.inbox:
            if isinstance(received, ReceivedBatch):
                received.converted = None  # they may wait here for long
        now = self._session.progress
        if now.state not in (LoopState.RUNNING, LoopState.ENTERED):
            return
        if now.loop is not None:
            now.loop.is_over = True
        unused = unused and now.state is LoopState.RUNNING  # the batch is used once the next one was asked for
        self._session.progress = now._replace(state=LoopState.LEFT)
        if self._end.alive and now.loop is not None:  # after an error there is nothing to leave
            with contextlib.suppress(ProtocolError):  # the service ended first
                self._connection.send(m.LeavePass(now.run, max(now.done - unused, 0)))

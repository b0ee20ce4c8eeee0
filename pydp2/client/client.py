"""Iterate over the batches of a job: one iteration is one pass.

:mod:`.run_protocol` decides, and tells why a client is the way it is; here are the sockets, the waits and the clock.

Batches that were granted arrive in ZeroMQ's own thread while the trainer computes, and are turned into arrays when they
are asked for. If the trainer's steps take long enough, rows that lie in memory of the service are gathered a batch
ahead, and converted for a loader of a framework (:mod:`.look_ahead`).
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from socket import gethostname
from typing import Any

from pydp2.client.connection import (
    Target,
    ask_files,
    ask_stats,
    ask_weights,
    connect_once,
    detach,
    parse_welcome,
    reconnect,
)
from pydp2.client.describe import Fact, client_facts
from pydp2.client.length import PassLength
from pydp2.client.look_ahead import NextBatch, send_need
from pydp2.client.progress import LoopHandle, LoopState, Progress
from pydp2.client.received import MAKE_VALUES, Conversion, ReceivedBatch, replace_by_batches
from pydp2.client.row_kinds import RowKind, row_kind
from pydp2.client.run_protocol import BEATS_PER_LEASE, ClientAction, RunProtocol
from pydp2.client.saved_state import load_stream_state, save_stream_state
from pydp2.client.session import ClientGuard
from pydp2.client.step_metrics import StepMetrics
from pydp2.client.stream import Stream
from pydp2.client.wait_notice import WaitNotice
from pydp2.data.columns.batch import Batch, StringArray
from pydp2.data.rowstore.ids import StaleRows
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    ClientUseError,
    Error,
    OptionError,
    OptionTypeError,
    OutOfMemory,
    ProtocolError,
    RemoteProtocolError,
)
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.exact_weights import exact_weight
from pydp2.protocol.figures import clip
from pydp2.protocol.spans import SpanKind
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.system.single_pass import taken_over
from pydp2.system.stdlib import time

_COUNTS_SECONDS = 5.0  # for which the length is waited for, as long as the service looks for counts on its disk
_COUNTS_POLL_SECONDS = 0.01  # between two questions whether it has them
_ROWS_SECONDS = 0.1  # between two looks whether rows that were asked for are overdue


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
        number: int = 0,
        numbers: TrainerNumbers = TrainerNumbers(),  # noqa: B008  # of one trainer; it cannot change
        timeout: float = 10.0,
        on_close: Callable[[], None] | None = None,
        gone: Callable[[], bool] | None = None,
    ) -> None:
        self._target, self.address = target, target.address
        self._dynamic = options.get("share") == "dynamic"
        self._session = session = ClientGuard(Progress(StreamState()))
        name, host = os.urandom(8).hex(), gethostname() if target.is_secured else ""
        self._attach = m.Attach(
            m.WIRE_VERSION,
            job,
            numbers.rank(number),
            numbers.world,
            name,
            dict(options),
            session.pid,
            host=host,
            peer=numbers.peer(number),
            peer_count=numbers.peers,
        )
        try:
            connection, answer, _ = connect_once(target, self._attach, time.monotonic() + timeout, gone, session)
            try:
                welcome = parse_welcome(answer)
                self._declaration = Schema.from_wire(welcome.schema)
                self._kind = kind = row_kind(
                    self._declaration.slots, welcome.service, gives_origins=bool(options.get("origin"))
                )
                self._run = run = RunProtocol(session, connection.inbox, self._attach, welcome, target.is_secured)
            except Error:
                connection.close()
                raise
        except BaseException:
            session.release()
            raise
        run.spoke_at = time.monotonic()
        self._stream_identity = run.stream_identity
        connection.row_sources.kind = None if type(kind) is RowKind and len(kind.starts) < 2 else kind
        connection.map_shared_rows(self._declaration.slots)
        self._connection = connection
        # At the latest when the program ends: what is left until the interpreter exits can hang there.
        self._on_close = [] if on_close is None else [on_close]
        self._gone = gone
        self._end = weakref.finalize(self, detach, session, connection, self._on_close)
        self._next_batch = NextBatch(session.look_ahead, connection, run, session)
        self._steps = StepMetrics()
        self._last_head: m.BatchHead | None = None  # of the batch in hand
        self._recorded_until = 0.0  # end of the last span of a call in a trace
        self._notice = WaitNotice(partial(ask_stats, target), job, None if self._dynamic else number, options)
        self._files: StringArray | tuple[StringArray, ...] | None = None
        self.batch_size = int(options["batch_size"])
        """Weight of a batch of the job; the last ones may weigh less."""

    @property
    def slots(self) -> Slots:
        """Types and names of the slots."""
        return self._kind.slots

    @property
    def _converted_slots(self) -> Slots:
        return self._kind.converted_slots

    def __len__(self) -> int:
        """Return the number of batches that this trainer has in a whole pass, if the files are counted and every sample
        weighs 1 (docs/caching.md, "Counts"). Raises TypeError if it is not known, with the remedy."""
        is_mixed = self._attach.options.get("mix") is not None  # what a pass had says nothing of others
        _learn_counts(self._target, self._session, self._run.length, again=is_mixed)
        if (known := self._length.exact) is None:
            raise TypeError(self._length.reason())
        return known

    def __length_hint__(self) -> int:
        """Return an estimate of that number: from the files that are counted, or the batches of the last pass."""
        known = self._length.estimate
        return NotImplemented if known is None else known

    @property
    def _length(self) -> PassLength:
        """Length of a pass, as far as it is known by now."""
        length = self._run.length
        length.note_weights(self._session.progress.position.buckets.get("weights", ()))
        return length

    @property
    def files(self) -> StringArray | tuple[StringArray, ...]:
        """Entries of the file list: entry ``n`` is ``files[n]``, for ``n`` of :attr:`pydp2.Batch.origin`. If the
        service has several sources, those of each source: ``files[source][n]``. The first use asks the service for
        them. See docs/debugging.md."""
        if self._files is None:
            self._session.check_process()
            self._session.check()
            self._files = self._kind.by_source(ask_files(self._target))
        return self._files

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the service, as plain data; see ``Service.stats``."""
        self._session.check_process()
        self._session.check()
        return ask_stats(self._target)

    def set_weights(self, weights: Mapping[str, Any]) -> tuple[int, int]:
        """Change the weights of a mixture while it runs. Return the pass and the step from which they hold.

        They hold for all ranks from the first step on of which nothing was drawn, until they are changed again, and are
        part of the states from there on. One rank calls this, rank 0 for example. See docs/mixing.md.

        Args:
            weights: a dict of source and weight, a number from 0 on, for all sources. A source with 0 is not read.

        Raises:
            OptionError, OptionTypeError: the stream is no mixture, or the weights are not valid.
            ServiceUnreachable: no service answers.
        """
        self._session.check_process()
        self._session.check()
        if not isinstance(weights, Mapping):
            raise OptionTypeError(f"weights must be a dict of source and weight, got {weights!r:.80}")
        exact = {str(name): exact_weight(weight) for name, weight in weights.items()}
        place = ask_weights(self._target, self._attach.job, exact)
        self._run.length.note_weights([(*place, [*exact.values()])])
        return place

    def with_options(self, suffix: str, **changes: Any) -> Client:
        """Return a client that takes the place of this one, which is closed: it has the same rank in a job of the same
        service with other options. ``suffix``: added to the name of the job. Raises ClientUseError if a loop has
        begun, or a state was loaded."""
        session, attach = self._session, self._attach
        numbers = TrainerNumbers(attach.world_size, attach.peer_count)
        if session.progress != Progress(session.progress.position) or self._run.loaded.name:
            raise ClientUseError(
                "this stream is in use already: pack or mix it before its first loop, and load the state of the stream "
                "that comes of it"
            )
        client = Client(
            self._target,
            {**attach.options, **changes},
            job=f"{attach.job}.{suffix}",
            number=numbers.of(attach.rank, attach.peer),
            numbers=numbers,
            gone=self._gone,
        )
        client._on_close += self._on_close
        self._on_close.clear()
        client.owner, self.owner = self.owner, None
        if hasattr(client.owner, "job"):
            client.owner.job = client._attach.job
        self.close()
        return client

    def _facts(self) -> list[Fact]:
        return client_facts(self.address, self._attach, self.batch_size)

    @property
    def _rank(self) -> tuple[int, int]:
        return self._attach.rank, self._attach.world_size

    def _state_of(self, position: StreamState) -> dict[str, Any]:
        return save_stream_state(position, self._stream_identity)

    def _position_of(self, state: Any, allow: Collection[str]) -> StreamState:
        return load_stream_state(state, self._stream_identity, allow)

    def _without(self, position: StreamState, batches: Collection[int]) -> StreamState:
        if self._is_relaxed:
            raise OptionError(
                'skip needs order="strict": with order="relaxed" a batch has other samples each time, so its number '
                "says nothing"
            )
        if (least := min(batches)) < position.batch:
            raise OptionError(
                f"skip names batch {least}, and the state is before batch {position.batch} of pass {position.pass_id}; "
                "name batches from there on, or load a state that was saved before them"
            )
        return position.without(batches, 1 if self._dynamic else self._attach.world_size)

    def _lacks_state(self) -> bool:
        return self._run.loaded.is_lacking

    def _go_to(self, position: StreamState, *, after_pass: bool) -> None:
        self._run.loaded.load(position.name, after_pass=after_pass)

    # -- one call of next() ------------------------------------------------------------------------------------------
    def _convert_beside_steps(self, conversion: Conversion | None) -> None:
        self._next_batch.set_conversion(MAKE_VALUES if conversion is None else conversion)

    def _next(self, loop: LoopHandle) -> tuple[Batch | None, Progress]:
        began = time.perf_counter()
        run, steps = self._run, self._steps
        now = self._session.progress
        if now.loop is not loop:
            raise taken_over("client")
        if now.state is LoopState.BETWEEN:
            return None, now  # the pass has ended
        worked = steps.end_step(began) if now.calls else 0.0  # else what came before is no step of this loop
        run.worked += worked
        try:
            received, batch = self._await_batch()
        except Error:
            self._note_error(loop)
            raise
        except MemoryError as error:
            self._note_error(loop)
            raise _out_of_memory(error) from error
        if received is None or batch is None:
            left = time.perf_counter()
            run.waited += left - began
            steps.end_pass(began, left)
            return None, run.end_pass()
        progress = run.take(received, loop)
        batch._resume = progress.start, progress.position
        next_batch = self._next_batch
        if next_batch.conversion is MAKE_VALUES:
            batch._ready = None  # also one of a loop that was left
        next_batch.begin_step(progress, worked)
        left = time.perf_counter()
        run.waited += left - began
        steps.begin_step(began, left, progress.samples - now.samples)
        if self._connection.spans.is_recording:
            self._record_call(began, worked, left, batch.pass_id, batch.index)
        self._last_head = received.head
        return batch, progress

    def _record_call(self, began: float, worked: float, now: float, pass_id: int, batch_index: int = -1) -> None:
        """Add the spans of a call from ``began`` to ``now``, and of the step before it, which was one of the same pass;
        without what was added before, while the call waited. ``batch_index``: -1 until the batch has come."""
        spans = self._connection.spans
        until, self._recorded_until = self._recorded_until, now  # before they are added, so that none comes twice
        if worked and until <= began and self._last_head is not None:
            spans.add(SpanKind.STEP, max(began - worked, until), began, pass_id, self._last_head.batch_index)
        spans.add(SpanKind.WAIT, max(began, until), now, pass_id, batch_index)

    def _record_wait(self, began: float) -> None:
        """Send a trace the part of the call under way that is over, if it is time for that. The call waits, and began
        at ``began``."""
        now, progress = time.perf_counter(), self._session.progress
        if self._connection.spans.is_due(now, began):
            worked = self._steps.last_worked if progress.calls else 0.0
            self._record_call(began, worked, now, progress.position.pass_id)
            self._send_spans()

    def _has_next(self, loop: LoopHandle) -> bool:
        try:
            received = self._await_first()
        except Error:
            self._note_error(loop)
            raise
        if received is None:
            self._session.progress = self._run.end_pass()
        return received is not None

    def _note_error(self, loop: LoopHandle) -> None:
        if self._session.closing:
            loop.is_over = True
            self._end()
        else:
            self._run.note_error(loop)

    def _await_batch(self) -> tuple[ReceivedBatch | None, Batch | None]:
        """Return the batch that comes next, as received and as the trainer gets it; both None at the end."""
        moved = False
        while (received := self._await_first()) is not None:
            spans = self._connection.spans
            began = time.perf_counter() if spans.is_recording else 0.0
            try:
                batch = received.to_batch(self._session.progress.position.pass_id)
                if began:
                    spans.add(SpanKind.GATHER, began, time.perf_counter(), batch.pass_id, batch.index)
                return received, batch
            except StaleRows:
                if moved and not self._run.must_begin(time.monotonic()):
                    raise RemoteProtocolError("BatchHead: rows that were given away as soon as they came") from None
                moved = True
                self._begin()  # this trainer was away so long that its cells were given to others
        return None, None

    def _await_first(self) -> ReceivedBatch | None:
        """Return the batch that is to be delivered next, which stays in the inbox; None: the pass has no more."""
        run, connection, session = self._run, self._connection, self._session
        now = time.monotonic()
        if connection.check_damage() or not run.is_quiet(now):
            self._begin_or_ask(now)
        if connection.spans.is_recording and connection.spans.is_due(now):
            self._send_spans()
        has_read, awaited = False, None
        while True:
            if session.closing:
                session.check()
            run.reads_ahead = run.is_shared or connection.row_sources.must_read_ahead
            if run.reads_ahead:
                self._fetch(0.0)
            action = run.next_action(has_read=has_read or run.reads_ahead)
            if isinstance(action, ReceivedBatch):
                return action
            if action is ClientAction.END:
                return None
            has_read = action is ClientAction.READ
            if has_read:
                self._fetch(0.0)
            elif action is ClientAction.AWAIT_ROWS:
                first = connection.inbox[0]  # its rows may be here: no wait at first
                self._await_rows(first, _ROWS_SECONDS if first is awaited else 0.0, now)
                awaited = first
            else:
                self._carry_out(action, now)

    def _carry_out(self, action: ClientAction, began: float) -> None:
        """Carry out an action that ``_await_first`` does not. ``began``: when the call did."""
        run, connection = self._run, self._connection
        inbox = connection.inbox
        match action:
            case ClientAction.UNPACK:
                replace_by_batches(inbox, 0, connection.row_sources, self._session.progress.done)
            case ClientAction.DROP:
                connection.drop_first()
            case ClientAction.CLOSE:
                run.lost = connection.service_closing(inbox[0][0])
                del inbox[0]
            case ClientAction.BEGIN:
                self._begin()
            case ClientAction.WAIT:
                self._ask(time.monotonic(), waits=True)
                now = self._session.progress
                most = connection.spans.patience(run.lease / BEATS_PER_LEASE)
                self._fetch(self._notice.patience(now.run, now.done, most))
                self._show_life(began)
            case ClientAction.RECONNECT:
                self._reconnect()

    # -- messages to the service ---------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Begin a run."""
        run, connection, session = self._run, self._connection, self._session
        session.is_damaged = True
        connection.row_sources.forget()
        message, frames = run.begin()
        if run.lost is None:  # else the error is raised in its turn
            connection.send(message, frames)
        run.spoke_at = time.monotonic()
        connection.is_damaged = session.is_damaged = False  # in this order

    def _begin_or_ask(self, now: float) -> None:
        """Begin a run, if one has to begin, and ask for more, before a batch is taken."""
        if self._connection.is_damaged or self._run.must_begin(now):
            self._begin()
            now = time.monotonic()
        self._ask(now)

    def _ask(self, now: float, *, waits: bool = False) -> None:
        """Ask for more before a batch is taken, if it is time for that. ``waits``: no batch is here."""
        run = self._run
        if run.is_shared:
            progress = self._session.progress
            is_shown = self._connection.show_used(progress.run, progress.done)
            run.window.report_at_once(not is_shown or self._dynamic)
        if (need := run.need(now, waits=waits)) is not None:
            self._send_need(need, now)

    def _show_life(self, began: float) -> None:
        """Say in good time that this trainer waits, but lives. The call under way began at ``began``."""
        now = time.monotonic()
        if (need := self._run.sign_of_life(now)) is not None:
            self._send_need(need, now)
        if self._connection.spans.is_recording:
            self._record_wait(began)

    def _send_need(self, need: m.Need, now: float) -> None:
        """Send ``need``; after a silence beyond the lease begin anew, as others may have what was sent."""
        if self._run.must_begin(now):
            self._begin()
        else:
            send_need(self._connection, self._run, self._session, need, now)

    def _send_spans(self) -> None:
        """Send the service what was recorded for its trace."""
        spans, session = self._connection.spans, self._session
        lost, frames = spans.take(time.perf_counter())
        session.is_damaged = True
        if self._run.lost is None:
            message = m.RecordedSpans(lost, clip(time.monotonic_ns()), is_last=not spans.is_on)
            self._connection.send(message, frames)
        session.is_damaged = False

    def _leave(self, *, unused: bool = False) -> None:
        """Leave the pass, if one is under way. ``unused``: the batch in hand is not used."""
        message = self._run.leave(unused=unused)
        if message is not None and self._end.alive:
            with contextlib.suppress(ProtocolError):  # the service ended first
                self._connection.send(message)

    # -- waits ---------------------------------------------------------------------------------------------------------
    def _fetch(self, patience: float) -> None:
        """Take in what came; with ``patience``, wait so many seconds for the first message."""
        try:
            if self._run.lost is None:
                self._connection.fetch(time.monotonic() + patience if patience else None)
        except Error as error:  # raised after what came before it
            self._session.check()
            self._run.lost = error

    def _await_rows(self, received: ReceivedBatch, seconds: float, began: float) -> None:
        """Take in rows of ``received`` that were asked for, and wait up to ``seconds`` for some; begin anew if they do
        not come. ``began``: when the call did."""
        connection = self._connection
        connection.wait_for_rows(seconds)
        if (report := connection.row_sources.report_missing(received.rows)) is not None:
            connection.send(report)
            self._begin()
            self._ask(time.monotonic())
        else:
            self._show_life(began)  # over a slow line a batch may take long; after a silence this begins anew

    def _reconnect(self) -> None:
        """Go on with the service once it is started again. Raises the error with which it went if it cannot be waited
        for."""
        run, connection = self._run, self._connection
        if run.lost is not None and not run.may_reconnect(is_away=connection.is_away):
            raise run.lost
        try:
            reconnect(connection, self._attach, self._stream_identity, run.lease, self._declaration.slots)
        except Error:
            self._session.check()  # the client was closed meanwhile
            raise
        run.lost = None
        self._begin()
        self._ask(time.monotonic())


def _learn_counts(target: Target, session: ClientGuard, length: PassLength, *, again: bool = False) -> None:
    """Wait for the counts that the service looks for. ``again``: ask for them, because there may be more by now."""
    deadline = time.monotonic() + _COUNTS_SECONDS
    with contextlib.suppress(Error):  # without an answer it is not known
        while (again or length.is_loading) and not session.closing and session.in_own_process:
            again = False
            length.learn(ask_stats(target, max(0.0, deadline - time.monotonic())).get("counts"))
            time.sleep(_COUNTS_POLL_SECONDS if length.is_loading else 0.0)


def _out_of_memory(error: MemoryError) -> OutOfMemory:
    return OutOfMemory(
        f"this process has no memory for the next batch ({error or 'the amount is unknown'}); drop batches that are "
        "not used any more, lower batch_size or prefetch, or raise what limits it (`ulimit -v`)"
    )

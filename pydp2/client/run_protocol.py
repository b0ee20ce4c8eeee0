"""Decide what a client does next, from the messages that came, the batches that were taken, and the time.

Theory of operation
-------------------
A *run* is one request for the rest of a pass. ``BeginPass`` gives it a number, every answer carries that number, and
what comes with another number belongs to a run that was left. A client begins a new run when a loop begins, after a
state was loaded, and whenever it cannot know any more what is under way: after an exception in the middle of a call,
after a silence longer than the lease, after a reconnection, and when the service asks for it (``BeginAgain``). That is
always safe, because a run begins at the position of the trainer, and the position says all that the trainer has had.

So one thing has to be exact: **the position is the one behind the last batch that the trainer got.** An exception may
come at any instruction (Ctrl-C, a signal handler that raises), and two rules keep the position exact:

1. All that is known of the trainer is one value (:class:`.progress.Progress`), and a call that returns a batch stores
   it as its last step, in :meth:`.session.ClientGuard.guarded`. Between that store and the return CPython looks for no
   signal. With several attributes, or with a store before or after the last call, a batch could be lost or come twice.
2. What waits in the inbox stays there until the progress says that it was used. An action replaces some items by
   others in one statement, so it is done or not done, and can be repeated. A batch leaves the inbox in the call after
   the one that returned it, when its number is below ``done``.

Everything else may be cut in two: what was sent and what is noted of it (``ClientGuard.is_damaged``), half a message
(``Connection.is_damaged``). Whoever begins such a change sets the flag, and resets it at the end; a flag that is found
set leads to a new run. It would be simpler to begin a new run after every exception, but then a program that a timer
interrupts all the time would get what waits here again and again, and would hardly come on.

Credit goes ahead of use: ``Need`` says how many batches of the run were taken, and how many more may come
(:class:`PrefetchWindow`). A trainer that computes for long says nothing meanwhile. After a silence longer than the
lease the service may give its batches to others, so nothing that waits here is delivered then. While it waits for a
batch, the client sends a sign of life in time.

Messages are handled in the order in which they came, but for two: ``Rewound`` and ``BeginAgain`` make void what waits
before them, so they are looked for in the whole inbox. An error, of the data or of the connection, is raised when what
came before it is used up. Other ranks may have gone to a state meanwhile: if it is the one that this trainer loaded
itself, not many batches ago, it goes there, too (:class:`LoadedState`).

There is no socket, no clock and no thread here: :class:`.client.Client` carries out each :class:`ClientAction`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

from pydp2.client.length import PassLength
from pydp2.client.progress import LoopHandle, LoopState, Progress
from pydp2.client.received import ReceivedBatch
from pydp2.errors import Error, RemoteProtocolError, from_wire
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.protocol.figures import microseconds

WINDOW_BYTES = 512 * 1024
"""Number of bytes that may be on their way to a trainer that asks for many batches at a time."""
WIDE_WINDOW_BYTES = 8 * 1024 * 1024
"""The same number for rows that stay where the service shows them, because a message has their numbers, and nothing is
copied before a batch is taken; and for a service that may be on another host, because a round trip takes long."""
BEATS_PER_LEASE = 4
"""Number of signs of life per lease while a batch is waited for."""
MAX_REJOIN_BATCHES = 16
"""Number of batches since it loaded a state with which a client of a rank still goes on by itself."""
_MAX_BATCHES = 64  # that are asked for at a time


class PrefetchWindow:
    """Window of batches asked for and not taken: ``prefetch`` of them, more if they are small, as many as
    ``prefetch_bytes`` hold if they are large. Beyond that the service sends nothing before it is told what was used.

    A trainer asks for many small batches at a time, because each message has its price, and reports then which it has
    used. ``report_each``: it sends a message for each batch, because the service cannot see what this rank has used.
    ``may_exceed_prefetch``: there may be more than ``prefetch`` if they are small; not with ``share="dynamic"``, where
    batches that lie at one trainer are missing to the others. ``high_latency``: the service may be on another host.
    ``done``, below: how many batches of the run were taken.
    """

    def __init__(
        self,
        prefetch: int,
        prefetch_bytes: int,
        *,
        report_each: bool,
        may_exceed_prefetch: bool = True,
        high_latency: bool = False,
    ) -> None:
        self._prefetch = self._aim = prefetch
        self._limit = prefetch_bytes
        self._may_exceed_prefetch, self._high_latency = may_exceed_prefetch, high_latency
        self.report_each = report_each
        """True if a message reports at once that a batch is used."""
        self._requested = self._reported = 0  # batches of the run: asked for, and reported as taken
        self._abandoned_count = False  # batches of a run that was left were read, and the service was not told

    def start_pass(self) -> int:
        """Begin a run and return how many batches are asked for with that."""
        self._requested, self._reported = self._prefetch, 0
        return self._prefetch

    def next_request(self, done: int, *, now: bool = False) -> int | None:
        """Return how many batches to ask for before one is taken, or None when nothing has to be sent. ``now``: what
        was taken has to be reported."""
        missing = max(0, self._aim + 1 - (self._requested - done))
        enough = 1 if self.report_each else max(1, (self._aim + 1) // 2)
        unreported = done - self._reported
        if max(missing, unreported) < enough and not (now and (unreported or self._abandoned_count)):
            return None
        return missing

    def note_requested(self, count: int, done: int) -> None:
        """Note that ``count`` more were asked for, and that the service was told that the first ``done`` were taken."""
        self._requested, self._reported, self._abandoned_count = self._requested + count, done, False

    def note_taken(self, nbytes: int, columns: int, *, shown: bool = False) -> None:
        """Note that a batch was taken: ``nbytes`` of it lay here or were held for it, and its columns have ``columns``
        bytes; ``shown``: they lie in memory that the service shows."""
        if not self._may_exceed_prefetch:
            return
        window = WIDE_WINDOW_BYTES if shown or self._high_latency else WINDOW_BYTES
        more = max(self._prefetch, min(_MAX_BATCHES, window // max(1, nbytes)))
        self._aim = max(1, min(more, self._limit // (columns + BATCH_COST) - 1))  # one is in use

    def note_abandoned(self) -> None:
        """Note that a batch of a run that was left was read: the service counts it until it is told."""
        self._abandoned_count = True


class LoadedState:
    """Loaded state of a client, which begins a run with ``name`` until the service answers. ``dynamic``: what it has
    had since then may go to other clients."""

    def __init__(self, *, dynamic: bool = False) -> None:
        self._rejoin_batches = 0 if dynamic else MAX_REJOIN_BATCHES
        self.name = ""
        """Name of the state that the next run asks for; empty: none."""
        self.is_repeat = False
        """True if a run has asked for it before."""
        self.after_pass = False
        """True if other ranks end their pass before the service goes there."""
        self.is_lacking = False
        """True if the service went to a state, and this client was told to load it, too."""
        self.was_answered = False
        """True once the service has answered a run."""
        self._origin = ""  # the one that this client loaded last, if it may go back to it
        self._batches = 0  # had since then
        self._goes_back = False  # the next run begins because of rejoin()

    def load(self, name: str, *, after_pass: bool = False) -> None:
        """Note that the state ``name`` was loaded."""
        self.name, self.is_repeat, self.after_pass = name, False, after_pass
        self._origin, self._batches, self._goes_back = name, 0, False
        self.is_lacking = False

    def note_asked(self) -> None:
        """Note that a run asks for it, or is about to."""
        self.is_repeat = bool(self.name)
        if self._goes_back:
            self._origin = ""  # once

    def note_answered(self) -> None:
        """Note that the service has answered that run."""
        self.name, self.is_repeat, self.was_answered = "", False, True

    def note_pass_end(self) -> None:
        """Note that a pass is over: others may be given what it had of it."""
        if self._rejoin_batches == 0:
            self._origin = ""

    def note_batch(self) -> None:
        """Note that a batch was delivered."""
        self._batches += 1
        self.is_lacking = False

    def rejoin(self, name: str) -> bool:
        """Return True if the client goes on, once, with a service that went back to the state ``name``: it is the one
        that it loaded itself, not many batches ago. Until a run asks for it the answer stays the same, because an
        exception may come between."""
        if not name or name != self._origin or self._batches > self._rejoin_batches:
            return False
        self.name, self.is_repeat, self._goes_back = name, True, True
        return True


class ClientAction(Enum):
    """Next step of a client. *The message* is the first item of the inbox."""

    READ = "take in what has come"
    UNPACK = "replace the message by its batches"
    DROP = "drop the message: it is of a run that was left"
    CLOSE = "keep the error that the message has, and drop the message: the service ends"
    BEGIN = "begin a run"
    AWAIT_ROWS = "wait for rows of the first batch that were asked for and have not come"
    WAIT = "ask for what is missing, and wait for a message"
    RECONNECT = "connect anew, or raise the error with which the connection ended"
    END = "end the pass; the message stays"


class ProgressHolder(Protocol):
    """Object that has the progress of a client, as :class:`.session.ClientGuard` does, and ``is_damaged``: True while
    what was sent and what is noted of it may differ."""

    progress: Progress
    is_damaged: bool


class RunProtocol:
    """Runs of one client, whose progress is that of ``holder``.

    ``inbox``: what came and was not used, first come first: messages with their raw frames, as pairs, batches, and
    behind them what is not decoded. ``attach``: the message with which the client attached, ``welcome`` the answer.
    ``high_latency``: the service may be on another host. Raises RemoteProtocolError for a welcome that cannot be.
    """

    def __init__(
        self, holder: ProgressHolder, inbox: list[Any], attach: m.Attach, welcome: m.Welcome, high_latency: bool
    ) -> None:
        options, service = attach.options, welcome.service
        dynamic = options.get("share") == "dynamic"
        holder.progress = Progress(StreamState.from_welcome(service.get("position", {})))
        self._holder, self._inbox = holder, inbox
        self.stream_identity: dict[str, Any] = service.get("stream_identity", {})
        """Plain data that tell on what the stream depends."""
        self.is_relaxed: bool = self.stream_identity.get("order") == "relaxed"
        """True if the stream cannot be taken up in the middle of a pass."""
        self.is_shared = attach.world_size > 1 or dynamic
        """True if other trainers have batches of the same pass."""
        self.reads_ahead = self.is_shared
        """True if messages are read before they are needed: others may end this run, or rows have to be asked for."""
        self.length = PassLength(options, attach.rank, attach.world_size)
        self.length.learn(service.get("counts"))
        self.window = PrefetchWindow(
            int(options["prefetch"]),
            int(options["prefetch_bytes"]),
            report_each=self.is_shared,
            may_exceed_prefetch=not dynamic,
            high_latency=high_latency,
        )
        self.loaded = LoadedState(dynamic=dynamic)
        self.lease = float(options["lease"])
        # Restarted with a state_dir, or over a path that was cut and is mended.
        self._may_return = service.get("durable") is True or high_latency
        self.spoke_at = 0.0
        """Time at which the service was last told something."""
        self.waited = self.worked = 0.0
        """Seconds since the last :class:`Need` in which the trainer waited for batches, and worked with them."""
        self.lost: Error | None = None
        """Error with which the connection ended, raised when what came before it is used up."""

    # -- messages to the service -----------------------------------------------------------------------------------
    def must_begin(self, now: float) -> bool:
        """Return True if a run has to begin before a batch is delivered: the batches that wait may be those of others
        by now."""
        return self._holder.is_damaged or now - self.spoke_at > self.lease

    def begin(self) -> tuple[m.BeginPass, list[bytes]]:
        """Begin a run at the position, and return the message that asks for it, with its frames."""
        now = self._holder.progress
        self._holder.progress = now = now._replace(run=now.run + 1, done=0)
        message, frames = now.position.to_wire(now.run, self.window.start_pass())
        loaded = self.loaded
        message = replace(
            message,
            state_name=loaded.name,
            is_repeat=loaded.is_repeat,
            after_pass=loaded.after_pass,
            was_answered=loaded.was_answered,
        )
        loaded.note_asked()
        return message, frames

    def need(self, now: float, *, waits: bool = False) -> m.Need | None:
        """Return the message that asks for more batches, if it is time for that. ``waits``: no batch is here."""
        progress = self._holder.progress
        is_due = waits or now - self.spoke_at > self.lease / BEATS_PER_LEASE
        count = self.window.next_request(progress.done, now=is_due)
        if count is None:
            return None
        waited, worked, self.waited, self.worked = self.waited, self.worked, 0.0, 0.0
        return m.Need(progress.run, count, progress.done, microseconds(waited), microseconds(worked))

    def sign_of_life(self, now: float) -> m.Need | None:
        """Return the message that says that the trainer waits, if it is time for that."""
        if now - self.spoke_at <= self.lease / BEATS_PER_LEASE:
            return None
        progress = self._holder.progress
        return m.Need(progress.run, 0, progress.done, 0, 0)

    def note_sent(self, need: m.Need, now: float) -> None:
        """Note that ``need`` was sent. ``now``: the time before that, as a process may be stopped in between."""
        self.window.note_requested(need.count, need.used_batches)
        self.spoke_at = now

    # -- messages of the service -----------------------------------------------------------------------------------
    def next_action(self, *, has_read: bool = False) -> ClientAction | ReceivedBatch:
        """Return the action that is due, or the batch that comes next. ``has_read``: the last action was READ.

        Raises the error of the data when its turn comes, Rewound at once, RemoteProtocolError for a message that does
        not belong into a pass.
        """
        inbox, progress = self._inbox, self._holder.progress
        run, done = progress.run, progress.done
        while True:
            first: Any = inbox[0] if inbox else None
            batch = first if isinstance(first, ReceivedBatch) else None
            if batch is None or (batch.number >= done and batch.head.request_id == run):
                break
            del inbox[0]  # it was delivered, or its run was left
        if self.reads_ahead or batch is None:
            if not has_read:
                return ClientAction.READ
            for item in inbox:
                if isinstance(item, tuple) and _ends_run(item[0], run):
                    return self._handle(item[0], progress)
        if isinstance(first, tuple):
            return self._handle(first[0], progress)
        if batch is not None and not (self.reads_ahead and batch.awaits_rows):
            return batch
        if self.lost is not None:
            return ClientAction.RECONNECT
        return ClientAction.WAIT if batch is None else ClientAction.AWAIT_ROWS

    def _handle(self, message: m.Message, progress: Progress) -> ClientAction:
        """Return the action that ``message`` leads to."""
        if isinstance(message, m.Closing):
            return ClientAction.CLOSE
        if not isinstance(message, m.BatchHead | m.BeginAgain | m.PassEnd | m.Failed):
            raise RemoteProtocolError(f"{type(message).__name__} in the middle of a pass")
        if message.request_id != progress.run:
            if isinstance(message, m.BatchHead):
                self.window.note_abandoned()
            return ClientAction.DROP
        self.loaded.note_answered()
        if isinstance(message, m.BatchHead):
            return ClientAction.UNPACK
        if isinstance(message, m.PassEnd):
            return self._end(message, progress)
        return self._fail(message, progress) if isinstance(message, m.Failed) else ClientAction.BEGIN

    def _end(self, message: m.PassEnd, progress: Progress) -> ClientAction:
        self._holder.progress = progress._replace(position=progress.position.with_buckets(message.buckets))
        # Of a pass that a state took up, other ranks, and another number of them, may have had a part. One without
        # batches that is not uniform was over before this trainer began.
        if progress.is_whole_pass and (message.uniform or message.batches):
            self.length.note_pass(message.batches, is_repeated=message.uniform)
        return ClientAction.END

    def _fail(self, message: m.Failed, progress: Progress) -> ClientAction:
        if self.loaded.rejoin(message.state_name):
            return ClientAction.BEGIN  # what waits, this message too, is of a run that is left with that
        is_rewound = _ends_run(message, progress.run)
        self.loaded.is_lacking = is_rewound and message.state_name != ""
        if not is_rewound:
            position = progress.position.with_buckets(message.buckets)
            self._holder.progress = progress._replace(position=position, state=LoopState.FAILED)
        raise from_wire(message.error)

    def may_reconnect(self, *, is_away: bool) -> bool:
        """Return True if the service may be waited for. ``is_away``: it went away without a word, or may come back."""
        can_go_on = not (self.is_relaxed and self._holder.progress.position.batch)
        return self._may_return and is_away and can_go_on

    # -- the trainer -------------------------------------------------------------------------------------------------
    def take(self, batch: ReceivedBatch, loop: LoopHandle) -> Progress:
        """Return the progress behind ``batch``, which ``loop`` is about to get."""
        now = self._holder.progress
        position = now.position.after(batch.head, batch.pool, batch.early_ends, batch.checksums)
        self.loaded.note_batch()
        nbytes, is_shared = batch.nbytes, batch.is_shared
        self.window.note_taken(nbytes, batch.column_bytes if is_shared else nbytes, shown=is_shared)
        samples = now.samples + batch.head.rows - batch.head.padding
        return Progress(position, LoopState.RUNNING, now.run, now.done + 1, samples, loop, loop.calls[0], now.origin)

    def end_pass(self) -> Progress:
        """Return the progress behind the end of the pass."""
        now = self._holder.progress
        self.loaded.note_pass_end()
        return now._replace(position=now.position.next_pass(), state=LoopState.BETWEEN)

    def note_error(self, loop: LoopHandle) -> None:
        """End ``loop``, because a call raised an error of ours. Unless the data gave it, the pass goes on in a new
        loop."""
        loop.is_over = True
        now = self._holder.progress
        if now.state is not LoopState.FAILED:
            self._holder.is_damaged = True
            self._holder.progress = now._replace(state=LoopState.ENTERED, loop=None)

    def leave(self, *, unused: bool = False) -> m.LeavePass | None:
        """Leave the pass, if one is under way, and return the message that tells the service, if that has to know.
        ``unused``: the batch in hand is not used."""
        for received in self._inbox:
            if isinstance(received, ReceivedBatch):
                received.converted = None  # they may wait here for long
        now = self._holder.progress
        if now.state not in (LoopState.RUNNING, LoopState.ENTERED):
            return None
        if now.loop is not None:
            now.loop.is_over = True
        unused = unused and now.state is LoopState.RUNNING  # the batch is used once the next one was asked for
        self._holder.progress = now._replace(state=LoopState.LEFT)
        if now.loop is None:  # after an error there is nothing to leave
            return None
        return m.LeavePass(now.run, max(now.done - unused, 0))


def _ends_run(message: m.Message, run: int) -> bool:
    """Return True if nothing that waits of ``run`` is to be delivered because of ``message``."""
    if isinstance(message, m.Failed):
        return message.request_id == run and message.error.get("kind") == "Rewound"
    return isinstance(message, m.BeginAgain) and message.request_id == run

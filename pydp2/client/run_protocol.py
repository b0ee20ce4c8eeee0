"""Decide the next step of a client from the messages that came, the batches that were taken, and the time.

Theory of operation
-------------------
A *run* is one request for the rest of a pass. ``BeginPass`` gives it a number, every answer carries that number, and
a message with another number belongs to a run that was left. A client begins a new run when a loop begins, after a
state was loaded, and whenever it can no longer know what is under way: after an exception in the middle of a call,
after a silence longer than the lease, after a reconnection, and when the service asks for it (``BeginAgain``). That is
always safe, because a run begins at the position of the trainer, and the position says all that the trainer has had.

So one thing has to be exact: **the position is the one behind the last batch that the trainer got.** An exception may
come at any instruction (Ctrl-C, a signal handler that raises), and two rules keep the position exact:

1. The whole state of the trainer is one value (:class:`.progress.Progress`), and a call that returns a batch stores
   it as its last step, in :meth:`.session.ClientGuard.guarded`. Between that store and the return CPython handles no
   signal. With several attributes, or with a store before or after the last call, a batch could be lost or come twice.
2. An item stays in the inbox until the progress says that it was used. An action replaces some items by others in one
   statement, so it is done or not done, and can be repeated. A batch leaves the inbox in the call after the one that
   returned it, when its number is below ``done``.

An exception may interrupt every other change halfway: a message was sent and not noted (``ClientGuard.is_damaged``), or
half a message was read (``Connection.is_damaged``). Code that begins such a change sets the flag, and resets it at the
end; if a call finds the flag set, it begins a new run. It would be simpler to begin a new run after every exception,
but then a program that a timer interrupts all the time would receive the same batches again and again, and would
hardly advance.

Credit goes ahead of use: ``Need`` says how many batches of the run were taken, and how many more may come
(:class:`PrefetchWindow`). Beside a long step a thread sends what the next call would have to send, without the batch in
hand, which is not used yet (:meth:`RunProtocol.need_ahead`); otherwise nothing is sent in a step. After a silence
longer than the lease the service may give its batches to others, so the client then delivers none of the batches in its
inbox. While it waits for a batch, the client sends a sign of life in time.

Messages are handled in the order in which they came, except two: ``Rewound`` and ``BeginAgain`` invalidate all items
before them, so they are looked for in the whole inbox. An error, of the data or of the connection, is raised when all
items before it are used up. Other ranks may have gone to a state meanwhile: if this trainer has loaded the same state
itself, not many batches ago, it goes there too (:class:`LoadedState`).

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
"""Number of bytes that may be under way to a trainer that asks for many batches at a time."""
WIDE_WINDOW_BYTES = 8 * 1024 * 1024
"""The same number in two cases. Rows in shared memory: a message has only their row ids, and nothing is copied before a
batch is taken. A service that may be on another host: a round trip takes long."""
BEATS_PER_LEASE = 4
"""Number of signs of life per lease while a batch is waited for."""
MAX_REJOIN_BATCHES = 16
"""Number of batches after the loading of a state up to which a rank goes back to that state by itself."""
_MAX_BATCHES = 64  # batches that are requested at a time


class PrefetchWindow:
    """Window of the batches that are requested and not taken: ``prefetch`` of them, more if they are small, as many as
    fit into ``prefetch_bytes`` if they are large. The service sends no more until the trainer reports which it used.

    A trainer asks for many small batches at a time, because each message has its price, and in the same message it
    reports those it has used. ``report_each``: it sends a message for each batch, because the service cannot see which
    batches this rank has used. ``may_exceed_prefetch``: there may be more than ``prefetch`` if they are small; not with
    ``share="dynamic"``, where other trainers could use the batches that wait at one. ``high_latency``: the service may
    be on another host. The parameter ``done`` of the methods is the number of batches of the run that were taken.
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
        self._report_each = report_each
        self._requested = self._reported = 0  # batches of the run: requested, and reported as taken
        self._abandoned_count = False  # True if batches of an earlier run were read, and not reported to the service
        self._earliest = 0  # least value of ``due``
        self.due = 0
        """Number of batches that are taken when something has to be sent."""

    def start_pass(self) -> int:
        """Begin a run and return the number of batches to request with it."""
        self._requested, self._reported, self._earliest = self._prefetch, 0, 0
        self._find_due()
        return self._prefetch

    def report_at_once(self, report_each: bool) -> None:
        """Change whether a message reports at once that a batch is used."""
        if report_each != self._report_each:
            self._report_each = report_each
            self._find_due()

    def _find_due(self) -> None:
        """Find ``due``: enough batches are missing then, or not reported."""
        enough = 1 if self._report_each else max(1, (self._aim + 1) // 2)
        self.due = max(self._earliest, min(enough - self._aim - 1 + self._requested, enough + self._reported))

    def next_request(self, done: int, *, now: bool = False) -> int | None:
        """Return the number of batches to request before the next one is taken, or None if nothing has to be sent.
        ``now``: report the batches that were taken in any case."""
        if done < self.due and not (now and (done != self._reported or self._abandoned_count)):
            return None
        return max(0, self._aim + 1 - (self._requested - done))

    def asks_ahead(self, done: int) -> bool:
        """Return True if the next call would have to send something, and that can be sent before: ``done`` batches are
        taken, and it leaves out the last one, which is not used yet."""
        return done >= self.due and not self._report_each

    def request_ahead(self, done: int) -> int | None:
        """Return the number of batches to request before the next call, or None if nothing has to be sent. In both
        cases the next call has nothing to send."""
        if not self.asks_ahead(done):
            return None
        self._earliest = self.due = done + 1
        missing = max(0, self._aim + 1 - (self._requested - (done - 1)))
        return missing if missing or done - 1 != self._reported else None

    def note_requested(self, count: int, done: int) -> None:
        """Note that ``count`` more batches were requested, and that the first ``done`` were reported as taken."""
        self._requested, self._reported, self._abandoned_count = self._requested + count, done, False
        self._find_due()

    def note_taken(self, nbytes: int, columns: int, shown: bool = False) -> None:
        """Note that the first batch of a message was taken. ``nbytes``: bytes that were received or reserved for it;
        ``columns``: bytes of its columns; ``shown``: they are in memory that the service shares with this trainer."""
        if not self._may_exceed_prefetch:
            return
        window = WIDE_WINDOW_BYTES if shown or self._high_latency else WINDOW_BYTES
        more = max(self._prefetch, min(_MAX_BATCHES, window // (nbytes or 1)))
        aim = max(1, min(more, self._limit // (columns + BATCH_COST) - 1))  # minus the batch in use
        if aim != self._aim:
            self._aim = aim
            self._find_due()

    def note_abandoned(self) -> None:
        """Note that a batch of an earlier run was read: the service counts it until it is reported."""
        self._abandoned_count = True


class LoadedState:
    """State that a client has loaded. Runs begin with its ``name`` until the service answers. ``dynamic``: batches that
    the client got since then may go to other clients."""

    def __init__(self, *, dynamic: bool = False) -> None:
        self._rejoin_batches = 0 if dynamic else MAX_REJOIN_BATCHES
        self.name = ""
        """Name of the state that the next run asks for; "" for none."""
        self.is_repeat = False
        """True if a run has asked for it before."""
        self.after_pass = False
        """True if other ranks end their pass before the service goes there."""
        self.is_lacking = False
        """True if the service went to a state, and this client was told to load it, too."""
        self.was_answered = False
        """True once the service has answered a run."""
        self._loaded_name = ""  # name of the state that this client loaded last, if it may go back to it
        self._batches = 0  # number of batches since then
        self._goes_back = False  # True if the next run begins because of rejoin()

    def load(self, name: str, *, after_pass: bool = False) -> None:
        """Note that the state ``name`` was loaded."""
        self.name, self.is_repeat, self.after_pass = name, False, after_pass
        self._loaded_name, self._batches, self._goes_back = name, 0, False
        self.is_lacking = False

    def note_asked(self) -> None:
        """Note that a run asks for the state, or is about to."""
        self.is_repeat = bool(self.name)
        if self._goes_back:
            self._loaded_name = ""  # the client goes back only once

    def note_answered(self) -> None:
        """Note that the service has answered that run."""
        self.name, self.is_repeat, self.was_answered = "", False, True

    def note_pass_end(self) -> None:
        """Note that a pass is over. With ``dynamic``, other clients may get the batches of this one, so that it may no
        longer go back."""
        if self._rejoin_batches == 0:
            self._loaded_name = ""

    def note_batch(self) -> None:
        """Note that a batch was delivered."""
        self._batches += 1
        self.is_lacking = False

    def rejoin(self, name: str) -> bool:
        """Return True if the client follows a service that went back to the state ``name``. It does so once, if it has
        loaded this state itself, not many batches ago. The answer stays the same until a run asks for the state,
        because an exception may come in between."""
        if not name or name != self._loaded_name or self._batches > self._rejoin_batches:
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
    """Object with the progress of a client, such as :class:`.session.ClientGuard`. ``is_damaged``: True while the
    messages that were sent and the notes about them may differ."""

    progress: Progress
    is_damaged: bool


class RunProtocol:
    """Runs of one client, whose progress is that of ``holder``.

    ``inbox``: items that came and were not used, in order: pairs of a message and its raw frames, batches, and behind
    them items that are not decoded. ``attach``: the message with which the client attached; ``welcome``: its answer.
    ``high_latency``: the service may be on another host. Raises RemoteProtocolError for an invalid ``welcome``.
    """

    def __init__(
        self, holder: ProgressHolder, inbox: list[Any], attach: m.Attach, welcome: m.Welcome, high_latency: bool
    ) -> None:
        options, service = attach.options, welcome.service
        dynamic = options.get("share") == "dynamic"
        holder.progress = Progress(StreamState.from_welcome(service.get("position", {})))
        self._holder, self._inbox = holder, inbox
        self.stream_identity: dict[str, Any] = service.get("stream_identity", {})
        """Stream identity as plain data."""
        self.is_relaxed: bool = self.stream_identity.get("order") == "relaxed"
        """True if the stream cannot be resumed in the middle of a pass."""
        self.is_shared = attach.world_size * attach.peer_count > 1 or dynamic
        """True if other trainers have batches of the same pass."""
        self.reads_ahead = self.is_shared
        """True if messages are read before they are needed: other trainers may end this run, or rows have to be
        fetched from row servers."""
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
        self._beat = self.lease / BEATS_PER_LEASE
        # The service was restarted with a state_dir, or the network path was broken for a while.
        self._may_return = service.get("durable") is True or high_latency
        self.spoke_at = 0.0
        """Time of the last message to the service."""
        self.waited = self.worked = 0.0
        """Seconds during which the trainer has waited for batches, and worked with them."""
        self._reported_times = (0.0, 0.0)  # those that a :class:`Need` has reported
        self.lost: Error | None = None
        """Error with which the connection ended, raised when the items that came before it are used up."""

    # -- messages to the service -----------------------------------------------------------------------------------
    def must_begin(self, now: float) -> bool:
        """Return True if a run has to begin before a batch is delivered: after a long silence, the waiting batches may
        have gone to other trainers."""
        return self._holder.is_damaged or now - self.spoke_at > self.lease

    def is_quiet(self, now: float) -> bool:
        """Return True if neither a run has to begin, nor anything has to be said, before the next batch is taken."""
        holder = self._holder
        if self.is_shared or holder.is_damaged or now - self.spoke_at > self._beat:
            return False
        return holder.progress.done < self.window.due

    def begin(self) -> tuple[m.BeginPass, list[bytes]]:
        """Begin a run at the position, and return the message that requests it, with its frames."""
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
        """Return the message that asks for more batches, if it is time for that. ``waits``: the trainer is waiting for
        a batch."""
        progress = self._holder.progress
        is_due = waits or now - self.spoke_at > self._beat
        count = self.window.next_request(progress.done, now=is_due)
        return None if count is None else self._need(progress.run, count, progress.done)

    def need_ahead(self, progress: Progress) -> m.Need | None:
        """Return the message that the next call would send first, while the trainer still works with its last batch,
        which is not reported as used. ``progress``: behind that batch."""
        count = self.window.request_ahead(progress.done)
        return None if count is None else self._need(progress.run, count, progress.done - 1)

    def _need(self, run: int, count: int, used_batches: int) -> m.Need:
        # The thread of the training loop adds to the times, maybe at this moment.
        waited, worked = self.waited, self.worked
        reported_wait, reported_work = self._reported_times
        self._reported_times = waited, worked
        return m.Need(
            run, count, used_batches, microseconds(waited - reported_wait), microseconds(worked - reported_work)
        )

    def sign_of_life(self, now: float) -> m.Need | None:
        """Return the message that says that the trainer waits, if it is time for that."""
        if now - self.spoke_at <= self._beat:
            return None
        progress = self._holder.progress
        return m.Need(progress.run, 0, progress.done, 0, 0)

    def note_sent(self, need: m.Need, now: float) -> None:
        """Note that ``need`` was sent. ``now``: the time before that, as a process may be stopped in between."""
        self.window.note_requested(need.count, need.used_batches)
        self.spoke_at = now

    # -- messages of the service -----------------------------------------------------------------------------------
    def next_action(self, *, has_read: bool = False) -> ClientAction | ReceivedBatch:
        """Return the next action, or the next batch. ``has_read``: the last action was READ.

        Raises an error of the data when its turn comes, Rewound at once, and RemoteProtocolError for a message that
        does not belong in a pass.
        """
        inbox, progress = self._inbox, self._holder.progress
        run, done = progress.run, progress.done
        while True:
            first: Any = inbox[0] if inbox else None
            batch = first if isinstance(first, ReceivedBatch) else None
            if batch is None or (batch.number >= done and batch.head.request_id == run):
                break
            del inbox[0]  # the batch was delivered, or its run was left
        if self.reads_ahead or batch is None:
            if not has_read:
                return ClientAction.READ
            for item in _behind_batches(inbox):
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
        # If a state resumed the pass, other ranks, and another number of them, may have had a part of it. A pass
        # without batches that is not uniform was over before this trainer began.
        if progress.is_whole_pass and (message.uniform or message.batches):
            self.length.note_pass(message.batches, is_repeated=message.uniform)
        return ClientAction.END

    def _fail(self, message: m.Failed, progress: Progress) -> ClientAction:
        if self.loaded.rejoin(message.state_name):
            return ClientAction.BEGIN  # all waiting items, this message too, belong to the run that ends with this
        is_rewound = _ends_run(message, progress.run)
        self.loaded.is_lacking = is_rewound and message.state_name != ""
        if not is_rewound:
            position = progress.position.with_buckets(message.buckets)
            self._holder.progress = progress._replace(position=position, state=LoopState.FAILED)
        raise from_wire(message.error)

    def may_reconnect(self, *, is_away: bool) -> bool:
        """Return True if the client may wait for the service to come back. ``is_away``: it ended without a message, or
        its message says that it may come back."""
        can_go_on = not (self.is_relaxed and self._holder.progress.position.batch)
        return self._may_return and is_away and can_go_on

    # -- the trainer -------------------------------------------------------------------------------------------------
    def take(self, batch: ReceivedBatch, loop: LoopHandle) -> Progress:
        """Return the progress behind ``batch``, which ``loop`` is about to return."""
        now = self._holder.progress
        position = batch.position_behind(now.position)
        self.loaded.note_batch()
        if batch.is_first:
            self.window.note_taken(*batch.sizes)
        samples = now.samples + batch.head.rows - batch.head.padding
        return Progress(position, LoopState.RUNNING, now.run, now.done + 1, samples, loop, loop.calls[0], now.start)

    def end_pass(self) -> Progress:
        """Return the progress behind the end of the pass."""
        now = self._holder.progress
        self.loaded.note_pass_end()
        return now._replace(position=now.position.next_pass(), state=LoopState.BETWEEN)

    def note_error(self, loop: LoopHandle) -> None:
        """End ``loop``, because a call raised an :class:`~pydp2.Error`. Unless the data caused it, the pass continues
        in a new loop."""
        loop.is_over = True
        now = self._holder.progress
        if now.state is not LoopState.FAILED:
            self._holder.is_damaged = True
            self._holder.progress = now._replace(state=LoopState.ENTERED, loop=None)

    def leave(self, *, unused: bool = False) -> m.LeavePass | None:
        """Leave the pass, if one is under way, and return the message for the service, if one is needed. ``unused``:
        the batch in hand is not used."""
        for received in self._inbox:
            if isinstance(received, ReceivedBatch):
                received.converted = None  # the batch may wait here for long, and the values take memory
        now = self._holder.progress
        if now.state not in (LoopState.RUNNING, LoopState.ENTERED):
            return None
        if now.loop is not None:
            now.loop.is_over = True
        # The batch counts as used once the next one was requested.
        unused = unused and now.state is LoopState.RUNNING and not now.is_in_call
        self._holder.progress = now._replace(state=LoopState.LEFT)
        if now.loop is None:  # an error has ended the pass already
            return None
        return m.LeavePass(now.run, max(now.done - unused, 0))


def _behind_batches(inbox: list[Any]) -> list[Any]:
    """Return what came behind the batches that are unpacked, which lie in front of all else."""
    at = len(inbox)
    while at and not isinstance(inbox[at - 1], ReceivedBatch):
        at -= 1
    return inbox[at:]


def _ends_run(message: m.Message, run: int) -> bool:
    """Return True if, because of ``message``, no waiting batch of ``run`` may be delivered."""
    if isinstance(message, m.Failed):
        return message.request_id == run and message.error.get("kind") == "Rewound"
    return isinstance(message, m.BeginAgain) and message.request_id == run

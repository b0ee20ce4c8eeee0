"""What a client does next: which action follows from what came, what it says to the service, and when. No sockets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.client.progress import LoopHandle, LoopState, PassStart, Progress
from pydp2.client.received import ReceivedBatch
from pydp2.client.run_protocol import MAX_REJOIN_BATCHES, ClientAction, RunProtocol
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.errors import BadSample, RemoteProtocolError, Rewound, ServiceLost, to_wire
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from tests.interruptions import Interruption

SLOTS = Slots((integer_value(10),))
LEASE = 60.0
RUN, OTHER = 3, 2  # the run under way, and the one before


@dataclass
class Holder:
    progress: Progress = field(default_factory=lambda: Progress(StreamState()))
    is_damaged: bool = False


@dataclass
class Client:
    """A protocol, and what it is about: run ``RUN`` of pass 1, of which one batch was taken."""

    holder: Holder
    inbox: list[Any]
    run: RunProtocol

    @property
    def progress(self) -> Progress:
        return self.holder.progress


def client(
    *,
    world_size: int = 1,
    share: str = "ranks",
    order: str = "strict",
    durable: bool = False,
    high_latency: bool = False,
    prefetch: int = 2,
    batch: int = 1,
) -> Client:
    options = {"prefetch": prefetch, "prefetch_bytes": 1 << 30, "lease": LEASE, "batch_size": 3, "share": share}
    attach = m.Attach(m.WIRE_VERSION, "default", 0, world_size, "", options, 1)
    welcome = m.Welcome(
        {}, {"stream_identity": {"order": order}, "durable": durable, "position": {"pass": 1, "batch": batch}}
    )
    holder, inbox = Holder(), list[Any]()
    run = RunProtocol(holder, inbox, attach, welcome, high_latency)
    loop = LoopHandle()
    holder.progress = holder.progress._replace(state=LoopState.ENTERED, run=RUN, done=1, loop=loop, start=PassStart(0))
    return Client(holder, inbox, run)


def head(index: int = 1, run: int = RUN) -> m.BatchHead:
    return m.BatchHead(run, index, 0, 3, 3, 0, 0, index + 1, [], {}, 0)


def batch(number: int = 1, run: int = RUN) -> ReceivedBatch:
    return ReceivedBatch(head(number, run), Columns.empty(SLOTS), number)


@dataclass
class FarBatch(ReceivedBatch):
    """One whose rows have not come from their hosts."""

    awaits_rows = True  # type: ignore[assignment]


def said(message: m.Message) -> tuple[m.Message, list[memoryview]]:
    return message, []


def bad_sample(run: int = RUN) -> tuple[m.Message, list[memoryview]]:
    return said(m.Failed(run, to_wire(BadSample("file a", slot="x", expected="1", got="2")), buckets={"bounds": [4]}))


def rewound(state_name: str = "", run: int = RUN) -> tuple[m.Message, list[memoryview]]:
    return said(m.Failed(run, to_wire(Rewound("load the state")), state_name))


END, FRAME = said(m.PassEnd(RUN, 2, 6, 0, True)), b"a frame"
BATCH, LATER, FAR = batch(), batch(2), FarBatch(head(), Columns.empty(SLOTS), 1)
RANK, DYNAMIC = {"world_size": 2}, {"share": "dynamic"}

ACTIONS: list[tuple[str, list[Any], dict[str, Any], ClientAction | ReceivedBatch]] = [
    ("nothing is here", [], {}, ClientAction.WAIT),
    ("half a message is here", [FRAME], {}, ClientAction.WAIT),
    ("a batch", [BATCH, LATER], {}, BATCH),
    ("a batch of a rank", [BATCH], RANK, BATCH),
    ("a batch that was taken, and the next", [batch(0), BATCH], {}, BATCH),
    ("batches of the run before", [batch(1, OTHER), batch(2, OTHER), BATCH], {}, BATCH),
    ("a message of batches", [said(head())], {}, ClientAction.UNPACK),
    ("batches that were sent before the pass was left", [said(head(5, OTHER)), BATCH], {}, ClientAction.DROP),
    ("the end of the pass", [END], {}, ClientAction.END),
    ("the end behind a batch", [BATCH, END], {}, BATCH),
    ("the end of the pass before", [said(m.PassEnd(OTHER, 9, 9, 0, True)), said(head())], {}, ClientAction.DROP),
    ("an error of the pass before", [bad_sample(OTHER)], {}, ClientAction.DROP),
    ("an error behind a batch", [BATCH, bad_sample()], {}, BATCH),
    ("a new run is to begin", [said(m.BeginAgain(RUN))], {}, ClientAction.BEGIN),
    ("it was to begin before this one did", [said(m.BeginAgain(OTHER))], {}, ClientAction.DROP),
    ("it is to begin, and a rank has a batch", [BATCH, said(m.BeginAgain(RUN))], RANK, ClientAction.BEGIN),
    (
        "it is to begin, and a dynamic trainer has a batch",
        [BATCH, said(m.BeginAgain(RUN))],
        DYNAMIC,
        ClientAction.BEGIN,
    ),
    ("the run before was rewound", [BATCH, rewound("a", OTHER)], RANK, BATCH),
    ("the service ends", [said(m.Closing("it ends", {}))], {}, ClientAction.CLOSE),
    ("the service ends, and a batch is here", [BATCH, said(m.Closing("it ends", {}))], {}, BATCH),
    ("rows come from hosts", [FAR], RANK, ClientAction.AWAIT_ROWS),
    ("rows of a batch that was taken", [FarBatch(head(0), Columns.empty(SLOTS), 0), BATCH], RANK, BATCH),
]


@pytest.mark.parametrize(("inbox", "kind", "action"), [each[1:] for each in ACTIONS], ids=[each[0] for each in ACTIONS])
def test_what_came_decides_the_step(
    inbox: list[Any], kind: dict[str, Any], action: ClientAction | ReceivedBatch
) -> None:
    known = client(**kind)
    known.inbox += inbox
    before = known.progress
    assert known.run.next_action(has_read=True) is action
    assert known.run.next_action(has_read=True) is action, "until the action is taken it stays the same"
    first = next(item for item in inbox if not (isinstance(item, ReceivedBatch) and item.number < 1)) if inbox else None
    if action is not BATCH:
        assert known.inbox[:1] == [first] * bool(inbox), "what it is about stays in the inbox"
    assert known.progress == before


@pytest.mark.parametrize(
    ("inbox", "kind", "reads"),
    [([], {}, True), ([said(head())], {}, True), ([BATCH], {}, False), ([BATCH], RANK, True), ([BATCH], DYNAMIC, True)],
    ids=["nothing", "a message", "a batch", "a batch of a rank", "a batch of a dynamic trainer"],
)
def test_messages_are_read_first_where_no_batch_is_here_or_others_may_end_the_run(
    inbox: list[Any], kind: dict[str, Any], reads: bool
) -> None:
    known = client(**kind)
    known.inbox += inbox
    assert (known.run.next_action() is ClientAction.READ) is reads


@pytest.mark.parametrize(
    ("inbox", "action"),
    [([], ClientAction.RECONNECT), ([FAR], ClientAction.RECONNECT), ([BATCH], BATCH), ([END], ClientAction.END)],
    ids=["nothing", "a batch whose rows do not come", "a batch", "the end"],
)
def test_a_lost_connection_matters_once_what_came_before_is_used_up(inbox: list[Any], action: Any) -> None:
    known = client(**RANK)
    known.run.lost = ServiceLost("gone")
    known.inbox += inbox
    assert known.run.next_action(has_read=True) is action


def test_what_does_not_belong_into_a_pass_is_an_error_of_the_other_side() -> None:
    known = client()
    known.inbox += [said(m.Stats())]
    with pytest.raises(RemoteProtocolError, match="Stats in the middle of a pass"):
        known.run.next_action(has_read=True)


# -- errors of the data, and states that others load -------------------------------------------------------------------
def test_after_an_error_of_the_data_the_pass_is_over_and_bounds_of_buckets_are_known() -> None:
    known = client()
    known.inbox += [bad_sample()]
    with pytest.raises(BadSample, match="file a") as caught:
        known.run.next_action(has_read=True)
    assert caught.value.slot == "x"
    assert known.progress.state is LoopState.FAILED
    assert known.progress.position.buckets == {"bounds": [4]}
    assert not known.run.loaded.is_lacking


@pytest.mark.parametrize(("state_name", "lacks"), [("", False), ("a", True)])
def test_a_rank_that_is_rewound_learns_so_before_it_gets_what_waits(state_name: str, lacks: bool) -> None:
    known = client(**RANK)
    known.inbox += [BATCH, rewound(state_name)]
    with pytest.raises(Rewound):
        known.run.next_action(has_read=True)
    assert known.progress.state is LoopState.ENTERED, "the data did not fail"
    assert known.run.loaded.is_lacking is lacks
    assert known.inbox[0] is BATCH


def test_a_rank_goes_back_once_to_the_state_that_it_loaded_itself_also_if_it_is_interrupted_then() -> None:
    known = client(**RANK)
    known.run.loaded.load("a")
    known.run.begin()
    known.inbox += [BATCH, rewound("a", RUN + 1)]
    for _ in range(2):  # an exception came before a run was begun
        assert known.run.next_action(has_read=True) is ClientAction.BEGIN
    message, _ = known.run.begin()
    assert (message.request_id, message.state_name, message.is_repeat) == (RUN + 2, "a", True)
    known.inbox += [rewound("a", RUN + 2)]
    known.inbox.remove(rewound("a", RUN + 1))
    with pytest.raises(Rewound):
        known.run.next_action(has_read=True)


@pytest.mark.parametrize(
    ("kind", "name", "batches", "goes_back"),
    [
        (RANK, "a", MAX_REJOIN_BATCHES, True),
        (RANK, "a", MAX_REJOIN_BATCHES + 1, False),
        (RANK, "b", 0, False),  # that is the state of others
        (DYNAMIC, "a", 0, True),
        (DYNAMIC, "a", 1, False),  # others may have been given what it had
    ],
)
def test_a_trainer_goes_back_only_if_that_costs_it_few_batches(
    kind: dict[str, Any], name: str, batches: int, goes_back: bool
) -> None:
    known = client(**kind)
    known.run.loaded.load("a")
    known.run.begin()
    for number in range(batches):
        known.holder.progress = known.run.take(batch(number, RUN + 1), LoopHandle())
    known.inbox += [rewound(name, RUN + 1)]
    if goes_back:
        assert known.run.next_action(has_read=True) is ClientAction.BEGIN
    else:
        with pytest.raises(Rewound):
            known.run.next_action(has_read=True)


def test_a_loaded_state_is_named_until_the_service_answers() -> None:
    known = client()
    known.run.loaded.load("a")
    names = []
    for _ in range(2):
        message, _ = known.run.begin()
        names.append((message.state_name, message.is_repeat, message.was_answered))
    known.inbox += [said(head(run=known.progress.run))]
    assert known.run.next_action(has_read=True) is ClientAction.UNPACK
    message, _ = known.run.begin()
    names.append((message.state_name, message.is_repeat, message.was_answered))
    assert names == [("a", False, False), ("a", True, False), ("", False, True)]


# -- what the client says ----------------------------------------------------------------------------------------------
def test_a_run_begins_at_the_position_and_has_the_next_number() -> None:
    known = client()
    message, frames = known.run.begin()
    assert (message.request_id, message.pass_id, message.first_batch, message.credit) == (RUN + 1, 1, 1, 2)
    assert (known.progress.run, known.progress.done, known.progress.position.batch) == (RUN + 1, 0, 1)
    assert frames == []


@pytest.mark.parametrize(
    ("silence", "waits", "begins", "quiet"),
    [
        (0.0, False, False, False),
        (LEASE / 3, True, False, True),
        (LEASE, True, False, True),
        (LEASE + 1, True, True, True),
    ],
)
def test_a_silence_makes_a_sign_of_life_due_and_beyond_the_lease_a_new_run(
    silence: float, waits: bool, begins: bool, quiet: bool
) -> None:
    known = client(prefetch=64)
    known.run.spoke_at = 100.0
    now = 100.0 + silence
    assert known.run.must_begin(now) is begins
    assert known.run.sign_of_life(now) == (m.Need(RUN, 0, 1, 0, 0) if quiet else None)
    known.run.begin()
    known.holder.progress = known.progress._replace(done=1)
    need = known.run.need(now)
    assert (need is not None) is waits, "one of 64 batches was taken, which need not be said at once"
    assert known.run.need(now, waits=True) is not None


def test_a_request_says_what_was_taken_and_how_long_the_trainer_waited_and_worked() -> None:
    known = client()
    known.run.begin()
    known.run.waited, known.run.worked = 0.5, 0.25
    need = known.run.need(0.0)
    assert need == m.Need(RUN + 1, 1, 0, 500_000, 250_000)
    assert known.run.need(0.0) == m.Need(RUN + 1, 1, 0, 0, 0), "it was not sent"
    known.run.note_sent(need, 7.0)
    assert known.run.need(7.0) is None
    assert known.run.spoke_at == 7.0


def test_what_is_asked_for_beside_a_step_leaves_out_the_batch_in_hand() -> None:
    known = client()
    known.run.begin()
    known.run.worked = 0.25
    in_hand = known.progress._replace(done=1)
    need = known.run.need_ahead(in_hand)
    assert need == m.Need(RUN + 1, 1, 0, 0, 250_000)
    known.run.note_sent(need, 7.0)
    known.holder.progress = in_hand
    assert known.run.is_quiet(7.0), "the call that follows has nothing to say"
    assert known.run.need_ahead(in_hand) is None
    known.holder.progress = in_hand._replace(done=2)
    assert not known.run.is_quiet(7.0)
    known.run.window.report_at_once(True)
    assert known.run.need_ahead(in_hand._replace(done=3)) is None, "who must report each batch cannot leave one out"


def test_the_position_behind_a_batch_is_found_once_for_the_one_before_it() -> None:
    received, before, other = batch(), StreamState(1, 1), StreamState(1, 1, buckets={"bounds": [4]})
    behind = received.position_behind(before)
    assert behind == before.after(received.head, b"", [])
    assert received.position_behind(before) is behind
    assert received.position_behind(other) is not behind


def test_who_read_batches_of_a_run_that_was_left_says_so_before_it_waits() -> None:
    known = client(prefetch=64)
    known.run.begin()
    known.inbox += [said(head())]
    assert known.run.next_action(has_read=True) is ClientAction.DROP
    assert known.run.need(0.0) is None
    assert known.run.need(0.0, waits=True) == m.Need(RUN + 1, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("state", "has_loop", "unused", "used"),
    [
        (LoopState.RUNNING, True, False, 1),
        (LoopState.RUNNING, True, True, 0),
        (LoopState.ENTERED, True, True, 1),  # the next one was asked for
        (LoopState.ENTERED, False, False, None),  # after an error there is nothing to leave
        (LoopState.BETWEEN, True, False, None),
        (LoopState.LEFT, True, False, None),
        (LoopState.FAILED, True, False, None),
    ],
)
def test_who_leaves_a_pass_says_which_batches_are_used(
    state: LoopState, has_loop: bool, unused: bool, used: int | None
) -> None:
    known = client()
    loop = LoopHandle() if has_loop else None
    known.holder.progress = known.progress._replace(state=state, loop=loop)
    waiting = batch()
    waiting.converted = Batch(Columns.empty(SLOTS), pass_id=1, index=1, size=0)
    known.inbox += [waiting]
    leave = known.run.leave(unused=unused)
    assert waiting.converted is None, "it may wait here for long"
    assert leave == (None if used is None else m.LeavePass(RUN, used))
    was_inside = state in (LoopState.RUNNING, LoopState.ENTERED)
    assert known.progress.state is (LoopState.LEFT if was_inside else state)
    assert loop is None or loop.is_over is was_inside


# -- progress ----------------------------------------------------------------------------------------------------------
def test_the_progress_behind_a_batch_is_one_value_and_nothing_of_it_is_stored_yet() -> None:
    known = client()
    loop, before = LoopHandle(), known.progress
    loop.calls.append(5)
    known.run.loaded.is_lacking = True
    received = batch()
    received.head = replace(received.head, rows=3, padding=1)
    after = known.run.take(received, loop)
    assert known.progress is before
    assert after.samples == before.samples + 2
    assert not known.run.loaded.is_lacking
    assert (after.position.batch, after.state, after.run, after.done) == (2, LoopState.RUNNING, RUN, 2)
    assert (after.loop, after.calls, after.start) == (loop, 5, before.start)


def test_at_the_end_the_next_pass_begins_with_the_bounds_of_buckets() -> None:
    known = client()
    known.inbox += [said(m.PassEnd(RUN, 2, 6, 0, True, {"bounds": [4, 9]}))]
    assert known.run.next_action(has_read=True) is ClientAction.END
    assert (known.progress.state, known.progress.position.pass_id) == (LoopState.ENTERED, 1)
    after = known.run.end_pass()
    assert (after.state, after.position.pass_id, after.position.batch) == (LoopState.BETWEEN, 2, 0)
    assert after.position.buckets == {"bounds": [4, 9]}
    assert known.run.length.exact == 2


def test_a_dynamic_trainer_does_not_go_back_behind_the_end_of_a_pass() -> None:
    """Others may have been given what it had."""
    known = client(**DYNAMIC)
    known.run.loaded.load("a")
    known.run.end_pass()
    known.run.begin()
    known.inbox += [rewound("a", RUN + 1)]
    with pytest.raises(Rewound):
        known.run.next_action(has_read=True)


@pytest.mark.parametrize(
    ("start", "batches", "uniform", "known_length"), [(0, 2, True, 2), (0, 0, False, None), (1, 2, True, None)]
)
def test_only_a_whole_pass_tells_how_long_a_pass_is(
    start: int, batches: int, uniform: bool, known_length: int | None
) -> None:
    known = client()
    known.holder.progress = known.progress._replace(start=PassStart(start))
    known.inbox += [said(m.PassEnd(RUN, batches, 0, 0, uniform))]
    assert known.run.next_action(has_read=True) is ClientAction.END
    assert known.run.length.estimate == known_length


@pytest.mark.parametrize("state", [LoopState.ENTERED, LoopState.FAILED])
def test_after_an_error_the_iterator_is_over_and_unless_the_data_gave_it_the_pass_goes_on(state: LoopState) -> None:
    known = client()
    loop = LoopHandle()
    known.holder.progress = known.progress._replace(state=state, loop=loop)
    known.run.note_error(loop)
    assert loop.is_over
    assert known.progress.state is state
    assert known.holder.is_damaged is (state is LoopState.ENTERED), "it is asked for anew"


@pytest.mark.parametrize(
    ("kind", "is_away", "may"),
    [
        ({}, True, False),  # nothing of it is on disk
        ({"durable": True}, True, True),
        ({"high_latency": True}, True, True),
        ({"durable": True}, False, False),  # it said that it will not come back
        ({"durable": True, "order": "relaxed"}, True, False),
        ({"durable": True, "order": "relaxed", "batch": 0}, True, True),
    ],
)
def test_a_service_is_waited_for_if_it_may_come_back_with_what_this_trainer_lacks(
    kind: dict[str, Any], is_away: bool, may: bool
) -> None:
    assert client(**kind).run.may_reconnect(is_away=is_away) is may


# -- a whole stream, interrupted anywhere ------------------------------------------------------------------------------
LENGTHS = (4, 0, 7, 1, 3, 9)


class Service:
    """One that sends what is asked for, a batch in a message, and now and then has a client begin anew."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.wire: list[Any] = []
        self._run = self._pass = self._next = self._credit = 0
        self._sends = False

    def hear(self, message: m.Message) -> None:
        match message:
            case m.BeginPass():
                self._run, self._pass, self._next = message.request_id, message.pass_id, message.first_batch
                self._credit, self._sends = message.credit, True
            case m.Need() if message.request_id == self._run:
                self._credit += message.count
            case m.LeavePass() if message.request_id == self._run:
                self._sends = False
        self._send()

    def _send(self) -> None:
        while self._sends:
            if self._dice.random() < 0.03:
                self._sends = False
                self.wire.append(said(m.BeginAgain(self._run)))
            elif self._next == LENGTHS[self._pass]:
                self._sends = False
                self.wire.append(said(m.PassEnd(self._run, self._next, 0, 0, False)))
            elif self._credit:
                self._credit -= 1
                self.wire.append(said(head(self._next, self._run)))
                self._next += 1
            else:
                return


class Trainer:
    """A loop as a client has it, over a protocol and a service; an exception may come between any two actions."""

    def __init__(self, dice: Random) -> None:
        self._dice, self._service, self._now = dice, Service(dice), 0.0
        known = client(prefetch=dice.choice([1, 2, 5]), **dice.choice([{}, RANK, DYNAMIC]))
        self._holder, self._inbox, self._run = known.holder, known.inbox, known.run
        self._holder.progress = Progress(StreamState())
        self._holder.is_damaged = True

    def _cut(self) -> None:
        if self._dice.random() < 0.02:
            raise Interruption

    def _say(self, *messages: m.Message | None) -> None:
        self._holder.is_damaged = True
        self._cut()
        for message in messages:
            if message is not None:
                self._service.hear(message)
                self._cut()
                if isinstance(message, m.Need):
                    self._run.note_sent(message, self._now)
        self._holder.is_damaged = False

    def _begin(self) -> None:
        self._holder.is_damaged = True
        self._cut()
        message, _ = self._run.begin()
        self._cut()
        self._say(message)
        self._run.spoke_at = self._now

    def _next(self, loop: LoopHandle) -> tuple[tuple[int, int] | None, Progress]:
        self._holder.progress = self._holder.progress._replace(state=LoopState.ENTERED, loop=loop)
        if self._run.must_begin(self._now):
            self._begin()
        self._say(self._run.need(self._now))
        has_read = False
        for _ in range(1000):
            self._cut()
            action = self._run.next_action(has_read=has_read)
            has_read = action is ClientAction.READ
            wire = self._service.wire
            match action:
                case ReceivedBatch():
                    after = self._run.take(action, loop)
                    self._cut()
                    return (after.position.pass_id, action.head.batch_index), after
                case ClientAction.END:
                    return None, self._run.end_pass()
                case ClientAction.READ:
                    count = self._dice.randrange(len(wire) + 1)
                    self._inbox += wire[:count]
                    del wire[:count]
                case ClientAction.UNPACK:
                    first = self._inbox[0][0]
                    self._inbox[0] = ReceivedBatch(first, Columns.empty(SLOTS), self._holder.progress.done)
                case ClientAction.DROP:
                    del self._inbox[0]
                case ClientAction.BEGIN:
                    self._begin()
                case ClientAction.WAIT:
                    self._say(self._run.need(self._now, waits=True))
                    assert wire, "it would wait for ever"
                    self._inbox.append(wire.pop(0))
        raise AssertionError("it does not come to an end")

    def passes(self) -> list[tuple[int, int] | None]:
        """All batches of all passes, None behind each; the state is checked at every exception."""
        seen: list[tuple[int, int] | None] = []
        while (now := self._holder.progress).position.pass_id < len(LENGTHS):
            expected = now.position.pass_id, now.position.batch
            self._now += self._dice.choice([0.0, 0.0, LEASE / 3, LEASE * 2])
            loop = LoopHandle()
            try:
                if now.state is LoopState.BETWEEN:
                    self._holder.is_damaged = True
                found, after = self._next(loop)
            except Interruption:
                at = self._holder.progress.position
                assert (at.pass_id, at.batch) == expected
                continue
            self._holder.progress = after
            seen.append(found)
        return seen


@given(st.integers(0, 1 << 32))
def test_a_stream_that_is_interrupted_anywhere_has_each_batch_once(seed: int) -> None:
    uninterrupted = [[*((pass_id, index) for index in range(length)), None] for pass_id, length in enumerate(LENGTHS)]
    assert Trainer(Random(seed)).passes() == [each for one in uninterrupted for each in one]

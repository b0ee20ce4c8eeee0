"""Decide what follows when a trainer asks for a pass: the agreement of the trainers of a job on where they are.

Theory of operation
-------------------
The trainers of a job read one sequence of batches, so they must be at one place of it. Nobody leads them. Each trainer
says where it wants to go on, in a ``BeginPass``, and each may be wrong about the others: they may have loaded a state,
died, or been answered by a service that was killed since. :func:`decide` is the only place that says what follows. It
is a pure function of the request and of what the service knows, and it is a table: the first rule that holds counts.

*Generations.* Somebody has to win when trainers disagree, and a trainer that loads a state knows why it does. So a
state that is loaded begins a *generation*: the job goes there, and all other trainers are outdated until they load the
same state. An outdated trainer is refused with ``Rewound``. What must stay true is that no trainer gets a batch of a
generation that it does not know: it would train on batches that another trainer has had as well.

*The same request twice.* A connection can break between a request and its answer. Then the trainer asks again, and the
service must not take that for another load, which would begin another generation and send everybody back. The number of
the request does not help, because it is new. What helps is that the trainer marks the repetition, and that the service
remembers the state that this trainer named last, until it has heard that the trainer used a batch since. Simply to join
whoever names the present state would be wrong: a trainer that loads its state a second time, after a batch, wants this
batch again.

*After the pass.* ``set_epoch`` goes to the state (n, 0), but only when the others have ended their pass. Such a request
leaves the pass and is deferred; it is decided again when the pass is over, and the first of them begins the generation.
A rank whose connection broke at that moment may ask for the end of the pass before. It is told that the pass is over,
although it is outdated, because all had ended it.

*A service that was started again.* Ranks bring their own positions. If the service knows less than they do, it gathers
all ranks and goes on where the last of them is. (To believe the first that comes fails: the others may need earlier
batches.) Dynamic trainers cannot be gathered, because the positions of those that left are nowhere. So the service
writes nothing down of them, and refuses every trainer that was answered before and is not known, until it loads a state
anew.

*Two steps.* The first table finds the generation, the second one the pass. A decision may change the job (``REWIND``,
``LEAVE``); the request is then decided once more in what the job has become.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pydp2.errors import Rewound
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import EarlyEnds
from pydp2.server.snapshots.job_snapshot import PassState


class Decision(Enum):
    """Consequence of a request."""

    ADMIT = "it belongs to the generation; the second table says what it gets"
    REWIND = "the job goes to the state that it names, and the others are outdated; the second table says what it gets"
    DEFER = "it leaves the pass, and asks again when the pass is over"
    LEAVE = "it leaves the pass, and is decided once more"
    JOIN = "it goes on in the pass, which begins if none is under way"
    WAIT = "it gets its batches when the next pass begins"
    GATHER = "all ranks are waited for, then the pass goes on where the last of them is"
    TELL_END = "it is told that the pass is over"
    TELL_OUTCOME = "it is told once more how the pass ended"
    REFUSE_OUTDATED = "Rewound: it has to load the state that others have loaded"
    REFUSE_UNKNOWN = "Rewound: all have to load a state"
    REFUSE_OTHER_PASS = "Rewound: the job is in another pass"


@dataclass(frozen=True, slots=True)
class PassRequest:
    """Request of a trainer: its message ``begin``, and the position ``start`` that this says.

    ``is_first``: the trainer had asked for nothing before. ``is_admitted``: the first table has let it in;
    ``was_gathered``: all ranks were waited for since. ``deferred_in``: number of the generation in which it was
    deferred, -1: it was not.
    """

    begin: m.BeginPass
    start: StreamState
    is_first: bool = False
    is_admitted: bool = False
    was_gathered: bool = False
    deferred_in: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Knowledge of a service about a job, and about the trainer that asks.

    Of the job: ``pass_id`` is the pass under way (``in_pass``), of which some trainer has something to come, or the
    last one; ``failed``: passes that failed; ``is_gathering``: ranks are waited for. ``loaded``: the state with which
    the present ``generation`` began ("": with the job); ``previous_pass``: the pass that all had ended then, -1: none.

    Of the trainer: ``state`` in the pass; ``is_outdated``: it does not know the generation; ``began_from_state``: it
    loaded the state of the generation; ``others_from_state``: so has another one that is connected;
    ``unconfirmed_state``: the state that it named last, while it is not known to have used a batch since;
    ``deferred_state``: the state that it waits for; ``previous_run_ended``: it was sent the end of its last run, or an
    error; ``next_batch``: the first batch that it has not used.
    """

    dynamic: bool = False
    is_single_rank: bool = False
    pass_id: int = -1
    in_pass: bool = False
    failed: Collection[int] = ()
    is_gathering: bool = False
    loaded: str = ""
    generation: int = 0
    previous_pass: int = -1
    state: PassState = PassState.BEFORE
    is_outdated: bool = False
    began_from_state: bool = False
    others_from_state: bool = False
    unconfirmed_state: str = ""
    deferred_state: str = ""
    previous_run_ended: bool = False
    next_batch: int = 0


class _Case(NamedTuple):
    """A request in the view of its job, and the questions that rules ask."""

    view: GroupView
    request: PassRequest

    @property
    def names_state(self) -> bool:
        return self.request.begin.state_name != ""

    @property
    def is_stranger(self) -> bool:
        """True for a dynamic trainer that was answered by a service before this one."""
        return self.view.dynamic and self.request.is_first and self.request.begin.was_answered

    @property
    def lacks_state(self) -> bool:
        begin = self.request.begin
        if self.is_stranger:
            return not self.names_state or begin.is_repeat
        return self.view.is_outdated and not self.names_state

    @property
    def is_repeat(self) -> bool:
        """True if this is what was heard of it before, and it has used nothing since."""
        begin = self.request.begin
        return begin.is_repeat and begin.state_name == self.view.unconfirmed_state

    @property
    def has_rest(self) -> bool:
        """True if there is something of the pass under way to come for it."""
        return self.view.in_pass and self.view.state in UNFINISHED

    @property
    def is_where_state_is(self) -> bool:
        """True if all that follows its state is still to come."""
        view, begin = self.view, self.request.begin
        first, passed_over = begin.first_batch, {*begin.acknowledged_ahead}
        while first in passed_over:
            first += 1
        there = begin.pass_id == view.pass_id and begin.first_batch <= view.next_batch <= first
        return self.has_rest and there and not view.dynamic

    @property
    def goes_back(self) -> bool:
        """True if the job has to go to its state: it is not the one of the generation, or what follows it has begun for
        this trainer."""
        view, begin = self.view, self.request.begin
        if begin.state_name != view.loaded:
            return True
        if not view.began_from_state:  # new to a dynamic job, where nobody shares what follows
            return view.dynamic and not view.is_outdated and not view.others_from_state
        if self.is_repeat:  # a service that was started again cannot tell for which of two equal passes
            is_next = view.deferred_state != "" or not (self.has_rest or not self.request.is_first)
            return begin.after_pass and is_next
        return not self.is_where_state_is

    @property
    def is_ahead(self) -> bool:
        """True if it is done with a pass that others are in."""
        return self.view.in_pass and self.view.state is not PassState.BEFORE

    @property
    def lost_end_of_previous_pass(self) -> bool:
        """True if it asks for the pass that all had ended before this generation, whose end it has lost."""
        view, begin = self.view, self.request.begin
        is_known_repeat = begin.after_pass and self.is_repeat and not self.request.is_first and not view.deferred_state
        is_asked = not self.names_state or is_known_repeat
        return view.is_outdated and begin.pass_id == view.previous_pass and is_asked and not self.is_stranger

    @property
    def was_told_outcome(self) -> bool:
        """True if it asks again for a pass of this generation, the end of which it was told."""
        view, begin = self.view, self.request.begin
        told = view.began_from_state and view.previous_run_ended and self.is_repeat
        return told and not (view.dynamic or view.is_gathering) and begin.pass_id < view.pass_id + (not self.has_rest)

    @property
    def is_of_unknown_pass(self) -> bool:
        """True if it is in a pass, or behind one, that this service does not know."""
        begin = self.request.begin
        begun = begin.pass_id + (begin.first_batch > 0)
        return begun > self.view.pass_id + 1 and not (self.names_state or self.view.is_single_rank)

    @property
    def is_over_for_it(self) -> bool:
        """True if nothing of the pass that it asks for is to come for it."""
        view, pass_id = self.view, self.request.begin.pass_id
        failed = view.state is PassState.LEFT and view.pass_id in view.failed
        is_done = pass_id == view.pass_id and (failed or view.state is PassState.ENDED)
        return pass_id < view.pass_id + (not view.in_pass) or is_done

    @property
    def passes_ahead(self) -> int:
        return self.request.begin.pass_id - self.view.pass_id


UNFINISHED = frozenset({PassState.BEFORE, PassState.IN})
"""States of a trainer that has something of the pass to come."""


class Rule(NamedTuple):
    """Row of a table: ``decision`` follows where ``holds``. ``when`` says it in words, for docs/order.md."""

    when: str
    holds: Callable[[_Case], bool]
    decision: Decision


GENERATION_RULES = (
    Rule(
        "an outdated trainer asks once more for the pass that all had ended before this generation",
        lambda case: case.lost_end_of_previous_pass,
        Decision.TELL_END,
    ),
    Rule(
        "an outdated trainer names no state, or a dynamic one that was answered before a restart loads none anew",
        lambda case: case.lacks_state,
        Decision.REFUSE_OUTDATED,
    ),
    Rule(
        "a deferred trainer comes first after the pass",
        lambda case: case.request.deferred_in == case.view.generation,
        Decision.REWIND,
    ),
    Rule(
        "a trainer goes to another state after the pass, is done with that, and others are not",
        lambda case: case.names_state and case.goes_back and case.request.begin.after_pass and case.is_ahead,
        Decision.DEFER,
    ),
    Rule(
        "a trainer names another state than that of the generation, or this one after it has used a batch of it",
        lambda case: case.names_state and case.goes_back,
        Decision.REWIND,
    ),
    Rule(
        "a rank repeats a request for a pass whose end it was told",
        lambda case: case.names_state and case.was_told_outcome,
        Decision.TELL_OUTCOME,
    ),
    Rule("otherwise", lambda case: True, Decision.ADMIT),
)
"""Which generation a request belongs to. The first rule that holds counts."""

PASS_RULES = (
    Rule(
        "the trainer is outdated, because another one went to a state meanwhile",
        lambda case: case.view.is_outdated,
        Decision.REFUSE_OUTDATED,
    ),
    Rule(
        "a dynamic trainer is in a pass that is not known",
        lambda case: case.view.dynamic and case.is_of_unknown_pass,
        Decision.REFUSE_UNKNOWN,
    ),
    Rule(
        "ranks are gathered, or a rank is in a pass that is not known, and the ranks were not gathered for it",
        lambda case: (case.view.is_gathering or case.is_of_unknown_pass) and not case.request.was_gathered,
        Decision.GATHER,
    ),
    Rule(
        "it asks for a later pass, and has something of this one to come",
        lambda case: case.has_rest and case.passes_ahead > 0,
        Decision.LEAVE,
    ),
    Rule(
        "the pass that it asks for is over for it, and it names no state",
        lambda case: case.is_over_for_it and not case.names_state,
        Decision.TELL_OUTCOME,
    ),
    Rule("no pass is under way", lambda case: not case.view.in_pass, Decision.JOIN),
    Rule(
        "it asks for the pass under way, and has something of it to come",
        lambda case: case.has_rest and case.passes_ahead == 0,
        Decision.JOIN,
    ),
    Rule(
        "it asks for the next pass, from its first batch on",
        lambda case: case.passes_ahead == 1 and case.request.begin.first_batch == 0,
        Decision.WAIT,
    ),
    Rule("otherwise", lambda case: True, Decision.REFUSE_OTHER_PASS),
)
"""Answer to a request whose generation is known. The first rule that holds counts."""


def decide(view: GroupView, request: PassRequest) -> Decision:
    """Return what follows from ``request``, where its job and its trainer stand as ``view`` says."""
    case = _Case(view, request)
    rules = PASS_RULES if request.is_admitted else GENERATION_RULES
    return next(rule.decision for rule in rules if rule.holds(case))


@dataclass(slots=True)
class Generation:
    """Stretch of a job that began with the state ``loaded`` ("": with the job), from which the trainers with the
    numbers ``begun_from_state`` began. ``previous_pass``: the pass that all had ended when it began; -1: that was not
    waited for. ``number``: generations before it. ``early_ends``: by pass, what was known of files that end early in
    the pass in which it begins once more; ranks that go on by themselves know of them."""

    loaded: str = ""
    begun_from_state: set[int] = field(default_factory=set)
    previous_pass: int = -1
    number: int = 0
    early_ends: Mapping[int, EarlyEnds] = field(default_factory=dict)


class Gathering:
    """The ``size`` trainers of a job with ranks, which a service that does not know their pass waits for until the time
    ``until``. Each of them knows which batches it has had; none knows all."""

    def __init__(self, size: int, until: float) -> None:
        self._size = size
        self._answered: set[int] = set()  # numbers of those that came or left
        self.until = until
        self.requests: dict[int, PassRequest] = {}

    def add(self, number: int, request: PassRequest) -> None:
        """Note that trainer ``number`` came back, and asks to go on."""
        self.requests[number] = request
        self._answered.add(number)

    def remove(self, number: int) -> None:
        """Note that trainer ``number`` left: it is not waited for."""
        self._answered.add(number)
        self.requests.pop(number, None)

    def is_complete(self, now: float) -> bool:
        """Return True if all trainers are there, or the time is up."""
        return bool(self.requests) and (len(self._answered) == self._size or now > self.until)

    def resume_state(self) -> StreamState:
        """Return the state from which no rank misses a batch that it has not had."""
        return StreamState.merge([request.start for request in self.requests.values()])


def went_back(job: str) -> Rewound:
    """Return the error of a rank that is not in the generation of ``job`` any more."""
    return Rewound(
        f"another trainer of job {job!r} has loaded a state or called set_epoch(), and the service went there: load "
        "the same state here, too, or call set_epoch() with the same number"
    )


def not_known(job: str, trainer: str, loss: str = "") -> Rewound:
    """Return the error of the trainer named ``trainer``, which needs what a service that was started again does not
    know. ``loss``: why, if its last snapshot could not be used."""
    return Rewound(
        f"the service was started again and does not know any more what {trainer} of job {job!r} needs to go on"
        f"{loss and f' ({loss})'}; load the same state in all ranks"
    )


def cut_off(job: str, pass_id: int) -> Rewound:
    """Return the error of a rank in a pass that cannot be taken up."""
    return Rewound(
        f"the service was started again in the middle of pass {pass_id} of job {job!r}, which has no state there, "
        'because order="relaxed"; load the same state in all ranks'
    )


def in_other_pass(job: str, pass_id: int, trainer: str, wanted: int) -> Rewound:
    """Return the error of the trainer named ``trainer``, which asks for a pass that the job is not in."""
    return Rewound(
        f"job {job!r} is in pass {pass_id}, {trainer} asks for pass {wanted}: load the same state in all ranks, or "
        "none in any"
    )

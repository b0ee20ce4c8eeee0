"""What a trainer gets that asks for a pass: each rule of the two tables, and the requests that look like it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.jobs.agreement import (
    GENERATION_RULES,
    PASS_RULES,
    Decision,
    GroupView,
    PassRequest,
    Rule,
    _Case,
    decide,
)
from pydp2.server.snapshots.job_snapshot import PassState

ORDER = Path(__file__).parents[2] / "docs" / "order.md"

S, D = PassState, Decision
STATE, OTHER = "the state of the generation", "another state"
RANKS = GroupView(pass_id=3, in_pass=True, state=S.IN, loaded=STATE, generation=2, next_batch=8)
"""A rank in the middle of pass 3."""
BETWEEN = replace(RANKS, in_pass=False, state=S.BEFORE)
"""A rank behind pass 3, which is over for all."""
DYNAMIC = replace(RANKS, dynamic=True)
ENDED = replace(RANKS, state=S.ENDED)
"""A rank that has had pass 3, which others are in."""


def asks(
    pass_id: int = 3,
    first_batch: int = 8,
    state: str = "",
    *,
    again: bool = False,
    after_pass: bool = False,
    answered: bool = True,
    **more: Any,
) -> PassRequest:
    """A request that is ``more``."""
    begin = m.BeginPass(
        1, pass_id, first_batch, 2, {}, 0, [], state, is_repeat=again, after_pass=after_pass, was_answered=answered
    )
    return PassRequest(begin, StreamState.without_frames(begin), **more)


def where(view: GroupView, **more: Any) -> GroupView:
    """``view`` with other values."""
    return replace(view, **more)


GENERATION: dict[str, tuple[GroupView, PassRequest, Decision]] = {
    # -- no state
    "a rank goes on": (RANKS, asks(), D.ADMIT),
    "a dynamic trainer goes on": (DYNAMIC, asks(), D.ADMIT),
    "an outdated rank goes on": (where(RANKS, is_outdated=True), asks(), D.REFUSE_OUTDATED),
    "an outdated rank asks for the pass that all had ended": (
        where(RANKS, is_outdated=True, previous_pass=2), asks(2, 0), D.TELL_END,
    ),
    "a rank of the generation asks for that pass": (where(RANKS, previous_pass=2), asks(2, 0), D.ADMIT),
    # -- a state
    "it loads another state": (RANKS, asks(1, 4, OTHER), D.REWIND),
    "an outdated rank loads another state": (where(RANKS, is_outdated=True), asks(1, 4, OTHER), D.REWIND),
    "a rank loads the state of the generation for the first time": (RANKS, asks(3, 8, STATE), D.ADMIT),
    "an outdated rank loads the state of the generation": (where(RANKS, is_outdated=True), asks(3, 8, STATE), D.ADMIT),
    "a rank loads it a second time and has used nothing": (
        where(RANKS, began_from_state=True), asks(3, 8, STATE), D.ADMIT,
    ),
    "a rank loads it a second time after a batch": (
        where(RANKS, began_from_state=True, next_batch=10), asks(3, 8, STATE), D.REWIND,
    ),
    "a rank loads it a second time, though it is not known to have used anything": (
        where(RANKS, began_from_state=True, unconfirmed_state=STATE, next_batch=10), asks(3, 8, STATE), D.REWIND,
    ),
    "a rank loads it a second time in the pass behind it": (
        where(RANKS, began_from_state=True), asks(2, 8, STATE), D.REWIND,
    ),
    "a rank loads it a second time after its pass": (
        where(ENDED, began_from_state=True), asks(3, 8, STATE), D.REWIND,
    ),
    "a dynamic trainer loads it a second time": (
        where(DYNAMIC, began_from_state=True), asks(3, 8, STATE), D.REWIND,
    ),
    "a new dynamic trainer loads it where another has": (
        where(DYNAMIC, others_from_state=True), asks(3, 8, STATE, answered=False), D.ADMIT,
    ),
    "a new dynamic trainer loads it and finds nobody": (DYNAMIC, asks(3, 8, STATE, answered=False), D.REWIND),
    "an outdated dynamic trainer loads it and finds nobody": (
        where(DYNAMIC, is_outdated=True), asks(3, 8, STATE), D.ADMIT,
    ),
    # -- the same request twice
    "it repeats its request": (
        where(RANKS, began_from_state=True, unconfirmed_state=STATE, next_batch=10), asks(3, 8, STATE, again=True),
        D.ADMIT,
    ),
    "it repeats a request that nobody heard": (RANKS, asks(1, 4, OTHER, again=True), D.REWIND),
    "it repeats a second load that nobody heard": (
        where(RANKS, began_from_state=True, next_batch=10), asks(3, 8, STATE, again=True), D.REWIND,
    ),
    "it repeats a request for a pass whose end it was told": (
        where(ENDED, began_from_state=True, unconfirmed_state=STATE, previous_run_ended=True),
        asks(3, 8, STATE, again=True), D.TELL_OUTCOME,
    ),
    "it repeats a request that was refused, for the pass under way": (
        where(RANKS, began_from_state=True, unconfirmed_state=STATE, previous_run_ended=True),
        asks(3, 8, STATE, again=True), D.ADMIT,
    ),
    "it had not loaded the state when it was told the end": (
        where(ENDED, unconfirmed_state=STATE, previous_run_ended=True), asks(3, 8, STATE, again=True), D.ADMIT,
    ),
    "a dynamic trainer repeats a request for a pass whose end it was told": (
        where(DYNAMIC, state=S.ENDED, began_from_state=True, unconfirmed_state=STATE, previous_run_ended=True),
        asks(3, 8, STATE, again=True), D.ADMIT,
    ),
    "it repeats a request for a pass that is over, but was told nothing": (
        where(ENDED, began_from_state=True, unconfirmed_state=STATE), asks(3, 8, STATE, again=True), D.ADMIT,
    ),
    "ranks are gathered when it repeats that request": (
        where(
            BETWEEN, began_from_state=True, unconfirmed_state=STATE, previous_run_ended=True, is_gathering=True,
        ),
        asks(3, 8, STATE, again=True), D.ADMIT,
    ),
    # -- after the pass
    "it goes to a pass that others have yet to end": (ENDED, asks(0, 0, OTHER, after_pass=True), D.DEFER),
    "it has left the pass that others have yet to end": (
        where(RANKS, state=S.LEFT), asks(0, 0, OTHER, after_pass=True), D.DEFER,
    ),
    "it goes to a pass from the middle of one": (RANKS, asks(0, 0, OTHER, after_pass=True), D.DEFER),
    "it goes to a pass before it has begun one": (
        where(RANKS, state=S.BEFORE), asks(0, 0, OTHER, after_pass=True), D.REWIND,
    ),
    "it goes to a pass while none is under way": (
        where(BETWEEN, state=S.ENDED), asks(0, 0, OTHER, after_pass=True), D.REWIND,
    ),
    "it goes to a pass that comes anyway": (ENDED, asks(4, 0, after_pass=True), D.ADMIT),
    "it was deferred, and comes first after the pass": (
        where(BETWEEN, deferred_state=OTHER), asks(0, 0, OTHER, after_pass=True, deferred_in=2), D.REWIND,
    ),
    "it was deferred, and another one came first": (
        where(BETWEEN, deferred_state=STATE), asks(0, 0, STATE, after_pass=True, deferred_in=1), D.ADMIT,
    ),
    "it was deferred, and another one went elsewhere first": (
        where(BETWEEN, deferred_state=OTHER), asks(0, 0, OTHER, after_pass=True, deferred_in=1), D.REWIND,
    ),
    "it was deferred, and asks again while others are in the pass": (
        where(ENDED, began_from_state=True, unconfirmed_state=STATE, deferred_state=STATE),
        asks(0, 0, STATE, again=True, after_pass=True), D.DEFER,
    ),
    "it asks again for the end of the pass that all had ended": (
        where(RANKS, is_outdated=True, previous_pass=2, unconfirmed_state=OTHER),
        asks(2, 0, OTHER, again=True, after_pass=True), D.TELL_END,
    ),
    "it loads the state of that pass": (
        where(RANKS, is_outdated=True, previous_pass=2, unconfirmed_state=OTHER),
        asks(2, 0, OTHER, again=True), D.REWIND,
    ),
    "it goes to that pass once more": (
        where(RANKS, is_outdated=True, previous_pass=2, unconfirmed_state=OTHER), asks(2, 0, OTHER, after_pass=True),
        D.DEFER,
    ),
    "it was deferred, and asks for that pass again": (
        where(RANKS, is_outdated=True, previous_pass=2, unconfirmed_state=OTHER, deferred_state=OTHER),
        asks(2, 0, OTHER, again=True, after_pass=True), D.DEFER,
    ),
    "the service was started again before it asked for that": (
        where(RANKS, is_outdated=True, previous_pass=2, unconfirmed_state=OTHER),
        asks(2, 0, OTHER, again=True, after_pass=True, is_first=True), D.DEFER,
    ),
    "the service was started again, and it repeats a request for a pass that it has had": (
        where(BETWEEN, began_from_state=True, unconfirmed_state=STATE),
        asks(3, 0, STATE, again=True, after_pass=True, is_first=True), D.REWIND,
    ),
    "the service was started again, and it repeats a request for a state": (
        where(BETWEEN, began_from_state=True, unconfirmed_state=STATE),
        asks(3, 0, STATE, again=True, is_first=True), D.ADMIT,
    ),
    "it repeats a request for a pass that it has had": (
        where(BETWEEN, began_from_state=True, unconfirmed_state=STATE),
        asks(3, 0, STATE, again=True, after_pass=True), D.ADMIT,
    ),
    "the service was started again, and it repeats a request for a pass that it is in": (
        where(RANKS, began_from_state=True, unconfirmed_state=STATE),
        asks(3, 0, STATE, again=True, after_pass=True, is_first=True), D.ADMIT,
    ),
    # -- a service that was started again, and a dynamic job
    "a dynamic trainer of the service before goes on": (DYNAMIC, asks(is_first=True), D.REFUSE_OUTDATED),
    "it repeats its request for a state": (DYNAMIC, asks(1, 4, OTHER, again=True, is_first=True), D.REFUSE_OUTDATED),
    "it loads a state anew": (DYNAMIC, asks(1, 4, OTHER, is_first=True), D.REWIND),
    "it asks for the pass that all had ended": (
        where(DYNAMIC, is_outdated=True, previous_pass=2), asks(2, 0, is_first=True), D.REFUSE_OUTDATED,
    ),
    "a dynamic trainer that was never answered": (DYNAMIC, asks(answered=False, is_first=True), D.ADMIT),
    "a rank of the service before goes on": (RANKS, asks(is_first=True), D.ADMIT),
}  # fmt: skip

PASSES: dict[str, tuple[GroupView, PassRequest, Decision]] = {
    "it goes on in the pass": (RANKS, asks(), D.JOIN),
    "a dynamic trainer goes on in the pass": (DYNAMIC, asks(), D.JOIN),
    "it has not heard yet that the pass failed": (where(RANKS, failed={3}), asks(), D.JOIN),
    "it has not begun the pass": (where(RANKS, state=S.BEFORE), asks(), D.JOIN),
    "it asks for the next pass while none is under way": (BETWEEN, asks(4, 0), D.JOIN),
    "it has loaded a pass that is over": (BETWEEN, asks(1, 4, STATE), D.JOIN),
    "another one went to a state meanwhile": (where(BETWEEN, is_outdated=True), asks(4, 0), D.REFUSE_OUTDATED),
    "it has ended the pass": (ENDED, asks(), D.TELL_OUTCOME),
    "it asks for a pass before": (RANKS, asks(2, 0), D.TELL_OUTCOME),
    "it asks for the last pass": (BETWEEN, asks(), D.TELL_OUTCOME),
    "it was told that the pass failed": (where(RANKS, state=S.LEFT, failed={3}), asks(), D.TELL_OUTCOME),
    "it has left the pass": (where(RANKS, state=S.LEFT), asks(), D.REFUSE_OTHER_PASS),
    "it has ended the pass, and asks for the next": (ENDED, asks(4, 0), D.WAIT),
    "it is in the pass, and asks for the next": (RANKS, asks(4, 0), D.LEAVE),
    "it asks for the middle of the next pass": (ENDED, asks(4, 2, STATE), D.REFUSE_OTHER_PASS),
    "it has loaded a pass that is over, while others are in one": (RANKS, asks(1, 4, STATE), D.REFUSE_OTHER_PASS),
    "it is in a pass that is not known": (BETWEEN, asks(4, 2), D.GATHER),
    "it is behind a pass that is not known": (RANKS, asks(5, 0), D.GATHER),
    "ranks are gathered": (where(BETWEEN, is_gathering=True), asks(4, 0), D.GATHER),
    "ranks were gathered": (where(RANKS, state=S.LEFT), asks(5, 0, was_gathered=True), D.REFUSE_OTHER_PASS),
    "it names a state in a pass that is not known": (BETWEEN, asks(7, 2, STATE), D.JOIN),
    "a sole rank says where it is": (where(BETWEEN, is_single_rank=True), asks(7, 2), D.JOIN),
    "a dynamic trainer is in a pass that is not known": (where(DYNAMIC, in_pass=False), asks(4, 2), D.REFUSE_UNKNOWN),
}


@pytest.mark.parametrize("when", GENERATION)
def test_the_generation_of_a_request(when: str) -> None:
    view, request, decision = GENERATION[when]
    assert decide(view, request) is decision


@pytest.mark.parametrize("when", PASSES)
def test_the_pass_of_a_request_that_was_admitted(when: str) -> None:
    view, request, decision = PASSES[when]
    assert decide(view, replace(request, is_admitted=True)) is decision


@pytest.mark.parametrize(
    ("rules", "cases"),
    [pytest.param(GENERATION_RULES, GENERATION, id="generation"), pytest.param(PASS_RULES, PASSES, id="pass")],
)
def test_every_rule_decides_some_case(
    rules: tuple[Rule, ...], cases: dict[str, tuple[GroupView, PassRequest, Decision]]
) -> None:
    first = [next(rule.when for rule in rules if rule.holds(_Case(*case[:2]))) for case in cases.values()]
    assert {*first} == {rule.when for rule in rules}


def test_the_tables_are_those_of_the_docs() -> None:
    rows = re.findall(r"^\| (\w.*?) \| `([A-Z_]+)` \|$", ORDER.read_text("utf-8"), re.M)
    assert rows == [(rule.when, rule.decision.name) for rule in (*GENERATION_RULES, *PASS_RULES)]
    meanings = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|$", ORDER.read_text("utf-8"), re.M)
    assert dict(meanings) == {decision.name: decision.value for decision in Decision}

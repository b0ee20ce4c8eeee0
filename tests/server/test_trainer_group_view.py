"""What a request is judged by: all that the service knows of the job and of the trainer that asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pydp2.errors import ProviderError
from pydp2.order.stream_state import StreamState
from pydp2.server.jobs import group
from pydp2.server.jobs.agreement import Decision, GroupView, PassRequest, decide
from pydp2.server.snapshots.job_snapshot import PassState
from tests.simulated.trainer_group import Trainer, World, position_at

STATE = position_at(4).name
EPOCH = StreamState(7).name
NEW = GroupView(failed=set(), previous_run_ended=True)
"""A trainer that has asked for nothing, in a job that has not begun."""
IN_PASS = GroupView(failed=set(), pass_id=0, in_pass=True, state=PassState.IN, next_batch=4)
"""A rank that has used two batches of its own."""


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[GroupView]:
    """Views of the first table, in the order in which requests were decided."""
    seen: list[GroupView] = []

    def watched(view: GroupView, request: PassRequest) -> Decision:
        if not request.is_admitted:
            seen.append(replace(view, failed={*view.failed}))
        return decide(view, request)

    monkeypatch.setattr(group, "decide", watched)
    return seen


def ranks(length: int) -> tuple[World, Trainer, Trainer]:
    """Two ranks in the middle of pass 0: the first has used two batches, the other none."""
    made = World(length, 2)
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    for _ in range(3):
        made.next(one)
    return made, one, other


def test_a_rank_in_a_pass(views: list[GroupView]) -> None:
    made, one, _ = ranks(24)
    assert views == [NEW, replace(NEW, pass_id=0, in_pass=True)]
    made.reconnect(one)
    assert views[-1] == IN_PASS


def test_a_rank_that_loads_the_state_that_another_has_loaded(views: list[GroupView]) -> None:
    made, one, other = ranks(24)
    made.begin(one, position_at(4))
    made.begin(other, position_at(4))
    loaded = replace(IN_PASS, loaded=STATE, generation=1, others_from_state=True)
    assert views[-1] == replace(loaded, state=PassState.BEFORE, is_outdated=True, previous_run_ended=True)
    made.reconnect(other)
    assert views[-1] == replace(loaded, began_from_state=True, unconfirmed_state=STATE)
    made.next(other)
    made.next(other)
    made.reconnect(other)
    assert views[-1] == replace(loaded, began_from_state=True, next_batch=6)


def test_a_rank_that_goes_to_another_pass_while_the_others_are_in_theirs(views: list[GroupView]) -> None:
    made, one, other = ranks(8)
    while not one.over:
        made.next(one)
    made.set_epoch(one, 7)
    made.reconnect(one)
    assert views[-1] == replace(IN_PASS, state=PassState.ENDED, deferred_state=EPOCH, next_batch=8)
    while not other.over:
        made.next(other)
    assert views[-1] == replace(NEW, pass_id=0, deferred_state=EPOCH, previous_run_ended=False)
    made.begin(other)
    assert views[-1] == replace(
        NEW, pass_id=7, in_pass=True, loaded=EPOCH, generation=1, previous_pass=0, is_outdated=True,
        others_from_state=True,
    )  # fmt: skip


def test_a_rank_whose_pass_has_failed(views: list[GroupView]) -> None:
    made = World(0, 2)
    made.numbers.errors = {0: ProviderError("a file raised")}
    made.begin(made.come(0))
    made.begin(made.come(1))
    assert views[-1] == replace(NEW, pass_id=0, in_pass=True, failed={0})


def test_a_rank_of_a_service_that_gathers_them(views: list[GroupView]) -> None:
    made, one, other = ranks(24)
    made.crash(-9)
    for trainer in (one, other):
        trainer.inbox.clear()
        made.receive(trainer)
    assert views[-1] == replace(NEW, is_gathering=True)


def test_a_sole_rank_and_a_dynamic_trainer(views: list[GroupView]) -> None:
    for dynamic in (False, True):
        made = World(24, 1, dynamic=dynamic)
        made.begin(made.come())
        assert views[-1] == replace(NEW, dynamic=dynamic, is_single_rank=not dynamic)

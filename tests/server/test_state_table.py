"""The tables of the state machines of the server: complete, and nothing else is allowed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import pydp2.host
import pydp2.server
from pydp2.errors import Error
from pydp2.host.agent.agent import AGENT_TRANSITIONS, AgentEvent, AgentLife, AgentState
from pydp2.host.watchdog import WATCH_TRANSITIONS, WatchEvent, WatchState, WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.protocol.state_table import IllegalTransition, next_state
from pydp2.server.dispatch.file_state import ENDED_STATES, FILE_TRANSITIONS, FileEvent, FileState
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.jobs.membership import TRAINER_TRANSITIONS, Trainer, TrainerEvent
from pydp2.server.snapshots.job_snapshot import PassState
from pydp2.server.tracing import TRACE_TRANSITIONS, TraceEvent, TraceRecorder, TraceState
from pydp2.server.workers.worker_pool import WORK_TRANSITIONS, WorkEvent, WorkState, _PooledWorker

Machine = tuple[Mapping[tuple[Any, Any], Any], type[Enum], Enum, set[Enum]]

# Table, events, first state, states that nothing leads out of to another one
MACHINES: dict[str, Machine] = {
    "file": (FILE_TRANSITIONS, FileEvent, FileState.QUEUED, {FileState.CLOSED}),
    "trainer": (TRAINER_TRANSITIONS, TrainerEvent, PassState.BEFORE, set()),
    "work": (WORK_TRANSITIONS, WorkEvent, WorkState.STARTING, {WorkState.GONE}),
    "trace": (TRACE_TRANSITIONS, TraceEvent, TraceState.OFF, set()),
    "agent": (AGENT_TRANSITIONS, AgentEvent, AgentState.RESTING, {AgentState.ENDED}),
    "watch": (
        WATCH_TRANSITIONS,
        WatchEvent,
        WatchState.RUNNING,
        {WatchState.KILLED, WatchState.OVER_MEMORY, WatchState.BROKE_PROTOCOL},
    ),
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "file": lambda: FileLedger(0, 0),
    "trainer": lambda: Trainer(0),
    "work": lambda: _PooledWorker(0, 0),
    "trace": lambda: TraceRecorder(FileList.of(["a"])),
    "agent": AgentLife,
    "watch": WorkerConnection,
}
each_machine = pytest.mark.parametrize("name", MACHINES)


def placed(name: str, state: Enum) -> Any:
    """An object of the machine ``name`` in ``state``."""
    made = OBJECTS[name]()
    made.state = state
    return made


@each_machine
def test_every_state_is_reached_and_left_unless_it_is_the_last(name: str) -> None:
    table, events, first, last = MACHINES[name]
    reached, todo = set[Enum](), [first]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [after for (before, _), after in table.items() if before is state]
    assert reached == set(type(first))
    assert {state for state in reached if all(table.get((state, each), state) is state for each in events)} == last


@each_machine
def test_every_event_is_allowed_somewhere(name: str) -> None:
    table, events, _, _ = MACHINES[name]
    assert {event for _, event in table} == set(events)


@each_machine
def test_an_object_begins_in_the_first_state(name: str) -> None:
    assert OBJECTS[name]().state is MACHINES[name][2]


@each_machine
def test_an_object_follows_the_table_and_refuses_everything_else(name: str) -> None:
    table, events, first, _ = MACHINES[name]
    for state in type(first):
        for event in events:
            made = placed(name, state)
            if (state, event) in table:
                made.move(event)
                assert made.state is table[state, event]
                continue
            with pytest.raises(IllegalTransition) as caught:
                made.move(event)
            assert str(caught.value) == (
                f"{type(state).__name__}: '{event.value}' is not allowed in state '{state.value}'"
            )
            assert made.state is state


def test_a_worker_killed_for_its_memory_is_said_to_be_that_whatever_it_sends_then() -> None:
    connection = WorkerConnection()
    assert not connection.over_memory
    connection.begin_end(WatchEvent.EXCEED_MEMORY, "was replaced")
    connection.begin_end(WatchEvent.BREAK_PROTOCOL, "broke the protocol")
    assert connection.over_memory
    assert connection.kill_reason == "broke the protocol"


def test_nothing_but_move_changes_a_state() -> None:
    """So no state is reached past its table."""
    server, host = (Path(str(package.__file__)).parent for package in (pydp2.server, pydp2.host))
    for file in [*server.rglob("*.py"), *host.glob("*.py"), *host.glob("agent/*.py")]:
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name != "move":
                targets = [t for node in ast.walk(function) if isinstance(node, ast.Assign) for t in node.targets]
                assert not [t for t in targets if isinstance(t, ast.Attribute) and t.attr == "state"], file


def test_the_next_state_is_that_of_the_table() -> None:
    assert next_state(FILE_TRANSITIONS, FileState.QUEUED, FileEvent.ASSIGN) is FileState.READING


def test_what_comes_after_a_file_is_known_in_the_states_in_which_it_has_ended() -> None:
    for state in FileState:
        entry = FileLedger(0, 0, end_error=Error("why"))
        entry.state = state
        assert entry.ended == (entry.tail is not None) == (state in ENDED_STATES)
        assert (entry.early_end is not None) == (state is FileState.SKIPPED)
        assert entry.in_cache == (state is FileState.CACHED)

"""Look up transitions in the tables of the server's state machines (docs/internals/states.md)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(RuntimeError):
    """The state machine does not allow the event in its present state: a defect of the server."""


def next_state(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """Return the state that ``event`` leads to from ``state``. Raises IllegalTransition when ``table`` has no entry."""
    after = table.get((state, event))
    if after is None:
        raise IllegalTransition(f"{type(state).__name__}: '{event.value}' is not allowed in state '{state.value}'")
    return after

"""A trainer's position as plain data: what ``state_dict()`` returns and ``load_state_dict()`` takes.

Small, JSON-able, versioned. It holds what the stream depends on (``fits``), so that a state is refused where it would
not give the same stream, and the latest point of the pass from which the service can take it up (docs/order.md,
"State").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydp2.errors import StateMismatch
from pydp2.inputs import names

VERSION = 1
CODE = ("provider_source", "args")
"""What may differ on request: changed code that still yields the same samples."""


@dataclass(frozen=True, slots=True)
class Point:
    """The latest point of a pass from which it can be taken up: plain values, and the pool as bytes."""

    saved: dict[str, Any]
    pool: bytes


@dataclass(slots=True)
class Position:
    """Before batch ``batch`` of pass ``pass_id``. ``facts``: ``[file, ordinal, reason]`` of files that ended early.
    ``buckets``: their "bounds", and in the middle of a pass the "group" of batches that come from one."""

    pass_id: int = 0
    batch: int = 0
    point: Point | None = None
    facts: list[list[Any]] = field(default_factory=list)
    buckets: dict[str, Any] = field(default_factory=dict)

    def next_pass(self) -> Position:
        """Before the pass that follows. Bounds of buckets stay as they are."""
        return Position(self.pass_id + 1, buckets={k: v for k, v in self.buckets.items() if k == "bounds"})

    def to_state(self, fits: Mapping[str, Any]) -> dict[str, Any]:
        """As plain data for a trainer's checkpoint."""
        point = None
        if self.point is not None:
            point = {**self.point.saved, "pool": names.to_text(self.point.pool)}
        return {
            "version": VERSION, "fits": dict(fits), "pass": self.pass_id, "batch": self.batch,
            "facts": [list(fact) for fact in self.facts], "point": point,
            **({"buckets": dict(self.buckets)} if self.buckets else {}),
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Any, fits: Mapping[str, Any], allow: Collection[str] = ()) -> Position:
        """Inverse of :meth:`to_state`. Raises StateMismatch, naming what differs, where the stream would be another."""
        if not isinstance(state, Mapping) or type(state.get("version")) is not int:
            raise StateMismatch("a state must be what state_dict() returned")
        if state["version"] > VERSION:
            raise StateMismatch(
                f"the state has version {state['version']}, this pydp2 reads up to {VERSION}: it was written by a "
                "newer release; use that one"
            )
        try:
            differs = _differences(state["fits"], fits, allow)
            point = state["point"]
            if point is not None:
                saved = {key: value for key, value in point.items() if key != "pool"}
                point = Point(saved, names.from_text(point["pool"]))
            facts = [[_whole(file), _whole(y), str(reason)] for file, y, reason in state["facts"]]
            buckets = _buckets(state.get("buckets", {}))
            position = cls(_whole(state["pass"]), _whole(state["batch"]), point, facts, buckets)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateMismatch(f"the state cannot be read ({type(error).__name__}: {error}): it is damaged") from None
        if differs:
            raise StateMismatch(
                "the state was saved for another stream: "
                + "; ".join(differs)
                + "; use what it was saved with"
                + ("" if set(allow) >= set(CODE) else ', or pass allow=("provider_source", "args") for changed code')
            )
        return position


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str]) -> list[str]:
    wrong = set(allow) - set(CODE)
    if wrong:
        raise ValueError(f"allow may name {', '.join(CODE)}, got {', '.join(sorted(wrong))}")
    names_ = [*now, *(name for name in then if name not in now)]
    return [
        f"{name} was {_short(then.get(name))}, is {_short(now.get(name))}"
        for name in names_
        if then.get(name) != now.get(name) and name not in allow
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _buckets(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if "bounds" in value:
        plain["bounds"] = [_whole(bound) for bound in value["bounds"]]
    if "group" in value:
        plain["group"] = _whole(value["group"])
    return plain


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} where a number is needed")
    return value

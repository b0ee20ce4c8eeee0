"""A trainer's position as plain data: what ``state_dict()`` returns and ``load_state_dict()`` takes.

Small, JSON-able, versioned. It holds what the stream depends on (``fits``), so that a state is refused where it would
not give the same stream, and the latest point of the pass from which the service can take it up (docs/order.md,
"State").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pydp2.errors import RemoteProtocolError, StateMismatch
from pydp2.inputs import names
from pydp2.protocol import messages as m
from pydp2.protocol.fits import CODE, differences, whole

VERSION = 1


@dataclass(frozen=True, slots=True)
class Point:
    """The latest point of a pass from which it can be taken up: plain values, and the pool as bytes."""

    saved: dict[str, Any]
    pool: bytes


@dataclass(slots=True)
class Position:
    """Before batch ``batch`` of pass ``pass_id``, those in ``beyond`` used as well. It is never changed: a batch keeps
    the one behind it.

    ``facts``: ``[file, ordinal, reason]`` of files that ended early. ``buckets``: their "bounds", and in the middle of
    a pass the "group" of batches that come from one.
    """

    pass_id: int = 0
    batch: int = 0
    point: Point | None = None
    facts: list[list[Any]] = field(default_factory=list)
    beyond: list[int] = field(default_factory=list)
    buckets: dict[str, Any] = field(default_factory=dict)

    def next_pass(self) -> Position:
        """Before the pass that follows. Bounds of buckets stay as they are."""
        return Position(self.pass_id + 1, buckets={k: v for k, v in self.buckets.items() if k == "bounds"})

    @property
    def name(self) -> str:
        """The same for states of all ranks at the same place."""
        place = repr((self.pass_id, self.batch, self.beyond))
        return blake2b(place.encode(), digest_size=8).hexdigest()

    def after(self, head: m.BatchHead, pool: bytes, facts: list[list[Any]]) -> Position:
        """Behind the batch of ``head``. ``pool``: of the point that came with it; ``facts``: that are new."""
        point = Point(head.saved, pool) if head.saved else self.point
        if point is not None and point.saved.get("ended") and head.gone:
            point = Point({**point.saved, "index": head.after, "offset": head.gone}, point.pool)
        buckets = {key: value for key, value in head.bucket.items() if key != "longest"}
        batch, beyond = head.after, self.beyond
        if head.index >= head.after:
            batch, beyond = self._out_of_turn(head)
        return Position(self.pass_id, batch, point, self.facts + facts if facts else self.facts, beyond, buckets)

    def _out_of_turn(self, head: m.BatchHead) -> tuple[int, list[int]]:
        """Shared with others in no fixed order: what the service knows to be used, and what was delivered here."""
        batch = max(self.batch, head.after)
        beyond = {index for index in (*self.beyond, *head.beyond, head.index) if index >= batch}
        while batch in beyond:
            beyond.remove(batch)
            batch += 1
        return batch, sorted(beyond)

    @classmethod
    def from_welcome(cls, place: Any) -> Position:
        """Where the service says that this trainer stands. Raises RemoteProtocolError for what cannot be one."""
        try:
            return cls(whole(place.get("pass", 0)), whole(place.get("batch", 0)))
        except (AttributeError, ValueError) as error:
            raise RemoteProtocolError(f"Welcome: a position that cannot be: {error}") from None

    def to_state(self, fits: Mapping[str, Any]) -> dict[str, Any]:
        """As plain data for a trainer's checkpoint."""
        point = None
        if self.point is not None:
            point = {**self.point.saved, "pool": names.to_text(self.point.pool)}
        return {
            "version": VERSION, "fits": dict(fits), "pass": self.pass_id, "batch": self.batch,
            "beyond": list(self.beyond), "facts": [list(fact) for fact in self.facts], "point": point,
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
            differs = differences(state["fits"], fits, allow)
            point = state["point"]
            if point is not None:
                saved = {key: value for key, value in point.items() if key != "pool"}
                point = Point(saved, names.from_text(point["pool"]))
            facts = [[whole(file), whole(y), str(reason)] for file, y, reason in state["facts"]]
            beyond = [whole(index) for index in state["beyond"]]
            buckets = _buckets(state.get("buckets", {}))
            position = cls(whole(state["pass"]), whole(state["batch"]), point, facts, beyond, buckets)
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


def _buckets(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if "bounds" in value:
        plain["bounds"] = [whole(bound) for bound in value["bounds"]]
    if "group" in value:
        plain["group"] = whole(value["group"])
    return plain

"""Convert a trainer's position to and from plain data: what ``state_dict()`` returns and ``load_state_dict()`` takes.

The data are small, JSON-able and versioned. They hold what the stream depends on (``fits``), so that a state is refused
where it would not give the same stream, and the latest point of the pass from which the service can take it up
(docs/order.md, "State").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pydp2.client.loaded_state import LoadedState
from pydp2.client.state_check import check_plain, check_seal, check_version, damaged, seal
from pydp2.data.columns import sample_set
from pydp2.data.columns.checksum_log import LoggedChecksums, decode_checksums, joined
from pydp2.errors import OptionError, OptionTypeError, ProtocolError, RemoteProtocolError, StateMismatch
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import bucket_of_pass
from pydp2.protocol.begin_frames import begin_frames
from pydp2.protocol.stream_identity import allow_hint, check_allow, check_int, differences

VERSION = 2
"""Version of states. A state of version 1 has no checksums of the files of its pool."""
_PASS_LIMIT = 1 << 32
_pool_text = lru_cache(maxsize=2)(sample_set.set_to_text)  # a program may ask for a state after each batch of a tail


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """Latest point of a pass from which it can be taken up: plain values, and the pool as bytes."""

    saved: dict[str, Any]
    pool: bytes


@dataclass(slots=True)
class Position:
    """Position before batch ``batch`` of pass ``pass_id``; the batches in ``acknowledged_ahead`` are used as well. It
    is never changed: a batch keeps the one behind it.

    ``early_ends``: ``[file, sample index, reason]`` of files that ended early. ``buckets``: their "bounds", and in the
    middle of a pass the "group" of batches that come from one. ``checksums``: of files that were read since the point.
    """

    pass_id: int = 0
    batch: int = 0
    point: RestorePoint | None = None
    early_ends: list[list[Any]] = field(default_factory=list)
    acknowledged_ahead: list[int] = field(default_factory=list)
    buckets: dict[str, Any] = field(default_factory=dict)
    checksums: LoggedChecksums = field(default_factory=LoggedChecksums)

    def next_pass(self) -> Position:
        """Return the position before the pass that follows."""
        return self.before_pass(self.pass_id + 1)

    def before_pass(self, pass_id: int) -> Position:
        """Return the position before pass ``pass_id``. Bounds of buckets stay as they are."""
        return Position(pass_id, buckets={k: v for k, v in self.buckets.items() if k == "bounds"})

    def with_buckets(self, known: Mapping[str, Any]) -> Position:
        """Return this position with the bounds of the buckets, which a rank without a batch learns as a pass ends or
        fails. Raises RemoteProtocolError if ``known`` does not name them."""
        if not known:
            return self
        try:
            return replace(self, buckets={**self.buckets, **_buckets(known)})
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(f"PassEnd or Failed: invalid buckets: {error}") from None

    @property
    def name(self) -> str:
        """Name of this place in the stream, the same for states of all ranks at the same place."""
        place = repr((self.pass_id, self.batch, self.acknowledged_ahead))
        return blake2b(place.encode(), digest_size=8).hexdigest()

    def after(self, head: m.BatchHead, pool: bytes, early_ends: list[list[Any]], checksums: bytes = b"") -> Position:
        """Return the position behind the batch of ``head``. ``pool``: of the point that came with it; ``early_ends``
        and ``checksums``: the new ones."""
        point = RestorePoint(head.snapshot, pool) if head.snapshot else self.point
        if point is not None and point.saved.get("ended") and head.tail_consumed:
            point = RestorePoint(
                {**point.saved, "index": head.position_after, "offset": head.tail_consumed}, point.pool
            )
        buckets = bucket_of_pass(head)
        batch, beyond = head.position_after, self.acknowledged_ahead
        if head.batch_index >= head.position_after:
            batch, beyond = self._after_shared(head)
        logged = self.checksums.extended(checksums)  # behind a new point as well, for with_later_checksums()
        if head.snapshot:
            logged = LoggedChecksums().extended(checksums)
        all_ends = self.early_ends + early_ends if early_ends else self.early_ends
        return Position(self.pass_id, batch, point, all_ends, beyond, buckets, logged)

    def _after_shared(self, head: m.BatchHead) -> tuple[int, list[int]]:
        """Return the position in a job that is shared in no fixed order: what the service knows to be used, and
        what was delivered here."""
        batch = max(self.batch, head.position_after)
        beyond = {
            index for index in (*self.acknowledged_ahead, *head.acknowledged_ahead, head.batch_index) if index >= batch
        }
        while batch in beyond:
            beyond.remove(batch)
            batch += 1
        return batch, sorted(beyond)

    def with_later_checksums(self) -> Position:
        """Return this position for a trainer that has had some rows of the batches behind it, too."""
        return replace(self, checksums=self.checksums.whole())

    @classmethod
    def from_welcome(cls, place: Any) -> Position:
        """Return the position at which the service says that this trainer stands. Raises
        RemoteProtocolError if it is none."""
        try:
            return cls(check_int(place.get("pass", 0)), check_int(place.get("batch", 0)))
        except (AttributeError, ValueError) as error:
            raise RemoteProtocolError(f"Welcome: an invalid position: {error}") from None

    def to_state(self, fits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the position as plain data for a trainer's checkpoint."""
        point = None
        if self.point is not None:
            point = {**self.point.saved, "pool": _pool_text(self.point.pool)}
        return seal({
            "version": VERSION, "fits": dict(fits), "pass": self.pass_id, "batch": self.batch,
            "beyond": list(self.acknowledged_ahead), "facts": [list(early_end) for early_end in self.early_ends],
            "point": point, "checksums": _checksums_text(self.checksums),
            **({"buckets": dict(self.buckets)} if self.buckets else {}),
        })  # fmt: skip

    @classmethod
    def from_state(cls, state: Any, fits: Mapping[str, Any], allow: Collection[str] = ()) -> Position:
        """Return the position of a state that :meth:`to_state` made. Raises StateMismatch, naming what differs, if the
        stream would be another, and naming the field, if it is damaged; OptionError or OptionTypeError if ``allow``
        names what may not differ."""
        check_plain(state)
        if not isinstance(state, Mapping) or type(state.get("version")) is not int:
            raise StateMismatch("a state must be what state_dict() returned")
        check_version(state["version"], VERSION)
        check_allow(allow)  # else the state would be blamed
        if not isinstance(state.get("fits"), Mapping):
            raise damaged("fits", ValueError("it is no object"))
        if differs := differences(state["fits"], fits, allow):  # first: a state of a mixture, say, has other fields
            raise StateMismatch(
                "the state was saved for another stream: "
                + "; ".join(differs)
                + "; use the values that it was saved with"
                + allow_hint(state["fits"], fits, allow)
            )
        position = cls(
            _field(state, "pass", lambda value: check_int(value, 0, _PASS_LIMIT)),
            _field(state, "batch", check_int),
            _field(state, "point", _point),
            _field(state, "facts", _early_ends),
            _field(state, "beyond", _numbers),
            _field({"buckets": {}, **state}, "buckets", _buckets),
            _field(state, "checksums", _checksums),
        )
        position.check_sendable()
        check_seal(state)
        return position

    def begin(self, run: int, credit: int, loaded: LoadedState, unreachable: Sequence[str]) -> tuple[Any, list[bytes]]:
        """Return the message that asks for the pass from this position on, as ``run``, with its frames.
        ``unreachable``: row servers from which rows could not be fetched."""
        point, pool = ({}, b"") if self.point is None else (self.point.saved, self.point.pool)
        checksums = self.checksums.by_file().encode()
        frames, checksum_frames, records = begin_frames(pool, checksums, self.early_ends)
        message = m.BeginPass(
            run, self.pass_id, self.batch, credit, point, records, self.acknowledged_ahead, loaded.name, self.buckets,
            loaded.is_repeat, loaded.after_pass, [*unreachable], loaded.was_answered, checksum_frames,
        )  # fmt: skip
        return message, frames

    def check_sendable(self) -> None:
        """Raise StateMismatch unless a service would take this position: all of it fits into a message."""
        largest = m.INT_LIMIT - 1
        message, _ = self.begin(largest, largest, LoadedState(), ())
        try:
            m.decode([m.encode(message)])
        except ProtocolError as error:
            parts = {"point": message.snapshot, "beyond": message.acknowledged_ahead, "buckets": message.buckets}
            field = max(parts, key=lambda name: len(repr(parts[name])))
            raise damaged(field, ValueError(f"it is larger than a service takes ({error})")) from None


def join_checksums(*states: Mapping[str, Any]) -> str:
    """Return the field "checksums" for a state between ``states``; without any, that of a pass that was not begun."""
    return _checksums_text(joined(_checksums(state["checksums"]) for state in states))


def _checksums_text(logged: LoggedChecksums) -> str:
    return sample_set.set_to_text(logged.by_file().encode())


def _checksums(text: str) -> LoggedChecksums:
    return decode_checksums(sample_set.set_from_text(text)).logged()


def _field(state: Mapping[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
    """Return field ``name`` of ``state`` as ``read`` gives it. Raises StateMismatch that names the field."""
    try:
        return read(state[name])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(name, error) from None


def _point(value: Any) -> RestorePoint | None:
    from pydp2.order.snapshot import POINT_FIELDS, SnapshotPoint  # only a trainer that loads a state needs it

    if value is None:
        return None
    saved = {key: item for key, item in value.items() if key != "pool"}
    SnapshotPoint.fields_from_wire(saved, b"", m.INT_LIMIT)  # the service alone knows how many files there are
    if unknown := saved.keys() - POINT_FIELDS:
        raise ValueError(f"{min(unknown)!r:.40} is no field of it")
    return RestorePoint(saved, sample_set.set_from_text(value["pool"]))


def _numbers(value: Any) -> list[int]:
    return [check_int(index) for index in _list(value)]


def _early_ends(value: Any) -> list[list[Any]]:
    return [[check_int(file), check_int(y), _text(reason)] for file, y, reason in map(_list, _list(value))]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r:.40} where a list is needed")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} where a text is needed")
    return value


def pass_number(value: Any) -> int:
    """Return ``value`` as the number of a pass. Raises OptionError, or OptionTypeError for what is no integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionTypeError(f"a pass has a number from 0 on, got {value!r:.80} ({type(value).__name__})")
    number = int(value.__index__())
    if not 0 <= number < _PASS_LIMIT:
        raise OptionError(f"a pass has a number from 0 to {_PASS_LIMIT - 1}, got {number}")
    return number


def _buckets(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if "bounds" in value:
        plain["bounds"] = _numbers(value["bounds"])
    if "group" in value:
        plain["group"] = check_int(value["group"])
    return plain

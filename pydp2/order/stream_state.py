"""Hold where a stream stands: the value that a trainer saves, that BeginPass carries and that a service writes to disk.

Theory of operation
-------------------
A pass is a fixed sequence of batches (docs/order.md). To go on in it, in another process or after a crash, two things
must be known: which batches are used, and how the next one is made.

*Which are used*: all before ``batch``, and those in ``acknowledged_ahead``. With ``share="dynamic"`` a slow trainer may
still hold batch 7 when 8 and 9 are used. Where each rank takes its batches in turn, these are the batches that the
user passes over (:meth:`StreamState.without`), and none otherwise.

*How the next one is made*: batch n depends on the pool, and the pool on everything that was merged before. A state
holds no random generator, because no generator has a state. It holds the latest ``point``: the pool as a set of (file,
sample index), and the position in each open file. Only those files are run again. The batches between the point and
``batch`` are cut a second time and thrown away. In the tail of a pass the order follows from the set alone, so no new
point is taken there: ``tail`` counts the used samples, and moves the point.

Three things besides cannot be found out from the files:

* ``checksums`` of the files that were read since the point. The point has checksums of its own files only. If another
  file has changed, the wrong batches are thrown away, and every later batch differs without an error.
* ``early_ends``. A file whose error was skipped may give more samples next time, and would then change the pass.
* ``buckets``: bounds that were drawn from the first samples of the first pass.

*Several trainers* (:meth:`StreamState.merge`). A service that was restarted knows what it wrote down, and what each
trainer says. With ranks, a position is that of one rank, so the pass goes on at the earliest: at any later one the
slowest rank would lose batches, and the others throw away what they already have. With dynamic sharing, a position is
what the service itself knew of all trainers, so the pass goes on at the latest: from the earliest one, batches that
others have used would be delivered again. Those that any trainer has used beyond it are left out. In both cases the
point is the latest one that is not beyond the position, because a point cannot give a batch before it. A batch is
passed over if each rank passes over it or is behind it.

The simple idea, to save the number of the batch and skip so many, fails twice: the skipped part is read again, which
takes as long as the pass took, and the result is another stream as soon as a file or a skipped error has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

from pydp2.data.columns.checksum_log import LoggedChecksums, decode_checksums, joined
from pydp2.errors import LocalProtocolError, OptionError, RemoteProtocolError, StateMismatch
from pydp2.order.snapshot import POINT_FIELDS, SnapshotPoint
from pydp2.protocol.batch_packing import bucket_of_pass
from pydp2.protocol.early_ends import EarlyEnds, by_file, split_frames, to_frames, to_list
from pydp2.protocol.messages import HEADER_LIMIT, INT_LIMIT, BatchHead, BeginPass, Buffer
from pydp2.protocol.stream_identity import check_int, damaged

PASS_LIMIT = 1 << 32
"""Passes have numbers below it."""
_MAX_FRAMES = 1024  # of 64 KiB at most: a pool of more samples than memory could hold


@dataclass(slots=True)
class StreamPosition:
    """Position before batch ``batch`` of pass ``pass_id``. It is never changed: a batch keeps the one behind it."""

    pass_id: int = 0
    batch: int = 0

    @property
    def index(self) -> tuple[int, int]:
        """Pass and batch, in the order in which they come."""
        return self.pass_id, self.batch

    @property
    def position(self) -> dict[str, Any]:
        """Pass and batch as plain data."""
        return {"pass": self.pass_id, "batch": self.batch}


@dataclass(slots=True)  # not frozen: a service makes one for each batch
class StreamState(StreamPosition):
    """State of a stream before batch ``batch`` of pass ``pass_id``.

    ``acknowledged_ahead``: later batches that are used as well. ``early_ends``: files of the pass that ended early.
    ``point``: where the pass can be taken up; None: at its start. ``checksums``: of files that were read since.
    ``buckets``: their "bounds", and in the middle of a pass the "group" of batches that come from one. ``tail``: a
    batch, and the samples of the tail that are used before it, if the point is the beginning of the tail.
    """

    acknowledged_ahead: list[int] = field(default_factory=list)
    early_ends: EarlyEnds = field(default_factory=dict)
    point: SnapshotPoint | None = None
    checksums: LoggedChecksums = field(default_factory=LoggedChecksums)  # its own: later states append to this log
    buckets: dict[str, Any] = field(default_factory=dict)
    tail: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """Name of this state, the same for states of all ranks at the same position."""
        place = repr((self.pass_id, self.batch, self.acknowledged_ahead))
        return blake2b(place.encode(), digest_size=8).hexdigest()

    # -- other states of the same stream -------------------------------------------------------------------------------
    def next_pass(self) -> StreamState:
        """Return the state before the pass that follows."""
        return self.before_pass(self.pass_id + 1)

    def before_pass(self, pass_id: int) -> StreamState:
        """Return the state before pass ``pass_id``. Bounds of buckets stay as they are."""
        lasting = {key: value for key, value in self.buckets.items() if key in ("bounds", "weights")}
        return StreamState(pass_id, buckets=lasting)

    def after(
        self, head: BatchHead, pool: bytes, early_ends: Sequence[Sequence[Any]], checksums: bytes = b""
    ) -> StreamState:
        """Return the state behind the batch of ``head``. ``pool``: of the point that came with it; ``early_ends`` and
        ``checksums``: the records that are new. Raises RemoteProtocolError for an invalid point."""
        point, tail, logged = self.point, self.tail, self.checksums
        if head.snapshot:
            point, tail, logged = _point_of(head, pool), (0, 0), LoggedChecksums()
        if head.tail_consumed:
            tail = head.position_after, head.tail_consumed
        batch, ahead = head.position_after, head.acknowledged_ahead
        if head.batch_index >= head.position_after:
            batch, ahead = self._after_shared(head)
        all_ends = {**self.early_ends, **by_file(early_ends)} if early_ends else self.early_ends
        if checksums:
            logged = logged.extended(checksums)
        buckets = bucket_of_pass(head) if head.bucket else {}
        return StreamState(self.pass_id, batch, ahead, all_ends, point, logged, buckets, tail)

    def _after_shared(self, head: BatchHead) -> tuple[int, list[int]]:
        """Return the position in a job that is shared in no fixed order, and the batches used ahead of it: what the
        service knows to be used, and what was delivered here."""
        batch = max(self.batch, head.position_after)
        ahead = {
            index for index in (*self.acknowledged_ahead, *head.acknowledged_ahead, head.batch_index) if index >= batch
        }
        while batch in ahead:
            ahead.remove(batch)
            batch += 1
        return batch, sorted(ahead)

    def with_buckets(self, known: Mapping[str, Any]) -> StreamState:
        """Return this state with the bounds of the buckets, which a rank without a batch learns as a pass ends or
        fails. Raises RemoteProtocolError if ``known`` does not name them."""
        if not known:
            return self
        try:
            return replace(self, buckets={**self.buckets, **_buckets(known)})
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(f"PassEnd or Failed: invalid buckets: {error}") from None

    def without(self, batches: Iterable[int], group: int) -> StreamState:
        """Return this state for a trainer that passes over ``batches``, numbers of batches of its pass behind it; of
        ``group`` batches that the ranks get in one step, all are passed over."""
        begins = {number - (number - self.batch) % group for number in batches}
        passed_over = {begin + i for begin in begins for i in range(group)}
        return replace(self, acknowledged_ahead=sorted({*self.acknowledged_ahead, *passed_over}))

    def at_batch(self, batch: int) -> StreamState:
        """Return the state before ``batch`` of the same pass, behind this one. Batches before it count as used."""
        return replace(self, batch=batch, acknowledged_ahead=[])

    def with_later_checksums(self) -> StreamState:
        """Return this state for a trainer that has had some rows of the batches behind it, too."""
        return replace(self, checksums=self.checksums.whole())

    def before(self, batch: int, earlier: StreamState) -> StreamState:
        """Return the state before ``batch``, which lies between the state ``earlier`` of the same pass and this one."""
        checksums = joined((earlier.checksums, self.checksums))
        return replace(self, batch=batch, point=earlier.point, tail=earlier.tail, checksums=checksums)

    def with_tail_in_point(self) -> StreamState:
        """Return the same state with ``tail`` as a part of ``point``."""
        point, (batch, consumed) = self.point, self.tail
        if point is not None and point.in_tail and consumed:
            point = replace(point, batch_index=batch, tail_consumed=consumed)
        return replace(self, point=point, tail=(0, 0))

    @classmethod
    def merge(cls, states: Sequence[StreamState]) -> StreamState:
        """Return the state from which no rank misses a batch that it has not had; ``states`` are those of the ranks
        that came back to a service that was started again, at least one."""
        # A rank that has had something of a pass shows that it had begun, and that those before it were over. To ask
        # for a pass shows nothing.
        begun = [state.pass_id for state in states if state.batch or state.acknowledged_ahead]
        pass_id = max(begun) if begun else min(state.pass_id for state in states)
        present = [state for state in states if state.pass_id == pass_id]
        batch = min(state.batch for state in present)
        saved = [state.with_tail_in_point().point for state in present]
        points = [point for point in saved if point is not None and point.batch_index <= batch]
        return cls(
            pass_id,
            batch,
            _passed_over_by_all(present),
            {file: early_end for state in present for file, early_end in state.early_ends.items()},
            max(points, key=lambda point: point.batch_index, default=None),
            joined(state.checksums for state in present),
            {key: value for state in present for key, value in state.buckets.items()},  # a rank may have had no batch
        )

    # -- as plain data -------------------------------------------------------------------------------------------------
    def to_dict(self, encode: Callable[[bytes], Any] = bytes) -> dict[str, Any]:
        """Return the state as plain data. ``encode``: makes text of bytes, for a format that has no bytes."""
        point = self.with_tail_in_point().point
        return {
            **self.position,
            "acknowledged_ahead": list(self.acknowledged_ahead),
            "early_ends": to_list(self.early_ends),
            "point": None if point is None else {**point.to_wire(), "pool": encode(point.pool)},
            "checksums": encode(self.checksums.by_file().encode()),
            **({"buckets": dict(self.buckets)} if self.buckets else {}),
        }

    @classmethod
    def from_dict(
        cls, plain: Mapping[str, Any], decode: Callable[[Any], bytes] = bytes, *, files: int | None = None
    ) -> Self:
        """Return the state of which :meth:`to_dict` made ``plain``. ``decode``: the inverse of ``encode``. ``files``:
        number of files of the list; None: not known here, so the pool is not looked at. Raises StateMismatch, naming
        the field, for invalid values."""
        limit = INT_LIMIT if files is None else files
        return cls(
            read_field(plain, "pass", lambda value: check_int(value, 0, PASS_LIMIT)),
            read_field(plain, "batch", check_int),
            read_field(plain, "acknowledged_ahead", _numbers),
            read_field(plain, "early_ends", lambda value: _early_ends(value, limit)),
            read_field(plain, "point", lambda value: _point(value, decode, files)),
            read_field(plain, "checksums", lambda value: decode_checksums(decode(value), limit).logged()),
            read_field({"buckets": {}, **plain}, "buckets", _buckets),
        )

    @classmethod
    def from_welcome(cls, position: Any) -> Self:
        """Return the state at the ``position`` at which the service says that this trainer stands. Raises
        RemoteProtocolError if it is none."""
        try:
            return cls(check_int(position.get("pass", 0)), check_int(position.get("batch", 0)))
        except (AttributeError, ValueError) as error:
            raise RemoteProtocolError(f"Welcome: an invalid position: {error}") from None

    # -- as a message --------------------------------------------------------------------------------------------------
    def to_wire(self, request_id: int, credit: int) -> tuple[BeginPass, list[bytes]]:
        """Return the message that asks for the pass from this state on, as run ``request_id``, and its frames. Raises
        LocalProtocolError if there are too many frames."""
        point = self.with_tail_in_point().point
        early_ends = to_frames(to_list(self.early_ends))
        checksums = _cut(self.checksums.by_file().encode())
        frames = [*_cut(b"" if point is None else point.pool), *checksums, *early_ends]
        if len(frames) > _MAX_FRAMES:
            raise LocalProtocolError(f"BeginPass would have {len(frames)} frames, at most {_MAX_FRAMES} are allowed")
        message = BeginPass(
            request_id,
            self.pass_id,
            self.batch,
            credit,
            {} if point is None else point.to_wire(),
            len(early_ends),
            self.acknowledged_ahead,
            "",
            self.buckets,
            checksum_frames=len(checksums),
        )
        return message, frames

    @classmethod
    def from_wire(cls, begin: BeginPass, body: Sequence[Buffer], files: int) -> StreamState:
        """Return the state that ``begin`` asks for with the frames ``body``, for a list of ``files`` files. Raises
        RemoteProtocolError for invalid frames, OptionError or StateMismatch for a state that this list cannot have."""
        if len(body) > _MAX_FRAMES:
            raise RemoteProtocolError(f"BeginPass: {len(body)} frames, at most {_MAX_FRAMES} are allowed")
        frames, records = split_frames("BeginPass", body, begin.early_end_frames)
        edge = len(frames) - begin.checksum_frames
        if edge < 0:
            raise RemoteProtocolError(
                f"BeginPass: {begin.checksum_frames} frames of checksums, but {len(frames)} in all"
            )
        if bool(edge) != bool(begin.snapshot):
            raise RemoteProtocolError("BeginPass: a point and its pool come together")
        state = cls.without_frames(begin)
        if begin.snapshot:
            state.point = SnapshotPoint.from_wire(begin.snapshot, b"".join(frames[:edge]), files)
        state.early_ends = by_file(records)
        if records and (file := max(state.early_ends)) >= files:
            raise StateMismatch(
                f"the state has an early-end record of file {file}, but the list has {files} files: the state is "
                "damaged"
            )
        state.checksums = decode_checksums(b"".join(frames[edge:]), files).logged()
        if any(type(index) is not int or not 0 <= index < INT_LIMIT for index in begin.acknowledged_ahead):
            raise StateMismatch("the state has a batch number that is not a number: it is damaged")
        return state

    @classmethod
    def without_frames(cls, begin: BeginPass) -> StreamState:
        """Return the state that ``begin`` asks for, without what its frames hold: all of it, at the start of a pass."""
        return cls(begin.pass_id, begin.first_batch, begin.acknowledged_ahead, buckets=begin.buckets)


def _passed_over_by_all(states: Sequence[StreamState]) -> list[int]:
    """Return the batches behind the earliest of ``states`` that none of them wants. (A rank forgets the batches that it
    has passed over.)"""
    low = min(state.batch for state in states)
    used = [{*state.acknowledged_ahead} for state in states]
    named = sorted({index for ahead in used for index in ahead if index >= low})
    return [
        index
        for index in named
        if all(index < state.batch or index in ahead for state, ahead in zip(states, used, strict=True))
    ]


def read_field(plain: Mapping[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
    """Return field ``name`` of ``plain`` as ``read`` gives it. Raises StateMismatch that names the field."""
    try:
        return read(plain[name])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(name, error) from None


def _point_of(head: BatchHead, pool: bytes) -> SnapshotPoint:
    try:
        return SnapshotPoint.fields_from_wire(head.snapshot, pool, INT_LIMIT)
    except OptionError as error:
        raise RemoteProtocolError(f"BatchHead: an invalid point: {error}") from None


def _point(value: Any, decode: Callable[[Any], bytes], files: int | None) -> SnapshotPoint | None:
    if value is None:
        return None
    fields = {key: item for key, item in value.items() if key != "pool"}
    if unknown := fields.keys() - POINT_FIELDS:
        raise ValueError(f"{min(unknown)!r:.40} is no field of it")
    if files is None:
        return SnapshotPoint.fields_from_wire(fields, decode(value["pool"]), INT_LIMIT)
    return SnapshotPoint.from_wire(fields, decode(value["pool"]), files)


def _early_ends(value: Any, files: int) -> EarlyEnds:
    return by_file([check_int(file, 0, files), check_int(y), _text(why)] for file, y, why in map(_list, _list(value)))


def _numbers(value: Any) -> list[int]:
    return [check_int(index) for index in _list(value)]


def _buckets(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if "bounds" in value:
        plain["bounds"] = _numbers(value["bounds"])
    if "group" in value:
        plain["group"] = check_int(value["group"])
    if "weights" in value:
        plain["weights"] = [_weights(change) for change in _list(value["weights"])]
    return plain


def _weights(change: Any) -> list[Any]:
    pass_id, step, weights = _list(change)
    return [check_int(pass_id), check_int(step), [_text(weight) for weight in _list(weights)]]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r:.40} where a list is needed")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} where a text is needed")
    return value


def _cut(data: bytes) -> list[bytes]:
    return [data[i : i + HEADER_LIMIT] for i in range(0, len(data), HEADER_LIMIT)]

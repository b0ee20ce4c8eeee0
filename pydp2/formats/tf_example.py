"""Read tf.train.Example: the subset of protobuf's wire form that its three kinds of lists need.

A message is a sequence of fields: a tag, which is the number of the field times 8 plus the kind of its value, and the
value. An Example has a map from names to features; a feature is a list of bytes, of floats or of integers. Numbers
are packed in one field, or have a field each. Unknown fields are passed over, as protobuf does.

:func:`features_of` finds where each feature of a record lies, and :func:`numbers_of` its numbers, still packed. The
lists of one feature of many records then become one array: :func:`floats` and :func:`integers` decode them together.

Where it was built, :func:`lists_of` does all of this at once in compiled form, for records as writers have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.native import is_active

try:
    from pydp2.data.native import _examples
except ImportError:  # not built
    _examples = None  # type: ignore[assignment]

BYTES, FLOATS, INTEGERS = 1, 2, 3
KINDS = {BYTES: "bytes_list", FLOATS: "float_list", INTEGERS: "int64_list"}
"""Names of the kinds of lists, by the numbers of their fields."""

Ints = NDArray[np.int64]

_FIRST, _SECOND = 0x0A, 0x12  # tags of fields 1 and 2 with a length
_UNPACKED = {FLOATS: 0x0D, INTEGERS: 0x08}
_LISTS = tuple(kind << 3 | 2 for kind in KINDS)
_TOGETHER = 1 << 12  # numbers that are decoded at a time
_MOST_VARINT = 10  # bytes of a number of 64 bits
_LOW_BYTES = np.array([(1 << 8 * min(count, 8)) - 1 for count in range(_MOST_VARINT + 1)], np.uint64)
_STEPS = [
    tuple(np.uint64(number) for number in numbers)
    for numbers in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
]


def features_of(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Return where the feature of each name lies in an Example: its first byte, and the byte behind it.

    Raises ValueError: it is damaged, or something else.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for tag, lo, hi in _fields(data, 0, len(data)):
        if tag == _SECOND:
            raise ValueError(
                "expected an Example, got a SequenceExample; pydp2.formats.tfrecord.records gives its bytes"
            )
        if tag == _FIRST:
            try:
                _add_entries(data, lo, hi, found)
            except IndexError:
                raise _beyond() from None
    return found


def _add_entries(data: bytes, at: int, stop: int, found: dict[bytes, tuple[int, int]]) -> None:
    """Add the features of the map ``data[at:stop]`` to ``found``. Without a call per field, as a record has many."""
    while at < stop:
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            length, at = _varint(data, at - 1)
        end = at + length
        if tag != _FIRST or end > stop:  # an unknown field, or a damaged one
            for field, lo, hi in _fields(data, at - 2, stop):
                if field == _FIRST:
                    _add_any_entry(data, lo, hi, found)
            return
        name_end = at + 2 + data[at + 1]
        if data[at] == _FIRST and data[at + 1] < 0x80 and name_end < end and data[name_end] == _SECOND:
            length, first = data[name_end + 1], name_end + 2
            if length >= 0x80:
                length, first = _varint(data, name_end + 1)
            if first + length == end:  # as writers have it: the name, then the feature
                found[data[at + 2 : name_end]] = first, end
                at = end
                continue
        _add_any_entry(data, at, end, found)
        at = end


def _add_any_entry(data: bytes, start: int, stop: int, found: dict[bytes, tuple[int, int]]) -> None:
    name, feature = b"", (stop, stop)
    for tag, lo, hi in _fields(data, start, stop):
        if tag == _FIRST:
            name = data[lo:hi]
        elif tag == _SECOND:
            feature = lo, hi
    found[name] = feature


def lists_of(data: bytes, starts: Ints, stops: Ints, name: bytes, kind: int) -> tuple[NDArray[Any], Ints] | None:
    """Return the values of a feature in the Examples ``data[starts[i]:stops[i]]``, and how many each has, int64
    ``(records,)``. Of lists of bytes the values are the bytes of the only string in each. None: the feature of a record
    is absent or in any way unusual, or nothing was built."""
    if _examples is None or not is_active():
        return None
    places = np.empty((len(starts), 2), np.int64)
    if not _examples.find_lists(data, starts, stops, name, kind, places):
        return None
    counts = places[:, 1] - places[:, 0]
    if kind == INTEGERS:
        numbers = np.empty(_examples.count_integers(data, places, counts), np.int64)
        return (numbers, counts) if _examples.integers(data, places, numbers) else None
    if kind == FLOATS and (counts % 4).any():
        return None
    joined = np.empty(int(counts.sum()), np.uint8)
    _examples.join(data, places, joined)
    if kind == BYTES:
        return joined, counts
    return joined.view("<f4").astype(np.float32, copy=False), counts // 4


def kind_of(data: bytes, start: int, stop: int) -> int:
    """Return the kind of the list in a feature; 0 if it has none. Raises ValueError: it has several, or is damaged."""
    kinds = [tag >> 3 for tag, _, _ in _fields(data, start, stop) if tag in _LISTS]
    if len(kinds) > 1:
        raise ValueError("expected one list in a feature, got several")
    return kinds[0] if kinds else 0


def numbers_of(data: bytes, start: int, stop: int, kind: int) -> bytes | None:
    """Return the numbers of a feature's list as one packed field has them: floats of four bytes, or varints. None if
    the feature has no list.

    Raises ValueError: it has a list of another kind, or is damaged.
    """
    at = _only(data, start, stop, kind << 3 | 2)
    first = _only(data, at, stop, _FIRST) if at >= 0 else -1
    if first >= 0:  # as writers have it: one list, of one packed field
        return data[first:stop]
    found = _list_of(data, start, stop, kind)
    tags = (_FIRST, _UNPACKED[kind])
    return found and b"".join([data[lo:hi] for tag, lo, hi in _fields(data, *found) if tag in tags])


def strings_of(data: bytes, start: int, stop: int) -> list[memoryview] | None:
    """Return the values of a feature's list of bytes, without a copy; None if the feature has no list.

    Raises ValueError: it has a list of another kind, or is damaged.
    """
    view = memoryview(data)
    at = _only(data, start, stop, _FIRST)
    first = _only(data, at, stop, _FIRST) if at >= 0 else -1
    if first >= 0:  # one list of one string
        return [view[first:stop]]
    found = _list_of(data, start, stop, BYTES)
    return found and [view[lo:hi] for tag, lo, hi in _fields(data, *found) if tag == _FIRST]


def _list_of(data: bytes, start: int, stop: int, kind: int) -> tuple[int, int] | None:
    """Return where the list of a feature lies."""
    have = kind_of(data, start, stop)
    if have not in (0, kind):
        raise ValueError(f"expected a {KINDS[kind]}, got a {KINDS[have]}")
    return next(((lo, hi) for tag, lo, hi in _fields(data, start, stop) if tag in _LISTS), None)


def floats(lists: Sequence[bytes]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the values of packed lists, and how many each has. Raises ValueError: a list is damaged."""
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    if (sizes % 4).any():
        raise ValueError("a list of floats is no whole number of them")
    return np.frombuffer(b"".join(lists), "<f4").astype(np.float32, copy=False), sizes // 4


def integers(lists: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the values of packed lists, and how many each has. Raises ValueError: a list is damaged."""
    data = np.frombuffer(b"".join([*lists, bytes(8)]), np.uint8)  # so that eight bytes follow each number
    edges = np.concatenate(([0], np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)))))
    ends = np.flatnonzero(data[:-8] < 0x80) + 1  # behind the last byte of each number
    counts = np.diff(np.searchsorted(ends, edges, "right"))
    full = edges[1:][edges[1:] > edges[:-1]]
    if (data[full - 1] >= 0x80).any():
        raise ValueError("the last number of a list is cut")
    if len(ends) == len(data) - 8:  # all are below 128
        return data[:-8].astype(np.int64), counts
    return _decoded(data, ends), counts


def _decoded(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the varints that end before ``ends``, some thousands at a time, so that they stay in the cache. Eight
    bytes are one word, in which the seven bits of each byte are moved together in three steps, pairs first."""
    words_at = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    result = np.empty(len(ends), np.uint64)
    begin = 0
    for lo in range(0, len(ends), _TOGETHER):
        some = ends[lo : lo + _TOGETHER]
        starts = np.concatenate(([begin], some[:-1]))
        lengths = some - starts
        most, begin = int(lengths.max()), int(some[-1])
        if most > _MOST_VARINT:
            raise ValueError(f"a number has {most} bytes, at most {_MOST_VARINT} are possible")
        words = words_at[starts].astype(np.uint64, copy=False)
        words &= _LOW_BYTES.take(lengths)
        for low, high, shift in _STEPS:
            words = words & low | (words & high) >> shift
        for i in range(8, most):
            longer = np.flatnonzero(lengths > i)
            words[longer] |= (data[starts[longer] + i] & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        result[lo : lo + _TOGETHER] = words
    return result.view(np.int64)


def _beyond() -> ValueError:
    return ValueError("a field goes beyond the end of its message")


def _only(data: bytes, at: int, stop: int, tag: int) -> int:
    """Return where the value of a field begins that alone fills ``data[at:stop]``, with this tag; -1 if none does."""
    if stop - at < 2 or data[at] != tag:
        return -1
    length, first = data[at + 1], at + 2
    if length >= 0x80:
        length, first = _varint(data, at + 1)
    return first if first + length == stop else -1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and the offset behind it."""
    value = shift = 0
    try:
        while (byte := data[at]) >= 0x80 and shift < 7 * _MOST_VARINT:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
    except IndexError:
        raise _beyond() from None
    if shift >= 7 * _MOST_VARINT:
        raise ValueError(f"a number has more than {_MOST_VARINT} bytes")
    return value | byte << shift, at + 1


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, offsets of the value) of each field. Raises ValueError: a field goes beyond ``stop``."""
    while at < stop:
        try:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1)
            match tag & 7:
                case 2:
                    length = data[at]
                    at += 1
                    if length >= 0x80:
                        length, at = _varint(data, at - 1)
                    end = at + length
                case 0:
                    end = _varint(data, at)[1]
                case 5:
                    end = at + 4
                case 1:
                    end = at + 8
                case kind:
                    raise ValueError(f"a field of kind {kind} is none of protobuf's")
        except IndexError:
            end = stop + 1
        if end > stop:
            raise _beyond()
        yield tag, at, end
        at = end

"""The content of a record: bytes written by hand, back and forth, and what is refused."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pydp2.errors import FormatError, OptionError
from pydp2.fluid import LoDTensor
from pydp2.fluid.content import DTYPES, decode, encode

MUTATIONS = int(os.environ.get("PYDP2_MUTATIONS", "800"))
"""Of the fuzzing below; PYDP2_MUTATIONS=100000 for the whole of it."""


def tensor(
    data: bytes, description: bytes, *levels: list[int], versions: tuple[int, int] = (0, 0), size: int | None = None
) -> bytes:
    """One tensor of a record, put together by hand."""
    lod = b"".join(struct.pack(f"<Q{len(level)}Q", 8 * len(level), *level) for level in levels)
    head = struct.pack("<IQ", versions[0], len(levels)) + lod + struct.pack("<I", versions[1])
    return head + struct.pack("<i", len(description) if size is None else size) + description + data


def record(*tensors: bytes, count: int | None = None) -> bytes:
    return struct.pack("<I", len(tensors) if count is None else count) + b"".join(tensors)


FLOATS = struct.pack("<6f", 0, 1, 2, 3, 4, 5)
FLOATS_3_BY_2 = b"\x08\x05\x10\x03\x10\x02"  # dtype 5, dims 3 and 2
GOOD = record(
    tensor(FLOATS, FLOATS_3_BY_2, [0, 1, 2], [0, 2, 3]), tensor(b"\x07" + bytes(7), b"\x08\x03\x10\x01\x10\x01")
)


def test_a_record_has_these_bytes() -> None:
    values = LoDTensor(np.arange(6, dtype=np.float32).reshape(3, 2), [[0, 1, 2], [0, 2, 3]])
    label = LoDTensor(np.array([[7]], np.int64))
    assert encode((values, label)) == GOOD
    first, second = decode(GOOD)
    assert np.asarray(first).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert [level.tolist() for level in first.lod] == [[0, 1, 2], [0, 2, 3]]
    assert (first.dtype, second.dtype, np.asarray(second).tolist(), second.lod) == (np.float32, np.int64, [[7]], ())


def test_packed_dimensions_are_read_too() -> None:
    (packed,) = decode(record(tensor(FLOATS, b"\x08\x05\x12\x02\x03\x02")))
    assert packed.shape == (3, 2)
    (swapped,) = decode(record(tensor(FLOATS, b"\x12\x02\x03\x02\x08\x05")))
    assert swapped.shape == (3, 2)


@st.composite
def tensors(draw: Any) -> LoDTensor:
    dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=300 if draw(st.booleans()) else 4))
    if np.prod(shape, dtype=float) > 10_000:
        shape = shape[:1]
    array = draw(
        arrays.arrays(dtype, shape, fill=st.nothing()) if np.prod(shape) < 50 else st.just(np.zeros(shape, dtype))
    )
    lod: list[list[int]] = []
    rows = shape[0] if shape else 0
    if shape and draw(st.booleans()):
        lod = [sorted([0, rows, *draw(st.lists(st.integers(0, rows), max_size=4))])]
        if draw(st.booleans()):
            lod = [[0, len(lod[0]) - 1], *lod]
    return LoDTensor(array, lod)


@given(st.lists(tensors(), max_size=4))
def test_what_was_written_is_read_again(instance: list[LoDTensor]) -> None:
    written = encode(tuple(instance))
    back = decode(written)
    assert len(back) == len(instance)
    for mine, theirs in zip(instance, back, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
        assert [level.tolist() for level in mine.lod] == [level.tolist() for level in theirs.lod]
        assert np.asarray(theirs).flags.writeable
    assert encode(back) == written


def test_arrays_of_any_layout_are_written_row_by_row() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4).T[::2]
    ((same,),) = [decode(encode((LoDTensor(array),)))]
    assert np.asarray(same).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", ["u4", "c8", "u2", "U3"])
def test_a_dtype_that_the_format_does_not_have_is_refused(dtype: str) -> None:
    with pytest.raises(OptionError, match=r"slot 1: a record holds bool, float16, .*; convert it"):
        encode((LoDTensor(np.zeros(1)), LoDTensor(np.zeros(1, dtype))))


def test_more_than_is_read_again_is_not_written() -> None:
    with pytest.raises(OptionError, match="at most 4096 tensors"):
        encode((LoDTensor(np.zeros(1)),) * 4097)
    with pytest.raises(OptionError, match="at most 32 dimensions"):
        encode((LoDTensor(np.zeros((1,) * 33)),))


BAD = [
    (b"", 0, "the number of tensors needs 4 bytes, 0 are left"),
    (GOOD[:-1], 144, "the data of a tensor needs 8 bytes, 7 are left"),
    (GOOD + b"x", 152, "1 bytes behind the last tensor"),
    (record(count=1), 4, "the version of a LoD needs 4 bytes, 0 are left"),
    (record(count=5000), 4, "5000 tensors, a record has at most 4096"),
    (record(tensor(b"", b"", versions=(1, 0))), 4, "expected the version of a LoD 0, got 1"),
    (record(tensor(b"", b"", versions=(0, 9))), 16, "expected the version of a tensor 0, got 9"),
    (record(struct.pack("<IQ", 0, 1 << 60)), 16, "LoD levels, a record has at most 32"),
    (record(struct.pack("<IQQ", 0, 1, 12)), 16, "a LoD level of 12 bytes is not a list of 8-byte numbers"),
    (record(struct.pack("<IQQ", 0, 1, 1 << 63)), 24, "a LoD level needs 9223372036854775808 bytes"),
    (record(tensor(b"", b"", [1 << 63])), 24, "an offset of 2**63 or more"),
    (record(tensor(FLOATS, FLOATS_3_BY_2, [0, 1, 4])), 8, "ends with 4, but the data has 3 rows"),
    (record(tensor(FLOATS, FLOATS_3_BY_2, [1, 3])), 8, "a level of a LoD starts with 0"),
    (record(tensor(FLOATS, FLOATS_3_BY_2, [])), 8, "needs at least 2 offsets"),
    (record(tensor(b"", b"", size=-1)), 20, "a description of -1 bytes"),
    (record(tensor(b"", b"\x08\x05", size=1 << 30)), 24, "a description needs 1073741824 bytes, 2 are left"),
    (record(tensor(b"", b"")), 24, "a description without a dtype"),
    (record(tensor(b"", b"\x10\x03")), 24, "a description without a dtype"),
    (record(tensor(b"", b"\x08\x07")), 24, "expected the code of a dtype (0, 1, 2, 3, 4, 5, 6, 20, 21), got 7"),
    (record(tensor(b"", b"\x08\x05\x08\x05")), 26, "one dtype and dimensions, got the tag 8"),
    (record(tensor(b"", b"\x08\x05\x1a\x00")), 26, "got the tag 26"),
    (record(tensor(b"", b"\x08\x05\x12\x05\x01")), 26, "dimensions of 5 bytes in a description with 1 left"),
    (record(tensor(b"", b"\x08\x05\x12\x01\x81\x01")), 29, "ends within a number"),
    (record(tensor(b"", b"\x08")), 25, "the description ends within a number"),
    (record(tensor(b"", b"\x08\x05\x10" + b"\xff" * 10 + b"\x01")), 36, "a number of more than 64 bits"),
    (record(tensor(b"", b"\x08\x05\x10" + b"\xff" * 9 + b"\x02")), 36, "a number of more than 64 bits"),
    (record(tensor(b"", b"\x08\x05\x10" + b"\xff" * 9 + b"\x01")), 24, "a negative dimension"),
    (record(tensor(b"", b"\x08\x05" + b"\x10\x01" * 33)), 90, "more than 32 dimensions"),
    (record(tensor(FLOATS[:-1], FLOATS_3_BY_2)), 30, "the data of a tensor needs 24 bytes, 23 are left"),
    (record(tensor(b"", b"\x08\x06\x10\x80\x80\x80\x80\x20\x10\x80\x80\x80\x80\x20")), 38, "more than an array"),
    (record(tensor(b"", b"\x08\x05\x10\x00\x10\x80\x80\x80\x80\x80\x80\x80\x80\x40")), 38, "more than an array"),
    (record(tensor(b"\x00\x02", b"\x08\x00\x10\x02")), 28, "a bool that is neither 0 nor 1"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "offset", "message"), BAD)
def test_what_is_no_record_is_told_with_its_offset(data: bytes, offset: int, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(data)
    assert message in str(caught.value)
    assert caught.value.offset == offset
    assert f"at byte {offset} of the record: " in str(caught.value)


def test_every_record_that_is_cut_off_is_refused() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(FormatError):
            decode(GOOD[:size])


def test_an_array_of_nothing_with_long_dimensions_is_an_array() -> None:
    (empty,) = decode(record(tensor(b"", b"\x08\x05\x10\x00\x10\x80\x80\x80\x80\x08")))
    assert empty.shape == (0, 1 << 31)


def mutated(data: bytes, drawn: random.Random) -> bytes:
    """``data`` with some bytes changed, cut out, doubled or put in; lengths and versions more often than others."""
    result = bytearray(data)
    for _ in range(drawn.choice((1, 1, 2, 4))):
        at = drawn.randrange(len(result) + 1) if result else 0
        match drawn.randrange(6):
            case 0:
                result[at : at + 1] = bytes([drawn.randrange(256)])
            case 1:
                result[at : at + 1] = bytes([(result[at] if at < len(result) else 0) ^ 1 << drawn.randrange(8)])
            case 2:
                del result[at : at + drawn.randrange(1, 12)]
            case 3:
                result[at:at] = drawn.randbytes(drawn.randrange(1, 9))
            case 4:
                result[at : at + 8] = struct.pack("<Q", drawn.choice((0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)))
            case _:
                other = drawn.randrange(len(result) + 1)
                result[at:at] = result[other : other + drawn.randrange(1, 40)]
    return bytes(result)


def test_damaged_records_are_format_errors_or_records_and_take_no_memory() -> None:
    drawn = random.Random(20)
    big = encode((LoDTensor(np.arange(2000).reshape(100, 20), [[0, 3, 5], [0, 1, 1, 9, 50, 100]]),))
    sources = [GOOD, big, record(*[tensor(b"", b"\x08\x05\x10\x00")] * 40)]
    decode(big)
    tracemalloc.start()
    try:
        refused = 0
        for i in range(MUTATIONS):
            data = mutated(sources[i % 3], drawn)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                again = encode(decode(data))
            except FormatError as error:
                refused += 1
                place = error.offset
            else:
                place = len(again) - 32  # packed dimensions are written one by one
            assert place is not None
            assert place <= len(data)
            assert tracemalloc.get_traced_memory()[1] - before < 4 * len(data) + (1 << 20)
        assert MUTATIONS // 3 < refused < MUTATIONS
    finally:
        tracemalloc.stop()

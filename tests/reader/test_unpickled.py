"""Pickles read without pickle: plain data come back as they were, and nothing else comes at all."""

from __future__ import annotations

import math
import os
import struct
import time
import tracemalloc
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError
from pydp2.reader.unpickled import plain

PROTOCOLS = range(6)


def pickled(value: Any, protocol: int) -> bytes:
    return bytes(ForkingPickler.dumps(value, protocol))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
PLAIN = st.recursive(
    SCALARS | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_data_of_every_protocol_come_back_as_they_were(value: Any, protocol: int) -> None:
    got = plain(pickled(value, protocol))
    assert got == value
    assert type(got) is type(value)


DTYPES = ["?", "<i1", "<i2", "<i4", ">i4", "<i8", "<u1", "<u8", "<f2", "<f4", ">f4", "<f8", "<c16", "S5", "<U3"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_scalars_come_back_as_they_were_and_may_be_written_to(dtype: str, protocol: int) -> None:
    for shape in ((), (0,), (5,), (2, 3), (3, 0, 2)):
        array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
        for given_array in (array, array.T.copy().T):
            twice = plain(pickled([given_array, given_array, array.dtype.str], protocol))
            assert twice[0] is twice[1]
            assert (twice[0].dtype, twice[0].shape) == (array.dtype, shape)
            assert (twice[0] == array).all()
            assert twice[0].flags.writeable
    scalar = np.ones(1, dtype)[0]
    got = plain(pickled((scalar, scalar), protocol))
    assert got == (scalar, scalar)
    assert type(got[0]) is type(scalar)


def test_several_dtypes_in_one_pickle_are_not_mixed_up() -> None:
    arrays = [np.array([1, 2], dtype) for dtype in ("<f4", ">f4", "<f4", ">i2", "<i2", ">i2")]
    for protocol in PROTOCOLS:
        got = plain(pickled(arrays, protocol))
        assert [(a.dtype, a.tolist()) for a in got] == [(a.dtype, [1, 2]) for a in arrays]


def test_what_python_2_wrote_is_read() -> None:
    # pickle.dumps((u'\xe4', 'bytes', 'tv\xc3\xa4', '\xff\x00', 5L, numpy.arange(2, dtype='<f4')), 0) of Python 2.7
    text = b"(V\xe4\nS'bytes'\nS'tv\\xc3\\xa4'\nS'\\xff\\x00'\nL5L\n"
    text += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    text += b"(I0\ntS'b'\ntR(I1\n(I2\ntcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\n"
    text += b"S'\\x00\\x00\\x00\\x00\\x00\\x00\\x80?'\ntbt."
    *rest, array = plain(text)
    assert rest == ["ä", "bytes", "tvä", b"\xff\x00", 5]
    assert (array.dtype, array.tolist()) == (np.float32, [0.0, 1.0])


# What pickle and cPickle of Python 2.7 made of PYTHON_2, where texts without u are bytes.
WRITTEN_BY_PYTHON_2 = [
    b"(V\xe4\\u20ac\np0\nS'bytes'\np1\nS'tv\\xc3\\xa4'\np2\nS\"\\xff\\x00'\\n\"\np3\nL5L\nL1180591620717411303424L\nI-3\nF2.5\n"
    b"NI01\n(lp4\nI1\na(dp5\nS'a'\np6\n(Vx\np7\ntp8\nsac__builtin__\nset\np9\n((lp10\nI1\natp11\nRp12\nc__builtin__\n"
    b"frozenset\np13\n((lp14\nS'b'\np15\natp16\nRp17\ntp18\n.",
    b"(X\x05\x00\x00\x00\xc3\xa4\xe2\x82\xacq\x01U\x05bytesq\x02U\x04tv\xc3\xa4q\x03U\x04\xff\x00'\nq\x04L5L\n"
    b"L1180591620717411303424L\nJ\xfd\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00NI01\n]q\x05(K\x01}q\x06U\x01a"
    b"(X\x01\x00\x00\x00xtq\x07sec__builtin__\nset\nq\x08(]q\tK\x01atRq\nc__builtin__\nfrozenset\nq\x0b"
    b"(]q\x0cU\x01batRq\rtq\x0e.",
    b"\x80\x02(X\x05\x00\x00\x00\xc3\xa4\xe2\x82\xacq\x01U\x05bytesq\x02U\x04tv\xc3\xa4q\x03U\x04\xff\x00'\nq\x04\x8a\x01"
    b"\x05\x8a\t\x00\x00\x00\x00\x00\x00\x00\x00@J\xfd\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00N\x88]q\x05(K\x01}q\x06U\x01a"
    b"X\x01\x00\x00\x00x\x85q\x07sec__builtin__\nset\nq\x08]q\tK\x01a\x85Rq\nc__builtin__\nfrozenset\nq\x0b]q\x0cU\x01b"
    b"a\x85Rq\rtq\x0e.",
]
PYTHON_2 = (
    "ä€", "bytes", "tvä", b"\xff\x00'\n", 5, 1 << 70, -3, 2.5, None, True, [1, {"a": ("x",)}], {1}, frozenset(["b"]),
)  # fmt: skip


@pytest.mark.parametrize("data", WRITTEN_BY_PYTHON_2, ids=["0", "1", "2"])
def test_what_python_2_wrote_by_each_protocol_is_read(data: bytes) -> None:
    assert plain(data) == PYTHON_2


def test_a_list_that_holds_itself_is_read() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    got = plain(pickled(ring, 2))
    assert got[0] == 1
    assert got[1] is got


def test_the_time_that_many_arrays_take_is_in_proportion_to_their_number() -> None:
    def seconds(n: int) -> float:
        data = pickled([np.full(1, i) for i in range(n)], 2)
        began = time.process_time()
        got = plain(data)
        took = time.process_time() - began
        assert [array.tolist() for array in got] == [[i] for i in range(n)]
        return took

    few = min(seconds(500) for _ in range(3))
    assert seconds(8000) < 80 * few  # 16 times as many; where each looks through all, 256 times


class Evil:
    def __init__(self, *how: Any) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return self.how


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_that_a_pickle_names_is_called_or_made(protocol: int, tmp_path: Path) -> None:
    witness = tmp_path / "was-here"
    for how in (
        (os.mkdir, (str(witness),)),
        (eval, (f"__import__('os').mkdir({str(witness)!r})",)),
        (getattr, (os, "mkdir")),
        (np.load, (str(witness),)),
        (np.memmap, (str(witness), "u1", "w+", 0, (5,))),
    ):
        for value in (Evil(*how), [1, (Evil(*how), 2)], {"a": Evil(*how)}):
            try:
                data = pickled(value, protocol)
            except TypeError:
                continue  # a module cannot be written either
            with pytest.raises(FormatError, match="the pickle names"):
                plain(data)
    for value in (Path("x"), Random(1), 1 + 2j, Evil, range(3), np.array([None, 1]), np.zeros(2, "i4,f4")):
        with pytest.raises(FormatError, match=r"pickle (names|holds|builds)|no pickle"):
            plain(pickled(value, protocol))
    assert not witness.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"N",
        b"(.",
        b"NN.",
        b"(lp0\n",
        b"I1\nI2\na.",
        b"]I1\n}.",
        b"g5\n.",
        b"cnumpy\nndarray\n.",
        b"(cnumpy\nndarray\nl.",
        b"(cnumpy\ndtype\n(S'f4'\ntRl.",
        b"cnumpy\ndtype\n(S'O8'\ntR.",
        b"cnumpy\ndtype\n(S'V8'\ntR.",
        b"cnumpy\ndtype\n(S'S0'\ntR.",
        b"cnumpy\ndtype\n(S'f4,i4'\ntR.",
        b"(I1\nI2\nI3\nd.",
        b"]]N\x73.",
        b"}]Ns.",
        b"cnumpy\nndarray\n(tR.",
        b"X\xff\xff\xff\x7fabc.",
        b"P1\n.",
        b"\x82\x05.",
        b"I1\nQ.",
        b"(I" + b"9" * 5000 + b"\n.",
        b")" + b"\x85" * 100_000 + b"}" + b"h\x00" + b".",
        b"})" + b"\x85" * 100_000 + b"Ns.",
    ],
)
def test_what_is_no_pickle_or_damaged_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        plain(data)


def array_of(n: int) -> bytes:
    """The steps that make an array of the n bytes in memo 0."""
    make = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    return make + b"(I1\n(I%d\nth\x01I00\nh\x00tb" % n


def test_memory_stays_in_proportion_to_the_pickle() -> None:
    size = 1 << 18
    head = b"B" + struct.pack("<I", size) + bytes(size) + b"q\x00cnumpy\ndtype\n(S'u1'\nI0\nI1\ntRq\x01"
    bomb = b"(" + head + array_of(size) * 1000 + b"l."
    folded = b"(" + b"(I1\n" * 3 + b"t" * 3 + b"l."
    sets = b"]q\x00(" + b"I1\n" * 1000 + b"e" + b"(" + b"cbuiltins\nset\n(h\x00tR" * 10_000 + b"t."
    keys = b"}(" + b"K\x01" * 900 + b"tq\x000(" + b"h\x00" * 900 + b"tq\x010(" + b"h\x01" * 900 + b"tNs."
    tracemalloc.start()
    began = time.process_time()
    for data, words in ((bomb, "out of proportion"), (sets, "out of proportion"), (keys, "a key of more than")):
        with pytest.raises(FormatError, match=words):
            plain(data)
    assert tracemalloc.get_traced_memory()[1] < 12 * (1 << 20)
    tracemalloc.stop()
    assert time.process_time() - began < 20
    assert plain(folded) == [(1, (1, (1,)))]


SEEDS = [
    pickled(value, protocol)
    for protocol in PROTOCOLS
    for value in (
        (1, 2.5, "text", b"bytes", None, True, [1, {"a": (2, 3)}], {1, 2}, frozenset([3])),
        {"image": np.arange(12, dtype=np.float32).reshape(3, 4), "label": np.int64(5)},
    )
]


@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_a_damaged_pickle_gives_plain_data_or_a_format_error(data: bytes, seed: int) -> None:
    mutated(data, Random(seed))


def mutated(data: bytes, random: Random) -> None:
    """Read ``data`` after some of it was changed, dropped, doubled or mixed with another one."""
    raw = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(raw) + 1)
        match random.randrange(4):
            case 0 if at < len(raw):
                raw[at] = random.randrange(256)
            case 1:
                del raw[at : at + random.randint(1, 4)]
            case 2:
                raw[at:at] = raw[at : at + random.randint(1, 12)]
            case _:
                other = random.choice(SEEDS)
                lo = random.randrange(len(other))
                raw[at:at] = other[lo : lo + random.randint(1, 12)]
    try:
        value = plain(bytes(raw))
    except FormatError:
        return
    look(value)


ALLOWED = (type(None), bool, int, float, str, bytes, bytearray, np.generic)


def look(value: Any, depth: int = 0) -> None:
    """``value`` is made of what may be made."""
    if depth > 50 or isinstance(value, ALLOWED):
        return
    if isinstance(value, np.ndarray):
        assert type(value) is np.ndarray
        assert not value.dtype.hasobject
    else:
        assert type(value) in (list, tuple, dict, set, frozenset), type(value)
        for item in value.items() if isinstance(value, dict) else value:
            look(item, depth + 1)


@pytest.mark.slow
@pytest.mark.skipif("PYDP2_FUZZ" not in os.environ, reason="a long run: PYDP2_FUZZ=100000 says how many")
def test_many_damaged_pickles() -> None:
    for number in range(int(os.environ["PYDP2_FUZZ"])):
        mutated(SEEDS[number % len(SEEDS)], Random(number))


def test_other_content_in_place_of_a_pickle_is_named() -> None:
    with pytest.raises(FormatError, match=r"is not a pickle, .* \(at byte 0\); it looks like an HTML page"):
        plain(b"<html><title>404</title>")

"""``args`` as bytes: what travels arrives equal and of the same type; what cannot is named by its path."""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import OptionError, OptionTypeError, RemoteProtocolError
from pydp2.protocol import plain_data
from pydp2.protocol.plain_data import decode_plain, encode_plain

text = st.text(st.characters(codec="utf-8"))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | st.binary()
numpy_scalars = st.one_of(
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.booleans().map(np.bool_),
    st.text("abc", min_size=1).map(np.str_),
)
hashables = st.recursive(leaves | numpy_scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
values = st.recursive(
    leaves | numpy_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, with the same types all the way down (1, 1.0 and True are equal, and must not be mixed up)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            any(same(k, j) and same(v, w) for j, w in other.items()) for k, v in one.items()
        )
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(v, w) for w in other) for v in one)
    return bool(one == other)


@given(values)
def test_what_travels_arrives_equal_and_of_the_same_type(value: Any) -> None:
    assert same(decode_plain(encode_plain(value)), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.array(3.5),
        np.zeros((0, 3), np.uint8),
        np.array([1, 2], ">i4"),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([b"x", b"yz"]),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.array([1 + 2j]),
    ],
)
def test_arrays_arrive_with_dtype_and_shape_and_can_be_written(array: np.ndarray[Any, Any]) -> None:
    again = decode_plain(encode_plain({"a": [array]}))["a"][0]
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert np.array_equal(again, array, equal_nan=array.dtype.kind == "M")
    assert again.flags.writeable
    assert again.flags.owndata


def test_numpy_scalars_arrive_as_such() -> None:
    for value in (np.float32(0.1), np.int64(-3), np.datetime64("2020-01-01"), np.bool_(True), np.str_("a")):
        again = decode_plain(encode_plain(value))
        assert type(again) is type(value)
        assert again == value


def test_a_dictionary_of_words_arrives_in_its_order() -> None:
    words = {f"word{i}": i for i in range(1000)}
    assert list(decode_plain(encode_plain(words)).items()) == list(words.items())


@given(st.lists(leaves | st.lists(leaves, max_size=3).map(tuple), max_size=8))
def test_equal_sets_have_the_same_bytes_in_whatever_order_they_were_filled(items: list[Any]) -> None:
    items = list(dict.fromkeys(items))  # of 1 and True a set keeps the first
    one, other = set(items), set[Any]()
    other.update(reversed(items))
    assert encode_plain([one, frozenset(one)]) == encode_plain([other, frozenset(other)])


NESTED = """
import sys
from pydp2.protocol.plain_data import encode_plain
words = {f"word{n}" for n in range(50)}
value = {"words": words, "pairs": {(word, frozenset(words)) for word in words}, "keys": {frozenset(words): 1}}
print(encode_plain(value).hex())
"""


def test_a_set_of_texts_has_the_same_bytes_in_every_process() -> None:
    """Python orders it by hashes of texts, which differ from process to process."""
    written = {
        subprocess.run(
            [sys.executable, "-c", NESTED],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(written) == 1


def test_every_nan_has_the_same_bytes_and_stays_one_of_several() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
    for one, other in ((float("nan"), odd), (np.float32("nan"), -np.float32("nan"))):
        assert encode_plain({"a": [one, np.array([one, 1.0])]}) == encode_plain({"a": [other, np.array([other, 1.0])]})
    assert encode_plain(np.array([complex(odd, 1)])) == encode_plain(np.array([complex("nan"), 1])[:1] + 1j)
    assert len(decode_plain(encode_plain({float("nan"): 1, odd: 2}))) == 2


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_bytes_between_long_doubles_do_not_count(kind: Any, order: str) -> None:
    """A long double of x86 has 10 bytes in 16: the others are whatever was in memory."""
    filled = []
    for byte in (0, 255):
        array = np.frombuffer(bytes([byte]) * 2 * np.dtype(kind).itemsize, kind).copy()
        array[...] = np.array(["0.1", "-3"]).astype(kind)
        filled.append(array.astype(np.dtype(kind).newbyteorder(order)))
    for made in (np.array, lambda array: array[0]):
        assert encode_plain(made(filled[0])) == encode_plain(made(filled[1]))
        assert np.array_equal(decode_plain(encode_plain(made(filled[0]))), made(filled[0]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ("a", b"a"), ((1,), [1]), ({1}, frozenset({1})), (1.0, np.float64(1)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1}, {True}), (np.int32(1), np.int64(1)),
        (np.array([1, 2]), np.array([[1, 2]])),
    ],
)  # fmt: skip
def test_what_a_hook_can_tell_apart_has_other_bytes(one: Any, other: Any) -> None:
    assert encode_plain(one) != encode_plain(other)


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 1, r"^args: a function \(<lambda>\) cannot travel to the workers; "),
        ({"a": [0, 1, 2, len]}, r"^args\['a'\]\[3\]: a function \(len\) cannot travel"),
        ({"a": ({"b": object()},)}, r"^args\['a'\]\[0\]\['b'\]: an object cannot travel"),
        ({"a": {len}}, r"^args\['a'\] \(an element of the set\): a function"),
        ({(1, len): 1}, r"^args \(the key \(1, <built-in function len>\)\)\[1\]: a function"),
        ({"c": int}, r"^args\['c'\]: a class \(int\)"),
        ({"p": Path("x")}, r"^args\['p'\]: a PosixPath cannot travel to the workers; str\(\.\.\.\)"),
        ({"d": datetime.date(2020, 1, 1)}, r"^args\['d'\]: a date cannot travel"),
        ({"e": Colour.RED}, r"^args\['e'\]: a Colour cannot travel .* plain builtin type"),
        ({"n": Point(1, 2)}, r"^args\['n'\]: a Point cannot travel .*; tuple\(\.\.\.\)"),
        ({"o": collections.OrderedDict(a=1)}, r"^args\['o'\]: an OrderedDict .*; dict\(\.\.\.\)"),
        ({"b": bytearray(b"x")}, r"^args\['b'\]: a bytearray .*; bytes\(\.\.\.\)"),
        ({"m": np.ma.zeros(2)}, r"^args\['m'\]: a MaskedArray .*; numpy\.asarray"),
        ({"x": np.array([None])}, r"^args\['x'\]: an array of Python objects"),
        ({"s": np.zeros(2, "i4,f4")}, r"^args\['s'\]: an array of .* one array for each field"),
        ({"u": collections.UserDict()}, r"^args\['u'\]: an UserDict cannot travel"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(OptionTypeError, match=message):
        encode_plain(value)


def test_the_path_starts_with_the_name_given() -> None:
    with pytest.raises(OptionTypeError, match=r"^options\[0\]: "):
        encode_plain([len], name="options")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(OptionError, match="nested deeper than 64 levels; does the value hold itself"):
        encode_plain(value)


def test_the_deepest_value_that_is_taken_comes_back() -> None:
    value: Any = 1
    for level in range(plain_data.MAX_DEPTH):
        value = (value,) if level % 2 else [value]
    assert same(decode_plain(encode_plain(value)), value)
    with pytest.raises(OptionError, match="nested deeper"):
        encode_plain([value])


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(OptionError, match=r"args\['a'\]: .* cannot be written as UTF-8"):
        encode_plain({"a": "\ud800"})


def test_too_much_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_data, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(plain_data, "MAX_ITEMS", 1000)
    with pytest.raises(OptionError, match="1 MiB when sent to the workers, got 3 MiB; put the data into a file"):
        encode_plain({"a": bytes(3 << 20)})
    with pytest.raises(OptionError, match=r"args\['a'\]: 1001 items, at most 1000"):
        encode_plain({"a": [0] * 1001})
    with pytest.raises(RemoteProtocolError, match="may take"):
        decode_plain(bytes((1 << 20) + 1))
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode_plain(msgpack.packb([0] * 1001))


def ext(code: int, body: object) -> bytes:
    packed = msgpack.packb(msgpack.ExtType(code, msgpack.packb(body)))
    assert isinstance(packed, bytes)
    return packed


def tuples(depth: int) -> bytes:
    data = msgpack.packb([])
    for _ in range(depth):
        data = msgpack.packb(msgpack.ExtType(1, data))
    assert isinstance(data, bytes)
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (msgpack.packb(1) + b"\x01", "malformed plain data: ExtraData"),
        (msgpack.packb("a")[:-1], "malformed"),
        (b"\xdd\xff\xff\xff\xff", "malformed"),
        (b"\x81\x90\x01", "malformed plain data: TypeError: .*unhashable"),
        (ext(2, [[1]]), "malformed plain data: TypeError: .*unhashable"),
        (ext(1, 5), "extension 1 must hold a list"),
        (ext(77, []), "no extension 77"),
        (ext(5, ["<f4", [2]]), "needs dtype, shape and bytes"),
        (ext(5, ["<f4", [2], bytes(4)]), "cannot have 4 bytes"),
        (ext(5, ["<f4", [2**62, 2**62], bytes(4)]), "cannot have 4 bytes"),
        (ext(5, ["<f4", [-1, -4], bytes(16)]), "cannot have the shape"),
        (ext(5, ["<f4", [True], bytes(4)]), "cannot have the shape"),
        (ext(5, ["<f4", [1] * 33, bytes(4)]), "cannot have the shape"),
        (ext(5, ["|O", [1], bytes(8)]), "cannot have the dtype"),
        (ext(5, ["O,O", [1], bytes(16)]), "cannot have the dtype"),
        (ext(5, ["<U0", [2**62], b""]), "cannot have the dtype"),
        (ext(5, ["nonsense(", [1], bytes(8)]), "cannot have the dtype"),
        (ext(5, [None, [1], bytes(8)]), "cannot have the dtype"),
        (ext(6, ["<f4", [1], bytes(4)]), "cannot have the shape"),
        (tuples(70), "64 levels deep"),
        (b"\x91" * 5000 + b"\x90", "malformed"),
    ],
)
def test_bytes_that_nobody_wrote_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode_plain(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_plain(data)


@given(values, st.data())
def test_broken_bytes_give_a_value_or_the_one_error(value: Any, data: st.DataObject) -> None:
    whole = bytearray(encode_plain(value))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(RemoteProtocolError):
        decode_plain(bytes(whole[:end]))

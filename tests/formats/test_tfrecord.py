"""TFRecord: both checksums are checked, Examples are read without TensorFlow, from any record on."""

from __future__ import annotations

import base64
import gzip
import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies

import pydp2
from pydp2.data.native import is_active
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import crc32c, tf_example, tfrecord, tfrecord_file
from pydp2.providers.address import resolve
from pydp2.providers.decorator import Provider

PROVIDER: Provider = resolve("pydp2.formats.tfrecord")

# Written by tf.io.TFRecordWriter of TensorFlow 2.21, with deterministic=True, and with options="GZIP".
GOLDEN = base64.b85decode(
    "VgLXD00000dHrB-"
    "3SbHw3Ik$qcoGy65(*Fi000000Kh*0006+v%*;Is4GINmZDD6+5(EkY3IGZh3I%LoVr6U+4jK#!3jhEA|NsC0|Nj9B3<?HxZ);_4"
    "a}oj?0168V1$S?9WOEV%3IOuk9Km7$00000004RYU~dXw3L6RoVsCg76cQ2&5C8yxJ^%o~KL7v#z|G9eJqi#C1!-"
    "+zXJrxx3Iz%S0RaID4hjWqVPa)$5(OFq3IPBL4+;i!Z);_4a}os_0}25E3JwYdcW-iJa}os#0}26QRFWn9YXATM00000hwrB03TX"
    "-(3Ik$qcoGy65(*Fi002J#0Kh*0006+v%*;Is6AA@sZDD6+5()|k3I+lK0s;a83JwYdY++($Y!U?;0}25F3K0qhbZ={AZgUa`8U+"
    "di0IUKE5())(Z*pXF5(x?i3ISmX0>i11uz1mM000000001#DXq;4ZVDR;17dG@5)={=3J?GQKtBKgz&`*00Km=6%smPg3I%CxVP|"
    "C$4GIei2?GNI0|NsC0|N>U3I%LoVr6U+1sVei0RjpW3I=p<Yh`Y85(ydy3IzbH0^kw~5())(Z*pXF5(x?i3ISmX0>i12vu<G"
)
GOLDEN_GZIP = base64.b85decode(
    "ABzY80000000T>6fPl)s3He+JT+&?3N%<8*B0@r30uYG<_8{WynKQOryj-lAxryniLM&WNTnt>|T&y{XNvSzPd{R7IT>oK!k&B0m"
    "tt3A?HLqBRNs57sn~SwPzbFOB;bQo7TjpRAJ{ueCP;3-{*~ret%Eipc$jHS9vy@eenTwHuiyv+mRDcg=9Z&-"
    "oV`9i8)j!!#8{6M6d&rfE?niqR8--yua&d8Ru`z)Gnx%|ff^bXOrGVBjtYP93f?3PS#SXNVi|O#ni5n^|7C^0@qPg}gS00+x4yaa"
    "(!K~&5h8ZU_44~Q01au<Ic1|f^xBzW`AcW2SNt^Q$0d?Rs2Hyby00"
)  # fmt: skip


def golden(i: int) -> dict[str, Any]:
    return {
        "image": [bytes([i]) * (3 * i)], "label": [i - 1], "tokens": [300 * k**3 for k in range(i)],
        "box": np.array([i / 4, 1.5, -2, 0.1], np.float32).tolist(), "words": [b"a", "é".encode()][:i],
    }  # fmt: skip


# -- a writer, by the descriptions of the format and of protobuf ------------------------------------------------------
def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def a_list(value: Any, is_packed: bool = True) -> bytes:
    """A Feature with a list of bytes, floats or integers."""
    if value and isinstance(value[0], bytes):
        return field(1, b"".join(field(1, one) for one in value))
    if value and isinstance(value[0], float):
        numbers = [struct.pack("<f", one) for one in value]
        return field(2, field(1, b"".join(numbers)) if is_packed else b"".join(b"\x0d" + one for one in numbers))
    numbers = [varint(one) for one in value]
    return field(3, field(1, b"".join(numbers)) if is_packed else b"".join(b"\x08" + one for one in numbers))


def example(features: dict[str, Any], is_packed: bool = True, more: bytes = b"") -> bytes:
    entries = (field(1, name.encode()) + field(2, a_list(value, is_packed)) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries) + more) + more


def one_feature(feature: bytes, name: bytes = b"a") -> bytes:
    """An Example with this feature."""
    return field(1, field(1, field(1, name) + field(2, feature)))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    sums = (struct.pack("<I", crc32c.masked_crc32c(part)) for part in (length, data))
    return length + next(sums) + data + next(sums)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def dicts(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in one.items()} for one in tfrecord.read(io.BytesIO(data), **options)]


def served(entry: Path | str, start: int = 0, files: list[str] | None = None, **args: Any) -> list[dict[str, Any]]:
    started = PROVIDER.start(args=args, file_list=files or [str(entry)])
    names = started.schema.slots.names
    assert names is not None
    opened = started.open_file(str(entry), file_index=0, seed=0, pass_id=0, start=start)
    return [dict(zip(names, map(plain, started.arrange(sample)), strict=True)) for sample in opened]


def yielded(path: Path, **args: Any) -> list[Any]:
    """What the provider yields, with the samples of one yield counted."""
    started = PROVIDER.start(args=args, file_list=[str(path)])
    opened = started.open_file(str(path), file_index=0, seed=0, pass_id=0)
    return [item if isinstance(item, BadSample) else len(item) for item in opened.iterator]


# -- files of TensorFlow -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [GOLDEN, GOLDEN_GZIP], ids=["plain", "gzip"])
def test_files_that_tensorflow_wrote_are_read(data: bytes) -> None:
    assert dicts(data) == [golden(i) for i in range(4)]
    assert dicts(data, start=2, features=["label"]) == [{"label": [1]}, {"label": [2]}]
    first = next(tfrecord.read(io.BytesIO(data)))
    assert (first["label"].dtype, first["box"].dtype) == (np.int64, np.float32)


def test_our_writer_writes_what_tensorflow_wrote() -> None:
    """So the files below are those that it would write."""
    expected = list(tfrecord.records(io.BytesIO(GOLDEN)))
    assert [example(dict(sorted(golden(i).items()))) for i in (2, 3)] == expected[2:]
    assert b"".join(map(record, expected)) == GOLDEN


def test_a_service_serves_them(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.tfrecord").write_bytes(GOLDEN)
    files = sorted(map(str, tmp_path.iterdir()))
    features = {"image": "bytes", "label": "int", "tokens": "ints", "box": "float[4]", "words": "texts"}
    with pydp2.load(
        files, "pydp2.formats.tfrecord", args={"features": features}, batch_size=12, shuffle=False, workers=2
    ) as data:
        (batch,) = data
        edges = batch["tokens"].sequence_start_positions
        seen = [
            {
                "image": [batch["image"][i]], "label": [batch["label"][i]], "box": batch["box"][i].tolist(),
                "tokens": batch["tokens"].values[edges[i] : edges[i + 1]].tolist(),
            }
            for i in range(12)
        ]  # fmt: skip
    assert seen == [{name: golden(i % 4)[name] for name in seen[0]} for i in range(12)]


# -- numbers and wire form ---------------------------------------------------------------------------------------------
@given(lists=strategies.lists(strategies.lists(strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(0, 300))))
def test_integers_are_decoded_together(lists: list[list[int]]) -> None:
    values, counts = tf_example.integers([b"".join(map(varint, numbers)) for numbers in lists])
    assert values.tolist() == [number for numbers in lists for number in numbers]
    assert counts.tolist() == [len(numbers) for numbers in lists]
    assert values.dtype == np.int64


def test_many_integers_are_decoded_in_pieces() -> None:
    numbers = [7**i % 2**40 for i in range(10_000)]
    assert tf_example.integers([b"".join(map(varint, numbers))])[0].tolist() == numbers


def together(examples: list[bytes], name: bytes, kind: int) -> tuple[list[Any], list[int]] | None:
    """What the compiled form finds, if it is certain of it."""
    edges = np.cumsum([5, *map(len, examples)])
    data = b"front" + b"".join(examples) + b"end"
    found = tf_example.lists_of(data, edges[:-1], edges[1:], name, kind)
    return found and (found[0].tolist(), found[1].tolist())


def one_by_one(examples: list[bytes], name: bytes, kind: int) -> tuple[list[Any], list[int]]:
    places = [(data, tf_example.features_of(data)[name]) for data in examples]
    if kind == tf_example.BYTES:
        strings = [tf_example.strings_of(data, *place) for data, place in places]
        assert all(strings is not None and len(strings) == 1 for strings in strings)
        values = [bytes(string) for some in strings for string in some or ()]
        return [*b"".join(values)], [len(value) for value in values]
    lists = [tf_example.numbers_of(data, *place, kind) for data, place in places]
    assert None not in lists
    decode = tf_example.floats if kind == tf_example.FLOATS else tf_example.integers
    numbers, counts = decode([one for one in lists if one is not None])
    return numbers.tolist(), counts.tolist()


INTEGER = strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(0, 300)
NUMBERS = strategies.lists(INTEGER, min_size=1) | strategies.lists(strategies.floats(width=32), min_size=1)


@settings(deadline=None)
@given(
    lists=strategies.lists(NUMBERS | strategies.binary().map(lambda value: [value]), min_size=1, max_size=5),
    name=strategies.sampled_from(["a", "", "ab", "a" * 200]),
)
def test_what_is_found_together_is_what_is_found_one_by_one(lists: list[Any], name: str) -> None:
    kinds = {bytes: tf_example.BYTES, float: tf_example.FLOATS, int: tf_example.INTEGERS}
    kind = kinds[type(lists[0][0])]
    alike = [values for values in lists if isinstance(values[0], type(lists[0][0]))]
    examples = [example({"before": [1], name: values, "behind": [b"x"]}) for values in alike]
    found = together(examples, name.encode(), kind)
    assert (found is not None) == (tf_example._examples is not None and is_active())
    if found is not None:
        assert repr(found) == repr(one_by_one(examples, name.encode(), kind))  # NaN is not equal to itself
    assert together(examples, b"absent", kind) is None
    assert together([*examples, b""], name.encode(), kind) is None


@settings(deadline=None, max_examples=500)
@given(
    values=NUMBERS | strategies.binary().map(lambda value: [value]),
    changes=strategies.lists(strategies.tuples(strategies.integers(0), strategies.integers(0, 255)), max_size=3),
    kind=strategies.sampled_from([tf_example.BYTES, tf_example.FLOATS, tf_example.INTEGERS]),
    cut=strategies.integers(0, 60),
)
def test_what_is_found_together_in_damaged_records_is_what_is_found_one_by_one(
    values: Any, changes: list[tuple[int, int]], kind: int, cut: int
) -> None:
    data = bytearray(example({"a": values, "b": [1, 2]}))
    for at, byte in changes:
        data[at % len(data)] = byte
    examples = [bytes(data[:cut] if cut < 40 else data)]
    found = together(examples, b"a", kind)
    if found is not None:
        assert repr(found) == repr(one_by_one(examples, b"a", kind))


FEATURES = strategies.dictionaries(
    strategies.text(max_size=4),
    strategies.lists(strategies.integers(-(2**63), 2**63 - 1), max_size=5)
    | strategies.lists(strategies.floats(width=32, allow_nan=False), min_size=1, max_size=5)
    | strategies.lists(strategies.binary(max_size=200), min_size=1, max_size=3),
    max_size=4,
)
UNKNOWN = b"\x98\x06\x07" + b"\xa2\x06\x03abc" + b"\xad\x06abcd" + b"\xb1\x06abcdefgh"
"""Field 99 as a number, 100 as bytes, 101 as four bytes, 102 as eight."""


@given(features=FEATURES, is_packed=strategies.booleans(), more=strategies.sampled_from([b"", UNKNOWN]))
def test_packed_and_unpacked_lists_and_unknown_fields_are_read(
    features: dict[str, Any], is_packed: bool, more: bytes
) -> None:
    assert dicts(record(example(features, is_packed, more))) == [features]


def test_maps_are_read_in_any_form_that_protobuf_takes() -> None:
    value = field(2, a_list([1]))
    entries = [
        value + field(1, b"a"),  # the value before its name
        field(1, b"b") + field(2, a_list([2])) + field(2, a_list([3])),  # the last one counts
        field(2, a_list([4])),  # the name is empty
        field(1, b"c"),  # no value
        field(1, b"d" * 200) + field(2, a_list([5] * 200)),
        field(1, b"a") + field(2, a_list([6])),  # a name twice: the last one counts
    ]
    data = b"".join(field(1, field(1, entry)) for entry in entries)  # and the map in several pieces
    assert dicts(record(data)) == [{"a": [6], "b": [3], "": [4], "c": [], "d" * 200: [5] * 200}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x05abc", "a field goes beyond the end of its message"),
        (field(1, b"\x0a\x7f"), "a field goes beyond the end of its message"),
        (one_feature(b"\x0a\x80\x80"), "a field goes beyond the end of its message"),
        (one_feature(b"\x1a\x03\x0a\x80\x80"), "a field goes beyond the end of its message"),
        (b"\x0b\x00", "a field of kind 3 is none of protobuf's"),
        (b"\x80" * 11 + b"\1", "a number has more than 10 bytes"),
        (field(2, b""), "expected an Example, got a SequenceExample; pydp2.formats.tfrecord.records gives its bytes"),
        (one_feature(a_list([1]) + a_list([1.5])), "expected one list in a feature"),
        (one_feature(field(3, field(1, b"\x80"))), "the last number of a list is cut"),
        (one_feature(field(3, field(1, b"\x80" * 10 + b"\1"))), "a number has 11 bytes"),
        (one_feature(field(2, field(1, b"abc"))), "no whole number of them"),
        (one_feature(a_list([1]), b"\xff"), "can't decode byte 0xff"),
    ],
)  # fmt: skip
def test_what_is_no_example_is_an_error_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=f"byte 16: no Example: .*{words}"):
        dicts(record(b"") + record(data))


# -- records -----------------------------------------------------------------------------------------------------------
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=strategies.lists(strategies.integers(0, 70) | strategies.integers(0, 3000), max_size=12),
    parts=strategies.integers(1, 6), start=strategies.integers(0, 6), is_gzip=strategies.booleans(),
)  # fmt: skip
def test_parts_are_complete_and_in_order_from_any_record_on(
    sizes: list[int], parts: int, start: int, is_gzip: bool
) -> None:
    expected = [bytes([i]) * size for i, size in enumerate(sizes)]
    data = b"".join(map(record, expected))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord_file, "_BLOCK", 100)
        patch.setattr(tfrecord_file, "_SKIPPED", 50)
        if is_gzip:
            assert list(tfrecord.records(io.BytesIO(gzip.compress(data)), start=start)) == expected[start:]
            return
        read = [list(tfrecord.records(io.BytesIO(data), part=FilePart(i, parts))) for i in range(parts)]
        assert [one for part in read for one in part] == expected
        for i, part in enumerate(read):
            assert list(tfrecord.records(io.BytesIO(data), part=FilePart(i, parts), start=start)) == part[start:]


def test_the_provider_gives_any_part_from_any_record_on(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(record(example({"a": [i], "b": [float(i)]})) for i in range(50)))
    whole = served(path)
    assert whole == [{"a": i, "b": i} for i in range(50)]
    assert served(path, start=17) == whole[17:]
    parts = list(part_entries(str(path), 7))
    assert [sample for entry in parts for sample in served(entry, files=parts)] == whole
    assert served(parts[3], 2, files=parts) == served(parts[3], files=parts)[2:]


def test_records_before_the_start_are_passed_over_by_their_lengths() -> None:
    wrong = bytearray(record(b"x" * 200_000))
    wrong[100] ^= 1
    data = bytes(wrong) * 3 + record(b"good")
    assert list(tfrecord.records(io.BytesIO(data), start=3)) == [b"good"]
    assert list(tfrecord.records(io.BytesIO(gzip.compress(data, 1)), start=3)) == [b"good"]


def test_a_gzip_file_has_no_parts() -> None:
    with pytest.raises(OptionError, match="is gzip, which cannot be read in parts: name it whole"):
        list(tfrecord.records(io.BytesIO(GOLDEN_GZIP), part=FilePart(0, 2)))


# -- damage ------------------------------------------------------------------------------------------------------------
def test_damaged_data_cost_one_record_and_a_damaged_length_ends_the_file(tmp_path: Path) -> None:
    path, size = tmp_path / "a.tfrecord", len(record(example({"a": [1]})))
    data = bytearray(b"".join(record(example({"a": [1]})) for _ in range(5)))
    data[size + 14] ^= 1
    path.write_bytes(data)
    got = yielded(path)
    assert [item for item in got if isinstance(item, int)] == [1, 1, 1, 1]
    with pytest.raises(BadSample, match=rf"byte {size}: the checksum of a record of {size - 16} bytes is wrong"):
        raise got[1]
    data[3 * size] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"byte {3 * size}: the checksum of a record's length is wrong"):
        yielded(path)
    with pytest.raises(FormatError, match=f"byte {size}: the checksum of a record"):
        list(tfrecord.records(path))


@pytest.mark.parametrize("is_gzip", [False, True], ids=["plain", "gzip"])
def test_a_file_that_is_cut_anywhere_is_an_error_unless_behind_a_record(is_gzip: bool) -> None:
    sizes = [len(record(one)) for one in tfrecord.records(io.BytesIO(GOLDEN))]
    ends = {sum(sizes[:count]) for count in range(5)}
    for length in range(len(GOLDEN)):
        data = gzip.compress(GOLDEN[:length], 1) if is_gzip else GOLDEN[:length]
        for start in (0, 3):
            if length in ends:
                assert len(list(tfrecord.records(io.BytesIO(data), start=start))) == max(
                    0, sum(end <= length for end in ends) - 1 - start
                )
                continue
            with pytest.raises(FormatError, match=r"the file ends within|goes beyond the end|needs \d+ bytes"):
                list(tfrecord.records(io.BytesIO(data), start=start))


def test_a_bit_that_is_wrong_anywhere_is_found() -> None:
    draw = random.Random(0)
    for at in range(len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[at] ^= 1 << draw.randrange(8)
        with pytest.raises(FormatError):
            list(tfrecord.records(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<!doctype html> login", "expected a TFRecord file, .* got an HTML page"),
        (b"PK\x03\x04 and more of it", "got a zip archive"),
        (GOLDEN_GZIP[:-9], "damaged gzip"),
    ],
)
def test_what_is_no_tfrecord_is_named(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        list(tfrecord.records(io.BytesIO(data)))


def test_a_length_with_a_right_checksum_takes_no_memory_that_is_not_there() -> None:
    length = struct.pack("<Q", 1 << 40)
    data = length + struct.pack("<I", crc32c.masked_crc32c(length)) + b"x"
    with pytest.raises(FormatError, match="a record of 1099511627776 bytes goes beyond the end of the file"):
        list(tfrecord.records(io.BytesIO(data)))
    with pytest.raises(FormatError, match="a record of 1099511627776 bytes is larger than a GiB"):
        list(tfrecord.records(io.BytesIO(gzip.compress(data))))


# -- checksums ---------------------------------------------------------------------------------------------------------
def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@settings(deadline=None)
@given(data=strategies.binary(max_size=3000) | strategies.integers(0, 5000).map(bytes))
def test_checksums_are_the_same_with_and_without_the_library(data: bytes) -> None:
    assert crc32c.own_crc32c(data) == crc32c.crc32c()(data) == bit_by_bit(data)


def test_without_the_library_checksums_are_computed_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crc32c.own_crc32c(b"123456789") == 0xE3069283
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    crc32c.crc32c.cache_clear()
    try:
        assert crc32c.crc32c() is crc32c.own_crc32c
        assert dicts(GOLDEN) == [golden(i) for i in range(4)]
    finally:
        crc32c.crc32c.cache_clear()


# -- features ----------------------------------------------------------------------------------------------------------
def types(path: Path, **args: Any) -> dict[str, pydp2.InputType]:
    slots = PROVIDER.start(args=args, file_list=[str(path)]).schema.slots
    assert slots.names is not None
    return dict(zip(slots.names, slots.types, strict=True))


def test_the_first_record_decides_the_slots(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        record(example({"b": [b"x"], "i": [1], "f": [0.5], "bs": [b"", b""], "is": [1, 2], "fs": [0.5] * 3}))
    )
    assert types(path) == {
        "b": pydp2.raw(), "i": pydp2.scalar("int64"), "f": pydp2.scalar(), "bs": pydp2.raw_sequence(),
        "is": pydp2.scalar_sequence("int64"), "fs": pydp2.scalar_sequence(),
    }  # fmt: skip
    assert types(path, features=["i", "b"]) == {"i": pydp2.scalar("int64"), "b": pydp2.raw()}
    declared = {"b": "text", "i": "int[]", "f": "float[1]", "bs": "texts", "is": "int[2]", "fs": "floats"}
    assert types(path, features=declared) == {
        "b": pydp2.text(), "i": pydp2.scalar_sequence("int64"), "f": pydp2.dense_vector(1), "bs": pydp2.text_sequence(),
        "is": pydp2.dense_vector(2, dtype="int64"), "fs": pydp2.scalar_sequence(),
    }  # fmt: skip
    assert served(path, features=declared) == [
        {"b": "x", "i": [1], "f": [0.5], "bs": ["", ""], "is": [1, 2], "fs": [0.5] * 3}
    ]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("int", {"a": [1, 2]}, "feature 'a': expected 1 value, got 2; the type \"ints\" is for lists of any length"),
        ("float[3]", {"a": [1.5, 2.5]}, "expected 3 values, got 2"),
        ("int", {"a": [1.5]}, "feature 'a': expected a int64_list, got a float_list"),
        ("ints", {"a": [b"x"]}, "expected a int64_list, got a bytes_list"),
        ("bytes", {"a": [1]}, "expected a bytes_list, got a int64_list"),
        ("int", {"b": [1], "c": [1]}, "feature 'a': the record has no value of it; it has b, c"),
        ("bytes", {}, "it has no features"),
    ],
)
def test_a_record_that_does_not_fit_is_a_bad_sample_and_the_others_are_served(
    kind: str, value: dict[str, Any], words: str, tmp_path: Path
) -> None:
    good = record(example({"a": {"b": [b"x"], "f": [0.5] * 3, "i": [1]}[kind[0]]}))
    (tmp_path / "a.tfrecord").write_bytes(good + record(example(value)) + good)
    got = yielded(tmp_path / "a.tfrecord", features={"a": kind})
    assert [item for item in got if isinstance(item, int)] == [1, 1]
    with pytest.raises(BadSample, match=words):
        raise got[1]


def test_text_that_is_not_utf8_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(record(example({"a": [b"x"]})) + record(example({"a": [b"\xff"]})))
    with pytest.raises(BadSample, match="sample 1, slot a"):
        list(PROVIDER.samples(tmp_path / "a.tfrecord", args={"features": {"a": "text"}}))


def test_a_list_that_a_record_does_not_have_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(record(example({"b": [1]})) + record(field(1, field(1, field(1, b"a")))))
    for kind in ("ints", "floats", "bytess", "texts"):
        assert served(tmp_path / "a.tfrecord", features={"a": kind}) == [{"a": []}, {"a": []}]


@pytest.mark.parametrize(
    ("content", "args", "words"),
    [
        (b"", {}, "no file has a record that could decide the slots: give features="),
        (record(example({"label": [1]})), {"features": ["lable"]}, "no feature 'lable' in its first record, did"),
        (record(example({"a": []})), {"features": ["a", "b"]}, "no feature 'b' in its first record; it has a"),
        (record(field(1, field(1, field(1, b"a")))), {}, "the feature 'a' is empty in the first record: give its type"),
        (record(b""), {}, "features must name at least one feature"),
        (b"", {"features": "a"}, "features must be a list of names, or a dict of types by name, got 'a'"),
        (b"", {"features": {"a": 5}}, "features must be a list of names, or a dict"),
        (b"", {"features": {"a": "int64"}}, "the type of feature 'a' must be bytes, text, int or float"),
        (b"", {"features": {"a": "bytes[3]"}}, "the type of feature 'a' must be"),
        (b"", {"fields": ["a"]}, "has no argument 'fields'"),
        (b"wrong and long enough", {}, "expected a TFRecord file"),
    ],
)  # fmt: skip
def test_what_gives_no_slots_is_an_error_at_the_start(
    content: bytes, args: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises((ProviderError, FormatError), match=words):
        types(tmp_path / "a.tfrecord", **args)


def test_zlib_files_of_tensorflow_are_refused_by_name() -> None:
    with pytest.raises(FormatError, match="expected a TFRecord file"):
        list(tfrecord.records(io.BytesIO(zlib.compress(GOLDEN))))

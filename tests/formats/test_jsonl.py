"""JSON Lines, plain and compressed, are served from any line on; each decision about JSON is a row of a table."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies

import pydp2
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import line_blocks
from pydp2.providers.address import resolve
from pydp2.providers.decorator import Provider

pytest.importorskip("msgspec")
zstandard = pytest.importorskip("zstandard")
from pydp2.formats import jsonl  # noqa: E402  # behind the look for what it needs

PROVIDER: Provider = resolve("pydp2.formats.jsonl")
RECORDS = [
    {"text": f"line {i} é" * (i % 4), "age": i, "score": i / 4, "tokens": list(range(i % 5)), "user": {"name": "n" * i}}
    for i in range(40)
]
FIELDS = ["text", "age", "score", "tokens", "user.name"]


def as_lines(records: Any, **options: Any) -> bytes:
    return b"".join(json.dumps(record, **options).encode() + b"\n" for record in records)


def frames(data: bytes, *, size: int = 1000) -> bytes:
    """Several frames with a checksum, and one that is skipped before each."""
    packer = zstandard.ZstdCompressor(write_checksum=True)
    skipped = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 5) + b"table"
    return b"".join(skipped + packer.compress(data[i : i + size]) for i in range(0, len(data), size))


PACKINGS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": frames}


def samples(path: Path | str, start: int = 0, files: list[str] | None = None, **args: Any) -> list[dict[str, Any]]:
    """The samples of an entry as plain values, by the names of the slots."""
    started = PROVIDER.start(args=args, file_list=files or [str(path)])
    names = started.schema.slots.names
    assert names is not None
    opened = started.open_file(str(path), file_index=0, seed=0, pass_id=0, start=start)
    return [dict(zip(names, map(plain, started.arrange(sample)), strict=True)) for sample in opened]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def served(content: bytes, tmp_path: Path, **args: Any) -> list[dict[str, Any]]:
    (tmp_path / "a.jsonl").write_bytes(content)
    return samples(tmp_path / "a.jsonl", **args)


def types(content: bytes, tmp_path: Path, **args: Any) -> dict[str, pydp2.InputType]:
    (tmp_path / "a.jsonl").write_bytes(content)
    slots = PROVIDER.start(args=args, file_list=[str(tmp_path / "a.jsonl")]).schema.slots
    assert slots.names is not None
    return dict(zip(slots.names, slots.types, strict=True))


def flat(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in FIELDS[:4]} | {"user.name": record["user"]["name"]}


# -- reading -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", PACKINGS)
def test_read_gives_a_dict_of_each_line(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACKINGS[ending](as_lines(RECORDS)))
    assert list(jsonl.read(path)) == RECORDS
    assert list(jsonl.read(path, start=33)) == RECORDS[33:]
    assert list(jsonl.read(path, fields=["age", "none"])) == [{"age": i} for i in range(40)]


@pytest.mark.parametrize("ending", PACKINGS)
def test_a_service_serves_what_was_written(ending: str, tmp_path: Path) -> None:
    files = []
    for number in range(4):
        files.append(str(tmp_path / f"{number}.jsonl{ending}"))
        Path(files[-1]).write_bytes(PACKINGS[ending](as_lines(RECORDS[number * 10 : number * 10 + 10])))
    seen = []
    with pydp2.load(files, "pydp2.formats.jsonl", batch_size=16, shuffle=False, workers=2) as data:
        for batch in data:
            edges = batch["tokens"].sequence_start_positions
            for i in range(len(batch)):
                tokens = batch["tokens"].values[edges[i] : edges[i + 1]].tolist()
                texts = {name: batch[name][i] for name in ("text", "user.name")}
                seen.append(texts | {"age": batch["age"][i], "score": batch["score"][i], "tokens": tokens})
    assert seen == [flat(record) for record in RECORDS]


LINES = strategies.lists(
    strategies.one_of(
        strategies.builds(lambda i: b'{"a":%d}' % i, strategies.integers(0, 999)),
        strategies.sampled_from([b"", b" ", b"\r", b"\t \r", b'{"a":\r7}\r', b'  {"a":8}']),
    )
)


@settings(deadline=None)
@given(
    lines=LINES, end=strategies.sampled_from([b"", b"\n"]), bom=strategies.booleans(), start=strategies.integers(0, 9)
)
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_reading_from_any_line_gives_the_rest_of_a_whole_reading(
    block: int, lines: list[bytes], end: bytes, bom: bool, start: int
) -> None:
    data = b"\xef\xbb\xbf" * bom + b"\n".join(lines) + end
    expected = [json.loads(line) for line in lines if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_blocks, "BLOCK", block)
        assert list(jsonl.read(io.BytesIO(data), start=start)) == expected[start:]
        assert list(jsonl.read(io.BytesIO(frames(data, size=50) if data else b""), start=start)) == expected[start:]


@settings(deadline=None)
@given(lines=LINES, count=strategies.integers(1, 9), start=strategies.integers(0, 3))
def test_parts_are_complete_and_in_order_from_any_line_on(lines: list[bytes], count: int, start: int) -> None:
    data = b"\n".join(lines)
    whole = list(jsonl.read(io.BytesIO(data)))
    parts = [list(jsonl.read(io.BytesIO(data), part=FilePart(i, count))) for i in range(count)]
    assert [record for part in parts for record in part] == whole
    for i, part in enumerate(parts):
        assert list(jsonl.read(io.BytesIO(data), part=FilePart(i, count), start=start)) == part[start:]


def test_the_provider_gives_any_part_from_any_sample_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_lines(RECORDS))
    expected = [flat(record) for record in RECORDS]
    assert samples(path, start=17) == expected[17:]
    parts = list(part_entries(str(path), 7))
    assert [sample for entry in parts for sample in samples(entry, files=parts)] == expected
    assert samples(parts[3], 2, files=parts) == samples(parts[3], files=parts)[2:]


def test_lines_before_the_start_are_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"no JSON\n" * 1000 + b'{"a": 1}\n')
    assert list(jsonl.read(tmp_path / "a.jsonl", start=1000)) == [{"a": 1}]


def test_a_compressed_file_has_no_parts(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(frames(b'{"a":1}\n'))
    with pytest.raises(OptionError, match="is compressed, so it cannot be read in parts: name it whole"):
        list(jsonl.read(tmp_path / "a.zst", part=FilePart(0, 2)))


# -- what JSON leaves open ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'\xef\xbb\xbf{"a": 1}\n', [1]),
        (b'{"a": 1}\n{"a": 2}', [1, 2]),
        (b'{"a": 1}\r\n{"a": 2}\r\n', [1, 2]),
        (b'\n \n{"a": 1}\n\r\n{"a": 2}\n\n', [1, 2]),
        (b'{"a": 1, "a": 2}\n', [2]),
        (b'{"a": 1, "b": {"c": [1, [2]]}}\n', [1]),
        (b'{"a": 1, "\\u0061": 3}\n', [3]),
        (b'{"a": 9223372036854775807}\n', [2**63 - 1]),
        (b'{"a": 1, "b": "\xff"}\n', [1]),
    ],
    ids=["BOM", "no last newline", "CR LF", "blank lines", "key twice", "other keys", "escaped", "int64", "other text"],
)
def test_what_is_read(content: bytes, expected: list[Any], tmp_path: Path) -> None:
    assert served(content, tmp_path, fields={"a": "int"}) == [{"a": value} for value in expected]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("int", b"9223372036854775808", "an integer is beyond 64 bits; as float or text it can be served"),
        ("int", b"1.0", "Expected `int`, got `float`"),
        ("int", b"true", "Expected `int`, got `bool`"),
        ("int", b'"1"', "Expected `int`, got `str`"),
        ("int", b"null", r"got `null` - at `\$.a`; nulls= gives a value for null and for a missing key"),
        ("int", b"[1]", "Expected `int`, got `array`"),
        ("float", b"NaN", "JSON has no NaN and no Infinity: write null, and nulls= gives its value"),
        ("float", b"-Infinity", "JSON has no NaN and no Infinity"),
        ("float", b"1e400", "Number out of range"),
        # the words of msgspec before 0.23, and from then on
        ("text", b'"\xff"', "'utf-8' codec can't decode byte 0xff|line 2: Invalid UTF-8 encoded string"),
        ("text", b'"\\ud800"', "truncated"),
        ("text", b"1", "Expected `str`, got `int`"),
        ("ints", b"[1, [2]]", "Expected `int`, got `array`"),
        ("ints", b"[99999999999999999999]", "an integer is beyond 64 bits"),
        ("float[2]", b"[1, 2, 3]", "Expected `array` of length <= 2"),
        ("int", b"[" * 5000 + b"]" * 5000, "got `array`"),
        ("int", b'1, "b": ' + b"[" * 5000 + b"]" * 5000, "lists or objects are nested too deeply"),
        ("int", b"1} {", "trailing characters"),
        ("int", b"1,\n", "truncated"),
    ],
)
def test_a_wrong_line_is_a_bad_sample_and_the_others_are_served(
    kind: str, value: bytes, words: str, tmp_path: Path
) -> None:
    good = b'{"a": %s}\n' % {"text": b'"x"', "ints": b"[1]", "float[2]": b"[1, 2]"}.get(kind, b"1")
    (tmp_path / "a.jsonl").write_bytes(good + b'{"a": %s}\n' % value + good)
    started = PROVIDER.start(args={"fields": {"a": kind}}, file_list=[str(tmp_path / "a.jsonl")])
    got = list(started.open_file(str(tmp_path / "a.jsonl"), file_index=0, seed=0, pass_id=0).iterator)
    bad = [item for item in got if isinstance(item, BadSample)]
    assert sum(len(item) for item in got if not isinstance(item, BadSample)) == 2
    with pytest.raises(BadSample, match=words):
        raise bad[0]
    assert "line 2: " in str(bad[0])


def test_a_value_beyond_a_narrow_dtype_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1, "b": 1}\n{"a": 300, "b": 1e39}\n')
    for name, kind in (("a", "uint8"), ("b", "float32")):
        with pytest.raises(BadSample, match=f"sample 1, slot {name}"):
            list(PROVIDER.samples(str(tmp_path / "a.jsonl"), args={"fields": {name: kind}}))


def test_nulls_gives_a_value_for_null_and_for_a_missing_key(tmp_path: Path) -> None:
    content = b'{"a": 1, "b": {"c": "x"}}\n{"a": null, "b": null}\n{"b": {}}\n'
    args = {"fields": {"a": "int", "b.c": "text"}, "nulls": {"a": -1, "b.c": ""}}
    assert served(content, tmp_path, **args) == [
        {"a": 1, "b.c": "x"}, {"a": -1, "b.c": ""}, {"a": -1, "b.c": ""},
    ]  # fmt: skip
    assert served(content, tmp_path, nulls={"a": -1, "b.c": ""})[2] == {"a": -1, "b.c": ""}
    with pytest.raises(
        ProviderError, match="nulls: the value of 'a' does not fit the field: Expected `int`, got `str`"
    ):
        served(content, tmp_path, fields=["a"], nulls={"a": "x"})
    with pytest.raises(ProviderError, match="nulls names 'z', which is no field that is served: a"):
        served(content, tmp_path, fields=["a"], nulls={"z": 0})


def test_a_line_of_more_than_16_mib_ends_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "' + b"x" * (17 << 20) + b'"}\n')
    with pytest.raises(FormatError, match=r"a.jsonl, byte 9: line 2: expected the end of a line within 16777216 bytes"):
        list(jsonl.read(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1, 2]\n", "line 1: Expected `object`, got `array`; each line must be an object"),
        (b"5\n", "Expected `object`, got `int`"),
        (b"<!doctype html>", "the file looks like an HTML page"),
        (b"PAR1abc", "the file looks like a Parquet file"),
        (b'{"a": 1}\n\n{"a": }\n', "byte 10: line 3: JSON is malformed"),
    ],
)
def test_what_is_no_line_of_json_is_an_error_with_its_place(content: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        list(jsonl.read(io.BytesIO(content)))


def test_an_error_in_a_part_names_the_line_of_the_file() -> None:
    data = b'{"a": 1}\n' * 99 + b"wrong\n"
    with pytest.raises(FormatError, match="byte 891: line 100: JSON is malformed"):
        list(jsonl.read(io.BytesIO(data), part=FilePart(3, 4), start=3))


# -- types -------------------------------------------------------------------------------------------------------------
def test_the_first_lines_decide_the_slots(tmp_path: Path) -> None:
    content = (
        b'{"i": 1, "f": 1, "t": "x", "b": true, "is": [], "n": null}\n'
        b'{"i": 2, "f": 1.5, "o": {"k": {"fs": [1, 2.5]}}, "is": [1], "ts": ["a"], "n": 5}\n'
    )
    assert types(content, tmp_path) == {
        "i": pydp2.scalar("int64"), "f": pydp2.scalar(), "t": pydp2.text(), "b": pydp2.scalar("bool"),
        "is": pydp2.scalar_sequence("int64"), "n": pydp2.scalar("int64"), "o.k.fs": pydp2.scalar_sequence(),
        "ts": pydp2.text_sequence(),
    }  # fmt: skip
    assert types(content, tmp_path, fields=["t", "i"]) == {"t": pydp2.text(), "i": pydp2.scalar("int64")}


def test_fields_gives_names_and_types(tmp_path: Path) -> None:
    fields = {"a": "int", "b": "float64", "c": "texts", "d.e": "int32[]", "f": "float[3]", "g": "bools"}
    assert types(b"{}\n", tmp_path, fields=fields) == {
        "a": pydp2.scalar("int64"), "b": pydp2.scalar("float64"), "c": pydp2.text_sequence(),
        "d.e": pydp2.scalar_sequence("int32"), "f": pydp2.dense_vector(3), "g": pydp2.scalar_sequence("bool"),
    }  # fmt: skip
    line = b'{"g": [true], "f": [1, 2, 3], "d": {"e": [7]}, "c": ["x", "\xc3\xa9"], "b": 0.1, "a": 1}\n'
    assert served(line * 2, tmp_path, fields=fields) == 2 * [
        {"a": 1, "b": 0.1, "c": ["x", "é"], "d.e": [7], "f": [1, 2, 3], "g": [True]}
    ]


def test_the_first_file_with_a_line_decides(tmp_path: Path) -> None:
    for name, content in (("0", b""), ("1", b"\n \n"), ("2", b'{"a": "x"}\n')):
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in "012"]
    assert [sample for file in files for sample in samples(file, files=files)] == [{"a": "x"}]
    with pytest.raises(ProviderError, match="no file has a line that could decide the slots: give fields="):
        samples(files[0], files=files[:2])


@pytest.mark.parametrize(
    ("content", "args", "words"),
    [
        (b'{"a": 1, "b": [[1]]}', {}, r"the field 'b', which is a list with lists; leave it out, with fields=\['a'\]"),
        (b'{"a": [{}]}', {}, "a list with objects"),
        (b'{"a": [null, 1]}', {}, "a list with null"),
        (b'{"a": null}', {}, "null in all"),
        (b'{"a": []}', {}, "an empty list in all"),
        (b'{"a": 1}\n{"a": "x"}', {}, "int64 in some lines and text in others"),
        (b'{"a": 1}\n{"a": [1]}', {}, r"int64 in some lines and int64\[\] in others"),
        (b'{"a.b": 1}', {}, "a key with a dot"),
        (b'{"text": 1}', {"fields": ["txt"]}, "no field 'txt' in its first lines, did you mean 'text'?"),
        (b'{"a": 1}', {"fields": []}, "fields must name at least one field"),
        (b'{"a": 1}', {"fields": "a"}, "fields must be a list of names, or a dict of types by name, got 'a'"),
        (b'{"a": 1}', {"fields": {"a": "number"}}, "the type of field 'a' must be text, bool, int, float or a dtype"),
        (b'{"a": 1}', {"fields": {"a": "int[0]"}}, "the type of field 'a' must be"),
        (b'{"a": 1}', {"fields": {"a": "text[3]"}}, "the type of field 'a' must be"),
        (b'{"a": 1}', {"fields": {"a": 5}}, "fields must be a list of names, or a dict of types by name, got 5 of 'a'"),
        (b'{"a": 1}', {"fields": {"a": "int", "a.b": "int"}}, "'a' is a field, so no field can be within it"),
        (b'{"a": 1}', {"nulls": 5}, "nulls must be a dict of values by field, got 5"),
        (b'{"a": 1}', {"columns": ["a"]}, "has no argument 'columns'"),
        (b"wrong", {}, "line 1: JSON is malformed"),
    ],
)  # fmt: skip
def test_what_gives_no_slots_is_an_error_at_the_start(
    content: bytes, args: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ProviderError, FormatError), match=words):
        types(content, tmp_path, **args)


# -- zstd --------------------------------------------------------------------------------------------------------------
def test_a_zstd_file_that_is_cut_anywhere_is_an_error() -> None:
    data = frames(as_lines(RECORDS), size=2000)
    ends = {0} | {
        len(frames(as_lines(RECORDS)[:size], size=2000)) for size in range(2000, len(as_lines(RECORDS)), 2000)
    }
    for length in sorted(set(range(0, len(data), 7)) - ends - {end + 13 for end in ends}):
        with pytest.raises(FormatError, match="damaged zstd: the last frame is cut"):
            list(jsonl.read(io.BytesIO(data[:length])))


def test_a_small_zstd_file_of_much_content_takes_little_memory_at_a_time() -> None:
    packed = zstandard.ZstdCompressor().compress(b'{"a": 1}\n' + b"\n" * (64 << 20))
    assert list(jsonl.read(io.BytesIO(packed))) == [{"a": 1}]
    with pytest.raises(FormatError, match="expected the end of a line within"):
        list(jsonl.read(io.BytesIO(zstandard.ZstdCompressor().compress(bytes(64 << 20)))))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x28\xb5\x2f\xfd\0\xff\1\0\0x", "requires too much memory"),
        (b"\x28\xb5\x2f\xfd\x20\4\x21\0\0ab", "the last frame is cut; did a download or a copy stop early"),
        (b"\x28\xb5\x2f\xfd\x20\1\xff\xff\xffx", "expected a block of at most 131072 bytes"),
        (frames(b"{}\n") + b"more", "expected a frame, got 6d6f7265"),
        (frames(b"{}\n")[:-1] + b"x", "checksum"),
    ],
)
def test_damaged_zstd_is_an_error(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        list(jsonl.read(io.BytesIO(data)))

"""Parquet: what pyarrow wrote is served, in parts, from any row on, with values for nulls; else it is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import dense_vector, scalar, scalar_sequence, text
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import arrow_tables, parquet
from pydp2.providers import resolve

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

N = 1000


def table(count: int = N) -> Any:
    numbers = np.arange(count)
    return pa.table(
        {
            "x": (numbers / 8).astype(np.float32),
            "text": [f"número {i}" for i in range(count)],
            "tags": [[i, i + 1][: i % 3] for i in range(count)],
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * count, dtype=np.int16)), 3),
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=90)
    return tmp_path / "a.parquet"


def written(made: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(made, file, **options)
    return file


def listed(batches: Iterator[Any]) -> list[Any]:
    return [row for batch in batches for row in batch.to_pylist()]


def started(*files: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.parquet").start(file_list=[str(file) for file in files], args=args)


def served(running: Any, entry: Path | str, start: int = 0) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, start=start))


# -- reading -----------------------------------------------------------------------------------------------------------
@given(
    count=st.integers(0, 60),
    group=st.integers(1, 70),
    parts=st.integers(1, 8),
    start=st.integers(0, 70),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
)
def test_parts_are_complete_and_a_start_gives_the_rest(
    count: int, group: int, parts: int, start: int, compression: str
) -> None:
    file = written(table(count), row_group_size=group, compression=compression)
    whole = listed(parquet.read(file))
    assert whole == table(count).to_pylist()
    read = [listed(parquet.read(file, part=FilePart(i, parts))) for i in range(parts)]
    assert [row for part in read for row in part] == whole
    assert listed(parquet.read(file, start=start)) == whole[start:]
    index = start % parts
    assert listed(parquet.read(file, start=start, part=FilePart(index, parts))) == read[index][start:]


def test_rows_come_in_blocks_that_are_bounded() -> None:
    wide = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1 << 20)), 1 << 10)})
    sizes = [batch.nbytes for batch in parquet.read(written(wide))]
    assert sum(sizes) >= 8 << 20
    assert max(sizes) < 5 << 20
    narrow = pa.table({"x": np.zeros(100_000, np.int8)})
    assert max(len(batch) for batch in parquet.read(written(narrow))) <= arrow_tables.MAX_ROWS


def test_row_groups_before_a_start_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(table(), file, row_group_size=500, compression="none", use_dictionary=False)
    data = bytearray(file.read_bytes())
    data[4:2000] = bytes(1996)  # the first row group
    file.write_bytes(data)
    assert listed(parquet.read(file, start=500)) == table().to_pylist()[500:]
    with pytest.raises(FormatError, match=r"a\.parquet, row group 0: "):
        listed(parquet.read(file, start=499))


def test_columns_are_read_alone_and_fields_of_structs_by_a_dot(tmp_path: Path) -> None:
    made = pa.table({"a": [{"b": 1, "c": [1.5]}], "d": ["x"], "e": [None]})
    pq.write_table(made, tmp_path / "a")
    assert listed(parquet.read(tmp_path / "a", columns=["d", "a.c"])) == [{"a": {"c": [1.5]}, "d": "x"}]
    with pytest.raises(OptionError, match=r"a has no column a\.x; it has a\.b, a\.c, d, e"):
        listed(parquet.read(tmp_path / "a", columns=["a.x"]))


# -- serving -----------------------------------------------------------------------------------------------------------
def test_a_service_serves_all_rows_in_order(file: Path) -> None:
    files = list(part_entries(str(file), 5))
    seen: dict[str, list[Any]] = {name: [] for name in table().column_names}
    with pydp2.load(files, "pydp2.formats.parquet", batch_size=64, shuffle=False, workers=2) as data:
        for batch in data:
            seen["x"] += batch["x"].tolist()
            seen["text"] += batch["text"].to_list()
            edges = batch["tags"].sequence_start_positions
            seen["tags"] += [batch["tags"].values[lo:hi].tolist() for lo, hi in pairwise(edges)]
            seen["pixels"] += batch["pixels"].tolist()
    assert seen == table().to_pydict()


def test_the_schema_says_the_slots_and_columns_choose_them_in_their_order(file: Path) -> None:
    slots = started(file).schema.slots
    assert slots.names == ("x", "text", "tags", "pixels")
    assert slots.types == (scalar(), text(), scalar_sequence("int64"), dense_vector(3, dtype="int16"))
    running = started(file, columns=["text", "x"])
    assert running.schema.slots.names == ("text", "x")
    assert served(running, file, 997) == [{"text": f"número {i}", "x": i / 8} for i in (997, 998, 999)]


def test_the_first_file_that_has_a_row_says_the_slots(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.null())}), tmp_path / "empty")
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "full")
    running = started(tmp_path / "empty", tmp_path / "full")
    assert running.schema.slots.types == (scalar("float64"),)
    assert len(started().schema.slots) == 1, "of an empty list nothing is known, and nothing is served"


def test_another_file_must_have_the_same_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5], "y": ["a"]}), tmp_path / "first")
    pq.write_table(pa.table({"y": ["b"], "x": [2.5]}), tmp_path / "turned")
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "ints")
    pq.write_table(pa.table({"x": [1.5], "y": ["a"], "z": [1]}), tmp_path / "more")
    running = started(tmp_path / "first")
    assert served(running, tmp_path / "turned") == [{"x": 2.5, "y": "b"}]
    with pytest.raises(
        FormatError, match=r"ints must have the columns of .*first: column x is .*float64.* and .*int64"
    ):
        served(running, tmp_path / "ints")
    with pytest.raises(FormatError, match=r"more must have the columns of .*first: column z is absent there"):
        served(running, tmp_path / "more")
    chosen = started(tmp_path / "first", columns=["y"])
    assert served(chosen, tmp_path / "more") == [{"y": "a"}]
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "fewer")
    with pytest.raises(FormatError, match=r"fewer must have the columns of .*first: .*fewer has no column y"):
        served(chosen, tmp_path / "fewer")


# -- nulls -------------------------------------------------------------------------------------------------------------
GAPS = pa.table(
    {
        "age": [30, None, 50],
        "city": pa.array(["Oslo", None, ""]).dictionary_encode(),
        "tags": [["a"], None, ["b", "c"]],
        "at": [{"x": 1.5}, None, {"x": None}],
    }
)


def test_a_null_is_an_error_that_names_file_row_and_column_and_the_remedy(tmp_path: Path) -> None:
    pq.write_table(GAPS, tmp_path / "a")
    words = r"""a, sample 1, slot age: expected a value, got null; nulls=\{"age": …\} gives a default"""
    with pytest.raises(BadSample, match=words):
        list(resolve("pydp2.formats.parquet").samples(str(tmp_path / "a"), args={"columns": ["age"]}))
    running = started(tmp_path / "a", columns=["age", "tags"])
    good, bad, last = served(running, tmp_path / "a")
    assert (good["age"], type(bad), last["tags"]) == (30, BadSample, ["b", "c"])


def test_a_null_gets_the_value_that_was_given_for_its_column(tmp_path: Path) -> None:
    pq.write_table(GAPS, tmp_path / "a")
    running = started(tmp_path / "a", nulls={"age": -1, "city": "?", "tags": [], "at.x": float("inf")})
    found = [
        {name: value.tolist() if isinstance(value, np.generic) else value for name, value in sample.items()}
        for sample in served(running, tmp_path / "a")
    ]
    assert found == [
        {"age": 30, "city": "Oslo", "tags": ["a"], "at.x": 1.5},
        {"age": -1, "city": "?", "tags": [], "at.x": float("inf")},
        {"age": 50, "city": "", "tags": ["b", "c"], "at.x": float("inf")},
    ]


def test_a_null_in_a_list_has_no_default(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tags": [["a", None]]}), tmp_path / "a")
    with pytest.raises(BadSample, match="slot tags: expected a list without nulls, got one with a null"):
        list(resolve("pydp2.formats.parquet").samples(str(tmp_path / "a"), args={"nulls": {"tags": []}}))


def test_rows_with_a_null_are_dropped_with_on_error_skip(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [None if i % 7 == 3 else i for i in range(100)]}), tmp_path / "a")
    with pydp2.load(
        [str(tmp_path / "a")], "pydp2.formats.parquet", batch_size=10, shuffle=False, on_error="skip", error_budget=100
    ) as data:
        seen = [x for batch in data for x in batch["x"].tolist()]
    assert seen == [i for i in range(100) if i % 7 != 3]


def test_text_that_is_no_utf8_is_a_bad_sample(tmp_path: Path) -> None:
    wrong = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"t": wrong}), tmp_path / "a")
    first, bad, last = served(started(tmp_path / "a"), tmp_path / "a")
    assert (first, type(bad), last) == ({"t": "a"}, BadSample, {"t": "c"})


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ({"columns": "x"}, OptionTypeError, 'columns must be a list of names, such as ["text", "label"], got'),
        ({"columns": []}, OptionError, "columns must name each column once"),
        ({"columns": ["x", "x"]}, OptionError, "columns must name each column once"),
        ({"columns": ["y"]}, OptionError, "a.parquet has no column y; it has x, text, tags, pixels"),
        ({"nulls": 5}, OptionTypeError, "nulls must be a value for each column"),
        ({"nulls": {"y": 5}}, OptionError, "nulls names the column y; "),
        ({"nulls": {"x": "a"}}, OptionError, "nulls: the column x is float, and 'a' is no value of it"),
        ({"nulls": {"x": None}}, OptionError, "nulls: the column x is float, and None is no value of it"),
        ({"column": ["x"]}, ProviderError, "has no argument 'column', did you mean 'columns'?"),
    ],
)
def test_arguments_are_checked_when_the_service_starts(
    args: dict[str, Any], kind: type[Exception], words: str, file: Path
) -> None:
    with pytest.raises(ProviderError) as caught:
        started(file, **args)
    assert words in str(caught.value)


def test_a_column_that_no_slot_takes_is_named_when_the_service_starts(tmp_path: Path) -> None:
    made = pa.table({"x": [1], "price": pa.array([1], pa.decimal128(9, 2))})
    pq.write_table(made, tmp_path / "a")
    with pytest.raises(ProviderError, match=r"a, column price: no slot takes Arrow's type decimal128\(9, 2\); cast it"):
        started(tmp_path / "a")
    assert served(started(tmp_path / "a", columns=["x"]), tmp_path / "a") == [{"x": 1}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"<html><body>login</body></html>", "an HTML page"),
        (b"ARROW1\0\0" + bytes(100), "an Arrow file"),
        (b"PAR1PAR1", "expected a parquet file"),
        (b"PAR1" + bytes(100), "the footer: "),
        (b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1", "the footer: "),
    ],
)
def test_what_is_no_parquet_file_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.parquet, ") as caught:
        listed(parquet.read(tmp_path / "a.parquet"))
    assert words in str(caught.value)


def test_errors_of_the_system_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listed(parquet.read(tmp_path / "absent"))


def test_a_page_whose_checksum_is_wrong_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": np.arange(100.0)}), file, compression="none", use_dictionary=False, write_page_checksum=True
    )
    data = bytearray(file.read_bytes())
    at = data.index(np.float64(50).tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"row group 0: .*(CRC|checksum)"):
        listed(parquet.read(file))

"""Text, bytes and single numbers through whole services: caches, keys, buckets, states, memory and bad data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2

from ..provider_code import yields

CODE = """
from pydp2 import packing, raw, scalar, scalar_sequence, text, text_sequence

def hook(settings, cache=0, form="", **kwargs):
    settings.cache = cache
    assert packing().startswith(form)

@provider(input_types={
    "name": text(), "words": text_sequence(), "blob": raw(), "y": scalar(), "id": scalar("int64"),
    "flag": scalar("bool"), "series": scalar_sequence("float64"), "mask": dense_vector(2, dtype="bool"),
    }, pool_size=32, init_hook=hook)
def process(settings, filename):
    for i in range(40):
        yield {
            "name": f"{filename} é{i}" + "x" * (i % 7), "words": ["a", "", "€"][: i % 4], "blob": bytes([i]) * 10 * i,
            "y": i / 4, "id": 2**60 + i, "flag": i % 2 == 0, "series": [0.5] * (i % 3), "mask": [True, i % 2 == 0],
        }
"""
FILES = ["f0", "f1", "f2"]
EXPECTED = {
    f"{file} é{i}" + "x" * (i % 7): (
        ["a", "", "€"][: i % 4], bytes([i]) * 10 * i, i / 4, 2**60 + i, i % 2 == 0, [0.5] * (i % 3), [True, i % 2 == 0]
    )
    for file in FILES for i in range(40)
}  # fmt: skip


def rows_of(batch: pydp2.Batch) -> list[tuple[Any, ...]]:
    """The samples of a batch, read as a user reads them."""
    words, series = batch["words"], batch["series"]
    assert isinstance(words, pydp2.Ragged)
    assert isinstance(series, pydp2.Ragged)
    columns = [
        batch["name"].to_list(), _split(words), batch["blob"].to_list(), batch["y"].tolist(), batch["id"].tolist(),
        batch["flag"].tolist(), _split(series), batch["mask"].tolist(),
    ]  # fmt: skip
    return list(zip(*columns, strict=True))


def _split(ragged: pydp2.Ragged) -> list[Any]:
    steps, edges = list(ragged.values), ragged.sequence_start_positions.tolist()
    return [steps[lo:hi] for lo, hi in pairwise(edges)]


def check_pass(batches: list[pydp2.Batch]) -> None:
    """All samples of a pass, each once."""
    seen = [row for batch in batches for row in rows_of(batch)]
    assert len(seen) == len(EXPECTED)
    assert {row[0]: row[1:] for row in seen} == EXPECTED


@pytest.mark.parametrize("cache", [0, 1, 2, 3])
def test_every_pass_has_every_sample_whatever_keeps_it(deliver: Any, tmp_path: Path, cache: int) -> None:
    options = {"args": {"cache": cache}, "cache_dir": str(tmp_path), "shuffle": True, "batch_size": 16}
    for batches in deliver(CODE, FILES, 2, **options):
        check_pass(batches)
    assert {str(b["y"].dtype) for b in batches} == {"float32"}
    assert batches[0]["name"].data.flags.writeable


def test_the_pure_python_form_gives_the_same_batches(deliver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"shuffle": True, "seed": 4, "batch_size": 16}
    (compiled,) = deliver(CODE, FILES, **given)
    monkeypatch.setenv("PYDP2_PURE_PYTHON", "1")
    (python,) = deliver(CODE, FILES, args={"form": "in Python"}, **given)
    assert [rows_of(b) for b in python] == [rows_of(b) for b in compiled]


def test_they_travel_over_tcp_with_keys(provider_file: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with (
        pydp2.launch(FILES, provider_file(CODE), workers=1, bind="tcp://127.0.0.1:*", connection=file),
        pydp2.connect(file, batch_size=16) as data,
    ):
        check_pass(list(data))


def test_a_state_in_the_middle_of_a_pass_goes_on_bit_by_bit(provider_file: Any) -> None:
    address = provider_file(CODE)
    given: dict[str, Any] = {"batch_size": 16, "seed": 5, "workers": 2}
    with pydp2.load(FILES, address, **given) as data:
        passing = iter(data)
        first = [rows_of(next(passing)) for _ in range(2)]
        state = data.state_dict()
        rest = [rows_of(batch) for batch in passing]
    with pydp2.load(FILES, address, **given) as data:
        data.load_state_dict(state)
        assert [rows_of(batch) for batch in data] == rest
    assert sum(map(len, first + rest)) == len(EXPECTED)


@pytest.mark.parametrize(("by", "longest"), [("name", 13), ("words", 3)])
def test_buckets_are_by_bytes_of_a_text_and_by_strings_of_a_sequence(deliver: Any, by: str, longest: int) -> None:
    (batches,) = deliver(CODE, FILES, is_train=True, bucket_by=by, bucket_bounds=[longest - 2], batch_size=8)
    check_pass(batches)
    for batch in batches:
        long = [
            (len(name.encode()) if by == "name" else len(words)) > longest - 2 for name, words, *_ in rows_of(batch)
        ]
        assert set(long) == {batch.bucket is None}


def test_the_pool_counts_the_bytes_of_strings(deliver: Any) -> None:
    code = yields("pydp2.raw()", "(bytes(10_000) for i in range(60))", "pool_size=1000")
    (batches,) = deliver(code, is_train=True, pool_bytes=100_000, batch_size=4)
    assert sum(len(batch) for batch in batches) == 60
    assert max(batch.pool_weight for batch in batches) <= 100_000 // 10_000 + 4


def test_a_sample_of_many_megabytes_arrives(deliver: Any) -> None:
    code = yields("pydp2.raw()", "(bytes(1 << 24) + b'end', b'')")
    ((batch,),) = deliver(code)
    assert [len(blob) for blob in batch[0]] == [(1 << 24) + 3, 0]
    assert batch[0][0].endswith(b"\0end")


@pytest.mark.parametrize(
    ("declared", "value", "expected", "got"),
    [
        ("text()", "b'ab'", "a str (write x.decode())", "b'ab' (bytes of length 2)"),
        ("text()", "3", "a str", "3 (int)"),
        ("text()", "'a\\ud800'", "a str without lone surrogates", "'a\\ud800' (str of length 2)"),
        ("text_sequence()", "'ab'", "a list, tuple or numpy array of steps", "'ab' (str of length 2)"),
        ("text_sequence()", "['a', None]", "a str", "None at [1]"),
        ("raw()", "'ab'", "bytes (write x.encode())", "'ab' (str of length 2)"),
        ("raw()", "bytes(2**31)", "bytes of at most 2147483647 bytes", "of length 2147483648)"),
        ("scalar()", "[1.0]", "a number (write x[0])", "[1.0] (list of length 1)"),
        ("scalar()", "1e39", "a number within the range of float32", "1e+39 (float)"),
        ("scalar('int64')", "0.5", f"a whole number in [{-(2**63)}, {2**63 - 1}]", "0.5 (float)"),
        ("scalar('bool')", "2", "a bool, 0 or 1", "2 (int)"),
        ("dense_vector(2, dtype='bool')", "[True, 0.5]", "a bool, 0 or 1", "0.5 (float) at [1]"),
    ],
)
@pytest.mark.parametrize("form", ["compiled", "python"])
def test_a_bad_value_names_file_sample_slot_expected_and_got(
    provider_file: Any, monkeypatch: pytest.MonkeyPatch, declared: str, value: str, expected: str, got: str, form: str
) -> None:
    monkeypatch.setenv("PYDP2_PURE_PYTHON", "0" if form == "compiled" else "1")
    code = f"""
    from pydp2 import *
    from pydp2 import raw, scalar, text, text_sequence

    @provider(input_types={{"x": {declared}}})
    def process(settings, filename):
        yield {{"x": {value}}}
    """
    seen = pydp2.peek(["part-7"], provider_file(code))
    assert isinstance(seen.error, pydp2.errors.BadSample)
    assert "part-7, sample 0" in str(seen.error)
    assert (seen.error.slot, seen.error.expected, seen.error.got[-len(got) :]) == ("x", expected, got)


def test_bad_strings_are_dropped_and_counted(deliver: Any) -> None:
    code = """
    from pydp2 import text

    @provider(input_types=[text()], check=True, check_fail_continue=True)
    def process(settings, filename):
        for i in range(20):
            yield "ab" if i % 3 else "\\ud800"
    """
    ((batch,),) = deliver(code)
    assert batch[0].to_list() == ["ab"] * 13


def test_bfloat16_arrives_in_its_own_dtype(deliver: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    code = """
    import ml_dtypes
    import numpy as np

    @provider(input_types={"list": dense_vector(2, dtype="bfloat16"), "array": dense_vector(2, dtype="bfloat16")})
    def process(settings, filename):
        for i in range(9):
            yield {"list": [1.5, float(i)], "array": np.array([1.5, i], ml_dtypes.bfloat16)}
    """
    ((batch,),) = deliver(code)
    for value in batch:
        assert (value.dtype, value.shape) == (ml_dtypes.bfloat16, (9, 2))
        np.testing.assert_array_equal(value.astype(np.float32), [[1.5, i] for i in range(9)])
        value[0] = 3  # it belongs to the user

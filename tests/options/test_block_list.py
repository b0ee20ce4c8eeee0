"""The file of a block list: what a line may say, and what is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.errors import OptionError
from pydp2.options import block_list
from pydp2.options.block_list import read_block_list
from pydp2.options.file_list import FileList

FILES = FileList.of(["a.txt", "dir/b c.txt", "a.txt", "tab\tin.txt", "#1", "ü"])


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "blocked.txt"
        path.write_bytes(data)
        return path

    return write


def pairs(path: Path, files: FileList = FILES) -> list[tuple[int, int]]:
    numbers, samples = read_block_list(path, files)
    assert numbers.dtype == samples.dtype == np.int64
    return [*zip(numbers.tolist(), samples.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        ("", []),
        ("ü\t7", [(5, 7)]),
        ("ü\t7\nü\t7\n", [(5, 7), (5, 7)]),
        ("a.txt\t0\n", [(0, 0), (2, 0)]),
        ("dir/b c.txt\t3-5\r\n\r\n  \nü\t 1 - 1 \n", [(1, 3), (1, 4), (1, 5), (5, 1)]),
        ("\ufeff# from the run of Monday\n#1\t4\n#2\t4\n", [(4, 4)]),
        ("tab\tin.txt\t12", [(3, 12)]),
    ],
)
def test_a_line_names_an_entry_and_its_samples(
    text: str, blocked: list[tuple[int, int]], written: Callable[[bytes], Path]
) -> None:
    assert pairs(written(text.encode())) == blocked


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ü 7", r"line 1: a line must be ENTRY, a tab, .*; it has no tab: 'ü 7'"),
        ("\n\nü\tx", r"line 3: a line must be .* or a range such as 10-20; it has 'x' as its samples"),
        ("ü\t-1", r"it has '-1' as its samples"),
        ("ü\t1.0", r"it has '1.0' as its samples"),
        ("ü\t", r"it has '' as its samples"),
        ("ü\t٣", r"it has '٣' as its samples"),
        ("ü\t9-3", r"line 1: .*; it has '9-3', which ends before it begins"),
        ("# head\nA.txt\t5", r"line 2: the file list has no entry 'A.txt'; write the entry as the list has it, or"),
        (
            "ü\t0-99999999999",
            r"line 1: a block list may name 268,435,456 samples, and up to here it names 100,000,000,",
        ),
    ],
)
def test_an_error_names_the_line_and_what_it_has(text: str, error: str, written: Callable[[bytes], Path]) -> None:
    path = written(text.encode())
    with pytest.raises(OptionError, match=error) as caught:
        read_block_list(path, FILES)
    assert str(caught.value).startswith(f"block list {path}, line ")


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, written: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"the block list .*none is missing; relative names are looked up in /"):
        read_block_list(tmp_path / "none", FILES)
    with pytest.raises(OptionError, match=r"the block list .* cannot be read: Is a directory"):
        read_block_list(tmp_path, FILES)
    with pytest.raises(OptionError, match=r"must be UTF-8: invalid start byte; save it as UTF-8"):
        read_block_list(written(b"\xff\t1"), FILES)
    monkeypatch.setattr(block_list, "_MAX_BYTES", 3)
    with pytest.raises(OptionError, match="cannot be read: it has more than 3 bytes"):
        read_block_list(written(b"a.txt\t1"), FILES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 40), st.integers(0, 9)), max_size=20))
def test_what_is_written_is_read(ranges: list[tuple[int, int, int]], written: Callable[[bytes], Path]) -> None:
    files = FileList.of([f"f{number}" for number in range(6)])
    lines = [f"f{n}\t{first}-{first + more}" if more else f"f{n}\t{first}" for n, first, more in ranges]
    assert pairs(written("\n".join(lines).encode()), files) == [
        (n, y) for n, first, more in ranges for y in range(first, first + more + 1)
    ]

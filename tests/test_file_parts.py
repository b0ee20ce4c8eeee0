"""Parts of a file: what an entry of a list says about them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart, part_entries, split_entry

NAMES = st.text(min_size=1).map(lambda text: text.replace("\n", ""))


@given(NAMES, st.integers(1, 20))
def test_entries_name_each_part_of_their_file_once(name: str, count: int) -> None:
    assert [split_entry(entry) for entry in part_entries(name, count)] == [
        (name, FilePart(i, count)) for i in range(count)
    ]


@pytest.mark.parametrize("name", ["a?part=0/3", "part=0/3", "?part=1/2", "a?part=0/1"])
@pytest.mark.parametrize("count", [1, 3])
def test_so_do_those_of_a_file_whose_own_name_looks_like_a_part(name: str, count: int) -> None:
    assert [split_entry(entry) for entry in part_entries(name, count)] == [
        (name, FilePart(i, count)) for i in range(count)
    ]


OTHERS = (
    "a.rec", "a?part=", "a?part=1", "a?part=1/", "a?part=-1/3", "a?part=1/3 ", "a#1/3", "a?Part=1/3", "a?part=1/3/x",
    "https://host/a?part=1&b=2", "a?part=1/3\n", "", "a?part=\u0661/\u0663",
)  # fmt: skip


@pytest.mark.parametrize("entry", OTHERS)
def test_every_other_entry_is_a_whole_file(entry: str) -> None:
    assert split_entry(entry) == (entry, WHOLE_FILE)


@pytest.mark.parametrize("entry", ["a?part=3/3", "a?part=0/0", "a?part=12/3"])
def test_a_part_that_cannot_be_is_an_error(entry: str) -> None:
    with pytest.raises(OptionError, match=r"parts count from 0; a file of that very name is written .*\?part=0/1$"):
        split_entry(entry)


def test_what_no_line_of_a_list_could_name_is_refused() -> None:
    with pytest.raises(OptionError, match="at most 999999999 parts, got 1000000000"):
        next(part_entries("a", 10**9))
    assert split_entry(next(part_entries("a", 10**9 - 1))) == ("a", FilePart(0, 10**9 - 1))
    for count in (1, 3):
        with pytest.raises(OptionError, match=r"cannot hold the name 'a\\nb'"):
            next(part_entries("a\nb", count))


@pytest.mark.parametrize("numbers", [("0", 3), (0.0, 3), (0, 3.0), (None, 1), (True, 2)])
def test_a_part_has_two_whole_numbers(numbers: Any) -> None:
    with pytest.raises(OptionTypeError, match="two whole numbers, its index and the count of parts, got"):
        FilePart(*numbers)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_ranges_are_disjoint_complete_and_alike(total: int, count: int) -> None:
    ranges = [FilePart(i, count).range(total) for i in range(count)]
    assert [at for first, last in ranges for at in range(first, last)] == list(range(total))
    sizes = [last - first for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1

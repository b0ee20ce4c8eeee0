"""File lists as a service takes them: what an entry is, empty ones, very long ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ListError

from ..provider_code import yields

SPELL = yields("integer_value_sequence(256)", "[list(filename.encode())]", "should_shuffle=False")


def _entries(batches: list[pydp2.Batch]) -> list[str]:
    """What ``process`` was given as filename."""
    found = []
    for batch in batches:
        starts = batch[0].sequence_start_positions
        found += [bytes(batch[0].values[a:b].tolist()).decode() for a, b in pairwise(starts)]
    return found


def test_pd_53_an_entry_reaches_process_verbatim(deliver: Any, tmp_path: Path) -> None:
    """Blanks in it and URLs; BOM, carriage returns, empty lines and blanks around it do not; a duplicate counts."""
    listed = tmp_path / "train.list"
    listed.write_bytes("\ufeffone\r\n\r\n two  words \nx#three\n\nhttps://four/five?x=y\nsechs/ü.txt\none".encode())
    (batches,) = deliver(SPELL, listed)
    assert _entries(batches) == ["one", "two  words", "x#three", "https://four/five?x=y", "sechs/ü.txt", "one"]


def test_pd_53_comments_and_patterns_are_understood_where_no_file_has_that_name(deliver: Any, tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "#c", " d "):
        (tmp_path / name).touch()
    listed = tmp_path / "train.list"
    listed.write_text("# the data\n*.txt\n#c\n d \n")
    (batches,) = deliver(SPELL, listed, root=tmp_path)
    assert _entries(batches) == ["a.txt", "b.txt", "#c", " d "]
    (tmp_path / "*.txt").touch()
    (batches,) = deliver(SPELL, listed, root=tmp_path)
    assert _entries(batches) == ["*.txt", "#c", " d "]


def test_pd_53_a_list_made_in_python_is_used_as_it_is(deliver: Any) -> None:
    (batches,) = deliver(SPELL, ["a", "", "b\n", Path("c/d"), "a"])
    assert _entries(batches) == ["a", "", "b\n", "c/d", "a"]


def test_pd_53_a_missing_list_raises_naming_it(provider_file: Any, tmp_path: Path) -> None:
    address = provider_file(SPELL)
    with pytest.raises(ListError, match=r"nowhere/train\.list is missing"):
        pydp2.launch("nowhere/train.list", address, workers=1)
    with pytest.raises(OSError, match="is a directory"):
        pydp2.launch(tmp_path, address, workers=1)


def test_pd_53_an_empty_list_is_an_empty_pass_and_a_warning(provider_file: Any, tmp_path: Path) -> None:
    listed = tmp_path / "train.list"
    listed.write_text("\n\r\n")
    address = provider_file(SPELL)
    with pytest.warns(UserWarning, match=r"the file list .*train\.list is empty: a pass over it has no samples"):
        data = pydp2.load(listed, address, batch_size=3, workers=1)
    with data:
        assert [list(data) for _ in range(2)] == [[], []]


def test_pd_53_entries_count_from_the_working_directory_not_from_the_list(
    deliver: Any, numbers: Any, tmp_path: Path, flat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "lists" / "train.list").write_text("data/part\n")
    (tmp_path / "data" / "part").write_text("7\n")
    monkeypatch.chdir(tmp_path)
    (batches,) = deliver(numbers(), "lists/train.list")
    assert flat(batches) == [7]
    monkeypatch.chdir("/")
    (batches,) = deliver(numbers(), "lists/train.list", root=tmp_path)  # with a root, that is the working directory
    assert flat(batches) == [7]


@pytest.mark.parametrize(("shuffle", "workers"), [(True, 2), pytest.param(False, 1, marks=pytest.mark.slow)])
def test_pd_58_ten_thousand_files_of_one_sample_keep_few_generators_open(
    provider_file: Any, shuffle: bool, workers: int
) -> None:
    """At most the lanes and a few ahead, each closed as soon as it has ended; nothing is lost."""
    code = """
    now = 0

    @provider(input_types=[integer_value(10_000), integer_value(20_000)], pool_size=500)
    def process(settings, filename):
        global now
        now += 1
        try:
            yield int(filename), now
        finally:
            now -= 1
    """
    files = [str(i) for i in range(10_000)]
    with pydp2.load(files, provider_file(code), shuffle=shuffle, batch_size=1000, workers=workers) as data:
        batches = list(data)
    seen = [x for b in batches for x in b[0].tolist()]
    assert sorted(seen) == list(range(10_000))
    assert (seen == list(range(10_000))) == (not shuffle)
    assert max(int(b[1].max()) for b in batches) <= 16 + max(workers, 4)


def test_pd_58_a_generator_is_closed_once_it_has_ended(provider_file: Any, tmp_path: Path) -> None:
    """With one lane one file is open besides the few that are read ahead: none stays suspended after its last item."""
    code = """
    now = most = 0

    @provider(input_types=[integer_value(100)], should_shuffle=False)
    def process(settings, filename):
        global now, most
        now += 1
        most = max(most, now)
        try:
            for i in range(50):
                yield most
        finally:
            now -= 1
    """
    with pydp2.load([str(i) for i in range(200)], provider_file(code), batch_size=1000, workers=1) as data:
        assert max(int(b[0].max()) for b in data) <= 1 + 4

"""The one wording for where something went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydp2.data.packers.normalise import bad_sample
from pydp2.errors import BadSample, FileCondemned, FormatError, ProviderError, RemoteError, provider_error
from pydp2.options.file_list import FileList
from pydp2.providers import user_error, with_location
from pydp2.providers.error_location import mismatch_text, remedy


def bad(slot: str = "", expected: str = "", got: str = "") -> BadSample:
    return BadSample("as it was", slot=slot, expected=expected, got=got)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (bad("label", "an int", "'x'"), "file a/b.txt, sample 7, slot label: expected an int, got 'x'"),
        (bad("slot 2", "an int", "'x'"), "file a/b.txt, sample 7, slot 2: expected an int, got 'x'"),
        (bad("all slots", "2 values", "3"), "file a/b.txt, sample 7, all slots: expected 2 values, got 3"),
        (bad(), "file a/b.txt, sample 7: as it was"),
        (ProviderError("it broke"), "file a/b.txt, sample 7: it broke"),
        (FileCondemned("three deaths"), "file a/b.txt, sample 7: three deaths"),
    ],
)
def test_file_and_sample_come_first_then_slot_expected_and_got(error: RemoteError, text: str) -> None:
    placed = with_location(error, "a/b.txt", 7)
    assert str(placed) == text
    assert type(placed) is type(error)


def test_a_placed_bad_sample_keeps_the_remedy_of_its_message() -> None:
    error = bad_sample("label", "an int in [0, 3)", None)
    text = "file f, sample 0, slot label: expected an int in [0, 3), got None; leave the sample out, or give a default"
    assert str(with_location(error, "f", 0)) == text
    assert f"file f, sample 0, slot label: {mismatch_text(error)}" == text


def test_a_placed_bad_sample_keeps_its_parts() -> None:
    placed = with_location(bad("label", "an int", "'x'"), "f", 0)
    assert (placed.slot, placed.expected, placed.got) == ("label", "an int", "'x'")


def test_a_placed_error_keeps_what_it_says_beside_its_text() -> None:
    assert with_location(FileCondemned("three deaths", sample_timeout=2.5), "f", 0).sample_timeout == 2.5
    placed = with_location(FormatError("cut off", file="a.rec", offset=7), "f", 0)
    assert (placed.file, placed.offset) == ("a.rec", 7)


def test_a_placed_provider_error_is_still_of_the_builtin_class() -> None:
    placed = with_location(provider_error("no such word", "KeyError"), "f", 3)
    assert isinstance(placed, ProviderError)
    assert isinstance(placed, KeyError)
    assert str(placed) == "file f, sample 3: no such word"


def test_what_the_user_raised_keeps_its_class_and_its_traceback() -> None:
    try:
        int("word")
    except ValueError as error:
        told = user_error(error, "f", 3)
    assert isinstance(told, ValueError)
    assert str(told).startswith("file f, sample 3: process raised ValueError\n\nTraceback (most recent call last):\n")
    assert 'int("word")' in str(told)


def test_our_own_words_about_process_are_only_placed() -> None:
    assert str(user_error(provider_error("must yield", "TypeError"), "f", 0)) == "file f, sample 0: must yield"


@pytest.mark.parametrize(("path", "hint"), [("no/such/file", True), ("/no/such/file", False)])
def test_a_relative_path_that_is_not_there_is_told_where_it_was_looked_up(path: str, hint: bool) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open(path).close()
    text = str(user_error(caught.value, "a.txt", 0))
    assert (f"; relative paths start at {Path.cwd()}, or where root= (--root) says" in text.splitlines()[0]) == hint


def text_of_missing(folder: Path, lines: str, entry: str) -> str:
    """What is said about ``entry`` of the list of these lines, which is not there."""
    path = folder / "a.list"
    path.write_text(lines)
    with pytest.raises(FileNotFoundError) as caught:
        open(entry).close()
    return str(user_error(caught.value, entry, 0, FileList.read(path, folder)))


@pytest.mark.parametrize("missing", ["my missing file.txt", '"d0.txt"', "d0.txt # a comment", "d0.txt\u00a0", "1.5"])
def test_a_list_of_which_one_line_is_a_file_does_not_look_like_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "looks like a file of data"
    assert hint in text_of_missing(tmp_path, f"d0.txt\n{missing}\n", missing)
    (tmp_path / "d0.txt").touch()
    text = text_of_missing(tmp_path, f"d0.txt\n{missing}\n", missing)
    assert hint not in text
    assert f"; relative paths start at {tmp_path}, or where root=" in text
    assert hint not in text_of_missing(tmp_path, f"{missing}\nd0.txt?part=0/2\n", missing)


def test_of_a_long_file_of_data_the_first_lines_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    looked: list[str] = []
    monkeypatch.setattr("os.path.lexists", lambda path: bool(looked.append(path)))
    lines = "".join(f"0.5 {i}\n" for i in range(10_000))
    assert "looks like a file of data" in text_of_missing(tmp_path, lines, "0.5 0")
    assert 0 < len(looked) <= 1000


def test_an_entry_that_is_a_pattern_without_files_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        open("docs-*.jsonl").close()
    text = str(user_error(caught.value, "docs-*.jsonl", 0, FileList.of(["docs-*.jsonl"], tmp_path)))
    assert f"; no file matched this pattern when the list was read, in {tmp_path}" in text


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "a b.txt?part=3/12"),
        FileNotFoundError("a b.txt?part=3/12"),
        OSError("unable to open file: name = 'a b.txt?part=3/12', errno = 2"),
    ],
    ids=["open", "text", "quoted"],
)
def test_a_provider_that_takes_a_part_for_a_file_is_told_how_to_take_it_apart(error: OSError) -> None:
    told = str(user_error(error, "a b.txt?part=3/12", 0, ["a b.txt?part=3/12"]))
    assert "'a b.txt?part=3/12' names part 3 of 12 of the file 'a b.txt': take it apart with name, part = " in told
    assert "relative paths" not in told


def test_a_file_that_is_missing_behind_a_part_is_not_explained_by_the_part() -> None:
    told = user_error(FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt?part=0/2", 0)
    assert "relative paths start at" in str(told)
    assert "split_entry" not in str(told)


def test_a_hook_that_opens_the_first_entry_is_told_of_its_part() -> None:
    error = FileNotFoundError(2, "No such file or directory", "a.txt?part=0/2")
    assert "split_entry" in remedy(error, ["a.txt?part=0/2", "a.txt?part=1/2"])
    impossible = FileNotFoundError(2, "No such file or directory", "a.txt?part=2/2")
    assert "split_entry" not in remedy(impossible, ["a.txt?part=2/2"])

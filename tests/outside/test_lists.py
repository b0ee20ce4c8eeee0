"""File lists as users write them: what is accepted, what warns, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pydp2.errors import ListError, OptionTypeError

from ..provider_code import lines
from ..runs import one_pass

ENTRIES = """
@provider(input_types=[integer_value(1 << 40)])
def process(settings, filename):
    '''Each entry as one number, so that what arrives says what process was given.'''
    yield int.from_bytes(filename.encode()[-5:], "big")
"""
LINES = lines()


def number(entry: str) -> int:
    return int.from_bytes(entry.encode()[-5:], "big")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\n\na\n\nb\n\n", ["a", "b"]),
        (b"with space\n lead and trail \n", ["with space", "lead and trail"]),
        (b"# a comment\na\n  # another\n", ["a"]),
        ("zürich\n日本\n".encode(), ["zürich", "日本"]),
        (b"a\nb\na\na\n", ["a", "b", "a", "a"]),
        (b"http://host/x?y=1#z\ns3://bucket/key\n", ["http://host/x?y=1#z", "s3://bucket/key"]),
        (b"no newline at the end", ["no newline at the end"]),
    ],
    ids=["CRLF", "BOM", "blank-lines", "spaces", "comments", "UTF-8", "duplicates", "URLs", "no-last-newline"],
)
def test_a_list_is_read_as_it_was_meant(
    text: bytes, entries: list[str], provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """Every entry reaches process as it stands in its line, blanks around it left out, duplicates as often as there."""
    (tmp_path / "train.list").write_bytes(text)
    seen = one_pass(tmp_path / "train.list", provider_file(ENTRIES))
    assert seen.error is None
    assert seen.samples == [number(entry) for entry in entries]


def test_an_empty_list_is_an_empty_pass_with_one_warning(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.list").write_text("\n")
    with pytest.warns(UserWarning, match=r"train\.list is empty: a pass over it has no samples") as caught:
        seen = one_pass(tmp_path / "train.list", provider_file(ENTRIES))
    assert (seen.batches, seen.error, len(caught)) == ([], None, 1)
    assert capfd.readouterr().err == ""


def test_a_python_list_may_be_empty_too(provider_file: Callable[[str], str]) -> None:
    with pytest.warns(UserWarning, match="the file list is empty"):
        assert one_pass([], provider_file(ENTRIES)).batches == []


def test_an_empty_file_has_no_samples(
    provider_file: Callable[[str], str], text_files: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """Wherever it stands among others, nothing is lost and nothing said."""
    files = text_files([[], [1, 2], [], [], [3], []])
    seen = one_pass(files, provider_file(LINES), batch_size=2)
    assert (seen.batches, seen.error) == ([[1, 2], [3]], None)
    assert capfd.readouterr().err == ""


def test_a_missing_list_is_named_with_the_folder_it_was_looked_up_in(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(ListError, match=rf"nowhere\.list is missing; relative names are looked up in {Path.cwd()}"):
        one_pass("nowhere.list", provider_file(ENTRIES))


def test_a_pattern_is_looked_up_where_entries_are(
    provider_file: Callable[[str], str], text_files: Callable[..., list[str]], tmp_path: Path
) -> None:
    files = text_files([[1, 2], [3], [4]])
    folder = Path(files[0]).parent
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.list").write_text(f"*{Path(files[0]).suffix}\n")
    assert one_pass(tmp_path / "lists" / "train.list", provider_file(LINES), root=folder).samples == [1, 2, 3, 4]
    with pytest.raises(ListError, match=r"train\.list, line 1: no file matches"):
        one_pass(tmp_path / "lists" / "train.list", provider_file(LINES), root=tmp_path / "lists")


@pytest.mark.parametrize("line", ["3;0 0 9 16", "0.5 1.5 2.5 " * 40], ids=["short", "longer-than-a-name"])
@pytest.mark.parametrize("where", ["process", "hook"])
def test_a_file_of_data_given_as_a_list_is_recognised(
    line: str, where: str, provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    code = LINES
    if where == "hook":
        hook = "def hook(settings, file_list, **kwargs):\n    open(file_list[0])\n\n"
        code = hook + lines("init_hook=hook")
    (tmp_path / "part-00.txt").write_text(f"{line}\n" * 10)
    with pytest.raises(OSError, match=where) as caught:
        raise one_pass(tmp_path / "part-00.txt", provider_file(code)).error or AssertionError("nothing was said")
    first = str(caught.value).splitlines()[0]
    path = tmp_path / "part-00.txt"
    assert f"; {path} looks like a file of data, not like a list of files: in Python its list is ['{path}']" in first


def test_a_missing_file_of_a_list_of_files_has_no_such_hint(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "train.list").write_text("data/part-00.txt\n")
    seen = one_pass(tmp_path / "train.list", provider_file(LINES))
    assert "relative paths start at" in seen.text
    assert "looks like" not in seen.text


def test_a_directory_in_a_list_says_how_to_have_its_files(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "train.list").write_text("data\n")
    seen = one_pass(tmp_path / "train.list", provider_file(LINES), root=tmp_path)
    assert isinstance(seen.error, IsADirectoryError)
    assert "it is a directory: write data/* into the list to have its files" in seen.text


def test_a_directory_is_no_list(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(ListError, match=rf"must be a file with one entry per line; {tmp_path} is a directory"):
        one_pass(tmp_path, provider_file(ENTRIES))


def test_a_list_that_is_not_utf8_is_refused_with_the_line(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "train.list").write_bytes(b"fine\nz\xfcrich\n")
    with pytest.raises(ListError, match=r"train\.list must be UTF-8; line 2 has the byte 0xfc"):
        one_pass(tmp_path / "train.list", provider_file(ENTRIES))


@pytest.mark.parametrize("files", [None, 3, b"bytes", [1, 2]])
def test_what_is_no_list_at_all_is_refused(files: object, provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionTypeError, match=r"file list|entries"):
        one_pass(files, provider_file(ENTRIES))  # type: ignore[arg-type]

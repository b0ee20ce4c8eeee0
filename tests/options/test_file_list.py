"""The file list: what a line may hold, what cannot be a list, and what a million entries take."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import ListError, OptionTypeError, RemoteProtocolError
from pydp2.options.file_list import FileList

# What an entry of a list file may be: any text without line feed and NUL that does not end in a carriage return, has
# no blanks around it, is no comment, has no star and does not begin with a byte order mark.
entry_text = st.text(st.characters(exclude_characters="\n\0*", codec="utf-8"), min_size=1).filter(
    lambda text: not text.endswith("\r") and text == text.strip(" \t") and not text.startswith(("#", "\ufeff"))
)
any_text = st.text(st.characters(codec="utf-8"))


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "train.list"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("data", "entries"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\r", ["a\r", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\r\n\xef\xbb\xbf\r\n\xef\xbb\xbf# c\n", ["a", "b"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa\n\xef\xbb\xbfs3://b\n\xef\xbb\xbf[x]", ["a", "s3://b", "[x]"]),
        ("a\ufeff\n\uff21\n\ufefek\n".encode(), ["a\ufeff", "\uff21", "\ufefek"]),
        (b"\n\na\n\n\r\nb\n\n", ["a", "b"]),
        (b" a b \n\tc\n  \n", ["a b", "c"]),
        (b"a\na\nb\na\n", ["a", "a", "b", "a"]),
        (b"# a comment\n\t#\nx # y\n", ["x # y"]),
        (b"https://host/a?b=c\ns3://bucket/*?\n", ["https://host/a?b=c", "s3://bucket/*?"]),
        (
            b"big.rec?part=3/12\ntable?shard=7\nwhat?\nkey[3]\n",
            ["big.rec?part=3/12", "table?shard=7", "what?", "key[3]"],
        ),
        ("数据/æøå\n\U0001f600\n".encode(), ["数据/æøå", "\U0001f600"]),
        ("a\u2028b\x0bc\x85\n".encode(), ["a\u2028b\x0bc\x85"]),
    ],
)
def test_pd_53_entries_are_lines_without_what_nobody_means(
    written: Callable[[bytes], Path], data: bytes, entries: list[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = FileList.read(written(data))
    assert list(files) == entries
    assert [files[i] for i in range(len(files))] == entries
    assert files == entries


NAMES = ["a.txt", "b.txt", "c10.txt", " blank", "#one", "x*.txt", "[y]", "z?", "parts*"]
"""Files of which some have names that would mean something else."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in [*NAMES, "deep/er/d.txt", "deep/e.txt", ".hidden.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_pd_53_a_line_that_is_the_name_of_a_file_is_an_entry_to_the_letter(folder: Path, name: str) -> None:
    listed = folder / "train.list"
    listed.write_text(f"{name}\n{name}?part=1/2\n{name}\t\n")
    assert FileList.read(listed, folder) == [name, f"{name}?part=1/2", name.strip()]


def test_a_name_that_begins_with_a_byte_order_mark_is_an_entry_to_the_letter(folder: Path) -> None:
    (folder / "\ufeffa.txt").touch()
    listed = folder / "train.list"
    listed.write_text("b.txt\n\ufeffa.txt\n\ufeffb.txt\n\ufeffb.txt?part=1/2\n\ufeffdeep/*\n")
    assert FileList.read(listed, folder) == ["b.txt", "\ufeffa.txt", "b.txt", "b.txt?part=1/2", "deep/e.txt"]


@pytest.mark.parametrize(
    ("line", "entries"),
    [
        ("?.txt", ["a.txt", "b.txt"]),
        ("[a-b].txt", ["a.txt", "b.txt"]),
        ("*.txt", ["a.txt", "b.txt", "c10.txt", "x*.txt"]),
        ("deep/*", ["deep/e.txt"]),
        ("deep/**", ["deep/e.txt", "deep/er/d.txt"]),
        ("**/d.txt", ["deep/er/d.txt"]),
        ("  deep/*.txt\t", ["deep/e.txt"]),
        ("{folder}/deep/*", ["{folder}/deep/e.txt"]),
        ("[c-d].txt", ["[c-d].txt"]),
    ],
)
def test_pd_53_a_pattern_is_the_files_that_match_it_sorted(folder: Path, line: str, entries: list[str]) -> None:
    """Relative to the folder that entries are relative to, wherever the list is."""
    (folder / "lists").mkdir()
    listed = folder / "lists" / "train.list"
    listed.write_text(f"first\n# a comment\n{line.format(folder=folder)}\nlast\n{line.format(folder=folder)}\n")
    expected = [entry.format(folder=folder) for entry in entries]
    files = FileList.read(listed, folder)
    assert files == ["first", *expected, "last", *expected]
    assert [files[i] for i in range(len(files))] == list(files)
    assert files.fingerprint() == FileList.of(list(files)).fingerprint(), "of the list as it is spelt out"


def test_pd_53_a_pattern_that_matches_no_file_is_an_error_that_names_the_line(folder: Path) -> None:
    listed = folder / "train.list"
    listed.write_bytes(b"\xef\xbb\xbfa.txt\r\n\r\n# parts\r\nparts-*.txt\r\n")
    with pytest.raises(ListError, match=rf"train\.list, line 4: no file matches 'parts-\*\.txt'.*in {folder}"):
        FileList.read(listed, folder)
    listed.write_text("deep*\n")
    with pytest.raises(ListError, match="no file matches"):
        FileList.read(listed, folder)


def test_a_pattern_that_matches_a_name_that_is_not_utf_8_is_an_error_that_names_list_line_and_pattern(
    folder: Path,
) -> None:
    try:
        (folder / os.fsdecode(b"odd-\xff.txt")).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    listed = folder / "train.list"
    listed.write_text("first\n# a comment\n*.txt\n")
    with pytest.raises(ListError) as caught:
        FileList.read(listed, folder)
    assert str(caught.value) == (
        f"the file list {listed}, line 3: entries must be UTF-8, and '*.txt' matches the file b'odd-\\xff.txt'; rename "
        "it, or write a pattern that leaves it out"
    )


def test_pd_53_a_missing_list_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.list"
    with pytest.raises(ListError, match=r"file list .*nowhere\.list is missing; .*looked up in") as caught:
        FileList.read(path)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("data", [b"", b"\n\r\n\n", b"\xef\xbb\xbf"])
def test_pd_53_an_empty_list_warns_and_has_no_entries(written: Callable[[bytes], Path], data: bytes) -> None:
    with pytest.warns(UserWarning, match=r"train\.list is empty: a pass over it has no samples"):
        files = FileList.read(written(data))
    assert len(files) == 0
    assert list(files) == []


def test_an_empty_python_list_warns_as_well() -> None:
    with pytest.warns(UserWarning, match="list is empty"):
        assert len(FileList.of([])) == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb\nc\xff\n", r"must be UTF-8; line 3 has the byte 0xff"),
        ("å\n".encode("latin-1"), r"must be UTF-8; line 1 has the byte 0xe5"),
        ("a\nb\n".encode("utf-16"), r"looks like UTF-16"),
        (b"a\nb\0c\n", r"line 2 has a NUL byte; if this is a file of data, its list is \['.*train.list'\] in Python"),
        (b"\x93NUMPY\x01", r"line 1 has the byte 0x93, .*; if this is a file of data, its list is \['"),
    ],
)
def test_what_is_no_utf8_text_is_refused_with_its_line(
    written: Callable[[bytes], Path], data: bytes, message: str
) -> None:
    with pytest.raises(ListError, match=message) as caught:
        FileList.read(written(data))
    assert "train.list" in str(caught.value)


def test_a_directory_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=rf"is a directory: write {tmp_path}/\* in its place to have"):
        FileList.read(tmp_path)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ListError, match="cannot have the name"):
        FileList.read("a\0b")


def test_a_path_through_a_file_cannot_be_read(written: Callable[[bytes], Path]) -> None:
    with pytest.raises(ListError, match="cannot be read: Not a directory"):
        FileList.read(written(b"a\n") / "below")


def test_python_entries_are_kept_as_they_are(tmp_path: Path) -> None:
    entries = ["a", "", " b\n", "c\0", "a"]
    assert list(FileList.of(entries)) == entries
    assert list(FileList.of([tmp_path / "x"])) == [str(tmp_path / "x")]


@pytest.mark.parametrize(
    ("entry", "entries"),
    [
        ("?.txt", ["a.txt", "b.txt"]),
        ("deep/**", ["deep/e.txt", "deep/er/d.txt"]),
        ("{folder}/deep/*", ["{folder}/deep/e.txt"]),
        ("x*.txt", ["x*.txt"]),
        ("parts*?part=1/2", ["parts*?part=1/2"]),
        ("s3://bucket/*.txt", ["s3://bucket/*.txt"]),
        ("SELECT * FROM t", ["SELECT * FROM t"]),
        ("[c-d].txt", ["[c-d].txt"]),
        (" *", [" *"]),
    ],
)
def test_an_entry_of_a_python_list_that_is_a_pattern_is_the_files_that_match_it(
    folder: Path, entry: str, entries: list[str]
) -> None:
    """A name of a file, a URL, and what matches no file stay as they are."""
    (folder / " blank").unlink()
    made = FileList.of(["first", entry.format(folder=folder), "last"], folder)
    assert made == ["first", *(each.format(folder=folder) for each in entries), "last"]
    assert FileList.of([Path("?.txt")], folder) == ["a.txt", "b.txt"]


@given(entries=st.lists(entry_text, min_size=1, max_size=5))
def test_entries_without_wildcards_are_kept_as_they_are_with_a_root_too(entries: list[str]) -> None:
    plain = [entry for entry in entries if not set(entry) & set("*?[")] or ["a"]
    assert FileList.of(plain, "/").fingerprint() == FileList.of(plain).fingerprint()


def test_a_pattern_with_a_part_is_that_part_of_each_file(folder: Path) -> None:
    parts = ["a.txt?part=1/2", "b.txt?part=1/2"]
    assert FileList.of(["[a-b].txt?part=1/2"], folder) == parts
    assert FileList.matching("[a-b].txt?part=1/2", folder) == parts
    (folder / "list").write_text("[a-b].txt?part=1/2\n")
    assert FileList.read(folder / "list", folder) == parts


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("~/data/*.txt", "~ stands for no folder here, os.path.expanduser(…) replaces it"),
        ("shards-{0,1}*.tar", "braces are no wildcards here: write *, or a list of all names"),
        ("shards-{000..099}.tar", "braces are no wildcards here: write *, or a list of all names"),
        ("~me/train.list", "~ stands for no folder here"),
    ],
)
def test_what_only_a_shell_understands_in_a_name_is_told(folder: Path, name: str, hint: str) -> None:
    with pytest.raises(ListError) as caught:
        (FileList.matching if "*" in name else FileList.read)(name, folder)
    assert hint in str(caught.value)
    if "*" in name:
        (folder / "list").write_text(name)
        with pytest.raises(ListError) as caught:
            FileList.read(folder / "list", folder)
        assert hint in str(caught.value)


@pytest.mark.parametrize("name", ["a{b}.list", "a~/b.list", "{" * 9999 + "." * 9999, "[x]{*"])
def test_other_braces_and_tildes_have_no_hint(folder: Path, name: str) -> None:
    with pytest.raises(ListError) as caught:
        FileList.read(folder / name)
    assert "no wildcards" not in str(caught.value)
    assert "expanduser" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"train": "a.txt"}, r"got a dict with the keys \['train'\]; choose one of its values"),
        (b"a.txt", "a path in a str or several entries, got one bytes: b'a.txt'"),
    ],
)
def test_a_dict_and_bytes_are_no_list(entries: object, words: str) -> None:
    with pytest.raises(OptionTypeError, match=words):
        FileList.of(entries)  # type: ignore[arg-type]


def test_a_pattern_in_place_of_a_list_must_match_a_file(folder: Path) -> None:
    assert FileList.matching("?.txt", folder) == ["a.txt", "b.txt"]
    with pytest.raises(ListError, match=rf"no file matches 'z-\*\.txt'; patterns are looked up in {folder}"):
        FileList.matching("z-*.txt", folder)


def test_a_pattern_that_matches_folders_alone_says_how_to_have_their_files(tmp_path: Path) -> None:
    (tmp_path / "pics/cat").mkdir(parents=True)
    (tmp_path / "pics/cat/1.png").write_bytes(b"")
    (tmp_path / "train.list").write_text("pics/*\n")
    says = r"no file matches 'pics/\*', only folders: write 'pics/\*/\*' to have the files in them"
    with pytest.raises(ListError, match=says):
        FileList.matching("pics/*", tmp_path)
    with pytest.raises(ListError, match=f"train.list, line 1: {says}"):
        FileList.read(tmp_path / "train.list", tmp_path)
    assert FileList.matching("pics/*/*", tmp_path) == ["pics/cat/1.png"]


def test_a_pattern_in_python_that_matches_a_name_that_is_not_utf_8_is_an_error_that_names_entry_and_pattern(
    folder: Path,
) -> None:
    try:
        (folder / os.fsdecode(b"odd-\xff.txt")).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    with pytest.raises(ListError, match=r"entry 1 of the file list: entries must be UTF-8, and 'odd-\*' matches"):
        FileList.of(["a.txt", "odd-*"], folder)
    with pytest.raises(ListError, match=r"the pattern odd-\*: entries must be UTF-8"):
        FileList.matching("odd-*", folder)


@pytest.mark.parametrize("wrong", ["train.list", b"a", Path("train.list")])
def test_one_string_is_not_a_list_of_entries(wrong: object) -> None:
    with pytest.raises(OptionTypeError, match="a path in a str or several entries, got one "):
        FileList.of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_has_no_order_and_is_refused(kind: Callable[[list[str]], set[str]]) -> None:
    with pytest.raises(
        OptionTypeError, match=r"must have an order, got a (frozen)?set, which has none; write sorted\(…\)"
    ):
        FileList.of(kind(["d0.txt", "d1.txt"]))
    assert list(FileList.of({"d1.txt": 1, "d0.txt": 2}.keys())) == ["d1.txt", "d0.txt"]


def test_an_entry_that_is_no_text_is_named() -> None:
    with pytest.raises(OptionTypeError, match="entry 1 of the file list must be a str, got int 3"):
        FileList.of(["a", 3])  # type: ignore[list-item]
    with pytest.raises(ListError, match=r"entry 0 .* cannot be written as UTF-8"):
        FileList.of(["\udc80"])


def test_it_is_a_sequence() -> None:
    files = FileList.of(["a", "bb", "ccc"])
    assert files[-1] == "ccc"
    assert files[1:] == ["bb", "ccc"]
    assert "bb" in files
    assert files.index("ccc") == 2
    assert list(reversed(files)) == ["ccc", "bb", "a"]
    with pytest.raises(IndexError, match="3 entries, asked for number 3"):
        files[3]
    with pytest.raises(IndexError):
        files[-4]
    assert files == ("a", "bb", "ccc")
    assert files != ["a", "bb"]
    assert files != "abc"
    assert repr(files) == "<FileList of 3: ['a', 'bb', 'ccc']>"
    assert "… 7 more" in repr(FileList.of(list("abcdefghij")))


def test_nobody_can_change_it() -> None:
    files = FileList.of(["a", "b"])
    with pytest.raises(ValueError, match="read-only"):
        files.offsets[0] = 1
    with pytest.raises(TypeError):
        files.blob[0] = 1


@given(st.lists(entry_text, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_what_is_written_line_by_line_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[str], end: str, bom: bool, last: bool
) -> None:
    text = end.join(entries) + (end if last else "")
    path = tmp_path_factory.mktemp("lists", numbered=True) / "l"
    path.write_bytes(text.encode("utf-8-sig" if bom else "utf-8"))
    assert list(FileList.read(path)) == entries


@given(st.lists(any_text, min_size=1))
def test_parts_give_the_same_list_back(entries: list[str]) -> None:
    files = FileList.of(entries)
    again = FileList.from_buffers(*files.to_buffers())
    assert again == files
    assert list(again) == entries
    assert again.fingerprint() == files.fingerprint()


@pytest.mark.parametrize(
    ("blob", "edges", "message"),
    [
        (b"ab", [], "at least one"),
        (b"ab", [1, 2], "rise from 0"),
        (b"ab", [0, 1], "rise from 0"),
        (b"ab", [0, 3], "rise from 0"),
        (b"abc", [0, 2, 1, 3], "rise from 0"),
        (b"ab", [0, -5, 2], "rise from 0"),
        (b"\xff", [0, 1], "must be UTF-8"),
        ("å".encode(), [0, 1, 2], "inside a character"),
    ],
)
def test_parts_that_cannot_be_are_refused(blob: bytes, edges: list[int], message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        FileList.from_buffers(blob, np.array(edges, "<i8").tobytes())
    with pytest.raises(RemoteProtocolError, match="8 bytes each"):
        FileList.from_buffers(b"a", b"1234567")


def test_the_fingerprint_tells_entries_order_and_cuts_apart() -> None:
    prints = {FileList.of(entries).fingerprint() for entries in (["ab", "c"], ["c", "ab"], ["a", "bc"], ["abc"])}
    assert len(prints) == 4
    assert all(len(text) == 32 for text in prints)


def test_the_fingerprint_is_that_of_the_entries_not_of_the_file(written: Callable[[bytes], Path]) -> None:
    assert FileList.read(written(b"\xef\xbb\xbfa\r\n\r\nb")).fingerprint() == FileList.of(["a", "b"]).fingerprint()


def test_a_million_entries_are_two_buffers(written: Callable[[bytes], Path]) -> None:
    files = FileList.read(written(b"".join(b"data/part-%07d\n" % i for i in range(1_000_000))))
    assert len(files) == 1_000_000
    assert files[999_999] == "data/part-0999999"
    assert files.blob.nbytes == 17_000_000
    assert files.offsets.nbytes == 8_000_008
    assert files.source is not None
    assert files.source.endswith("train.list")


@pytest.mark.parametrize("line", [b"data/part-%07d\n", b"big.rec?part=%d/1000000\n", b"s3://bucket/%d?version=*\n"])
def test_of_lines_that_are_entries_no_file_is_looked_for(
    written: Callable[[bytes], Path], line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = written(b"".join(line % i for i in range(1000)))

    def looked(*_: object, **__: object) -> bool:
        raise AssertionError("the file system was asked")

    monkeypatch.setattr("os.path.lexists", looked)
    monkeypatch.setattr("os.path.isdir", looked)
    monkeypatch.setattr("os.scandir", looked)
    assert len(FileList.read(listed)) == 1000


def test_the_fingerprint_of_plain_lines_is_as_it_was(written: Callable[[bytes], Path]) -> None:
    """States that were saved go on."""
    files = FileList.read(written(b"".join(b"data/part-%07d\n" % i for i in range(1000))))
    assert files.fingerprint() == "112798991ac56f3cd0f0c7546e0ed16f"

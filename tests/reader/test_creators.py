"""Where samples come from: arrays, text, commands, record files; and ``Fake``."""

from __future__ import annotations

import gzip
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError, OptionTypeError, ReaderError
from pydp2.formats import paddle_recordio
from pydp2.reader import Fake, PipeReader, np_array, recordio, text_file
from pydp2.reader.pipe import _PIECE
from tests.array_likes import KINDS
from tests.runs import wait_until

Numbers = Callable[..., Callable[[], Iterator[int]]]
TEXT = "first line\n\nthird: ä€😀\n" + "x" * 300 + "\nlast"


# -- Fake --------------------------------------------------------------------------------------------------------------
def test_rd_29_fake_gives_the_first_entry_in_ten_rounds_and_reads_once() -> None:
    read = []

    def source() -> Iterator[int]:
        for i in range(5):
            read.append(i)
            yield i

    fake = Fake()(source, 100)
    left = iter(fake())
    assert [next(left), next(left)] == [0, 0]
    assert [list(fake()) for _ in range(10)] == [[0] * 100] * 10
    assert read == [0]
    assert list(Fake()(list, 3)()) == []


# -- arrays and text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_np_array_takes_what_exports_its_numbers(kind: Any) -> None:
    assert [row.tolist() for row in np_array(kind(np.arange(4.0).reshape(2, 2)))()] == [[0, 1], [2, 3]]


def test_rd_32_np_array_gives_rows_numbers_and_one_entry_of_an_array_without_dimensions() -> None:
    matrix = np.arange(6).reshape(3, 2)
    assert [row.tolist() for row in np_array(matrix)()] == [[0, 1], [2, 3], [4, 5]]
    assert list(np_array(np.arange(4))()) == [0, 1, 2, 3]
    assert [part.shape for part in np_array(np.zeros((2, 3, 4)))()] == [(3, 4), (3, 4)]
    assert list(np_array(np.array(7))()) == [7]
    assert [row.tolist() for row in np_array([[1, 2]])()] == [[1, 2]]


def test_rd_33_text_file_gives_lines_without_breaks_and_opens_the_file_at_each_call(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("0 1\n2 3\r\n\n4 5", "utf-8")
    lines = text_file(path)
    assert list(lines()) == ["0 1", "2 3", "", "4 5"]
    path.write_text("other\n", "utf-8")
    assert list(lines()) == ["other"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(lines())


def test_rd_33_a_line_ends_at_a_line_feed_alone_and_a_byte_order_mark_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffä\r\nb\rc\x0b\x85\u2028d\n\r\r\ne\r".encode())
    assert list(text_file(path)()) == ["ä", "b\rc\x0b\x85\u2028d", "\r", "e\r"]
    assert next(iter(text_file(path, encoding="utf-8")())) == "\ufeffä"
    path.write_bytes("a\r\nb\n".encode("utf-16"))
    assert list(text_file(path, encoding="utf-16")()) == ["a", "b"]


def test_what_is_no_text_is_named_with_its_file_or_command(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"good\n\xff\n")
    with pytest.raises(UnicodeDecodeError, match=r"file .*latin.txt, line 2\)"):
        list(text_file(path)())
    with pytest.raises(UnicodeDecodeError, match=r"in the output of 'cat .*latin.txt'"):
        list(PipeReader(f"cat {path}").get_line())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "shift_jis"])
@pytest.mark.parametrize("good", [0, 1, 3, 20_000])
def test_lines_before_what_is_no_text_come_and_the_line_is_named(
    encoding: str, good: int, tmp_path: Path, until_error: Any
) -> None:
    bad = {"utf-16": "\udc00x\n".encode("utf-16-le", "surrogatepass")}.get(encoding, b"\xff\n")
    path = tmp_path / "some.txt"
    lines = [f"line {i:06d} ア" for i in range(good)]
    path.write_bytes("".join(f"{line}\n" for line in [*lines, "half "])[:-1].encode(encoding) + bad * 3)
    got, error = until_error(text_file(path, encoding=encoding)())
    assert got == lines
    assert isinstance(error, UnicodeDecodeError)
    assert f"(file {path}, line {good + 1})" in str(error)
    for size in (1, 3, 1 << 16) if good < 100 else (1 << 16,):
        got, error = until_error(PipeReader(f"cat {path}", size, encoding=encoding).get_line())
        assert got == lines
        assert isinstance(error, UnicodeDecodeError)
        assert f"in the output of 'cat {path}'" in str(error)


def test_a_text_that_ends_within_a_character_gives_its_lines_first(tmp_path: Path, until_error: Any) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(b"a\nb\n\xe2\x82")
    for reader in (text_file(path), PipeReader(f"cat {path}", 2).get_line):
        got, error = until_error(reader())
        assert got == ["a", "b"]
        assert isinstance(error, UnicodeDecodeError)


@pytest.mark.parametrize("size", [64, 8192])
def test_lines_before_the_damage_of_gzip_come_first(size: int, tmp_path: Path, until_error: Any) -> None:
    path = tmp_path / "some.gz"
    lines = [f"{i * i}" for i in range(2000)]
    packed = gzip.compress("".join(f"{line}\n" for line in lines).encode())
    half = len(packed) // 2
    path.write_bytes(packed[:half] + bytes(4) + packed[half + 4 :])
    got, error = until_error(PipeReader(f"cat {path}", size, "gzip").get_line())
    assert isinstance(error, ReaderError)
    assert got[:500] == lines[:500]
    path.write_bytes(packed + b"garbage")
    got, error = until_error(PipeReader(f"cat {path}", size, "gzip").get_line())
    assert isinstance(error, ReaderError)
    assert got == lines


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [(5, OptionTypeError), (None, OptionTypeError), ("no such", OptionError), ("hex", OptionError)],
)
def test_what_is_no_encoding_of_text_is_refused_at_once(encoding: Any, kind: type[Exception]) -> None:
    for make in (lambda: PipeReader("cat", encoding=encoding), lambda: text_file("a.txt", encoding=encoding)):
        with pytest.raises(kind, match="encoding must be the name of one"):
            make()


def test_what_is_no_path_is_refused_when_the_reader_is_made() -> None:
    for wrong in (123, None, b"abc"):
        with pytest.raises(OptionTypeError, match="path must be the path of a file"):
            text_file(wrong)  # type: ignore[arg-type]
    for wrong in (b"abc", [5], [b"abc"], None):
        with pytest.raises(OptionTypeError, match=r"paths must be|path 0 of paths must be"):
            recordio(wrong)  # type: ignore[arg-type]


# -- commands ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def test_rd_26_the_lines_of_a_command_come_without_breaks_whatever_the_pieces(text: Path) -> None:
    for size in (1, 2, 3, 128, 8192):
        assert list(PipeReader(f"cat {text}", bufsize=size).get_line()) == TEXT.split("\n")


def test_the_method_is_a_reader(text: Path) -> None:
    lines = PipeReader(f"cat  {text}").get_line
    assert list(lines()) == list(lines()) == TEXT.split("\n")


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("size", [1, 128, 1 << 16])
def test_rd_27_gzip_is_unpacked_also_in_several_members(tmp_path: Path, size: int, members: int) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(b"".join(gzip.compress(f"{i} {TEXT}\n".encode()) for i in range(members)))
    lines = list(PipeReader(f"cat {path}", size, "gzip").get_line())
    assert lines == [line for i in range(members) for line in f"{i} {TEXT}".split("\n")]


def test_rd_27_what_is_no_command_and_unknown_types_are_type_errors() -> None:
    for wrong in (["cat", "x"], None, "", "  "):
        with pytest.raises(OptionTypeError, match="command must be a text"):
            PipeReader(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="file_type must be 'plain' or 'gzip', got 'zip'"):
        PipeReader("cat x", file_type="zip")
    with pytest.raises(OptionError, match="bufsize must be at least 1"):
        PipeReader("cat x", 0)
    with pytest.raises(OptionTypeError, match="line_break"):
        PipeReader("cat x").get_line(line_break="")


def test_rd_28_a_last_line_without_break_comes_too(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    for content, lines in (("a\nb", ["a", "b"]), ("a\nb\n", ["a", "b"]), ("", []), ("\n", [""]), ("a", ["a"])):
        path.write_text(content)
        assert list(PipeReader(f"cat {path}", 128).get_line()) == lines


@given(st.text(), st.integers(1, 40), st.sampled_from(["\n", "ab", "||"]))
def test_lines_are_those_of_the_whole_text_wherever_it_is_cut(content: str, size: int, line_break: str) -> None:
    content = content.encode("utf-8", "ignore").decode()
    raw = content.encode()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]

    class Given(PipeReader):
        def _unpacked(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
            return iter(pieces)

    whole = content.split(line_break)
    assert list(Given("true").get_line(line_break=line_break)) == (whole if whole[-1] else whole[:-1])
    assert "".join(Given("true").get_line(cut_lines=False)) == content


def test_a_long_line_takes_time_in_proportion_to_its_length() -> None:
    class Given(PipeReader):
        def _unpacked(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
            return iter([b"x" * 1000] * self.pieces)

    def seconds(pieces: int) -> float:
        given = Given("true")
        given.pieces = pieces  # type: ignore[attr-defined]
        began = time.process_time()
        (line,) = given.get_line(line_break="\r\n")
        assert len(line) == 1000 * pieces
        return time.process_time() - began

    few = min(seconds(500) for _ in range(3))
    assert seconds(8000) < 100 * few  # 16 times as long; where each piece copies what came before it, 256 times


def test_a_command_may_print_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\xe4\n\xff")
    assert list(PipeReader(f"cat {path}", encoding="latin-1").get_line()) == ["ä", "ÿ"]
    with pytest.raises(OptionError, match="encoding must be"):
        PipeReader("cat", encoding="no such")


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_zeros_behind_gzip_are_no_part_of_it(tmp_path: Path, size: int) -> None:
    path = tmp_path / "padded.gz"
    one = gzip.compress(b"a\nb\n")
    path.write_bytes(one + bytes(512) + one + bytes(100))
    assert list(PipeReader(f"cat {path}", size, "gzip").get_line()) == ["a", "b"] * 2
    path.write_bytes(bytes(4) + one)
    with pytest.raises(ReaderError, match="is no gzip"):
        list(PipeReader(f"cat {path}", size, "gzip").get_line())


def test_without_cutting_the_pieces_make_up_the_output(text: Path) -> None:
    pieces = list(PipeReader(f"cat {text}", 128).get_line(cut_lines=False))
    assert "".join(pieces) == TEXT
    assert len(pieces) > 2


def test_a_command_that_fails_is_an_error_behind_what_it_gave(text: Path, until_error: Any) -> None:
    got, error = until_error(PipeReader(f"cat {text} {text}.gone").get_line())
    assert got == TEXT.split("\n")[:-1]
    assert isinstance(error, ReaderError)
    assert "ended with exit code 1" in str(error)
    with pytest.raises(FileNotFoundError):
        list(PipeReader("no-such-command-anywhere x").get_line())


@pytest.mark.parametrize("cut", [5, 60, -1, -9])
def test_gzip_that_is_cut_off_is_an_error(tmp_path: Path, cut: int, until_error: Any) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(os.urandom(200).hex().encode())[:cut])
    _, error = until_error(PipeReader(f"cat {path}", file_type="gzip").get_line())
    assert isinstance(error, ReaderError)
    assert "ends within its gzip" in str(error)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ReaderError, match="is no gzip"):
        list(PipeReader(f"cat {path}", file_type="gzip").get_line())


def test_gzip_is_unpacked_a_piece_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "large.gz"
    path.write_bytes(gzip.compress(bytes(1 << 23)))
    pieces = list(PipeReader(f"cat {path}", 1 << 20, "gzip").get_line(cut_lines=False))
    assert sum(map(len, pieces)) == 1 << 23
    assert max(map(len, pieces)) <= _PIECE


def test_a_command_ends_with_the_pass_that_is_left() -> None:
    lines = PipeReader("yes").get_line()
    assert next(lines) == "y"
    lines.close()  # type: ignore[attr-defined]  # that its process is gone is looked at after each test


# -- record files ------------------------------------------------------------------------------------------------------
def test_rd_34_the_sample_file_as_path_list_and_pattern(shared_data: Path) -> None:
    path = shared_data / "paddle" / "test_reader_recordio.dat"
    for given_as in (str(path), path, [path], [str(path)], str(path.parent / "test_reader_rec*.dat"), f"{path},"):
        assert list(recordio(given_as)()) == [(1, 2, 3), (4, 5, 6)]
    assert list(recordio(f"{path}, {path}", buf_size=1)()) == [(1, 2, 3), (4, 5, 6)] * 2
    raw = shared_data / "paddle" / "test_recordio_creator.dat"
    assert list(recordio(raw, decode=bytes)()) == [str(i).encode() for i in range(10)]


def written(path: Path, records: list[bytes]) -> Path:
    with paddle_recordio.Writer(path) as writer:
        for record in records:
            writer.write(record)
    return path


def test_rd_34_records_of_several_files_come_in_the_order_of_names(tmp_path: Path) -> None:
    for name in "cab":
        written(tmp_path / f"{name}.rec", [name.encode(), b"2"])
    got = list(recordio(str(tmp_path / "*.rec"), decode=lambda record: record.decode())())
    assert got == ["a", "2", "b", "2", "c", "2"]


def test_a_record_that_is_not_plain_is_named_with_its_file(tmp_path: Path, until_error: Any) -> None:
    path = written(tmp_path / "two.rec", [b"I7\n.", b"cos\nsystem\n(S'touch /tmp/never'\ntR."])
    got, error = until_error(recordio(path)())
    assert got == [7]
    assert isinstance(error, FormatError)
    assert f"file {path}, record 1: the pickle names os.system" in str(error)
    assert error.file == str(path)


def test_rd_1_each_call_of_what_creators_make_begins_anew(text: Path, tmp_path: Path) -> None:
    lines, records = TEXT.split("\n"), [b"1", b"2", b"3"]
    path = written(tmp_path / "some.rec", records)
    for reader, entries in (
        (np_array([1, 2, 3]), [1, 2, 3]),
        (text_file(text), lines),
        (PipeReader(f"cat {text}").get_line, lines),
        (recordio(path, decode=bytes), records),
    ):
        begun = iter(reader())  # type: ignore[operator]
        assert next(begun) == entries[0]
        assert [list(reader()), list(reader())] == [entries] * 2  # type: ignore[operator]
        assert list(begun) == entries[1:]


def test_what_a_decoder_raises_has_file_and_record_in_its_notes(tmp_path: Path) -> None:
    path = written(tmp_path / "two.rec", [b"1", b"x"])
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(recordio(path, decode=int)())
    assert caught.value.__notes__ == [f"file {path}, record 1"]


def test_paths_without_a_file_and_what_is_no_path_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="as a pattern it matches no file"):
        list(recordio(str(tmp_path / "*.rec"))())
    for wrong in ("", [], " , "):
        with pytest.raises(OptionError, match="at least one file"):
            recordio(wrong)
    with pytest.raises(OptionTypeError, match="paths must be"):
        recordio(5)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="decode must be"):
        recordio("x", decode="json")  # type: ignore[arg-type]


def test_a_pass_over_records_that_is_left_closes_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "many.rec", [b"I%d\n." % i for i in range(1000)])
    records = recordio(path, 4)()
    assert next(records) == 0  # type: ignore[call-overload]
    records.close()  # type: ignore[attr-defined]
    assert wait_until(lambda: not any(each.name.startswith("pydp2") for each in threading.enumerate()))

"""File readers: what is checked of each instance, tags, the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.errors import BadSample, OptionError, OptionTypeError
from pydp2.fluid.files import format_of

from .conftest import SHAPES, flat, rest


def reader(instance: Any, shapes: Any, **declared: Any) -> fluid.Reader:
    """A file of one good instance and then ``instance``."""

    @fluid.register_file_reader("two", replace=True)
    def read(filename: str, shapes: Any) -> Any:
        yield instance
        yield instance

    return fluid.FileReader("some/file.two", shapes, **declared)


IMAGE = (np.zeros((4, 3, 8), np.float32), np.zeros((4, 1), np.int64))


@pytest.mark.parametrize("shapes", [[[4, 3, 8], [4, 1]], [[-1, 3, 8], [-1, 1]], [[-1, -1, -1], [-1, -1]]])
def test_cf_4_a_dimension_of_minus_one_matches_anything(shapes: Any) -> None:
    assert len(list(reader(IMAGE, shapes))) == 2


@pytest.mark.parametrize(
    ("shapes", "slot", "expected", "got"),
    [
        ([[-1, 3, 8]], "all slots", "1 slot", "2"),
        ([[-1, 3, 8], [-1, 1], [-1]], "all slots", "3 slots", "2"),
        ([[-1, 3], [-1, 1]], "slot 0", "2 dimensions [-1, 3]", "[4, 3, 8]"),
        ([[-1, 3, 8], [-1]], "slot 1", "1 dimension [-1]", "[4, 1]"),
        ([[-1, 3, 9], [-1, 1]], "slot 0", "shape [-1, 3, 9]", "[4, 3, 8]"),
        ([[5, 3, 8], [-1, 1]], "slot 0", "shape [5, 3, 8]", "[4, 3, 8]"),
        ([[-1, 3, 8], [-1, 0]], "slot 1", "shape [-1, 0]", "[4, 1]"),
    ],
)
def test_cf_4_a_file_reader_refuses_other_slots_ranks_and_dimensions(
    shapes: Any, slot: str, expected: str, got: str
) -> None:
    with pytest.raises(BadSample, match=r"file some/file.two, sample 0, ") as caught:
        reader(IMAGE, shapes).read_next()
    assert (caught.value.slot, caught.value.expected, caught.value.got) == (slot, expected, got)


def test_cf_4_the_instance_is_named_by_its_number() -> None:
    @fluid.register_file_reader("grows")
    def read(filename: str, shapes: Any) -> Any:
        for n in range(1, 5):
            yield [np.zeros((1, min(n, 3)))]

    with pytest.raises(BadSample, match=r"file x.grows, sample 1, slot 0: expected shape \[-1, 1\], got \[1, 2\]"):
        list(fluid.FileReader("x.grows", [[-1, 1]]))


def test_dtypes_and_levels_of_lod_are_checked_where_they_are_declared() -> None:
    shapes = [[-1, 3, 8], [-1, 1]]
    assert list(reader(IMAGE, shapes, dtypes=["float32", np.int64], lod_levels=[0, 0]))
    with pytest.raises(BadSample, match="slot 1: expected int32, got int64"):
        reader(IMAGE, shapes, dtypes=["float32", "int32"]).read_next()
    with pytest.raises(BadSample, match="slot 1: expected 1 level of LoD, got 0"):
        reader(IMAGE, shapes, lod_levels=[0, 1]).read_next()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"shapes": []}, "one shape for each slot, got none"),
        ({"shapes": [[]]}, "slot 0 must have at least one dimension"),
        ({"shapes": [[-2]]}, "a dimension of slot 0 must be at least -1"),
        ({"shapes": "text"}, "shapes must be a list of shapes"),
        ({"shapes": [3]}, "the shape of slot 0 must be a list"),
        ({"shapes": [[1.5]]}, "a dimension of slot 0 must be a whole number"),
        ({"shapes": [[1]], "lod_levels": [0, 0]}, "lod_levels must be a list with one entry for each of the 1 shapes"),
        ({"shapes": [[1]], "lod_levels": [-1]}, "a LoD level must be at least 0"),
        ({"shapes": [[1]], "lod_levels": 0}, "lod_levels must be a list with one entry"),
        ({"shapes": [[1]], "dtypes": "float32"}, "dtypes must be a list"),
        ({"shapes": [[1]], "dtypes": ["floats"]}, "dtypes must be dtypes of numpy"),
    ],
)
def test_declarations_that_cannot_be_are_refused_at_once(declared: Any, message: str) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=message):
        fluid.FileReader("x.nums", **declared)
    with pytest.raises((OptionError, OptionTypeError), match=message):
        fluid.open_files("x.nums", **declared)


@pytest.mark.parametrize("name", ["a.nums", "/b.c/a.b.nums", "nums:a", "nums:/x/y.recordio", "x:y.nums"])
def test_cf_5_the_tag_is_the_text_after_the_last_dot_or_said_before_a_colon(name: str) -> None:
    read, path = format_of(name)
    assert read is format_of("z.nums")[0]
    assert path == name.removeprefix("nums:")


@pytest.mark.parametrize("name", ["data", "/folder.nums/data", "data.", "", "recordio", "other:data"])
def test_cf_5_a_name_without_a_dot_is_no_legal_name(name: str) -> None:
    with pytest.raises(OptionError, match=r"not a valid name: .*as in 'data.recordio'"):
        fluid.open_files(name, SHAPES)


@pytest.mark.parametrize("name", ["a.unknown", "a.nums.gz", "a.NUMS", "/x.nums/a.b"])
def test_cf_5_a_tag_that_nobody_registered_is_another_error(name: str) -> None:
    with pytest.raises(OptionError, match=r"no file reader is registered for '\w+', .*there are: nums, recordio"):
        fluid.FileReader(name, SHAPES)


def test_cf_6_open_files_uses_a_format_that_was_registered(tmp_path: Path) -> None:
    @fluid.register_file_reader("words")
    def read(filename: str, shapes: Any) -> Any:
        assert shapes == ((-1, 1),)
        for line in Path(filename).read_text().splitlines():
            yield fluid.LoDTensor([[len(word)] for word in line.split()], [[0, len(line.split())]])

    (tmp_path / "a.words").write_text("one three five\nfour\n")
    with fluid.open_files(str(tmp_path / "a.words"), SHAPES, lod_levels=[1]) as opened:
        assert [np.asarray(value).ravel().tolist() for (value,) in opened] == [[3, 5, 4], [4]]


def test_cf_6_a_class_of_readers_is_a_format_too(nums: Any) -> None:
    """The original registers classes whose constructor takes the file and the shapes; each is closed after its file."""
    closed = []

    @fluid.register_file_reader("twice")
    class Twice(fluid.DecoratedReader):
        def __init__(self, filename: str, shapes: Any) -> None:
            super().__init__(fluid.FileReader(filename, shapes))

        def _read(self) -> Any:
            (value,) = self.underlying.read_next()
            return (value.with_data(np.asarray(value) * 2),)

        def close(self) -> None:
            super().close()
            closed.append(True)

    with fluid.open_files([f"twice:{name}" for name in nums(3, 2)], SHAPES) as opened:
        assert sorted(flat(opened)) == [0, 2, 4, 6, 8]
    assert closed == [True, True]


def test_a_tag_is_taken_once_unless_it_is_replaced() -> None:
    with pytest.raises(OptionError, match="'nums' have a reader already; give replace=True"):
        fluid.register_file_reader("nums")
    for tag in ("", "a.b", "a:b", "a/b", 5):
        with pytest.raises(OptionError, match="a tag must be a word"):
            fluid.register_file_reader(tag)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="must be called with a filename"):
        fluid.register_file_reader("new")("text")  # type: ignore[type-var]


def test_a_file_is_open_only_while_it_is_read(nums: Any) -> None:
    """The watch over descriptors of every test looks at the rest."""
    held = fluid.FileReader(nums(5)[0], SHAPES)
    assert flat([held.read_next()]) == [0]
    held.reinit()
    assert rest(held) == [*range(5)]
    held.reinit()
    held.read_next()
    held.close()


def test_a_file_that_is_missing_is_told_when_it_is_read(tmp_path: Path) -> None:
    missing = fluid.FileReader(str(tmp_path / "none.nums"), SHAPES)
    with pytest.raises(FileNotFoundError, match=r"none\.nums"):
        missing.read_next()

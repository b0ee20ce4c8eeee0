"""RecordIO files of instances: written, split, read again, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.fluid.content import encode
from pydp2.formats import paddle_recordio

from .conftest import SHAPES, flat, numbers


@given(st.integers(0, 25), st.integers(1, 8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_every_file_has_exactly_as_many_records_as_asked_and_the_last_the_rest(
    tmp_path: Path, count: int, size: int
) -> None:
    names = fluid.convert_reader_to_recordio_files(str(tmp_path / "n.recordio"), size, numbers(*range(count)))
    assert [Path(name).name for name in names] == [f"n-{i:05d}.recordio" for i in range(-(-count // size))]
    sizes = [len(list(paddle_recordio.read(name))) for name in names]
    assert sizes == [min(size, count - first) for first in range(0, count, size)]
    if names:
        with fluid.open_files(names, SHAPES, is_test=True) as reader:
            assert flat(reader) == [*range(count)]


@pytest.mark.parametrize("compressor", ["none", "snappy"])
def test_lods_and_dtypes_come_back_in_chunks_of_any_size(tmp_path: Path, compressor: Any) -> None:
    path = str(tmp_path / "words.recordio")

    def source() -> Any:
        for n in range(1, 8):
            yield fluid.LoDTensor(np.arange(n).reshape(n, 1), [[0, n]]), np.full((1, 2), n, np.float16)

    count = fluid.convert_reader_to_recordio_file(path, source, compressor=compressor, max_num_records=3)
    assert count == 7
    with paddle_recordio.Reader(path) as file:
        assert file.layout == "fluid"
        assert [chunk.records for chunk in file.chunks()] == [3, 3, 1]
    reader = fluid.open_recordio_file(path, [[-1, 1], [1, 2]], [1, 0], ["int64", "float16"], pass_num=2)
    found = list(reader)
    assert [np.asarray(words).ravel().tolist() for words, _ in found] == [list(range(n)) for n in range(1, 8)] * 2
    assert [words.lod[0].tolist() for words, _ in found] == [[0, n] for n in range(1, 8)] * 2


def test_files_of_the_other_layout_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "go.recordio"
    records = [encode((fluid.LoDTensor(np.array([[n]])),)) for n in range(5)]
    paddle_recordio.write(str(path), records, layout="go", packing="gzip")
    assert flat(fluid.FileReader(str(path), SHAPES)) == [*range(5)]


def test_a_feeder_makes_instances_of_entries(tmp_path: Path) -> None:
    path = str(tmp_path / "a.recordio")

    def feeder(entry: Any) -> Any:
        number, text = entry
        return np.array([[number + len(text)]]), np.array([[1.0]])

    assert fluid.convert_reader_to_recordio_file(path, lambda: iter([(1, "ab"), (2, "c")]), feeder) == 2
    assert flat(fluid.open_recordio_file(path, [[1, 1], [1, 1]])) == [3, 3]


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    def source() -> Any:
        yield (np.zeros((1, 1)),)
        raise KeyError("broken")

    for convert in (
        lambda: fluid.convert_reader_to_recordio_file(str(tmp_path / "a.recordio"), source),
        lambda: fluid.convert_reader_to_recordio_files(str(tmp_path / "a.recordio"), 5, source),
    ):
        with pytest.raises(KeyError, match="broken"):
            convert()
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="slot 0: a record holds"):
        fluid.convert_reader_to_recordio_file(str(tmp_path / "a.recordio"), lambda: iter([(np.zeros(1, "u4"),)]))
    assert list(tmp_path.iterdir()) == []


def test_two_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    """The second begins and ends while the first one writes, in the same process."""
    path = str(tmp_path / "a.recordio")

    def source() -> Any:
        for n in range(5):
            yield (np.array([[n]]),)
            assert fluid.convert_reader_to_recordio_file(path, numbers(10 + n), max_num_records=1) == 1
            assert flat(fluid.open_recordio_file(path, SHAPES)) == [10 + n]

    assert fluid.convert_reader_to_recordio_file(path, source, max_num_records=1) == 5
    assert flat(fluid.open_recordio_file(path, SHAPES)) == [*range(5)]
    assert [file.name for file in tmp_path.iterdir()] == ["a.recordio"]


def test_a_name_by_which_it_would_be_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"there already")
    with pytest.raises(OptionError, match=rf"^{tmp_path}/a\.gz: this format is not read as gzip; take a name"):
        fluid.convert_reader_to_recordio_file(str(tmp_path / "a.gz"), numbers(1))
    assert (tmp_path / "a.gz").read_bytes() == b"there already"


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name in ("there", "not-yet"):
        (tmp_path / name).symlink_to(f"far/{name}")
    (tmp_path / "far" / "there").write_bytes(b"old")
    for name in ("there", "not-yet"):
        assert fluid.convert_reader_to_recordio_file(str(tmp_path / name), numbers(1, 2)) == 2
        assert (tmp_path / name).is_symlink()
        assert flat(fluid.open_recordio_file(str(tmp_path / "far" / name), SHAPES)) == [1, 2]
    assert sorted(file.name for file in (tmp_path / "far").iterdir()) == ["not-yet", "there"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    name = str(tmp_path / "a.recordio")
    with pytest.raises(OptionError, match=r"must end with \.recordio"):
        fluid.convert_reader_to_recordio_files(str(tmp_path / "a.txt"), 5, numbers(1))
    with pytest.raises(OptionError, match="batch_per_file must be at least 1"):
        fluid.convert_reader_to_recordio_files(name, 0, numbers(1))
    with pytest.raises(OptionError, match="readers of the fluid layout cannot read gzip"):
        fluid.convert_reader_to_recordio_file(name, numbers(1), compressor="gzip")
    with pytest.raises(OptionTypeError, match="a feeder must give"):
        fluid.convert_reader_to_recordio_file(name, numbers(1), lambda entry: None)
    with pytest.raises(OptionError, match="got None"):
        fluid.convert_reader_to_recordio_file(name, None)  # type: ignore[arg-type]


def test_a_record_that_is_no_instance_is_told_with_file_record_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.recordio"
    good = encode((fluid.LoDTensor(np.array([[5]])),))
    paddle_recordio.write(str(path), [good, b"\x01\0\0\0" + b"\x07" * 30], layout="fluid")
    reader = fluid.FileReader(str(path), SHAPES)
    assert flat([reader.read_next()]) == [5]
    with pytest.raises(FormatError, match=r"a\.recordio, record 1, in the chunk at byte 0: at byte 4 of the rec") as e:
        reader.read_next()
    assert (e.value.file, e.value.offset) == (str(path), 0)


def test_records_of_the_original_that_hold_no_tensors_are_told(shared_data: Path) -> None:
    reader = fluid.FileReader(f"recordio:{shared_data / 'paddle/test_recordio_creator.dat'}", SHAPES)
    with pytest.raises(FormatError, match=r"record 0, .* the number of tensors needs 4 bytes, 1 are left"):
        reader.read_next()

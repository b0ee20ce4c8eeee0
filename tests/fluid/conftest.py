"""Sources of known instances, and every kind of reader over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.fluid import files

SHAPES = [[-1, 1]]


def numbers(*values: int) -> Callable[[], Iterator[Any]]:
    """A callable that gives one instance for each value: a row with this number."""
    return lambda: iter([(np.array([[value]], np.int64),) for value in values])


def flat(instances: Iterable[Any]) -> list[int]:
    """The numbers of all rows of the first slot."""
    return [int(value) for instance in instances for value in np.asarray(instance[0]).ravel()]


def rest(reader: fluid.Reader) -> list[int]:
    """What is left of the present pass, read as the original is: has_next, then read_next."""
    found = []
    while reader.has_next():
        found.append(reader.read_next())
    return flat(found)


@pytest.fixture(autouse=True)
def _formats_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten; ``.nums`` files have one number a line."""
    monkeypatch.setattr(files, "_FORMATS", dict(files._FORMATS))

    @fluid.register_file_reader("nums")
    def read(filename: str, shapes: Any) -> Iterator[Any]:
        with open(filename) as lines:
            for line in lines:
                yield (np.array([[int(line)]], np.int64),)


@pytest.fixture
def nums(tmp_path: Path) -> Callable[..., list[str]]:
    """``nums(3, 0, 2)`` writes files with so many numbers each, counted through all files; their names."""

    def write(*sizes: int) -> list[str]:
        names = []
        for i, size in enumerate(sizes):
            path = tmp_path / f"part-{i:05d}.nums"
            first = sum(sizes[:i])
            path.write_text("".join(f"{n}\n" for n in range(first, first + size)))
            names.append(str(path))
        return names

    return write


def _ctr(names: list[str], tmp_path: Path) -> fluid.Reader:
    """The same numbers as click logs: the ids come first, so the first slot has them."""
    logs = []
    for name in names:
        log = tmp_path / f"{Path(name).stem}.svm"
        log.write_text("".join(f"1 {line}:s\n" for line in Path(name).read_text().split()))
        logs.append(str(log))
    return fluid.ctr_reader(logs, batch_size=1, slots=["s"], thread_num=2)


def _recordio(names: list[str], tmp_path: Path) -> fluid.Reader:
    path = str(tmp_path / "all.recordio")
    fluid.convert_reader_to_recordio_file(path, fluid.open_files(names, SHAPES, is_test=True))
    return fluid.open_recordio_file(path, SHAPES)


def _one(names: list[str], tmp_path: Path) -> fluid.Reader:
    joined = tmp_path / "joined.nums"
    joined.write_text("".join(Path(name).read_text() for name in names))
    return fluid.FileReader(str(joined), SHAPES)


KINDS: dict[str, Callable[[list[str], Path], fluid.Reader]] = {
    "file": _one,
    "recordio file": _recordio,
    "open_files": lambda names, folder: fluid.open_files(names, SHAPES, thread_num=2, buffer_size=2),
    "open_files, is_test": lambda names, folder: fluid.open_files(names, SHAPES, is_test=True, buffer_size=1),
    "shuffle": lambda names, folder: fluid.shuffle(_one(names, folder), 3),
    "batch": lambda names, folder: fluid.batch(_one(names, folder), 1),
    "multi_pass": lambda names, folder: fluid.multi_pass(_one(names, folder), 1),
    "threaded": lambda names, folder: fluid.threaded(_one(names, folder)),
    "preprocessor": lambda names, folder: fluid.Preprocessor(_one(names, folder), lambda value: value),
    "double_buffer": lambda names, folder: fluid.double_buffer(_one(names, folder)),
    "holder": lambda names, folder: fluid.ReaderHolder(_one(names, folder)),
    "from_reader": lambda names, folder: fluid.from_reader(numbers(*flat(_one(names, folder)))),
    "ctr": _ctr,
    "a chain of threads": lambda names, folder: fluid.double_buffer(
        fluid.shuffle(fluid.threaded(fluid.open_files(names, SHAPES, thread_num=3, buffer_size=1)), 4), depth=1
    ),
}


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, nums: Any, tmp_path: Path) -> Iterator[fluid.Reader]:
    """A reader of each kind, over files with the numbers 0 to 11."""
    with KINDS[request.param](nums(7, 0, 4, 1), tmp_path) as reader:
        yield reader

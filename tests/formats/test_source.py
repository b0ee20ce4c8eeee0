"""One reader in several processes and threads: each gets what it asks for, whatever the others read meanwhile."""

from __future__ import annotations

import gzip
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.formats import dmlc_recordio, idx, paddle_recordio, record_index

N = 60
CONTENTS = np.random.default_rng(0).integers(0, 256, (N, 6000), dtype=np.uint8)
"""More than any buffer holds, and not smaller as gzip."""
RECORDS = [row.tobytes() for row in CONTENTS]
Get = Callable[[int], bytes]


@contextmanager
def by_key(folder: Path) -> Iterator[Get]:
    with record_index.IndexedWriter(folder / "a.rec", folder / "a.idx") as writer:
        for i, record in enumerate(RECORDS):
            writer.write(i, record)
    with record_index.IndexedReader(folder / "a.rec", folder / "a.idx") as reader:
        yield reader.__getitem__


@contextmanager
def by_row(folder: Path) -> Iterator[Get]:
    idx.write(folder / "a", CONTENTS)
    with idx.Reader(folder / "a") as reader:
        yield lambda i: reader.rows(i, i + 1).tobytes()


@contextmanager
def by_row_of_gzip(folder: Path) -> Iterator[Get]:
    idx.write(folder / "a.gz", CONTENTS)
    with idx.Reader(folder / "a.gz") as reader:
        yield lambda i: reader.rows(i, i + 1).tobytes()


@contextmanager
def by_chunk(folder: Path) -> Iterator[Get]:
    with paddle_recordio.Writer(folder / "a.dat", max_records=1) as writer:
        for record in RECORDS:
            writer.write(record)
    with paddle_recordio.Reader(folder / "a.dat") as reader:
        chunks = list(reader.chunks())
        yield lambda i: next(reader.records(chunks[i]))


@contextmanager
def by_key_in_an_open_file(folder: Path) -> Iterator[Get]:
    with by_key(folder):
        pass
    with (folder / "a.rec").open("rb") as file, record_index.IndexedReader(file, folder / "a.idx") as reader:
        yield reader.__getitem__


PATHS = [by_key, by_row, by_row_of_gzip, by_chunk]


def in_a_fork(right: Callable[[], bool]) -> None:
    """Ask ``right`` in a forked process, and wait for the answer: it is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns if the tests before have left a thread
        pid = os.fork()
    if not pid:
        code = 1
        signal.alarm(60)  # which ends a process that stands still
        try:
            code = 0 if right() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("opened", PATHS)
def test_mx_37_a_forked_process_does_not_move_the_place_where_its_parent_reads(opened: Any, tmp_path: Path) -> None:
    with opened(tmp_path) as get:
        assert get(1) == RECORDS[1]
        in_a_fork(lambda: bool(get(N - 1) == RECORDS[N - 1]))
        assert [get(i) == RECORDS[i] for i in range(1, N)] == [True] * (N - 1)
        in_a_fork(lambda: all(get(i) == RECORDS[i] for i in range(N)))


@pytest.fixture
def _threads_in_turns() -> Iterator[None]:
    """Python changes between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    """Do each of ``works`` in a thread. Raise what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("_threads_in_turns")
@pytest.mark.parametrize("opened", [*PATHS, by_key_in_an_open_file])
def test_mx_37_threads_that_share_a_reader_get_what_they_ask_for(opened: Any, tmp_path: Path) -> None:
    count = 100 if opened is by_row_of_gzip else 3000  # to go back there is to decompress anew

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(N, size=count).tolist():
            assert get(i) == RECORDS[i], f"another record than {i}"

    with opened(tmp_path) as get:
        together(lambda: work(1), lambda: work(2))


@pytest.mark.usefixtures("_threads_in_turns")
@pytest.mark.parametrize("is_open", [False, True])
def test_records_are_read_by_offset_while_others_are_read_in_order(is_open: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with dmlc_recordio.Writer(path) as writer:
        offsets = [writer.write(record) for record in RECORDS]

    def in_order() -> None:
        for _ in range(300):
            assert list(reader) == RECORDS

    def by_offset() -> None:
        for i in np.random.default_rng(0).integers(N, size=3000).tolist():
            assert reader.read_at(offsets[i]) == RECORDS[i], f"another record than {i}"

    file: Any = io.BytesIO(path.read_bytes()) if is_open else path
    with dmlc_recordio.Reader(file) as reader:
        together(in_order, by_offset)


def test_a_lock_that_a_thread_held_at_a_fork_does_not_stop_the_forked_process(tmp_path: Path) -> None:
    """The thread is in the middle of a read, for as long as the forked process needs."""
    inside, finish = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                finish.wait(30)
            return super().read(size)

    file = Slow()
    dmlc_recordio.write(file, RECORDS)
    with dmlc_recordio.Reader(file) as reader:
        thread = threading.Thread(target=lambda: reader.read_at(0))
        thread.start()
        assert inside.wait(30)
        try:
            in_a_fork(lambda: reader.read_at(6008) == RECORDS[1])
        finally:
            finish.set()
            thread.join()


@pytest.mark.parametrize("opened", PATHS)
def test_a_closed_reader_does_not_read_a_file_that_is_opened_after_it(opened: Any, tmp_path: Path) -> None:
    with opened(tmp_path) as get:
        pass
    with gzip.open(tmp_path / "other", "wb") as file:
        file.write(bytes(100_000))
    with open(tmp_path / "other", "rb"), pytest.raises(ValueError, match="closed file"):
        get(7)

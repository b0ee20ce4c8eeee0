"""LMDB: values are served in the order of their keys, in parts, from any entry on, single ones; else it is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import raw
from pydp2.errors import FileCondemned, FormatError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import lmdb as lmdb_format
from pydp2.providers import resolve

lmdb: Any = pytest.importorskip("lmdb")


def write(path: Path, entries: dict[bytes, bytes], name: bytes | None = None, **options: Any) -> Path:
    opened = lmdb.open(str(path), map_size=1 << 24, max_dbs=2, **options)
    with opened.begin(write=True, db=opened.open_db(name)) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    opened.close()
    return path


ENTRIES = {b"%03d" % (i * 7 % 300): bytes([i % 256]) * (i * 40) for i in range(300)}
EXPECTED = sorted(ENTRIES.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lmdb") / "a.lmdb", ENTRIES)


def started(*files: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.lmdb").start(file_list=[str(file) for file in files], args=args)


def served(running: Any, entry: Path | str, **more: Any) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, **more))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.integers(1, 5), start=st.integers(0, 90), chosen=st.sets(st.integers(0, 299)),
    block=st.sampled_from([1, 9999, 1 << 20]),
)  # fmt: skip
def test_parts_are_complete_and_starts_and_single_entries_are_those_of_the_part(
    parts: int, start: int, chosen: set[int], block: int, folder: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdb_format, "BLOCK", block)
        read = [list(lmdb_format.read(folder, part=FilePart(i, parts))) for i in range(parts)]
        assert [entry for part in read for entry in part] == EXPECTED
        for i, part in enumerate(read):
            assert list(lmdb_format.read(folder, part=FilePart(i, parts), start=start)) == part[start:]
            some = sorted(index for index in chosen if index < len(part))
            given = np.array(some, np.int64)
            assert list(lmdb_format.read(folder, part=FilePart(i, parts), indices=given)) == [part[i] for i in some]


def test_parts_of_a_file_are_read_by_turns(folder: Path) -> None:
    readings = [lmdb_format.read(folder, part=FilePart(i, 3)) for i in range(3)]
    assert [entry for entries in zip(*readings, strict=True) for entry in entries] == [
        EXPECTED[100 * part + i] for i in range(100) for part in range(3)
    ]
    assert lmdb_format._environments == {}


def test_a_service_serves_all_values_in_the_order_of_their_keys(folder: Path) -> None:
    seen: list[Any] = []
    files = list(part_entries(str(folder), 3))
    with pydp2.load(files, args={"keys": True}, batch_size=64, shuffle=False, workers=2) as data:
        for batch in data:
            seen += zip(batch["key"].to_list(), batch["data"].to_list(), strict=True)
    assert seen == EXPECTED


def test_values_are_bytes_and_keys_are_served_if_asked_for(folder: Path) -> None:
    running = started(folder)
    assert (running.schema.slots.names, running.schema.slots.types) == (("data",), (raw(),))
    assert served(running, folder, start=298) == [{"data": value} for _, value in EXPECTED[298:]]
    chosen = served(started(folder, keys=True), folder, start=5, indices=np.array([5, 77]))
    assert chosen == [{"data": EXPECTED[i][1], "key": EXPECTED[i][0]} for i in (5, 77)]


def test_one_file_named_databases_and_several_values_of_a_key_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mdb", {b"k": b"v"}, b"train", subdir=False)
    assert list(lmdb_format.read(path, database="train")) == [(b"k", b"v")]
    assert served(started(path, database="train"), path) == [{"data": b"v"}]
    with pytest.raises(FormatError, match=r"a\.mdb: .*MDB_NOTFOUND"):
        list(lmdb_format.read(path, database="test"))
    opened = lmdb.open(str(tmp_path / "b"), max_dbs=1)
    with opened.begin(write=True, db=opened.open_db(b"d", dupsort=True)) as transaction:
        for value in (b"2", b"1"):
            transaction.put(b"k", value)
    opened.close()
    assert list(lmdb_format.read(tmp_path / "b", database="d")) == [(b"k", b"1"), (b"k", b"2")]
    assert list(lmdb_format.read(write(tmp_path / "c", {}))) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"keys": 1}, "keys must be true or false"),
        ({"database": 1}, "database must be a text"),
        ({"key": True}, "has no argument 'key', did you mean 'keys'?"),
    ],
)
def test_arguments_are_checked_when_the_service_starts(args: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        started(folder, **args)
    assert words in str(caught.value)


def test_what_is_no_database_or_cut_off_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.mdb").write_bytes(b"<html><body>login</body></html>")
    with pytest.raises(FormatError, match=r"a\.mdb, byte 0: expected a database of LMDB, got an HTML page"):
        list(lmdb_format.read(tmp_path / "a.mdb"))
    data = (folder / "data.mdb").read_bytes()
    for size in (100, 4096, 9000, len(data) - 4096, len(data) - 1):
        (tmp_path / "a.mdb").write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"a\.mdb: "):
            list(lmdb_format.read(tmp_path / "a.mdb"))
    with pytest.raises(FileNotFoundError):
        list(lmdb_format.read(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        list(lmdb_format.read(tmp_path / "empty"))


def test_damage_that_ends_the_worker_is_an_error_of_that_file(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "data.mdb").read_bytes())
    leaves = [at for at in range(0, len(data), 4096) if data[at + 10 : at + 12] == b"\2\0"]
    data[leaves[len(leaves) // 2] + 10] = 4  # it says that it is no leaf
    (tmp_path / "a.mdb").write_bytes(data)
    with (
        pytest.raises((FileCondemned, FormatError), match=r"a\.mdb"),
        pydp2.load([str(tmp_path / "a.mdb")], batch_size=10, workers=1) as loaded,
    ):
        list(loaded)


def test_nothing_is_written_into_the_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {b"k": b"v"})
    (path / "lock.mdb").unlink()
    (path / "data.mdb").chmod(0o444)
    list(lmdb_format.read(path))
    assert [file.name for file in path.iterdir()] == ["data.mdb"]


def test_without_lmdb_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ImportError, match=r"pip install 'lmdb>=1\.4'"):
        list(lmdb_format.read(folder))

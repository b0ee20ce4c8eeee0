"""An entry of the cache on disk: what was written is read, bit by bit, or it is refused; nothing in between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    integer_value,
    integer_value_sequence,
    sparse_float_vector,
)
from pydp2.server.cache import file_format
from pydp2.server.cache.file_format import (
    FORMAT_VERSION,
    TEMPORARY_PREFIX,
    CacheEntryReader,
    CacheEntryWriter,
    DamagedEntry,
    DroppedSample,
    EntryLabel,
    StoredPiece,
)

from ..sample_cases import columns_of, filled, raw

LABEL = EntryLabel(key="a1", provider="p.process", list_entry="data/part-0", duplicate=0, stamp=(10, 1 << 60, 7))
SLOTS = Slots((integer_value_sequence(100), sparse_float_vector(9), dense_vector(2)), ("ids", "sparse", "dense"))
ROWS = [[[1, 2, 3], [(1, 0.5)], [0.0, 1.0]], [[], [], [2.0, 3.0]], [[99], [(8, 1.0), (0, 2.0)], [4.0, 5.0]]]

Block = tuple[Columns, Any]


def write(
    folder: Path, blocks: Sequence[Block], dropped_samples: Sequence[DroppedSample] = (), label: EntryLabel = LABEL
) -> Path:
    path = folder / "entry"
    writer = CacheEntryWriter(folder)
    for columns, weights in blocks:
        writer.write_block(columns, weights)
    writer.commit(path, writer.pack_index(label, dropped_samples))
    return path


def read(
    path: Path, slots: Slots = SLOTS, *, weighted: bool = False
) -> tuple[list[StoredPiece], tuple[DroppedSample, ...]]:
    reader = CacheEntryReader(path)
    reader.verify()
    return reader.pieces(slots, weighted=weighted), reader.index.dropped


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    columns = columns_of(SLOTS, ROWS)
    return write(tmp_path, [(columns, None), (columns.slice(1, 3), None)], [(2, "ids", "no"), (6, "dense", "short")])


@given(data=st.data())
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any slots and samples, weights or none, cut into any blocks, with dropped samples anywhere."""
    columns = columns_of(*data.draw(filled()))
    weighted = data.draw(st.booleans())
    weights = np.array(data.draw(st.lists(st.integers(0, 1 << 30), min_size=columns.rows, max_size=columns.rows)))
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, columns.rows), max_size=3))), columns.rows]
    blocks = [
        (columns.slice(lo, hi), weights[lo:hi].astype(np.int64) if weighted else None) for lo, hi in pairwise(edges)
    ]
    total = columns.rows + data.draw(st.integers(0, 4))
    dropped = sorted(data.draw(st.permutations(range(total)))[: total - columns.rows])
    dropped_samples = [(y, "a slot", f"why {y}") for y in dropped]
    path = write(tmp_path_factory.mktemp("cache"), blocks, dropped_samples)
    pieces, found = read(path, columns.slots, weighted=weighted)
    assert found == tuple(dropped_samples)
    assert raw(Columns.concat([p.columns for p in pieces])) == raw(columns)
    assert [y for p in pieces for y in p.sample_indices.tolist()] == [y for y in range(total) if y not in dropped]
    assert [s for p in pieces for s in p.sizes.tolist()] == columns.sample_bytes().tolist()
    if weighted:
        assert [w for p in pieces if p.weights is not None for w in p.weights.tolist()] == weights.tolist()
    else:
        assert all(p.weights is None for p in pieces)
    assert CacheEntryReader(path).index.label == LABEL


def test_a_file_without_samples_is_an_entry(tmp_path: Path) -> None:
    assert read(write(tmp_path, [])) == ([], ())


def test_a_large_one_is_mapped_and_outlives_its_file(tmp_path: Path) -> None:
    slots = Slots((dense_vector(1000),))
    columns = Columns(slots, 200, [[np.arange(200_000, dtype=np.float32).reshape(200, 1000)]])
    path = write(tmp_path, [(columns, None)])
    pieces, _ = read(path, slots)
    path.unlink()
    assert raw(pieces[0].columns) == raw(columns)
    assert not pieces[0].columns.arrays[0][0].flags.writeable


def test_it_is_refused_when_it_is_cut_off_at_any_byte(whole: Path) -> None:
    data = whole.read_bytes()
    for size in range(len(data)):
        whole.write_bytes(data[:size])
        with pytest.raises(DamagedEntry):
            read(whole)
    whole.write_bytes(data + b"\0")
    with pytest.raises(DamagedEntry, match="bytes of"):
        read(whole)


def test_it_is_refused_when_any_bit_is_another(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    for byte in range(len(data)):  # one of each, another in each
        data[byte] ^= 1 << byte % 8
        whole.write_bytes(data)
        with pytest.raises(DamagedEntry):
            read(whole)
        data[byte] ^= 1 << byte % 8


@given(noise=st.binary(max_size=300))
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("cache") / "entry"
    path.write_bytes(noise)
    with pytest.raises(DamagedEntry):
        CacheEntryReader(path)


def signed(path: Path, version: int = FORMAT_VERSION, **other: Any) -> None:
    """Write the entry anew with another index, and a digest that is right: what a defect of ours would do."""
    data = path.read_bytes()
    start = file_format._HEAD.unpack_from(data)[2]
    index = msgpack.packb(msgpack.unpackb(data[start:]) | other)
    path.write_bytes(file_format._pack_head(version, start, index) + data[file_format._HEAD.size : start] + index)


@pytest.mark.parametrize(
    "other",
    [
        {"rows": 4}, {"rows": -1}, {"rows": 1 << 62}, {"rows": True}, {"count": 1}, {"count": 3}, {"count": -1},
        {"blocks": b""}, {"blocks": b"x" * 16}, {"holes": [[9, "", ""]]}, {"holes": [[3, "", ""], [2, "", ""]]},
        {"holes": [[2, "", ""], [2, "", ""]]}, {"holes": [[-1, "", ""]]}, {"holes": 3}, {"stamp": ["1"]}, {"key": 1},
        {"text": b"bytes"}, {"copy": 1.5},
        {"blocks": np.array([[1 << 62, 0, 0, 0, 0, 0, 0, 0]] * 2, "<i8").tobytes()},
        {"blocks": np.array([[3, 0, -64, 64, 0, 0, 0, 0]] * 2, "<i8").tobytes()},
    ],
)  # fmt: skip
def test_an_index_that_cannot_be_is_refused_even_with_the_right_digest(whole: Path, other: dict[str, Any]) -> None:
    signed(whole)
    read(whole)
    signed(whole, **other)
    with pytest.raises(DamagedEntry):
        read(whole)


def test_another_version_is_refused_by_its_number(whole: Path) -> None:
    signed(whole, FORMAT_VERSION + 1)
    with pytest.raises(DamagedEntry, match=f"it has version {FORMAT_VERSION + 1}, this pydp2 reads {FORMAT_VERSION}"):
        read(whole)


def test_samples_of_other_slots_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(DamagedEntry, match="frames"):
        read(whole, Slots((integer_value(3),)))
    with pytest.raises(DamagedEntry, match="bytes"):
        read(whole, Slots((integer_value_sequence(1 << 40), *SLOTS.types[1:])))
    with pytest.raises(DamagedEntry):
        read(whole, weighted=True)
    bad = write(tmp_path, [(columns_of(SLOTS, ROWS), np.array([1, -1, 2]))])
    with pytest.raises(DamagedEntry, match="invalid weight"):
        read(bad, weighted=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_an_entry_of_another_user_is_refused(whole: Path) -> None:
    os.chown(whole, 12345, 12345)
    with pytest.raises(DamagedEntry, match="it belongs to user 12345"):
        CacheEntryReader(whole)


def test_what_is_no_regular_file_is_refused(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "link").symlink_to(whole)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "."):
        with pytest.raises((DamagedEntry, OSError)):
            CacheEntryReader(tmp_path / name)


@pytest.mark.parametrize("before", ["nothing", "an older one"])
def test_a_writer_that_is_killed_between_any_two_steps_leaves_the_old_entry_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A step is a call of the system that changes something. After each the folder is looked at as it is then."""
    columns = columns_of(SLOTS, ROWS)
    path = tmp_path / "entry"
    if before != "nothing":
        write(tmp_path, [(columns.slice(0, 1), None)])
    seen: list[int | None] = []

    def look() -> None:
        seen.append(sum(p.columns.rows for p in read(path)[0]) if path.exists() else None)
        assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(TEMPORARY_PREFIX)] in (
            [],
            ["entry"],
        )

    def watched(real: Any) -> Any:
        def step(*given: Any) -> Any:
            look()
            result = real(*given)
            look()
            return result

        return step

    for name in ("write", "pwrite"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    monkeypatch.setattr(Path, "rename", watched(Path.rename))
    write(tmp_path, [(columns, None), (columns, None)])
    old = None if before == "nothing" else 1
    assert seen[-1] == 6
    assert set(seen[:-1]) == {old}
    assert len(seen) > 20

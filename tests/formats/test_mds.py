"""MDS: what mosaicml-streaming wrote is served, in parts, from any sample on, single samples; else it is refused."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import SequenceType, dense_vector, raw, scalar, text
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import mds
from pydp2.providers import resolve

from . import mds_folders
from .mds_folders import unpack

FOLDERS = {"plain": mds_folders.FEW, "zstd": mds_folders.FEW_ZSTD, "gz": mds_folders.FEW_GZ}
EXPECTED = [{"id": i, "text": "é" * i} for i in range(10)]
LISTS = ("frames", "image", "icon", "pages")  # of files of pictures


def sample(i: int) -> dict[str, Any]:
    """Sample i of the folder with all encodings, without the files of pictures."""
    return {
        "text": f"é{i}", "id": i - 1, "small": i, "score": i / 2, "data": bytes([i]) * i, "tokens": list(range(i + 1)),
        "fixed": (np.arange(6).reshape(2, 3) + i).tolist(), "any": [[i, i], [i, i]], "meta": f'{{"a": [{i}]}}',
        "big": 10**i, "ratio": i / 4, "price": str(Decimal("1.50") + i), "pixels": [[[9, 8, 7]] * 3] * 2,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(tmp_path / "a", mds_folders.FEW)


def listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def started(*folders: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.mds").start(file_list=[str(folder) for folder in folders], args=args)


def served(running: Any, entry: Path | str, **more: Any) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, **more))


# -- reading -----------------------------------------------------------------------------------------------------------
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.integers(1, 12), start=st.integers(0, 11), chosen=st.sets(st.integers(0, 9)),
    block=st.sampled_from([1, 60, 1 << 20]),
)  # fmt: skip
def test_parts_are_complete_and_starts_and_single_samples_are_those_of_the_part(
    parts: int, start: int, chosen: set[int], block: int, tmp_path: Path
) -> None:
    for name, data in FOLDERS.items():
        path = unpack(tmp_path / name, data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mds, "BLOCK", block)
            read = [list(mds.read(path, part=FilePart(i, parts))) for i in range(parts)]
            assert [sample for part in read for sample in part] == EXPECTED
            for i, part in enumerate(read):
                assert list(mds.read(path, part=FilePart(i, parts), start=start)) == part[start:]
                some = sorted(index for index in chosen if index < len(part))
                given = np.array(some, np.int64)
                assert list(mds.read(path, part=FilePart(i, parts), indices=given)) == [part[index] for index in some]


def test_every_encoding_is_read_as_its_writer_meant_it(tmp_path: Path) -> None:
    path = unpack(tmp_path / "a", mds_folders.ALL)
    for i, read in enumerate(mds.read(path)):
        assert {name: listed(value) for name, value in read.items() if name not in LISTS} == sample(i)
        assert read["image"].startswith(b"\xff\xd8")
        assert read["icon"].startswith(b"\x89PNG")
        assert [picture[:2] for picture in read["frames"]] == [b"\xff\xd8"] * i
        assert [picture[:4] for picture in read["pages"]] == [b"\x89PNG"] * i


def test_samples_before_a_start_are_not_read(folder: Path) -> None:
    (folder / "shard.00000.mds").unlink()
    assert list(mds.read(folder, start=5)) == EXPECTED[5:]
    with pytest.raises(FileNotFoundError):
        list(mds.read(folder))


# -- serving -----------------------------------------------------------------------------------------------------------
def test_a_service_serves_all_samples_in_order(tmp_path: Path) -> None:
    path = unpack(tmp_path / "a", mds_folders.ALL)
    files = list(part_entries(str(path), 2))
    seen: list[dict[str, Any]] = []
    with pydp2.load(files, "pydp2.formats.mds", batch_size=1, shuffle=False, workers=2) as data:
        for batch in data:
            row = {name: batch[name] for name in sample(0)}
            row["tokens"] = row["tokens"].values[None]
            seen.append({name: listed(value[0]) for name, value in row.items()})
            assert len(batch["frames"]) == 1
    assert seen == [sample(i) for i in range(3)]


def test_encodings_have_their_slots(tmp_path: Path) -> None:
    slots = started(unpack(tmp_path / "a", mds_folders.ALL)).schema.slots
    assert dict(zip(slots.names, slots.types, strict=True)) == {
        "text": text(), "id": scalar("int64"), "small": scalar("uint8"), "score": scalar(), "data": raw(),
        "tokens": scalar("int32", SequenceType.SEQUENCE), "fixed": dense_vector((2, 3), dtype="uint16"),
        "any": dense_vector((2, 2), dtype="float64"), "meta": text(), "big": scalar("int64"),
        "ratio": scalar("float64"), "price": text(), "image": raw(), "icon": raw(),
        "pixels": dense_vector((2, 3, 3), dtype="uint8"), "frames": raw(SequenceType.SEQUENCE),
        "pages": raw(SequenceType.SEQUENCE),
    }  # fmt: skip


def test_columns_choose_the_slots(folder: Path) -> None:
    running = started(folder, columns=["text"])
    assert running.schema.slots.names == ("text",)
    chosen = served(running, folder, start=3, indices=np.array([3, 9]))
    assert chosen == [{"text": "é" * 3}, {"text": "é" * 9}]
    with pytest.raises(ProviderError, match="has no column x; it has id, text"):
        started(folder, columns=["x"])
    with pytest.raises(ProviderError, match="columns must be a list of names"):
        started(folder, columns="x")
    with pytest.raises(OptionError, match="has no column x"):
        list(mds.read(folder, columns=["x"]))
    assert len(started().schema.slots) == 1, "of an empty list nothing is known, and nothing is served"


def test_other_folders_must_have_the_columns_of_the_first(folder: Path, tmp_path: Path) -> None:
    other = unpack(tmp_path / "b", mds_folders.ALL)
    with pytest.raises(FormatError, match=r"b has columns .*the first folder .*a "):
        served(started(folder), other)
    assert len(served(started(folder, columns=["text"]), other)) == 3


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_nothing_is_unpickled(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="its values are pickles, and nothing is unpickled"):
        list(mds.read(unpack(tmp_path / "a", mds_folders.PICKLED)))


def test_another_compression_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"compression 'br' is not read: write zstd or gz, or none"):
        list(mds.read(unpack(tmp_path / "a", mds_folders.BR)))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[", "[[", "index.json: "),
        ('"shards"', '"shard"', "index.json: 'shards'"),
        ('"version": 2', '"version": 3', "expected shards of mds, version 2, got 'mds', 3"),
        ('"mds"', '"csv"', "expected shards of mds, version 2, got 'csv', 2"),
        ('"str"', '"list[pil]"', "no slot takes the encoding 'list[pil]'"),
        ('"str"', '"ndarray:int32:0"', "index.json: "),
        ('["id", "text"]', '["id", "id"]', "expected columns of different names"),
        ("[8, null]", "[4, null]", "expected columns of [8, None] bytes, got [4, None]"),
        ('"samples": 3', '"samples": 4000000000', "cannot have 4000000000 samples"),
        ('"samples": 3', '"samples": 4', "expected 4 samples, as its index says, got 3"),
        ('"bytes": 242', '"bytes": 243', "expected 243 bytes, as its index says, got 242"),
        ('"shard.00000.mds"', '"/etc/passwd"', "expected the name of a file inside of the folder, got '/etc/passwd'"),
        ('"shard.00000.mds"', '"../a/b"', "expected the name of a file inside of the folder"),
    ],
)
def test_an_index_that_lies_is_an_error(old: str, new: str, words: str, folder: Path) -> None:
    index = folder / "index.json"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))
    with pytest.raises(FormatError) as caught:
        list(mds.read(folder))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, b"\4", "byte 0: expected 3 samples, as its index says, got 4"),
        (4, b"\0", "byte 4: expected offsets that rise from 20 to 242"),
        (8, b"\xff\xff\xff", "byte 4: expected offsets that rise"),
        (20, b"!", "the description of its columns: "),
    ],
)
def test_a_shard_that_lies_is_an_error_that_names_the_byte(at: int, data: bytes, words: str, folder: Path) -> None:
    shard = folder / "shard.00000.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:at] + data + whole[at + len(data) :])
    with pytest.raises(FormatError, match=r"shard\.00000\.mds, ") as caught:
        list(mds.read(folder))
    assert words in str(caught.value)


def test_a_damaged_sample_is_bad_and_the_next_one_is_read(folder: Path) -> None:
    shard = folder / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    second = int.from_bytes(data[8:12], "little")
    data[second] += 1  # the length of its text
    shard.write_bytes(data)
    first, bad, third, *_ = served(started(folder), folder)
    assert (first, third) == (EXPECTED[0], EXPECTED[2])
    assert isinstance(bad, BadSample)
    assert "its columns need 15 bytes, it has 14" in str(bad)
    with pytest.raises(FormatError, match="its columns need 15 bytes, it has 14"):
        list(mds.read(folder))


def test_text_that_is_no_utf8_and_arrays_that_lie_are_bad_samples(tmp_path: Path) -> None:
    path = unpack(tmp_path / "a", mds_folders.ALL)
    shard = path / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace("é1".encode(), b"\xff\xff1"))
    with pytest.raises(BadSample, match="sample 1, slot text"):
        list(resolve("pydp2.formats.mds").samples(str(path)))
    data = bytearray(shard.read_bytes())
    at = data.index(np.array([0, 1, 2], "<i4").tobytes())
    data[at - 1] = 2  # values of the array of sample 2
    shard.write_bytes(data)
    bad = served(started(path), path)[2]
    assert (bad.slot, isinstance(bad, BadSample)) == ("tokens", True)
    assert "an array (2,) of int32 does not have 12 bytes" in str(bad)


@pytest.mark.parametrize("name", ["zstd", "gz"])
def test_a_compressed_shard_that_is_cut_longer_or_damaged_is_an_error(name: str, tmp_path: Path) -> None:
    path = unpack(tmp_path / "a", FOLDERS[name])
    shard = path / f"shard.00000.mds.{name}"
    whole = shard.read_bytes()
    index = path / "index.json"
    said = json.loads(index.read_text())
    for data in (whole[:-9], whole[:40] + b"!!!!" + whole[44:]):
        shard.write_bytes(data)
        with pytest.raises(FormatError, match=r"shard\.00000\.mds\.(zstd|gz), "):
            list(mds.read(path))
    shard.write_bytes(whole)
    for size, words in (
        (-1, "expected the end of the file, got more"),
        (1, "the file ends"),
        (1 << 30, "at most 10737"),
    ):
        said["shards"][0]["raw_data"]["bytes"] += size
        index.write_text(json.dumps(said))
        said["shards"][0]["raw_data"]["bytes"] -= size
        with pytest.raises(FormatError, match=words):
            list(mds.read(path))


def test_what_is_no_folder_of_shards_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shard\.00000\.mds: expected a folder with an index\.json; name the folder"):
        list(mds.read(folder / "shard.00000.mds"))
    with pytest.raises(FileNotFoundError):
        list(mds.read(tmp_path / "absent"))


def test_pictures_can_be_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (first, *_) = mds.read(unpack(tmp_path / "a", mds_folders.ALL))
    assert image.open(io.BytesIO(first["image"])).size == (3, 2)

"""Files of tokens are served as windows or documents, any of them directly; Megatron's index is checked."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies
from numpy.typing import NDArray

import pydp2
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import tokens
from pydp2.providers.address import resolve
from pydp2.providers.decorator import Provider

PROVIDER: Provider = resolve("pydp2.formats.tokens")
END = 0
Array = NDArray[Any]


def bin_file(folder: Path, values: Any, dtype: str = "uint16") -> Path:
    np.asarray(values, np.dtype(dtype).newbyteorder("<")).tofile(folder / "a.bin")
    return folder / "a.bin"


def index_bytes(lengths: list[int], documents: list[int], code: int = 8, size: int = 2, version: int = 1) -> bytes:
    """An index by the description of Megatron's ``IndexedDataset``: see ``megatron/core/datasets``."""
    pointers = np.concatenate(([0], np.cumsum(lengths)[:-1])) * size if lengths else np.empty(0)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
    arrays = (
        np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes() + np.array(documents, "<i8").tobytes()
    )
    return head + arrays


def megatron(folder: Path, sequences: list[list[int]], documents: list[int], dtype: str = "uint16") -> Path:
    code = {"uint16": 8, "int32": 4, "int64": 5}[dtype]
    data = index_bytes([len(s) for s in sequences], documents, code, np.dtype(dtype).itemsize)
    (folder / "a.idx").write_bytes(data)
    return bin_file(folder, [token for sequence in sequences for token in sequence], dtype)


def plain(path: Path, **options: Any) -> list[list[int]]:
    """The samples of ``read`` as lists."""
    samples: list[list[int]] = []
    for block in tokens.read(path, **options):
        if isinstance(block, pydp2.Ragged):
            edges = block.sequence_start_positions
            samples += [block.values[edges[i] : edges[i + 1]].tolist() for i in range(len(block))]  # type: ignore[index]
        else:
            samples += block.tolist()
    return samples


def served(entry: str, args: dict[str, Any], files: list[str] | None = None, **more: Any) -> list[list[int]]:
    started = PROVIDER.start(args=args, file_list=files or [entry])
    opened = started.open_file(entry, file_index=0, seed=0, pass_id=0, **more)
    return [started.arrange(sample)[0].tolist() for sample in opened]


# -- windows -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", tokens.DTYPES)
def test_windows_have_the_tokens_of_the_file_in_its_dtype(dtype: str, tmp_path: Path) -> None:
    values = np.arange(1000, dtype=dtype)
    (block,) = tokens.read(bin_file(tmp_path, values, dtype), length=64, dtype=dtype)
    assert isinstance(block, np.ndarray)
    np.testing.assert_array_equal(block, values[:960].reshape(15, 64), strict=True)
    np.save(tmp_path / "b.npy", values.astype(values.dtype.newbyteorder(">")))
    np.testing.assert_array_equal(next(tokens.read(tmp_path / "b.npy", length=64)), values[:960].reshape(15, 64))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=strategies.integers(0, 60),
    length=strategies.integers(1, 9),
    stride=strategies.none() | strategies.integers(1, 12),
    parts=strategies.integers(1, 5),
    start=strategies.integers(0, 5),
    chosen=strategies.sets(strategies.integers(0, 59)),
)
def test_windows_begin_every_stride_in_any_part_from_any_start(
    tmp_path: Path, count: int, length: int, stride: int | None, parts: int, start: int, chosen: set[int]
) -> None:
    path = bin_file(tmp_path, range(count))
    step = stride or length
    expected = [list(range(at, at + length)) for at in range(0, count - length + 1, step)]
    options: dict[str, Any] = {"length": length, "stride": stride, "dtype": "uint16"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BLOCK", 160)
        check_all(path, expected, parts, start, chosen, options)


def check_all(
    path: Path, expected: list[list[int]], parts: int, start: int, chosen: set[int], options: dict[str, Any]
) -> None:
    """Parts are complete and in order, and a start and chosen samples are those of the part."""
    read = [plain(path, part=FilePart(i, parts), **options) for i in range(parts)]
    assert [sample for part in read for sample in part] == expected
    for i, part in enumerate(read):
        assert plain(path, part=FilePart(i, parts), start=start, **options) == part[start:]
        some = sorted(index for index in chosen if index < len(part))
        given = np.array(some, np.int64)
        assert plain(path, part=FilePart(i, parts), indices=given, **options) == [part[index] for index in some]


def test_a_service_serves_windows_as_integers_of_one_shape(tmp_path: Path) -> None:
    path = bin_file(tmp_path, np.arange(10_000) % 50257)
    files = list(part_entries(str(path), 3))
    args = {"length": 9, "stride": 8, "dtype": "uint16", "vocabulary": 50257}
    with pydp2.load(files, "pydp2.formats.tokens", args=args, batch_size=100, shuffle=False, workers=2) as data:
        batches = [batch["tokens"] for batch in data]
    assert all(batch.dtype == np.int32 and batch.shape[1:] == (9,) for batch in batches)
    assert np.concatenate(batches).tolist() == [list(range(at, at + 9)) for at in range(0, 9_992, 8)]


# -- documents ---------------------------------------------------------------------------------------------------------
DOCUMENTS = strategies.lists(strategies.lists(strategies.integers(1, 9), max_size=9), max_size=12)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=DOCUMENTS, is_ended=strategies.booleans(), parts=strategies.integers(1, 5),
    start=strategies.integers(0, 5), chosen=strategies.sets(strategies.integers(0, 11)),
)  # fmt: skip
def test_documents_end_with_their_token_in_any_part_from_any_start(
    tmp_path: Path, documents: list[list[int]], is_ended: bool, parts: int, start: int, chosen: set[int]
) -> None:
    expected = [[*document, END] for document in documents]
    if not is_ended and expected and len(expected[-1]) > 1:
        expected[-1].pop()  # the last document may lack its end
    path = bin_file(tmp_path, [token for document in expected for token in document])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BLOCK", 40)  # five tokens
        check_all(path, expected, parts, start, chosen, {"end_token": END, "dtype": "uint16"})


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=DOCUMENTS, parts=strategies.integers(1, 5), start=strategies.integers(0, 5),
    chosen=strategies.sets(strategies.integers(0, 11)), dtype=strategies.sampled_from(["uint16", "int32", "int64"]),
)  # fmt: skip
def test_documents_of_an_index_are_read_in_any_part_from_any_start(
    tmp_path: Path, documents: list[list[int]], parts: int, start: int, chosen: set[int], dtype: str
) -> None:
    path = megatron(tmp_path, documents, list(range(len(documents) + 1)), dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BLOCK", 40)
        check_all(path, documents, parts, start, chosen, {})


def test_a_document_may_have_several_sequences_and_windows_go_over_all(tmp_path: Path) -> None:
    path = megatron(tmp_path, [[1, 2], [3], [], [4, 5, 6]], [0, 2, 2, 4])
    assert plain(path) == [[1, 2, 3], [], [4, 5, 6]]
    assert plain(path, length=2) == [[1, 2], [3, 4], [5, 6]]


def test_a_service_serves_documents_as_sequences(tmp_path: Path) -> None:
    documents = [list(range(1, 2 + i % 7)) for i in range(100)]
    path = megatron(tmp_path, documents, list(range(101)))
    seen: list[list[int]] = []
    with pydp2.load([str(path)], "pydp2.formats.tokens", batch_size=16, shuffle=False, workers=2) as data:
        for batch in data:
            edges = batch["tokens"].sequence_start_positions
            seen += [batch["tokens"].values[edges[i] : edges[i + 1]].tolist() for i in range(len(batch))]
    assert seen == documents


def test_the_provider_begins_at_any_sample_and_yields_chosen_ones(tmp_path: Path) -> None:
    path = bin_file(tmp_path, [token for i in range(1, 30) for token in (*range(1, i), END)])
    args = {"end_token": END, "dtype": "uint16"}
    whole = served(str(path), args)
    assert served(str(path), args, start=7) == whole[7:]
    assert served(str(path), args, start=3, indices=np.array([3, 9, 20])) == [whole[3], whole[9], whole[20]]


# -- slots and vocabulary ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "args", "expected"),
    [
        ("uint16", {"length": 4}, pydp2.dense_vector(4, dtype="int32")),
        ("int32", {"length": 4}, pydp2.dense_vector(4, dtype="int32")),
        ("uint32", {"length": 4}, pydp2.dense_vector(4, dtype="int64")),
        ("uint32", {"length": 4, "vocabulary": 100_000}, pydp2.dense_vector(4, dtype="int32")),
        ("int64", {"length": 4}, pydp2.dense_vector(4, dtype="int64")),
        ("uint16", {"end_token": 0}, pydp2.integer_value_sequence(65536)),
        ("int64", {"end_token": 0}, pydp2.integer_value_sequence(2**63 - 1)),
        ("int64", {"end_token": 0, "vocabulary": 50257}, pydp2.integer_value_sequence(50257)),
    ],
)
def test_the_vocabulary_decides_the_slot(dtype: str, args: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    path = bin_file(tmp_path, range(9), dtype)
    slots = PROVIDER.start(args={"dtype": dtype, **args}, file_list=[str(path)]).schema.slots
    assert (slots.names, list(slots.types)) == (("tokens",), [expected])


@pytest.mark.parametrize("args", [{"length": 2}, {"end_token": 0}])
def test_a_token_beyond_the_vocabulary_makes_its_sample_bad(args: dict[str, Any], tmp_path: Path) -> None:
    path = bin_file(tmp_path, [5, 0, 10, 0, 6, 0], "int32")
    args = {**args, "dtype": "int32"}
    with pytest.raises(BadSample, match=r"sample 1, slot tokens.*10"):
        list(PROVIDER.samples(path, args={**args, "vocabulary": 10}))
    assert len(served(str(path), {**args, "vocabulary": 11})) == 3
    bin_file(tmp_path, [5, 0, -1, 0, 6, 0], "int32")
    with pytest.raises(BadSample, match=r"sample 1, slot tokens.*-1"):
        list(PROVIDER.samples(path, args=args))


def test_all_files_have_the_dtype_of_the_first(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.arange(9, dtype=np.int32))
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    with pytest.raises(FormatError, match=r"b.npy has tokens of int32, the first file .*a.npy of uint16"):
        served(files[1], {"length": 3}, files)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"length": 4}, "does not say its dtype: give dtype=, one of uint16, uint32, int32, int64"),
        ({"dtype": "uint16"}, "has no documents: give length= for windows, or end_token="),
        ({"dtype": "float32", "length": 4}, "dtype must be one of uint16, .*, got 'float32'"),
        ({"dtype": "some", "length": 4}, "dtype must be one of"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 2.5}, "length must be a whole number"),
        ({"length": 2, "stride": 0}, "stride must be at least 1, got 0"),
        ({"stride": 2}, "stride is for windows: give length too"),
        ({"length": 2, "end_token": 0}, "end_token is for documents, length for windows"),
        ({"length": 2, "vocabulary": 0}, "vocabulary must be from 1 to"),
        ({"context": 2}, "has no argument 'context'"),
    ],
)
def test_arguments_are_looked_at_when_the_service_starts(args: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = bin_file(tmp_path, range(9))
    with pytest.raises(ProviderError, match=words):
        PROVIDER.start(args=args, file_list=[str(path)])


# -- files that are not what they say ----------------------------------------------------------------------------------
def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy(np.arange(9, dtype=np.int32))[:-1], "9 tokens need 36 bytes, the file has 35"),
        (npy(np.arange(9, dtype=np.int32)) + b"more", "9 tokens need 36 bytes, the file has 40"),
        (npy(np.zeros((3, 3), np.int32)), r"expected tokens in one dimension, got the shape \(3, 3\)"),
        (npy(np.zeros(9, np.float32)), "expected tokens of uint16, uint32, int32, int64, got float32"),
        (npy(np.array([None]), allow_pickle=True), "expected tokens of uint16, .* got object"),
        (npy(np.zeros(9, "<i4")).replace(b"<i4", b"+i4"), "damaged header of an array"),
        (npy(np.zeros(9, "<i4"))[:30], "the header of a .npy file needs 118 bytes"),
        (b"PK\x03\x04more", "expected an array of numpy, got a zip archive"),
        (b"", "the header of a .npy file needs 8 bytes"),
    ],
)
def test_an_array_that_is_no_row_of_tokens_is_an_error(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(FormatError, match=words):
        plain(tmp_path / "a.npy", length=2)


def test_plain_numbers_must_fill_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abcde")
    with pytest.raises(FormatError, match=r"a.bin, byte 5: 5 bytes are no whole number of uint16"):
        plain(tmp_path / "a.bin", length=2, dtype="uint16")


GOOD = index_bytes([2, 3], [0, 1, 2])


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (GOOD[:-1], "2 sequences and 3 bounds of documents need 48 bytes, the file has 47"),
        (GOOD + b"\0\0", "the file has 50; an index with modes"),
        (GOOD[:20], "the header of an index needs 25 bytes"),
        (index_bytes([2, 3], [0, 1, 2], version=2), "expected version 1 of Megatron's index, got 2"),
        (index_bytes([2, 3], [0, 1, 2], code=7), r"expected a code of integers, got 7 \(f4\)"),
        (index_bytes([2, 3], [0, 1, 2], code=99), "got 99"),
        (index_bytes([6, -1], [0, 1, 2]), "expected lengths of sequences from 0, got -1"),
        (index_bytes([2, 3], [0, 1, 2], size=4), "expected sequences one after the other, got other offsets"),
        (index_bytes([2, 3], [0, 2, 1]), "expected bounds of documents that rise from 0 to 2"),
        (index_bytes([2, 3], [1, 2]), "expected bounds of documents that rise from 0 to 2"),
        (index_bytes([2, 3], []), "expected bounds of documents that rise from 0 to 2"),
        (index_bytes([2, 4], [0, 1, 2]), "its index says 6 tokens of uint16, which are 12 bytes; the file has 10"),
        (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2**61, 2**61), "bounds of documents need"),
    ],
)
def test_an_index_that_is_wrong_is_an_error(index: bytes, words: str, tmp_path: Path) -> None:
    path = bin_file(tmp_path, range(5))
    (tmp_path / "a.idx").write_bytes(index)
    with pytest.raises(FormatError, match=words):
        plain(path)


def test_an_index_of_another_format_is_none(tmp_path: Path) -> None:
    path = bin_file(tmp_path, range(5))
    (tmp_path / "a.idx").write_bytes(b"0\t0\n")
    assert plain(path, length=5, dtype="uint16") == [[0, 1, 2, 3, 4]]
    with pytest.raises(OptionError, match=r"a.idx is an index: name the file of tokens beside it"):
        plain(tmp_path / "a.idx", length=5)


def test_a_dtype_that_contradicts_the_file_is_an_error(tmp_path: Path) -> None:
    path = megatron(tmp_path, [[1, 2]], [0, 1])
    assert plain(path, dtype="uint16") == [[1, 2]]
    with pytest.raises(OptionError, match="has tokens of uint16, dtype=int32 was given"):
        plain(path, dtype="int32")


def test_a_file_that_becomes_shorter_is_an_error_and_no_death(tmp_path: Path) -> None:
    path = bin_file(tmp_path, range(100))
    with tokens.TokenFile(path, "uint16") as file:
        path.write_bytes(b"12")
        with pytest.raises(FormatError, match="a block of tokens needs 200 bytes"):
            file.tokens(0, 100)

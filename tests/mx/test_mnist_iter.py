"""MNISTIter: shapes, values, orders, parts, and files that are not what they should be."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError
from pydp2.formats import idx
from pydp2.mx import MNISTIter, MNISTProvider

Paths = dict[str, Any]


def write(folder: Path, count: int, rows: int = 4, columns: int = 3) -> Paths:
    """A pair of files: every pixel of picture i, and its label, is i."""
    pictures = np.repeat(np.arange(count, dtype=np.uint8), rows * columns).reshape(count, rows, columns)
    idx.write(folder / "images", pictures)
    idx.write(folder / "labels", np.arange(count, dtype=np.uint8))
    return {"image": folder / "images", "label": folder / "labels"}


@pytest.fixture
def ten(tmp_path: Path) -> Paths:
    return write(tmp_path, 10)


def labels(provider: MNISTIter) -> list[float]:
    return [x for batch in provider for x in batch.label[0].tolist()]


def test_mx_23_pictures_have_one_channel_or_are_flat(shared_data: Path) -> None:
    folder = shared_data / "idx_digits"
    files: Paths = {"image": folder / "train-images-idx3-ubyte", "label": folder / "train-labels-idx1-ubyte"}
    provider = MNISTIter(**files, batch_size=5)
    assert provider.provide_data == [("data", (5, 1, 28, 28))]
    assert provider.provide_label == [("softmax_label", (5,))]
    flat = MNISTIter(**files, batch_size=5, flat=True)
    assert flat.provide_data == [("data", (5, 784))]
    for one, other in zip(provider, flat, strict=True):
        assert one.data[0].reshape(5, 784).tolist() == other.data[0].tolist()
        assert one.label[0].shape == (5,)


def test_mx_23_rows_come_before_columns(ten: Paths) -> None:
    assert MNISTIter(**ten, batch_size=2).provide_data == [("data", (2, 1, 4, 3))]
    assert MNISTIter(**ten, batch_size=2, flat=True).provide_data == [("data", (2, 12))]


def test_mx_24_a_pixel_is_divided_by_256(tmp_path: Path) -> None:
    idx.write(tmp_path / "images", np.arange(256, dtype=np.uint8).reshape(1, 16, 16))
    idx.write(tmp_path / "labels", np.array([255], np.uint8))
    (batch,) = MNISTIter(image=tmp_path / "images", label=tmp_path / "labels", batch_size=1)
    assert batch.data[0].dtype == batch.label[0].dtype == np.float32
    assert (batch.data[0].ravel() * 256).tolist() == list(range(256))
    assert batch.data[0].max() < 1
    assert batch.label[0].tolist() == [255]


def test_mx_25_what_does_not_fill_a_batch_is_left_out(ten: Paths) -> None:
    provider = MNISTIter(**ten, batch_size=3, shuffle=False)
    for _ in range(2):
        assert [(batch.count, batch.label[0].tolist()) for batch in provider] == [
            (3, [0, 1, 2]), (3, [3, 4, 5]), (3, [6, 7, 8]),
        ]  # fmt: skip


def test_mx_26_unshuffled_the_order_is_that_of_the_file(shared_data: Path) -> None:
    folder = shared_data / "idx_digits"
    provider = MNISTIter(
        image=folder / "train-images-idx3-ubyte", label=folder / "train-labels-idx1-ubyte", batch_size=2, shuffle=False
    )
    assert labels(provider) == [1, 3, 6, 4, 0, 5, 2, 8, 9, 7]
    pixels = idx.read(folder / "train-images-idx3-ubyte")
    data = np.concatenate([batch.data[0] for batch in provider])
    assert (data[:, 0] * 256 == pixels).all()


def test_mx_27_shuffled_there_is_one_order_that_the_seed_decides(tmp_path: Path) -> None:
    files = write(tmp_path, 100)
    provider = MNISTIter(**files, batch_size=10)
    first = labels(provider)
    assert first == labels(provider)
    assert sorted(first) == list(range(100)) != first
    assert labels(MNISTIter(**files, batch_size=10)) == first
    assert labels(MNISTIter(**files, batch_size=10, seed=1)) != first
    for batch in provider:
        assert (batch.data[0] * 256 == batch.label[0][:, None, None, None]).all()


@given(count=st.integers(1, 60), parts=st.integers(1, 12))
def test_mx_28_parts_are_disjoint_and_together_everything(
    tmp_path_factory: pytest.TempPathFactory, count: int, parts: int
) -> None:
    files = write(tmp_path_factory.mktemp("parts"), count, 1, 1)
    found: list[float] = []
    for i in range(parts):
        first, last = int(count / parts * i + 1e-9), int(count / parts * (i + 1) + 1e-9)
        if first == last:
            with pytest.raises(ValueError, match="none"):
                MNISTIter(**files, batch_size=1, num_parts=parts, part_index=i)
            continue
        part = labels(MNISTIter(**files, batch_size=1, shuffle=False, num_parts=parts, part_index=i))
        assert part == list(range(first, last))
        found += part
    assert found == list(range(count))


@pytest.mark.parametrize(("parts", "index"), [(2, 2), (2, -1), (0, 0), (1, 1)])
def test_mx_28_a_part_that_is_none_is_refused(ten: Paths, parts: int, index: int) -> None:
    with pytest.raises(ValueError, match=r"part_index|num_parts"):
        MNISTIter(**ten, batch_size=1, num_parts=parts, part_index=index)


def test_mx_29_files_that_are_damaged_or_do_not_fit_are_refused(ten: Paths, tmp_path: Path) -> None:
    whole = ten["image"].read_bytes()
    wrong = tmp_path / "wrong"
    for data, words in (
        (b"\1" + whole[1:], "expected an idx file"),
        (whole[:-1], "needs"),
        (whole + b"\0", "needs"),
        (ten["label"].read_bytes(), "expected bytes of 3 sides"),
    ):
        wrong.write_bytes(data)
        with pytest.raises(FormatError, match=words):
            MNISTIter(image=wrong, label=ten["label"])
    idx.write(wrong, np.zeros(9, np.uint8))
    with pytest.raises(FormatError, match=r"expected 10 labels, as many as .*images has pictures, got 9"):
        MNISTIter(image=ten["image"], label=wrong)
    idx.write(wrong, np.zeros(10, np.float32))
    with pytest.raises(FormatError, match="expected whole numbers of 1 sides, got float32"):
        MNISTIter(image=ten["image"], label=wrong)


def test_mx_29_gzip_is_read_too(ten: Paths, tmp_path: Path) -> None:
    packed = {}
    for name, path in ten.items():
        packed[name] = tmp_path / f"{name}.gz"
        packed[name].write_bytes(gzip.compress(path.read_bytes()))
    assert labels(MNISTIter(**packed, batch_size=2)) == labels(MNISTIter(**ten, batch_size=2))


def test_mx_30_data_are_renamed_and_labels_left_out(ten: Paths) -> None:
    provider = MNISTIter(**ten, batch_size=2, data_name="pixel", label_name=None)
    assert (provider.provide_data, provider.provide_label) == ([("pixel", (2, 1, 4, 3))], [])
    assert all(batch.label == [] for batch in provider)
    ten["label"].unlink()
    assert len(list(MNISTIter(**ten, batch_size=2, label_name=None, num_parts=2))) == 2


def test_flags_may_be_1_or_0_and_are_looked_at_before_the_files(ten: Paths, tmp_path: Path) -> None:
    plain = MNISTIter(**ten, batch_size=2, shuffle=False, flat=True, silent=True)
    other = MNISTIter(**ten, batch_size=2, shuffle=0, flat=1, silent=np.True_)  # type: ignore[arg-type]
    assert labels(plain) == labels(other)
    assert plain.provide_data == other.provide_data
    for name in ("shuffle", "flat", "silent"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 'no'"):
            MNISTIter(image=tmp_path / "none", **{name: "no"})  # type: ignore[arg-type]


def test_mx_31_mnist_provider_is_another_name() -> None:
    assert MNISTProvider is MNISTIter


def test_mx_32_fewer_samples_than_a_batch_fail_at_once(ten: Paths) -> None:
    with pytest.raises(ValueError, match="MNISTIter needs samples for at least one batch of 11, but got none"):
        MNISTIter(**ten, batch_size=11)


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_mx_42_prefetching_changes_nothing(ten: Paths, depth: int) -> None:
    plain = labels(MNISTIter(**ten, batch_size=3))
    assert labels(MNISTIter(**ten, batch_size=3, prefetch_buffer=depth)) == plain


def test_a_line_in_the_log_says_what_was_read(ten: Paths, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pydp2.mx"):
        MNISTIter(**ten, batch_size=2, silent=True)
        assert caplog.messages == []
        MNISTIter(**ten, batch_size=2)
    assert caplog.messages == ["MNISTIter: 10 pictures of 4 x 3, batches of (2, 1, 4, 3)"]


def test_the_defaults_are_those_of_the_original(ten: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ten["image"].rename(tmp_path / "train-images-idx3-ubyte")
    ten["label"].rename(tmp_path / "train-labels-idx1-ubyte")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="at least one batch of 128"):
        MNISTIter()


def test_the_labels_of_qmnist_are_told_of_their_columns(ten: Paths, tmp_path: Path) -> None:
    idx.write(tmp_path / "several", np.zeros((10, 8), np.int32))
    with pytest.raises(
        FormatError, match=r"several: expected whole numbers of 1 sides, .*; pydp2.formats.idx serves one"
    ):
        MNISTIter(image=ten["image"], label=tmp_path / "several", batch_size=2)

"""ImageRecordIter: what comes out for which records, in which order, whatever the threads; and what is refused."""

from __future__ import annotations

import inspect
import logging
import struct
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.errors import BadSample, FormatError
from pydp2.formats import dmlc_recordio, lst
from pydp2.mx import ImageRecordIter, ImageRecordProvider, records
from pydp2.mx.augment import Augmentation
from pydp2.mx.finish import Finish

from .conftest import Write, drawing, numbered, png

WHOLE = {"data_shape": (3, 6, 8), "verbose": False}
"""All of the numbered pictures."""
CHANCE: dict[str, Any] = {
    "data_shape": (3, 48, 48), "rand_crop": True, "rand_mirror": True, "max_rotate_angle": 20, "random_h": 20,
    "max_random_contrast": 0.3, "shuffle": True, "verbose": False,
}  # fmt: skip
"""Where much is left to chance."""


def values(provider: ImageRecordIter) -> list[tuple[list[float], int]]:
    """Of numbered pictures: (the value of each in a batch, pad) of an epoch."""
    return [((batch.data[0][:, 0, 0, 0] - 10).tolist(), batch.pad) for batch in provider]


def labels(provider: ImageRecordIter) -> list[float]:
    return [x for batch in provider for x in batch.label[0].tolist()]


# -- pixels ------------------------------------------------------------------------------------------------------------
def test_mx_39_a_picture_is_float32_rgb_channels_first_and_cropped_in_the_middle(write_records: Write) -> None:
    picture = np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3)
    path = write_records([picture])
    provider = ImageRecordIter(path_imgrec=path, data_shape=(3, 4, 4), batch_size=1)
    assert provider.provide_data == [("data", (1, 3, 4, 4))]
    (batch,) = provider
    assert batch.data[0].dtype == np.float32
    assert batch.data[0][0].tolist() == picture[1:5, 2:6].transpose(2, 0, 1).tolist()  # (7-4)//2, (9-4)//2


def test_mx_39_mean_contrast_illumination_mirror_and_scale_in_their_order(write_records: Write) -> None:
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    path = write_records([picture])
    plain = picture.transpose(2, 0, 1).astype(np.float64)

    def made(**options: Any) -> Any:
        (batch,) = ImageRecordIter(path_imgrec=path, data_shape=(3, 2, 3), batch_size=1, verbose=False, **options)
        return batch.data[0][0]

    mean = np.array([1, 2, 3.5])[:, None, None]
    means = {"mean_r": 1.0, "mean_g": 2.0, "mean_b": 3.5}
    assert made(**means).tolist() == (plain - mean).tolist()
    assert made(**means, scale=0.5).tolist() == ((plain - mean) * 0.5).tolist()
    assert made(mirror=True).tolist() == plain[:, :, ::-1].tolist()
    assert made(mirror=True, **means, scale=2.0).tolist() == ((plain - mean) * 2)[:, :, ::-1].tolist()
    assert made(mean_r=-5.0)[0].tolist() == (plain[0] + 5).tolist()

    varied = made(**means, max_random_contrast=0.5, max_random_illumination=30.0, scale=0.25)
    contrast, illumination = np.polyfit((plain - mean).ravel(), varied.ravel() * 4, 1)
    assert np.allclose(varied, ((plain - mean) * contrast + illumination) * 0.25, atol=1e-4)
    assert 0.5 <= contrast <= 1.5
    assert abs(contrast - 1) > 1e-3
    assert -30 <= illumination <= 30
    assert abs(illumination) > 1e-3


def test_mx_39_one_channel_is_grey_and_four_are_with_alpha(write_records: Write) -> None:
    rgba = np.full((4, 4, 4), (10, 20, 30, 200), np.uint8)
    path = write_records([rgba])
    (grey,) = ImageRecordIter(path_imgrec=path, data_shape=(1, 4, 4), batch_size=1, mean_r=8.0)
    assert np.unique(grey.data[0]).tolist() == [round(10 * 0.299 + 20 * 0.587 + 30 * 0.114) - 8]
    means = {"mean_r": 1.0, "mean_g": 2.0, "mean_b": 3.0, "mean_a": 100.0}
    (four,) = ImageRecordIter(path_imgrec=path, data_shape=(4, 4, 4), batch_size=1, **means)
    assert four.data[0][0, :, 0, 0].tolist() == [9, 18, 27, 100]
    for channels, inside in ((1, 18), (4, 10)):  # both can be warped too
        (turned,) = ImageRecordIter(
            path_imgrec=path, data_shape=(channels, 4, 4), batch_size=1, rotate=45, fill_value=77
        )
        assert turned.data[0][0, 0, 0, 0] == pytest.approx(77, abs=5)
        assert turned.data[0][0, 0, 2, 2] == pytest.approx(inside, abs=1)


def test_mx_39_the_mean_picture_is_computed_once_and_kept(write_records: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pictures = [rng.integers(0, 256, (6, 8, 3), dtype=np.uint8) for _ in range(21)]
    path, kept = write_records(pictures), tmp_path / "mean.npy"
    mean = np.mean([p.transpose(2, 0, 1) for p in pictures], axis=0)
    for threads in (1, 2):
        provider = ImageRecordIter(
            path_imgrec=path, batch_size=21, mean_img=kept, mirror=True, preprocess_threads=threads, **WHOLE
        )
        (batch,) = provider
        expected = [(p.transpose(2, 0, 1) - mean)[:, :, ::-1] for p in pictures]
        assert np.allclose(batch.data[0], expected, atol=1e-3)
        assert np.allclose(np.load(kept), mean, atol=1e-3)
    before = kept.read_bytes()
    np.save(kept, np.full((3, 6, 8), 2, np.float64))
    (batch,) = ImageRecordIter(path_imgrec=path, batch_size=21, mean_img=str(kept), **WHOLE)
    assert batch.data[0][0].tolist() == (pictures[0].transpose(2, 0, 1).astype(float) - 2).tolist()
    assert before != kept.read_bytes()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("content", [b"", b"no npy", b"\x93NUMPY\1\0", "shape", "ints", "objects"])
def test_a_mean_picture_that_is_none_is_refused(write_records: Write, tmp_path: Path, content: Any) -> None:
    kept = tmp_path / "mean.npy"
    if isinstance(content, bytes):
        kept.write_bytes(content)
    else:
        made: Any = {"shape": np.zeros((3, 8, 6)), "ints": np.zeros((3, 6, 8), int), "objects": np.array([{}, None])}
        np.save(kept, made[content])
    with pytest.raises(FormatError, match=r"mean\.npy: expected a"):
        ImageRecordIter(path_imgrec=write_records(numbered(2)), batch_size=1, mean_img=kept, **WHOLE)


def test_the_mean_picture_of_mxnet_is_told_in_words_of_our_own(write_records: Write, tmp_path: Path) -> None:
    kept = tmp_path / "mean.bin"
    kept.write_bytes(struct.pack("<QQ", 0x112, 0) + bytes(100))
    with pytest.raises(FormatError, match=r"mean\.bin: .*MXNet's \.bin is not read, remove it to have") as caught:
        ImageRecordIter(path_imgrec=write_records(numbered(2)), batch_size=1, mean_img=kept, **WHOLE)
    assert "pickle" not in "".join(traceback.format_exception(caught.value))


def test_a_mean_picture_that_cannot_be_written_is_told_before_the_pictures_are_read(
    write_records: Write, tmp_path: Path
) -> None:
    def decode(_: bytes) -> Any:
        pytest.fail("a picture was read")

    options = WHOLE | {"path_imgrec": write_records(numbered(2)), "batch_size": 1, "decode": decode}
    with pytest.raises(FileNotFoundError, match=r"mean_img cannot be written: .*missing/mean\.npy") as caught:
        ImageRecordIter(mean_img=tmp_path / "missing" / "mean.npy", **options)
    assert caught.value.filename == str(tmp_path / "missing" / "mean.npy")
    with pytest.raises(TypeError, match="verbose"):
        ImageRecordIter(mean_img=tmp_path / "mean.npy", **options | {"verbose": "yes"})


# -- order -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 4])
def test_mx_42_threads_and_prefetching_change_nothing(write_records: Write, threads: int, depth: int) -> None:
    path = write_records([drawing()] * 23)
    options = CHANCE | {"path_imgrec": path, "batch_size": 5}
    plain = ImageRecordIter(**options, preprocess_threads=1, prefetch_buffer=1)
    other = ImageRecordIter(**options, preprocess_threads=threads, prefetch_buffer=depth)
    epochs = []
    for _ in range(2):
        one, two = ([(b.data[0].tobytes(), b.label[0].tolist(), b.pad) for b in p] for p in (plain, other))
        assert one == two
        epochs.append(one)
    assert epochs[0] != epochs[1]


def test_round_batch_goes_on_behind_what_has_filled_up(write_records: Write) -> None:
    provider = ImageRecordIter(path_imgrec=write_records(numbered(4)), batch_size=3, **WHOLE)
    assert values(provider) == [([0, 1, 2], 0), ([3, 0, 1], 2)]
    assert values(provider) == [([2, 3, 0], 1)]
    assert values(provider) == [([1, 2, 3], 0)]
    for _ in provider:
        break
    assert values(provider) == [([0, 1, 2], 0), ([3, 0, 1], 2)]


def test_without_round_batch_the_last_one_ends_in_zeros(write_records: Write) -> None:
    provider = ImageRecordIter(path_imgrec=write_records(numbered(4)), batch_size=3, round_batch=False, **WHOLE)
    for _ in range(2):
        assert values(provider) == [([0, 1, 2], 0), ([3, -10, -10], 2)]
    *_, last = provider
    assert last.label[0].tolist() == [3, 0, 0]
    with pytest.raises(ValueError, match="at least a batch of 5"):
        ImageRecordIter(path_imgrec=write_records(numbered(4)), batch_size=5, **WHOLE)


def test_shuffled_each_epoch_has_another_order_and_all_records(write_records: Write) -> None:
    path = write_records(numbered(40))

    def orders(**options: Any) -> list[list[float]]:
        provider = ImageRecordIter(path_imgrec=path, batch_size=10, shuffle=True, **WHOLE, **options)
        return [labels(provider) for _ in range(3)]

    one, two, three = orders()
    assert sorted(one) == sorted(two) == sorted(three) == list(range(40))
    assert list(range(40)) != one != two != three
    assert orders() == [one, two, three]
    assert orders(seed=5) != [one, two, three]


def test_records_are_shuffled_within_a_chunk(write_records: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_records(numbered(40))
    monkeypatch.setattr(records, "CHUNK_BYTES", 10 * len(png(numbered(1)[0])))
    order = labels(ImageRecordIter(path_imgrec=path, batch_size=10, shuffle=True, **WHOLE))
    groups = [order[i : i + 10] for i in range(0, 40, 10)]
    assert [sorted(group) for group in groups] == [list(range(i, i + 10)) for i in range(0, 40, 10)]
    assert len({tuple(x % 10 for x in group) for group in groups}) == 4


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_are_disjoint_and_together_everything(write_records: Write, parts: int) -> None:
    paths = [write_records(numbered(30)), write_records(numbered(9), range(100, 109), name="more.rec")]
    found: list[float] = []
    for i in range(parts):
        found += labels(
            ImageRecordIter(path_imgrec=paths, batch_size=1, num_parts=parts, part_index=i, round_batch=False, **WHOLE)
        )
    assert sorted(found) == [*range(30), *range(100, 109)]


def test_what_chance_makes_of_a_picture_is_the_same_in_any_part(write_records: Write) -> None:
    path = write_records([drawing()] * 12)
    options = CHANCE | {"path_imgrec": path, "batch_size": 1, "shuffle": False}
    whole = {batch.label[0][0]: batch.data[0] for batch in ImageRecordIter(**options)}
    for i in range(3):
        for batch in ImageRecordIter(**options, num_parts=3, part_index=i):
            assert (whole[batch.label[0][0]] == batch.data[0]).all()


# -- labels ------------------------------------------------------------------------------------------------------------
def test_several_labels_come_as_rows(write_records: Write) -> None:
    path = write_records(numbered(3), [[i, 2 * i, 3 * i] for i in range(3)])
    provider = ImageRecordIter(path_imgrec=path, batch_size=3, label_width=3, **WHOLE)
    assert provider.provide_label == [("softmax_label", (3, 3))]
    assert next(iter(provider)).label[0].tolist() == [[0, 0, 0], [1, 2, 3], [2, 4, 6]]


@pytest.mark.parametrize(("labels", "width"), [([[1, 2]], 1), ([[1, 2]], 3), ([5.0], 2)])
def test_another_number_of_labels_than_said_is_an_error(write_records: Write, labels: Any, width: int) -> None:
    with pytest.raises(BadSample, match=f"record at byte 0: expected {width} labels?, it has {np.size(labels[0])}"):
        ImageRecordIter(path_imgrec=write_records(numbered(1), labels), batch_size=1, label_width=width, **WHOLE)


def test_a_list_gives_the_labels_by_id(write_records: Write, tmp_path: Path) -> None:
    path, listed = write_records(numbered(4)), tmp_path / "all.lst"
    lst.write(listed, [lst.Entry(i, (50.0 + i, 60.0 + i), f"{i}.png") for i in (3, 1, 0, 2)])
    provider = ImageRecordIter(path_imgrec=path, path_imglist=listed, label_width=2, batch_size=4, **WHOLE)
    assert next(iter(provider)).label[0].tolist() == [[50 + i, 60 + i] for i in range(4)]
    lst.write(listed, [lst.Entry(i, (1.0,), "x") for i in (0, 1, 3)])
    with pytest.raises(BadSample, match=r"all\.lst has no line for its id 2"):
        list(ImageRecordIter(path_imgrec=path, path_imglist=listed, batch_size=1, **WHOLE))
    with pytest.raises(BadSample, match=r"expected 2 labels, .*all\.lst has 1; label_width"):
        ImageRecordIter(path_imgrec=path, path_imglist=listed, batch_size=1, label_width=2, **WHOLE)


def test_mx_30_data_are_renamed_and_labels_left_out(write_records: Write) -> None:
    path = write_records(numbered(2))
    provider = ImageRecordIter(path_imgrec=path, batch_size=2, data_name="x", label_name=None, **WHOLE)
    assert (provider.provide_data, provider.provide_label) == ([("x", (2, 3, 6, 8))], [])


def test_labels_that_are_not_wanted_are_not_looked_at(write_records: Write, tmp_path: Path) -> None:
    path = write_records(numbered(2), [[1, 2, 3], [4]])
    options = WHOLE | {"path_imgrec": path, "batch_size": 2, "label_name": None}
    for listed in ("", tmp_path / "none.lst"):
        (batch,) = ImageRecordIter(**options, path_imglist=listed)
        assert batch.label == []
        assert batch.data[0][:, 0, 0, 0].tolist() == [10, 11]


def test_a_list_with_two_lines_for_an_id_is_refused(write_records: Write, tmp_path: Path) -> None:
    listed = tmp_path / "all.lst"
    lst.write(listed, [lst.Entry(i, (1.0,), "x") for i in (0, 1, 0)])
    with pytest.raises(FormatError, match=r"all\.lst: expected one line for each id, got two for 0"):
        ImageRecordIter(path_imgrec=write_records(numbered(2)), path_imglist=listed, batch_size=1, **WHOLE)


# -- names, logs -------------------------------------------------------------------------------------------------------
def test_mx_31_image_record_provider_is_another_name() -> None:
    assert ImageRecordProvider is ImageRecordIter


def test_mx_32_a_file_without_records_fails_at_once(write_records: Write, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ImageRecordIter needs samples for at least one batch of 1, but got none"):
        ImageRecordIter(path_imgrec=write_records([]), batch_size=1, **WHOLE)
    with pytest.raises(FileNotFoundError):
        ImageRecordIter(path_imgrec=tmp_path / "none.rec", batch_size=1, **WHOLE)


def test_a_line_in_the_log_says_what_is_read(write_records: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write_records(numbered(2))
    with caplog.at_level(logging.INFO, "pydp2.mx"):
        ImageRecordIter(path_imgrec=path, data_shape=(3, 6, 8), batch_size=2, verbose=False)
        assert caplog.messages == []
        ImageRecordIter(path_imgrec=path, data_shape=(3, 6, 8), batch_size=2, preprocess_threads=1)
    assert caplog.messages == [f"ImageRecordIter: {path}, part 0 of 1, batches of (2, 3, 6, 8), 1 threads"]


def test_the_parameters_of_a_picture_have_the_defaults_of_the_classes_that_they_go_to() -> None:
    signature = inspect.signature(ImageRecordIter).parameters
    for cls in (Augmentation, Finish):
        for field in fields(cls):
            if field.name != "data_shape":
                assert signature[field.name].default == field.default, field.name
                assert type(signature[field.name].default) is type(field.default)


# -- decoding ----------------------------------------------------------------------------------------------------------
RAW = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)


def test_raw_bytes_are_pixels_of_the_shape(write_records: Write) -> None:
    provider = ImageRecordIter(
        path_imgrec=write_records([RAW.tobytes()]), data_shape=(3, 2, 4), batch_size=1, decode="raw", mirror=True
    )
    assert next(iter(provider)).data[0][0].tolist() == RAW[:, :, ::-1].tolist()
    with pytest.raises(BadSample, match=r"record at byte 0: expected the 24 bytes of \(3, 2, 4\), got 23"):
        ImageRecordIter(path_imgrec=write_records([bytes(23)]), data_shape=(3, 2, 4), batch_size=1, decode="raw")


def test_without_pillow_bytes_are_raw_and_what_needs_it_says_so(
    write_records: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, pictures = write_records([RAW.tobytes()]), write_records(numbered(1), name="other.rec")
    monkeypatch.setitem(sys.modules, "PIL", None)
    shape = {"data_shape": (3, 2, 4), "batch_size": 1}
    (batch,) = ImageRecordIter(path_imgrec=raw, random_h=0, rand_mirror=True, random_l=5, **shape)
    assert batch.data[0].shape == (1, 3, 2, 4)
    with pytest.raises(BadSample, match=r"pip install 'pillow>="):
        ImageRecordIter(path_imgrec=pictures, **shape)
    for options in ({"rotate": 5}, {"min_crop_size": 2, "max_crop_size": 2}, {"decode": "image"}):
        with pytest.raises(ValueError, match=r"needs Pillow, .*pip install 'pillow>="):
            ImageRecordIter(path_imgrec=raw, **shape, **options)


def test_a_function_may_decode(write_records: Write) -> None:
    def decode(data: bytes) -> Any:
        return np.frombuffer(data, np.uint8).reshape(2, 4, 3)

    path = write_records([RAW.tobytes()])
    provider = ImageRecordIter(path_imgrec=path, data_shape=(3, 2, 4), batch_size=1, decode=decode)
    assert next(iter(provider)).data[0][0].tolist() == RAW.reshape(2, 4, 3).transpose(2, 0, 1).tolist()
    (grey,) = ImageRecordIter(
        path_imgrec=path, data_shape=(1, 4, 6), batch_size=1, decode=lambda data: np.zeros((4, 6), np.uint8)
    )
    assert grey.data[0].shape == (1, 1, 4, 6)
    for wrong in (lambda data: data, lambda data: np.zeros((2, 4)), lambda data: np.zeros((2, 4, 4), np.uint8)):
        with pytest.raises(BadSample, match=r"decode must give uint8 \(height, width, 3\)"):
            ImageRecordIter(path_imgrec=path, data_shape=(3, 2, 4), batch_size=1, decode=wrong)


def test_an_error_of_a_function_that_decodes_names_the_record(write_records: Write) -> None:
    def decode(data: bytes) -> Any:
        if data == b"bad":
            raise LookupError("no such colour")
        return np.zeros((2, 4, 3), np.uint8)

    path = write_records([b"good", b"bad"])
    with pytest.raises(FormatError, match=r"record at byte 36: decode raised LookupError: no such colour") as caught:
        ImageRecordIter(path_imgrec=path, data_shape=(3, 2, 4), batch_size=2, decode=decode)
    assert (caught.value.file, caught.value.offset) == (path, 36)
    assert isinstance(caught.value.__cause__, LookupError)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damaged", [b"", b"no picture", png(drawing())[:-300], png(drawing())[:40]])
def test_a_picture_that_cannot_be_decoded_is_named_behind_the_batches_before_it(
    write_records: Write, damaged: bytes
) -> None:
    path = write_records([*numbered(30), damaged])
    with dmlc_recordio.Reader(path) as reader:
        *_, (at, _) = reader.with_offsets()
    provider = ImageRecordIter(path_imgrec=path, batch_size=4, **WHOLE)
    seen: list[float] = []
    with pytest.raises(FormatError, match=f"pictures.rec, record at byte {at}: cannot be decoded") as caught:
        seen.extend(x for batch in provider for x in batch.label[0].tolist())
    assert seen == list(range(28))
    assert (caught.value.file, caught.value.offset) == (path, at)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data_shape": (3, 7, 8)}, "needs a picture of 7 x 8 pixels, it has 6 x 8"),
        ({"data_shape": (3, 6, 6), "crop_x_start": 3}, "crop_x_start=3 leaves the picture"),
        ({"min_crop_size": 5, "max_crop_size": 7}, "max_crop_size=7 needs a picture as large, it has 6 x 8"),
        ({"min_random_scale": 1e-3, "max_random_scale": 1e-3}, "6 x 8 would become 0 x 0"),
        ({"min_random_scale": 1e5, "max_random_scale": 1e5}, "6 x 8 would become"),
    ],
)
def test_a_picture_that_does_not_fit_its_crop_is_named(write_records: Write, options: Any, words: str) -> None:
    with pytest.raises(BadSample, match=f"record at byte 0: .*{words}"):
        ImageRecordIter(**(WHOLE | {"path_imgrec": write_records(numbered(1)), "batch_size": 1} | options))


def test_a_record_without_a_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.rec"
    dmlc_recordio.write(path, [b"short"])
    with pytest.raises(FormatError, match=r"d\.rec, record at byte 0: an IRHeader needs 24 bytes"):
        ImageRecordIter(path_imgrec=path, batch_size=1, **WHOLE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data_shape": (3, 6)}, "data_shape"),
        ({"data_shape": (2, 6, 8)}, "1, 3 or 4 channels"),
        ({"batch_size": 0}, "batch_size"),
        ({"preprocess_threads": 0}, "preprocess_threads"),
        ({"label_width": 0}, "label_width"),
        ({"num_parts": 2, "part_index": 2}, "part_index"),
        ({"min_random_scale": 2.0}, "min_random_scale"),
        ({"min_random_scale": 0.0}, "min_random_scale"),
        ({"max_random_scale": float("nan")}, "max_random_scale"),
        ({"min_img_size": 5.0, "max_img_size": 4.0}, "min_img_size"),
        ({"max_crop_size": 5}, "given together"),
        ({"min_crop_size": 6, "max_crop_size": 5}, "given together"),
        ({"max_aspect_ratio": 1.0}, "max_aspect_ratio"),
        ({"max_shear_ratio": -0.1}, "max_shear_ratio"),
        ({"max_rotate_angle": -1}, "max_rotate_angle"),
        ({"random_h": 181}, "random_h"),
        ({"random_s": -1}, "random_s"),
        ({"random_l": 9, "data_shape": (1, 6, 8)}, "need 3 channels"),
        ({"fill_value": 256}, "fill_value"),
        ({"rotate": -30}, "rotate must be at least 0, or -1 for none, got -30; 330 is -30 degrees"),
        ({"crop_y_start": -2}, "crop_y_start"),
        ({"crop_x_start": -2}, "crop_x_start"),
        ({"mean_r": 10**400}, "mean_r"),
        ({"inter_method": 5}, "inter_method"),
        ({"max_random_contrast": -1.0}, "max_random_contrast"),
        ({"mean_r": float("inf")}, "mean_r"),
        ({"mean_img": "m.npy", "mean_b": 1.0}, "mean_img, or mean_r"),
        ({"decode": "jpeg"}, "decode"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(write_records: Write, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ImageRecordIter(**(WHOLE | {"path_imgrec": write_records(numbered(2)), "batch_size": 1} | options))


@pytest.mark.parametrize(
    "options",
    [
        {"rand_crop": 2}, {"mirror": "yes"}, {"verbose": 1.0}, {"rotate": 2.5}, {"scale": "1"}, {"path_imgrec": []},
        {"resize": 5}, {"shuffle": None},
    ],
)  # fmt: skip
def test_a_parameter_of_another_kind_is_a_type_error(write_records: Write, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        ImageRecordIter(**(WHOLE | {"path_imgrec": write_records(numbered(2)), "batch_size": 1} | options))


def test_flags_may_be_1_or_0_and_the_shape_an_array(write_records: Write) -> None:
    path = write_records(numbered(4))
    options = {"path_imgrec": path, "batch_size": 4, "data_shape": np.array([3, 6, 8])}
    plain = ImageRecordIter(**(options | {"shuffle": True, "verbose": False, "mirror": True}))  # type: ignore[arg-type]
    other = ImageRecordIter(**(options | {"shuffle": 1, "verbose": 0, "mirror": np.True_}))  # type: ignore[arg-type]
    assert values(plain) == values(other)
    assert other.provide_data == [("data", (4, 3, 6, 8))]

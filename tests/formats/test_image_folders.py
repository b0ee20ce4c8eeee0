"""Pictures in folders and lists: one entry for all, read whole, in parts, from any picture on, and decoded."""

from __future__ import annotations

import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import pydp2
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import images, serving
from pydp2.providers import resolve

PROVIDER = resolve("pydp2.formats.images")


def picture(width: int = 6, height: int = 4, kind: str = "PNG", mode: str = "RGB", **more: Any) -> bytes:
    """A picture whose left half is bright, and its right half black."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, : width // 2] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **more)
    return file.getvalue()


def some_folders(top: Path, count: int = 3, classes: tuple[str, ...] = ("cat", "dog")) -> list[dict[str, Any]]:
    """Write ``count`` pictures for each class below ``top``; return the samples in their order."""
    samples = []
    for label, name in enumerate(classes):
        (top / name).mkdir(parents=True)
        for i in range(count):
            data = f"{name} {i}".encode()
            (top / name / f"{i:04}.jpg").write_bytes(data)
            samples.append({"image": data, "label": label, "path": f"{name}/{i:04}.jpg"})
    return samples


# -- folders -----------------------------------------------------------------------------------------------------------
def test_a_folder_for_each_class_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    samples = some_folders(tmp_path / "top")
    assert list(images.read(tmp_path / "top")) == samples
    assert images.listing(str(tmp_path / "top")).classes == ("cat", "dog")


def test_folders_in_a_class_belong_to_it_and_files_that_are_no_pictures_are_left_out(tmp_path: Path) -> None:
    for name in (
        "b/z/2.PNG",
        "b/1.jpeg",
        "b/y/1.webp",
        "a/1.txt",
        "b/.hidden.jpg",
        ".git/1.jpg",
        "b/.x/1.jpg",
        "0.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    have = [(sample["path"], sample["label"]) for sample in images.read(tmp_path)]
    assert have == [("b/1.jpeg", 1), ("b/y/1.webp", 1), ("b/z/2.PNG", 1)]


def test_a_class_may_be_a_link_and_a_link_to_a_folder_below_it_is_an_error(tmp_path: Path) -> None:
    some_folders(tmp_path / "top", 2)
    (tmp_path / "top" / "eel").symlink_to(tmp_path / "top" / "cat")
    assert [sample["label"] for sample in images.read(tmp_path / "top")] == [0, 0, 1, 1, 2, 2]
    (tmp_path / "top" / "cat" / "ring").symlink_to(tmp_path / "top" / "cat")
    with pytest.raises(FormatError, match="ring: expected pictures or folders, got a link to a folder"):
        list(images.read(tmp_path / "top"))


def test_classes_fix_the_labels_whatever_folders_are_there(tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    have = [sample["label"] for sample in images.read(tmp_path, classes=["dog", "eel", "cat"])]
    assert have == [2, 0]
    with pytest.raises(FormatError, match="the folder 'dog' is none of the classes cat, eel, which are the folders of"):
        images.listing(str(tmp_path), classes=["cat", "eel"])


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ([], "expected a folder for each class, got none; write the pictures and labels into a list"),
        (["1.jpg"], "expected a folder for each class, got none"),
        (["a/1.txt"], "expected pictures in its folders, got no file that ends in one of .jpg,"),
    ],
)
def test_a_folder_without_classes_or_pictures_is_an_error(names: list[str], what: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(FormatError, match=re.escape(what)):
        list(images.read(tmp_path))


# -- lists -------------------------------------------------------------------------------------------------------------
def test_a_list_has_a_path_and_a_label_in_each_line(tmp_path: Path) -> None:
    samples = some_folders(tmp_path)
    (tmp_path / "dog" / "a b.jpg").write_bytes(b"blank")
    text = "".join(f"{sample['path']} {sample['label']}\n" for sample in samples)
    (tmp_path / "train.txt").write_bytes(text.encode() + b"\r\ndog/a b.jpg\t-7\r\n")
    more = {"image": b"blank", "label": -7, "path": "dog/a b.jpg"}
    assert list(images.read(tmp_path / "train.txt")) == [*samples, more]


def test_paths_of_a_list_are_relative_to_its_folder_or_the_one_that_is_given(tmp_path: Path) -> None:
    samples = some_folders(tmp_path / "top", 1)
    (tmp_path / "train.txt").write_text(f"cat/0000.jpg 0\n{tmp_path}/top/dog/0000.jpg 1\n")
    have = list(images.read(tmp_path / "train.txt", folder=str(tmp_path / "top")))
    assert [sample["image"] for sample in have] == [sample["image"] for sample in samples]


def test_labels_of_a_list_may_be_names_of_classes(tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    (tmp_path / "train.txt").write_text("cat/0000.jpg cat\ndog/0000.jpg dog\n")
    assert [s["label"] for s in images.read(tmp_path / "train.txt", classes=["dog", "cat"])] == [1, 0]


@pytest.mark.parametrize(
    ("classes", "line", "what"),
    [
        (None, "a.jpg", "line 2: expected a path and a label, got 'a.jpg'"),
        (None, "a.jpg 1.5", "line 2: expected a label, a whole number of 64 bits, got '1.5'"),
        (None, f"a.jpg {2**63}", "line 2: expected a label, a whole number of 64 bits"),
        (2, "a.jpg 2", "line 2: expected a label, a class from 0 to 1, got '2'"),
        (["cat", "dog"], "a.jpg eel", "line 2: expected a label, one of the classes cat, dog, got 'eel'"),
    ],
)
def test_a_wrong_line_is_a_bad_sample_and_the_others_are_served(
    classes: Any, line: str, what: str, tmp_path: Path
) -> None:
    some_folders(tmp_path, 1)
    word = "cat" if isinstance(classes, list) else "0"
    path = tmp_path / "train.txt"
    path.write_text(f"cat/0000.jpg {word}\n{line}\ncat/0000.jpg {word}\ncat/none.jpg {word}\n")
    started = PROVIDER.start(args={} if classes is None else {"classes": classes}, file_list=[str(path)])
    first, bad, second, absent = started.open_file(str(path), file_index=0, seed=0, pass_id=0)
    assert first["label"] == second["label"] == 0
    assert what in str(bad)
    assert str(absent) == f"image: expected the picture {tmp_path}/cat/none.jpg, got No such file or directory"
    with pytest.raises(FormatError, match=re.escape(what)):
        list(images.read(path, classes=classes))


# -- parts, starts, chosen pictures ------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 12), parts=st.integers(1, 5), data=st.data())
def test_starts_parts_and_chosen_pictures_are_those_of_a_whole_reading(
    count: int, parts: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("images")
    samples = some_folders(folder, count)
    path = folder / "train.txt"
    path.write_text("".join(f"{sample['path']} {sample['label']}\n" for sample in samples))
    for name in (path, *[folder] * bool(samples)):
        read = [list(images.read(name, part=FilePart(i, parts))) for i in range(parts)]
        assert [sample for part in read for sample in part] == samples
        start = data.draw(st.integers(0, len(read[-1])))
        assert list(images.read(name, part=FilePart(parts - 1, parts), start=start)) == read[-1][start:]
        chosen = sorted(data.draw(st.sets(st.integers(0, len(samples) - 1)))) if samples else []
        assert list(images.read(name, indices=np.array(chosen, np.int64))) == [samples[i] for i in chosen]


def test_a_picture_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    with pytest.raises(OptionError, match="has 2 pictures in this part, and no picture 2"):
        list(images.read(tmp_path, indices=np.array([0, 2])))


@pytest.mark.parametrize("of_list", [False, True])
def test_a_service_serves_a_folder_or_a_list_as_one_entry_and_in_parts(of_list: bool, tmp_path: Path) -> None:
    samples = some_folders(tmp_path / "top", 120)
    entry = str(tmp_path / "top")
    if of_list:
        (tmp_path / "top" / "train.txt").write_text("".join(f"{s['path']} {s['label']}\n" for s in samples))
        entry += "/train.txt"
    have: list[dict[str, Any]] = []
    with pydp2.load(
        [entry, *part_entries(entry, 3)], "pydp2.formats.images", batch_size=50, shuffle=False, workers=2
    ) as data:
        for batch in data:
            assert batch["label"].dtype == (np.int64 if of_list else np.int32)
            columns = [batch["image"].to_list(), batch["label"].tolist(), batch["path"].to_list()]
            have += [{"image": i, "label": n, "path": p} for i, n, p in zip(*columns, strict=True)]
    assert have == samples * 2


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=30), block=st.sampled_from([1, 64, 100, 1000]))
def test_pictures_are_served_whatever_fits_into_a_block(sizes: list[int], block: int, tmp_path: Path) -> None:
    (folder := Path(tempfile.mkdtemp(dir=tmp_path)) / "a").mkdir()
    expected = [bytes([i]) * size for i, size in enumerate(sizes)]
    for i, data in enumerate(expected):
        (folder / f"{i:04}.jpg").write_bytes(data)
    (folder / "0099.jpg").symlink_to("nowhere")
    started = PROVIDER.start(args={}, file_list=[str(folder.parent)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "BLOCK", block)
        found = list(started.open_file(str(folder.parent), file_index=0, seed=0, pass_id=0))
    assert [sample["image"] for sample in found[:-1]] == expected
    assert isinstance(found[-1], BadSample)


# -- decoded -----------------------------------------------------------------------------------------------------------
def decoded(folder: Path, files: dict[str, bytes], **options: Any) -> list[Any]:
    """Pictures as they are served, and the texts of errors in their places."""
    (folder / "a").mkdir(parents=True)
    for name, data in files.items():
        (folder / "a" / name).write_bytes(data)
    started = PROVIDER.start(args={"image": options}, file_list=[str(folder)])
    opened = started.open_file(str(folder), file_index=0, seed=0, pass_id=0)
    return [str(sample) if isinstance(sample, BadSample) else sample["image"] for sample in opened]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "LA", "1"])
def test_pictures_of_any_mode_become_one_shape(mode: str, tmp_path: Path) -> None:
    data = picture(mode=mode, kind="TIFF" if mode == "CMYK" else "PNG")
    (pixels,) = decoded(tmp_path, {"a.png": data}, size=[2, 3])
    assert pixels.shape == (2, 3, 3)
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 2].tolist() == [0, 0, 0]


def test_a_crop_keeps_the_proportions_and_none_keeps_all(tmp_path: Path) -> None:
    wide = picture(60, 10)
    (centre,) = decoded(tmp_path / "1", {"a.png": wide}, size=10, mode="L") if (tmp_path / "1").mkdir() is None else []
    (whole,) = (
        decoded(tmp_path / "2", {"a.png": wide}, size=10, crop="none") if (tmp_path / "2").mkdir() is None else []
    )
    assert centre[0, :, 0].tolist() == [255] * 5 + [0] * 5
    assert centre.shape == (10, 10, 1)
    assert whole[0, 0].tolist() == [255] * 3
    assert whole[0, 9].tolist() == [0] * 3


def test_channels_may_come_first(tmp_path: Path) -> None:
    (pixels,) = decoded(tmp_path, {"a.png": picture()}, size=[4, 6], channels_first=True)
    assert pixels.shape == (3, 4, 6)
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize(("turn", "bright"), [(1, "left"), (3, "right"), (6, "top"), (8, "bottom")])
def test_pictures_are_turned_as_their_exif_says(turn: int, bright: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    (pixels,) = decoded(tmp_path, {"a.png": picture(exif=exif)}, size=4, mode="L", crop="none")
    sides = {"left": pixels[:, 0], "right": pixels[:, 3], "top": pixels[0], "bottom": pixels[3]}
    assert [name for name, side in sides.items() if side.min() > 200] == [bright]


def test_a_picture_that_cannot_be_decoded_is_a_bad_sample(tmp_path: Path) -> None:
    jpeg = picture(64, 64, "JPEG")
    files = {"0.jpg": jpeg, "1.jpg": jpeg[:-40], "2.jpg": b"", "3.jpg": b"<html>", "4.jpg": jpeg}
    have = decoded(tmp_path, files, size=8)
    assert have[0].shape == have[4].shape == (8, 8, 3)
    assert have[1].startswith("a/1.jpg: cannot be decoded: image file is truncated")
    assert "it looks like an empty file" in have[2]
    assert "it looks like an HTML page" in have[3]


# -- arguments ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"classes": 2}, "classes of a folder are names, in the order of their labels, got 2"),
        ({"classes": "cat"}, "classes must be a list of names such as"),
        ({"classes": ["cat", "cat"]}, "classes must name each once"),
        ({"folder": "x"}, "folder is for the paths of a list, and the entries are folders"),
        ({"image": {"crop": "none"}}, "image needs the height and width of pictures"),
        ({"size": 3}, "has no argument 'size'"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_write(args: dict[str, Any], what: str, tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    with pytest.raises(ProviderError, match=re.escape(what)):
        PROVIDER.start(args=args, file_list=[str(tmp_path)])


def test_all_entries_are_folders_or_all_are_lists(tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    path = tmp_path / "train.txt"
    path.write_text("cat/0000.jpg 0\n")
    started = PROVIDER.start(file_list=[str(tmp_path), str(path)])
    with pytest.raises(OptionError, match=r"is a folder and .*train.txt is a list: all entries must be alike"):
        next(started.open_file(str(path), file_index=1, seed=0, pass_id=0))


def test_a_name_that_is_not_utf8_makes_a_bad_sample(tmp_path: Path) -> None:
    some_folders(tmp_path, 1)
    try:
        (tmp_path / "cat" / os.fsdecode(b"\xff.jpg")).write_bytes(b"")
    except OSError:
        return  # a file system of UTF-8 names has no such file
    with pytest.raises(BadSample, match="path"):
        list(PROVIDER.samples(str(tmp_path)))

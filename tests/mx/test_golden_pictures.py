"""What each augmentation makes of a drawing, as pictures under tests/golden/mx that a person can look at.

Each picture shows a parameter: four records of the same drawing, side by side, as the provider gave them out. On a
difference that can be seen the file is written anew and the test fails: look at it, and keep it if it is meant. No
picture would pass for another one.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pydp2.mx import ImageRecordIter
from pydp2.mx.augment import Augmentation
from pydp2.mx.colour import to_hls
from pydp2.mx.finish import Finish
from pydp2.mx.pillow import Method

from .conftest import Picture, Write, drawing, plate

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mx"
RECORDS, SIDE = 4, 64
MEAN_OFF, WORST_OFF = 1.5, 0.02
"""What another release of Pillow may round differently: levels on average, share of values that are 24 levels off."""

SMALL = {"min_random_scale": 0.5, "max_random_scale": 0.5, "min_img_size": 64.0}
"""Half as large, on a sheet of 64 by 64."""
SHRUNK = {"min_crop_size": 96, "max_crop_size": 96}
"""To two thirds: each method gives another picture, where an enlarged one is the same with nearest and with area."""

CASES: dict[str, dict[str, Any]] = {
    "centre-crop": {},
    "rand_crop": {"rand_crop": True},
    "crop_y_start-crop_x_start": {"crop_y_start": 0, "crop_x_start": 56},
    "rotate-30": {"rotate": 30},
    "max_rotate_angle-90": {"max_rotate_angle": 90},
    "max_shear_ratio-0.5": {"max_shear_ratio": 0.5},
    "max_aspect_ratio-0.5": {"max_aspect_ratio": 0.5},
    "min_random_scale-0.7-max_random_scale-2": {"min_random_scale": 0.7, "max_random_scale": 2.0},
    "min_img_size-64": SMALL,
    "min_img_size-64-rotate-30-fill_value-0": SMALL | {"rotate": 30, "fill_value": 0},
    "max_img_size-80-crop_y_start-0-crop_x_start-0": {"max_img_size": 80.0, "crop_y_start": 0, "crop_x_start": 0},
    "min_crop_size-24-max_crop_size-96": {"min_crop_size": 24, "max_crop_size": 96},
    "min_crop_size-24-max_crop_size-96-rand_crop": {"min_crop_size": 24, "max_crop_size": 96, "rand_crop": True},
    "inter_method-0-nearest": SHRUNK | {"inter_method": 0},
    "inter_method-1-bilinear": SHRUNK | {"inter_method": 1},
    "inter_method-2-cubic": SHRUNK | {"inter_method": 2},
    "inter_method-3-area": SHRUNK | {"inter_method": 3},
    "inter_method-4-lanczos": SHRUNK | {"inter_method": 4},
    "inter_method-9-auto": {"min_crop_size": 24, "max_crop_size": 96, "inter_method": 9},
    "inter_method-10-random": SHRUNK | {"inter_method": 10},
    "random_h-90": {"random_h": 90},
    "random_s-200": {"random_s": 200},
    "random_l-100": {"random_l": 100},
    "mirror": {"mirror": True},
    "rand_mirror": {"rand_mirror": True},
    "mean_r-128": {"mean_r": 128.0},
    "scale-0.5": {"scale": 0.5},
    "max_random_contrast-0.7": {"max_random_contrast": 0.7},
    "max_random_illumination-100": {"max_random_illumination": 100.0},
    "everything": {
        "rand_crop": True, "max_rotate_angle": 30, "max_shear_ratio": 0.2, "max_aspect_ratio": 0.2,
        "min_random_scale": 0.9, "max_random_scale": 1.3, "random_h": 30, "random_s": 60, "random_l": 40,
        "rand_mirror": True, "max_random_contrast": 0.2, "max_random_illumination": 20.0, "inter_method": 2,
    },
}  # fmt: skip


def panels(path: str, options: dict[str, Any], records: int = RECORDS, side: int = SIDE) -> list[Picture]:
    """The pictures of the first batch, uint8 (side, side, 3) each."""
    shape = {"data_shape": (3, side, side)} | options
    (batch,) = ImageRecordIter(path_imgrec=path, batch_size=records, seed=7, **shape)
    return list(np.clip(np.rint(batch.data[0]), 0, 255).astype(np.uint8).transpose(0, 2, 3, 1))


def sheet(path: str, options: dict[str, Any]) -> Picture:
    """The pictures of the first batch side by side, uint8 (side, records * side, 3)."""
    return np.concatenate(panels(path, options), axis=1)


def shown_on(name: str) -> Picture:
    """What the records of a case hold: something on which its parameter can be seen."""
    if name.startswith("inter_method"):
        return plate()
    # colours of full saturation can only lose some of it
    return drawing() // 2 + 64 if name.startswith("random_s") else drawing()


def alike(kept: Picture, found: Picture) -> bool:
    off = np.abs(kept.astype(int) - found)
    return bool(off.mean() <= MEAN_OFF and (off >= 24).mean() <= WORST_OFF)


@pytest.mark.parametrize("name", CASES)
def test_mx_39_what_an_augmentation_does_can_be_looked_at(name: str, write_records: Write) -> None:
    found = sheet(write_records([shown_on(name)] * RECORDS), CASES[name])
    path = GOLDEN / f"{name}.png"
    if path.exists():
        kept = np.asarray(Image.open(path))
        if kept.shape == found.shape and alike(kept, found):
            return
    GOLDEN.mkdir(exist_ok=True)
    Image.fromarray(found).save(path, optimize=True)
    pytest.fail(f"tests/golden/mx/{path.name} was another picture; it was written anew, look at it")


def test_the_folder_holds_no_other_pictures() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_no_picture_would_pass_for_another_one() -> None:
    kept = {name: np.asarray(Image.open(GOLDEN / f"{name}.png")) for name in CASES}
    assert [(a, b) for a, b in combinations(CASES, 2) if alike(kept[a], kept[b])] == []


def test_every_parameter_of_a_picture_has_one_but_those_that_the_page_names() -> None:
    parameters = {field.name for cls in (Augmentation, Finish) for field in fields(cls)} - {"data_shape"}
    assert parameters - {name for options in CASES.values() for name in options} == {"mean_g", "mean_b", "mean_a"}


# -- inter_method ------------------------------------------------------------------------------------------------------
def test_smaller_pictures_are_another_one_with_each_method(write_records: Write) -> None:
    path = write_records([plate()])
    made = [panels(path, SHRUNK | {"inter_method": method}, 1)[0] for method in Method]
    assert [(a, b) for a, b in combinations(Method, 2) if alike(made[a], made[b])] == []


def test_larger_pictures_are_another_one_with_each_method_but_area(write_records: Write) -> None:
    path = write_records([plate()])
    enlarged = {"min_crop_size": 40, "max_crop_size": 40, "crop_y_start": 0, "crop_x_start": 0}
    made = [panels(path, enlarged | {"inter_method": method}, 1)[0] for method in Method]
    same = [(a, b) for a, b in combinations(Method, 2) if alike(made[a], made[b])]
    assert set(same) <= {(Method.NEAREST, Method.AREA)}


def test_turned_pictures_know_neither_area_nor_lanczos(write_records: Write) -> None:
    path = write_records([plate()])
    made = [panels(path, {"rotate": 30, "inter_method": method}, 1)[0] for method in Method]
    same = [(a, b) for a, b in combinations(Method, 2) if alike(made[a], made[b])]
    assert same == [(Method.LINEAR, Method.AREA), (Method.CUBIC, Method.LANCZOS)]


@pytest.mark.parametrize(
    ("crop", "shape", "method"),
    [
        (96, (3, 64, 64), Method.AREA),
        (48, (3, 64, 64), Method.CUBIC),
        (48, (3, 64, 32), Method.LINEAR),
        (48, (3, 48, 64), Method.LINEAR),
    ],
)
def test_9_chooses_by_whether_the_picture_becomes_larger_or_smaller(
    write_records: Write, crop: int, shape: tuple[int, int, int], method: Method
) -> None:
    path = write_records([plate()])
    options = {"min_crop_size": crop, "max_crop_size": crop, "data_shape": shape}
    made = [panels(path, options | {"inter_method": other}, 1)[0] for other in Method]
    (auto,) = panels(path, options | {"inter_method": 9}, 1)
    assert (auto == made[method]).all()
    assert not any((auto == made[other]).all() for other in Method if other != method)


def test_10_takes_each_of_the_five_for_some_pictures(write_records: Write) -> None:
    path = write_records([plate()] * 40)
    made = [panels(path, SHRUNK | {"inter_method": method}, 40)[0] for method in Method]
    drawn = [
        [method for method in Method if (picture == made[method]).all()]
        for picture in panels(path, SHRUNK | {"inter_method": 10}, 40)
    ]
    assert all(len(methods) == 1 for methods in drawn)
    assert {methods[0] for methods in drawn} == set(Method)
    assert len({methods[0] for methods in drawn[:RECORDS]}) > 1  # which are those of the picture


# -- others whose effect is easily missed ------------------------------------------------------------------------------
def test_max_img_size_bounds_the_sheet_around_the_centre(write_records: Write) -> None:
    name = "max_img_size-80-crop_y_start-0-crop_x_start-0"
    for picture in panels(write_records([drawing()] * RECORDS), CASES[name]):
        assert (picture == drawing()[8 : 8 + SIDE, 20 : 20 + SIDE]).all()


def test_saturation_is_shifted_both_ways(write_records: Write) -> None:
    plain = shown_on("random_s-200")
    path = write_records([plain] * RECORDS)

    def saturation(picture: Picture) -> float:
        return float(to_hls(picture)[2].mean())

    usual = panels(path, {})[0]
    found = [saturation(picture) for picture in panels(path, CASES["random_s-200"])]
    assert min(found) < saturation(usual) - 20
    assert max(found) > saturation(usual) + 20


def test_a_picture_that_is_mirrored_or_turned_would_be_noticed(write_records: Write) -> None:
    path = write_records([drawing()] * RECORDS)
    plain = sheet(path, {})
    for options in (
        {"mirror": True},
        {"rotate": 5},
        {"crop_x_start": 24},
        {"min_random_scale": 1.05, "max_random_scale": 1.05},
    ):
        assert not alike(plain, sheet(path, options)), options

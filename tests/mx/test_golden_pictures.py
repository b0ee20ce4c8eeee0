"""What each augmentation makes of a drawing, as pictures under tests/golden/mx that a person can look at.

Each picture shows a parameter: four records of the same drawing, side by side, as the provider gave them out. On a
difference that can be seen the file is written anew and the test fails: look at it, and keep it if it is meant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pydp2.mx import ImageRecordIter

from .conftest import Write, drawing

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mx"
RECORDS, SIDE = 4, 64
MEAN_OFF, WORST_OFF = 1.5, 0.02
"""What another release of Pillow may round differently: levels on average, share of values that are 24 levels off."""

SMALL = {"min_random_scale": 0.5, "max_random_scale": 0.5, "min_img_size": 64.0}
"""Half as large, on a sheet of 64 by 64."""

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
    "max_img_size-64": {"max_img_size": 64.0, "rand_crop": True},
    "min_crop_size-24-max_crop_size-96": {"min_crop_size": 24, "max_crop_size": 96},
    "min_crop_size-24-max_crop_size-96-rand_crop": {"min_crop_size": 24, "max_crop_size": 96, "rand_crop": True},
    "inter_method-0-nearest": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 0},
    "inter_method-1-bilinear": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 1},
    "inter_method-2-cubic": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 2},
    "inter_method-3-area": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 3},
    "inter_method-4-lanczos": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 4},
    "inter_method-10-random": {"min_crop_size": 16, "max_crop_size": 16, "inter_method": 10},
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


def sheet(path: str, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The pictures of the first batch side by side, uint8 (side, records * side, 3)."""
    provider = ImageRecordIter(path_imgrec=path, data_shape=(3, SIDE, SIDE), batch_size=RECORDS, seed=7, **options)
    (batch,) = provider
    pixels = np.clip(np.rint(batch.data[0]), 0, 255).astype(np.uint8)
    return np.concatenate(list(pixels.transpose(0, 2, 3, 1)), axis=1)


@pytest.mark.parametrize("name", CASES)
def test_mx_39_what_an_augmentation_does_can_be_looked_at(name: str, write_records: Write) -> None:
    found = sheet(write_records([drawing()] * RECORDS), CASES[name])
    path = GOLDEN / f"{name}.png"
    if path.exists():
        kept = np.asarray(Image.open(path)).astype(int)
        off = np.abs(kept - found) if kept.shape == found.shape else np.full(1, 255)
        if off.mean() <= MEAN_OFF and (off >= 24).mean() <= WORST_OFF:
            return
    GOLDEN.mkdir(exist_ok=True)
    Image.fromarray(found).save(path, optimize=True)
    pytest.fail(f"tests/golden/mx/{path.name} was another picture; it was written anew, look at it")


def test_the_folder_holds_no_other_pictures() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_a_picture_that_is_mirrored_or_turned_would_be_noticed(write_records: Write) -> None:
    path = write_records([drawing()] * RECORDS)
    plain = sheet(path, {}).astype(int)
    for options in (
        {"mirror": True},
        {"rotate": 5},
        {"crop_x_start": 24},
        {"min_random_scale": 1.05, "max_random_scale": 1.05},
    ):
        off = np.abs(sheet(path, options) - plain)
        assert off.mean() > MEAN_OFF or (off >= 24).mean() > WORST_OFF, options

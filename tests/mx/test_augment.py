"""Geometry, colours and chance, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx import colour
from pydp2.mx.augment import Augmentation
from pydp2.mx.chance import Chance, ChanceKind

from .conftest import drawing

DRAWING = drawing(40, 56)
"""40 high, 56 wide."""


def augmented(height: int, width: int, *, offset: int = 0, picture: Any = DRAWING, **options: Any) -> Any:
    return Augmentation(data_shape=(3, height, width), **options)(picture, Chance(1, 0, 0, offset))


def nearest(**options: Any) -> dict[str, Any]:
    return options | {"inter_method": 0}


def test_quarter_turns_are_exact() -> None:
    square = DRAWING[:40, 8:48]
    for angle, turns in ((90, 1), (180, 2), (270, 3), (360, 0)):  # against the clock, as seen
        found = augmented(40, 40, picture=square, **nearest(rotate=angle))
        assert (found == np.rot90(square, turns)).mean() > 0.99, angle  # sampling may tie at whole pixels


def test_twice_as_large_repeats_every_pixel_around_the_centre() -> None:
    found = augmented(80, 112, **nearest(min_random_scale=2.0, max_random_scale=2.0))
    assert (found == DRAWING.repeat(2, axis=0).repeat(2, axis=1)).all()


def test_a_sheet_of_another_size_keeps_the_picture_in_its_middle() -> None:
    found = augmented(60, 60, **nearest(min_img_size=60.0, fill_value=9))
    assert (found[10:50, 2:58] == DRAWING).all()
    assert (found[:10] == 9).all()
    assert (found[:, 58:] == 9).all()
    found = augmented(30, 30, **nearest(max_img_size=30.0))
    assert (found == DRAWING[5:35, 13:43]).all()


@given(st.integers(0, 10_000), st.floats(0, 0.9))
def test_an_aspect_ratio_stretches_one_side_as_it_shrinks_the_other(offset: int, most: float) -> None:
    """Of a white disk on black: how wide and high it is afterwards."""
    y, x = np.mgrid[0:90, 0:90]
    disk = np.repeat((np.hypot(y - 44.5, x - 44.5) < 20)[:, :, None] * np.uint8(255), 3, axis=2)
    found = augmented(90, 90, offset=offset, picture=disk, max_aspect_ratio=most, fill_value=0)[:, :, 0] > 127
    height, width = found.any(axis=1).sum(), found.any(axis=0).sum()
    ratio = 1 + Chance(1, 0, 0, offset).uniform(ChanceKind.RATIO, -most, most)
    assert width == pytest.approx(40 * 2 / (1 + ratio), abs=2)
    assert height == pytest.approx(40 * 2 * ratio / (1 + ratio), abs=2)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 56))
def test_a_random_crop_is_a_part_of_the_picture(offset: int, height: int, width: int) -> None:
    found = augmented(height, width, offset=offset, rand_crop=True)
    chance = Chance(1, 0, 0, offset)
    y, x = chance.integer(ChanceKind.CROP_Y, 0, 40 - height), chance.integer(ChanceKind.CROP_X, 0, 56 - width)
    assert (found == DRAWING[y : y + height, x : x + width]).all()


def test_a_fixed_crop_holds_for_one_side_alone_and_chance_beats_it() -> None:
    assert (augmented(10, 10, crop_y_start=3) == DRAWING[3:13, 23:33]).all()
    assert (augmented(10, 10, crop_x_start=0) == DRAWING[15:25, 0:10]).all()
    both = {"crop_y_start": 0, "crop_x_start": 0}
    assert (augmented(10, 10, rand_crop=True, **both) == augmented(10, 10, rand_crop=True)).all()


@given(st.integers(0, 10_000))
def test_crops_of_random_size_fill_the_shape_that_is_asked_for(offset: int) -> None:
    assert augmented(17, 31, offset=offset, min_crop_size=1, max_crop_size=40).shape == (17, 31, 3)


def test_automatic_sampling_is_cubic_up_area_down_and_linear_between() -> None:
    def crop(side: int, height: int, width: int, method: int) -> Any:
        return augmented(height, width, min_crop_size=side, max_crop_size=side, inter_method=method)

    for side, height, width, method in ((20, 40, 50, 2), (40, 20, 10, 3), (20, 10, 40, 1)):
        assert (crop(side, height, width, 9) == crop(side, height, width, method)).all()
        assert (crop(side, height, width, 9) != crop(side, height, width, 0)).any()


# -- colours -----------------------------------------------------------------------------------------------------------
def test_colours_come_back_from_hue_lightness_and_saturation() -> None:
    steps = np.arange(0, 256, 5, dtype=np.uint8)
    every = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 52, 3)
    assert np.abs(colour.from_hls(*colour.to_hls(every)).astype(int) - every).max() <= 1


@pytest.mark.parametrize(
    ("rgb", "hls"),
    [
        ((255, 0, 0), (0, 127.5, 255)), ((0, 255, 0), (60, 127.5, 255)), ((0, 0, 255), (120, 127.5, 255)),
        ((255, 255, 255), (0, 255, 0)), ((0, 0, 0), (0, 0, 0)), ((128, 64, 64), (0, 96, 85)),
    ],
)  # fmt: skip
def test_known_colours_have_the_known_values(rgb: Any, hls: Any) -> None:
    found = [float(part[0, 0]) for part in colour.to_hls(np.array([[rgb]], np.uint8))]
    assert found == pytest.approx(hls, abs=0.5)


def test_shifts_stop_at_the_ends_of_the_scales() -> None:
    red = np.array([[(200, 50, 50)]], np.uint8)
    assert (colour.shifted(red, 0, 0, 0) == red).all()
    assert colour.shifted(red, 0, 300, 0).tolist() == [[[255, 255, 255]]]
    assert colour.shifted(red, 0, -300, 0).tolist() == [[[0, 0, 0]]]
    assert colour.shifted(red, 0, 0, -300).tolist() == [[[125, 125, 125]]]
    assert colour.shifted(red, -30, 0, 0).tolist() == red.tolist()  # hue 0 is an end
    assert colour.shifted(red, 60, 0, 0).tolist() == [[[50, 200, 50]]]


@given(st.integers(0, 10_000), st.integers(1, 90))
def test_a_random_hue_is_shifted_by_a_whole_number_within_its_bounds(offset: int, most: int) -> None:
    green = np.full((1, 1, 3), (60, 180, 60), np.uint8)
    shift = int(Chance(1, 0, 0, offset).uniform(ChanceKind.HUE, -most, most))
    assert -most < shift < most
    found = augmented(1, 1, offset=offset, picture=green, random_h=most)
    assert (found == colour.shifted(green, shift, 0, 0)).all()


# -- chance ------------------------------------------------------------------------------------------------------------
@given(st.integers(0, 2**60), st.integers(-50, 50), st.integers(0, 100))
def test_chance_keeps_within_its_bounds(offset: int, low: int, width: int) -> None:
    chance = Chance(0, 3, 1, offset)
    for choice in ChanceKind:
        assert low <= chance.integer(choice, low, low + width) <= low + width
        assert low <= chance.uniform(choice, low, low + width) <= low + width
        assert chance.uniform(choice, 1.5, 1.5) == 1.5


def test_every_place_has_choices_of_its_own_and_every_value_comes() -> None:
    keys = [
        (seed, reading, file, offset) for seed in (0, 1) for reading in (0, 1) for file in (0, 1) for offset in (0, 8)
    ]
    drawn = {tuple(Chance(*key).integer(choice, 0, 10**9) for choice in ChanceKind) for key in keys}
    assert len(drawn) == len(keys)
    assert all(len(set(words)) == len(ChanceKind) for words in drawn)
    assert {Chance(0, 0, 0, i).integer(ChanceKind.MIRROR, 0, 1) for i in range(64)} == {0, 1}
    spread = [Chance(0, 0, 0, i).uniform(ChanceKind.SCALE, 0, 1) for i in range(1000)]
    assert abs(np.mean(spread) - 0.5) < 0.05
    assert min(spread) < 0.02 < 0.98 < max(spread)

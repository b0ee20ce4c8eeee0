"""Samples on the page: pictures as pictures, text as text, sequences with the places of their parts."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.errors import OptionError
from pydp2.page.samples import Picture, png, samples_of, show_samples, show_value
from tests.runs import wait_until

PROVIDER = """
import numpy as np

from pydp2 import text

@provider(
    input_types={
        "photo": dense_vector(12 * 10 * 3, dtype="uint8", shape=(12, 10, 3)),
        "words": text(),
        "ids": integer_value_sequence(100),
        "label": integer_value(10),
    },
    should_shuffle=False,
)
def process(settings, filename):
    for i in range(64):
        yield {"photo": np.full((12, 10, 3), i, np.uint8), "words": f"<b>text {i}</b>", "ids": [i] * 3, "label": i % 10}
"""


def opened(picture: Any) -> Any:
    image = pytest.importorskip("PIL.Image")
    assert isinstance(picture, Picture)
    assert picture.media_type == "image/png"
    return np.asarray(image.open(io.BytesIO(picture.data)))


@pytest.mark.parametrize("shape", [(9, 11), (9, 11, 3), (8, 8), (64, 30, 3)])
def test_a_png_has_the_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert (opened(Picture("image/png", png(pixels))) == pixels).all()


@pytest.mark.parametrize("shape", [(1, 9, 11), (9, 11, 1), (3, 9, 11), (9, 11, 3), (9, 11)])
def test_arrays_like_pictures_are_pictures(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    shown = opened(show_value(pixels))
    assert shown.shape[:2] == (9, 11)
    assert shown[0, 0].tolist() == np.moveaxis(pixels, 0, -1)[0, 0].tolist() if shape == (3, 9, 11) else True


def test_other_numbers_are_stretched_between_black_and_white() -> None:
    ramp = np.linspace(-3.0, 5.0, 100, dtype=np.float32).reshape(10, 10)
    shown = opened(show_value(ramp))
    assert (shown.min(), shown.max()) == (0, 255)
    assert (np.diff(shown.reshape(-1).astype(int)) >= 0).all()
    flat = np.full((10, 10), np.nan, np.float32)
    assert opened(show_value(flat)).max() == 0


@given(st.integers(0, 5).flatmap(lambda n: st.tuples(*[st.integers(0, 12)] * n)))
def test_an_array_of_any_shape_is_shown(shape: tuple[int, ...]) -> None:
    shown = show_value(np.zeros(shape, np.float32))
    if not isinstance(shown, Picture):
        assert shown.startswith("float32 ")


def test_files_of_pictures_are_shown_as_they_are_and_other_bytes_as_numbers() -> None:
    jpeg = b"\xff\xd8\xff\xe0 and so on"
    assert show_value(jpeg) == Picture("image/jpeg", jpeg)
    assert show_value(b"GIF89a") == Picture("image/gif", b"GIF89a")
    assert show_value(b"<svg>") == "5 bytes: 3c 73 76 67 3e"


def test_text_and_numbers_are_text() -> None:
    assert show_value("<script>") == "<script>"
    assert show_value("x" * 1000).startswith("x" * 400 + "… (1,000 characters)")
    assert show_value(7) == "7"
    assert show_value(np.float32(0.25)) == "0.25"
    assert show_value(np.arange(3, dtype=np.int32)) == "int32 3: 0 1 2"


def test_sequences_say_how_long_they_are_and_where_their_parts_begin() -> None:
    assert show_value([1, 2, 3]) == "3 steps: 1 2 3"
    assert show_value(list(range(100))).startswith("100 steps: 0 1 2 ")
    assert show_value([[1, 2], [], [3]]) == "3 sequences, which begin at 0 2 2 3: 1 2 3"
    assert show_value([(4, 0.5)]) == "1 steps: (4, 0.5)"


def test_samples_of_a_batch_are_seen_while_the_trainer_has_it(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["a"], provider_file(PROVIDER), workers=1) as service:
        look = samples_of(service.address, None)
        with pytest.raises(OptionError, match="there is no job 'train' now"):
            look("train", 3)
        with service.connect(batch_size=8, job="train") as data:
            stream = iter(data)
            batch = next(stream)
            seen = look("train", 3)
            assert seen is not None
            assert len(seen) == 3
            assert seen.index in (0, 1)
            assert (seen["photo"] == batch["photo"][:3]).all() or seen.index == 1
            labels, rows = show_samples(seen)
            assert labels == ["photo", "words", "ids", "label"]
            first = 8 * seen.index
            assert rows[0][1:] == [f"<b>text {first}</b>", f"3 steps: {first} {first} {first}", str(first % 10)]
            assert opened(rows[2][0])[0, 0].tolist() == [first + 2] * 3


def test_the_page_shows_them_only_if_asked_and_only_with_the_token(provider_file: Callable[[str], str]) -> None:
    pytest.importorskip("uvicorn")
    address = provider_file(PROVIDER)

    def get(url: str) -> Any:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read()

    for samples in (False, True):
        with (
            pydp2.launch(["a"], address, workers=1, page="127.0.0.1:0", page_samples=samples) as service,
            service.connect(batch_size=8, job="train") as data,
        ):
            stream = iter(data)
            next(stream)
            assert service.page_url is not None
            base, _, token = service.page_url.partition("?token=")

            def seen(base: str = base, token: str = token) -> Any:
                return json.loads(get(f"{base}snapshot.json?token={token}"))["samples"]

            if not samples:
                assert wait_until(lambda: json.loads(get(f"{base}snapshot.json?token={token}"))["view"] is not None)  # noqa: B023
                assert seen() is None
                continue
            assert wait_until(lambda: bool(seen()), 20)
            (found,) = seen()
            assert (found["job"], found["slots"]) == ("train", ["photo", "words", "ids", "label"])
            assert found["rows"][0][1]["text"].startswith("<b>text ")
            name = found["rows"][0][0]["picture"]
            assert get(f"{base}pictures/{name}?token={token}").startswith(b"\x89PNG")
            for wrong in (f"pictures/{name}", f"pictures/{name}?token=x", f"pictures/none?token={token}"):
                with pytest.raises(urllib.error.HTTPError) as caught:
                    get(f"{base}{wrong}")
                caught.value.close()
                assert caught.value.code == (404 if "none" in wrong else 403)


def test_samples_need_a_page() -> None:
    with pytest.raises(OptionError, match="page_samples shows samples on the page, and there is none"):
        pydp2.launch(["a"], "p.process", page_samples=True)

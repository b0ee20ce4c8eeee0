"""``pydp2 demo``: it learns, it tells the truth, and it leaves nothing where it was run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydp2_samples.softmax
import pytest
from click import ClickException
from click.testing import Result
from pydp2_cli import demo, picture

PLOT = find_spec("matplotlib") is not None


def test_the_digits_are_learned_within_the_deadline(tmp_path: Path, running: Callable[..., Any]) -> None:
    status, out, err = running("demo").ended()
    assert status == 0, err
    lines = out.splitlines()
    accuracy = re.fullmatch(r"accuracy +(0\.\d{4}) on 359 digits that were held out", lines[0])
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.93
    assert re.fullmatch(r"samples/s +[\d,]+: 7,190 in \d+\.\d\d s, from launch to the last batch", lines[1])
    assert re.fullmatch(r"who waited +\w.*", lines[2])
    assert re.fullmatch(r" +trainer: waited \d+\.\d\d s, worked \d+\.\d\d s", lines[3])
    assert re.fullmatch(r" +workers: waited \d+\.\d\d s, worked \d+\.\d\d s", lines[4])
    assert re.fullmatch(r"picture +(pydp2-demo.png|none: matplotlib is not installed \(.*\))", lines[5])
    assert [line for line in err.splitlines() if line.startswith("pass ")] == err.splitlines()
    assert len(err.splitlines()) == demo.PASSES
    assert [path.name for path in tmp_path.iterdir()] == (["pydp2-demo.png"] if PLOT else [])


def test_it_fails_when_the_model_has_not_learned(monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result]) -> None:
    """The accuracy is what the model does: here it takes no steps."""
    monkeypatch.setattr(pydp2_samples.softmax.Softmax, "step", lambda self, batch: 1.0)
    result = cli("demo", "--json")
    assert result.exit_code == 1
    accuracy = json.loads(result.stdout)["accuracy"]
    assert accuracy < 0.5
    assert f"the accuracy must be at least 0.93, it is {accuracy:.4f}" in result.stderr


def test_a_picture_that_cannot_be_written_ends_the_demo_only_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result], tmp_path: Path
) -> None:
    """The working directory may be read-only."""

    def draw(file: Path, *_: Any) -> None:
        raise ClickException(f"the picture {file} cannot be written: Permission denied")

    for name, value in (("can_draw", lambda: True), ("check_plot", lambda *_: None), ("draw", draw), ("PASSES", 1)):
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "MIN_ACCURACY", 0.5)
    plain = cli("demo")
    assert plain.exit_code == 0
    assert "picture        none: the picture pydp2-demo.png cannot be written" in plain.stdout
    asked = cli("demo", "--picture", "x.png")
    assert asked.exit_code == 1
    assert asked.stdout.startswith("accuracy ")
    assert "Error: the picture x.png cannot be written: Permission denied" in asked.stderr


def test_a_picture_that_was_asked_for_needs_matplotlib(
    monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result]
) -> None:
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    result = cli("demo", "--picture", "x.png")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "--picture needs matplotlib, which is not installed: pip install matplotlib" in result.stderr


@pytest.mark.skipif(not PLOT, reason="matplotlib is not installed")
def test_a_picture_of_loss_and_digits_is_saved(tmp_path: Path) -> None:
    import numpy as np

    file = tmp_path / "x.png"
    picture.draw(file, [2.0, 1.0, 0.5, 0.4], 2, np.zeros((10, 8, 8)), np.arange(10), np.arange(10)[::-1])
    assert file.read_bytes().startswith(b"\x89PNG")

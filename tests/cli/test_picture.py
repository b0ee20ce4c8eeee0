"""Pictures of ``bench`` and ``stats``: what they are drawn from, what they show, and what is refused beforehand."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from pydp2_cli import picture

import pydp2
from tests.runs import NUMBERS
from tests.runs import NUMBERS_OPTIONS as OPTIONS

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
STAGES = (
    ("process() alone", 200.0, 0.5, "waits 12 %"), ("with checks and packing", 150.0, 0.3, ""),
    ("with transport", 120.0, 0.15, ""), ("with order and pool", 100.0, 0.05, ""),
    ("later passes, cached", 90_000.0, None, ""), ("with a step of 2 ms", 0.0, None, ""),
)  # fmt: skip


def texts(file: Path) -> str:
    """An SVG file names each of its texts in a comment."""
    return html.unescape(file.read_text("utf-8"))


@given(steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1), reset=st.booleans())
def test_rates_are_those_of_counts_over_some_looks_and_nan_where_counting_began_again(
    steps: list[tuple[int, int]], reset: bool
) -> None:
    told = [(0.0, 100.0)]
    for seconds, more in steps:
        told.append((told[-1][0] + seconds, told[-1][1] + more))
    found = picture._rates([*told, (told[-1][0] + 1, 0.0)] if reset else told)
    assert len(found) == len(told) + reset
    assert math.isnan(found[0])
    assert all(0 <= rate <= 9 for rate in found[1 : len(told)])
    assert math.isnan(found[-1]) == reset


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result], folder: Path) -> None:
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    for command in (
        ("stats", "ipc:///nowhere", "--watch"),
        ("bench", "train.list", "--provider", "numbers_provider.process"),
    ):
        result = cli(*command, "--plot", "x.png")
        assert result.exit_code == 1
        assert "--plot needs matplotlib, which is not installed: pip install matplotlib" in result.stderr


def test_a_picture_of_one_look_is_refused(cli: Callable[..., Result]) -> None:
    result = cli("stats", "ipc:///nowhere", "--plot", "x.png")
    assert result.exit_code == 2
    assert "--plot needs --watch or --seconds" in result.stderr


@needs_matplotlib
def test_a_file_that_could_not_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"--plot needs a file that ends in .*\.png.*; got x\.doc"):
        picture.check_plot("--plot", Path("x.doc"))
    with pytest.raises(click.ClickException, match="--plot needs a folder that exists"):
        picture.check_plot("--plot", tmp_path / "none" / "x.png")
    with pytest.raises(click.ClickException, match=r"--plot needs a file that ends in .*; got x\.pgf"):
        picture.check_plot("--plot", Path("x.pgf"))
    with pytest.raises(click.ClickException, match=r"--plot needs a file that can be written, and .*: File name too"):
        picture.check_plot("--plot", tmp_path / f"{'x' * 300}.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(click.ClickException, match="--plot needs a file that can be written"):
        picture.check_plot("--plot", tmp_path / "pipe.png")


@needs_matplotlib
def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to("old.png")
    for name in ("x.PNG", "old.png", "link.png"):
        picture.check_plot("--plot", tmp_path / name)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.png", "old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


@needs_matplotlib
@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(28, "No space left"), "No space left"), (RuntimeError("xelatex not found"), "xelatex not found")],
)
def test_whatever_matplotlib_raises_is_a_clear_error(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    looks = [picture.Look(float(second), {}, 0.0, 0.0, 0, 0) for second in range(2)]
    with pytest.raises(click.ClickException, match=rf"the picture .*x\.png cannot be written: {said}"):
        picture.draw_stats(tmp_path / "x.png", looks)


@needs_matplotlib
def test_a_picture_of_bench_has_each_stage_and_the_sentence(tmp_path: Path) -> None:
    stages = [dict(zip(("name", "rate", "share", "note"), stage, strict=True)) for stage in STAGES]
    picture.draw_bench(tmp_path / "x.svg", {"stages": stages, "sentence": "slot $a_ is $slow"})
    shown = texts(tmp_path / "x.svg")
    assert all(f"<!-- {name} -->" in shown for name, *_ in STAGES)
    for text in ("200  (waits 12 %)", "90,000, beyond the scale", "none came", "process() 50%", "transport 15%"):
        assert f"<!-- {text} -->" in shown, text
    assert "Slot $a_ is $slow." in shown
    assert "order, pool 5%" not in shown
    nothing = [stage | {"rate": 0.0, "share": None} for stage in stages]
    picture.draw_bench(tmp_path / "y.svg", {"stages": nothing, "sentence": "no batch came"})
    assert "time of a sample" not in texts(tmp_path / "y.svg")


@needs_matplotlib
def test_bench_saves_a_picture(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli("bench", "train.list", "--provider", "numbers_provider.process", "--seconds", 1, "--plot", "x.png")
    assert result.exit_code == 0, result.output
    assert "picture: x.png" in result.stderr
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")


def stats_of(samples: int, **jobs: dict[str, Any]) -> dict[str, Any]:
    job = {"samples": samples, "pool": {}, "trainer": {"waited_seconds": samples / 4, "worked_seconds": samples / 4}}
    worker = {"idle_seconds": 1.0, "busy_seconds": 3.0 * samples, "memory": 1 << 20}
    return {"jobs": {"main": job} | jobs, "workers": [worker, worker], "memory": 5 << 20}


@needs_matplotlib
def test_a_picture_of_stats_has_a_line_for_each_job_that_was_there_at_some_time(tmp_path: Path) -> None:
    found = [stats_of(n) for n in (0, 8, 16, 24)]
    found[2] = stats_of(16, **{"$late": found[0]["jobs"]["main"]})
    picture.draw_stats(tmp_path / "x.svg", [picture.Look.of(float(i), each) for i, each in enumerate(found)])
    shown = texts(tmp_path / "x.svg")
    for text in ("job main", "job $late", "workers", "server", "pool", "memory", "samples/s", "seconds watched"):
        assert f"<!-- {text} -->" in shown, text


@needs_matplotlib
def test_stats_saves_what_was_watched_also_when_the_service_ends(
    provider_file: Callable[[str], str], cli: Callable[..., Result], tmp_path: Path, running: Callable[..., Any]
) -> None:
    with pydp2.launch(["1", "2"], provider_file(NUMBERS), workers=1) as service, service.connect(**OPTIONS) as data:
        list(data)
        result = cli("stats", service.address, "--seconds", 0.1, "--plot", "x.png")
        assert result.exit_code == 0
        assert "picture: x.png" in result.stderr
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        program = running("stats", service.address, "--watch", "--json", "--plot", "y.svg")
        program.until("stdout", "}\n{")
    status, _, err = program.ended()
    assert status == 3
    assert "picture: y.svg" in err
    assert "job default" in texts(tmp_path / "y.svg")

"""Draw the pictures of ``demo``, ``bench`` and ``stats`` with matplotlib, which no other module imports."""

from __future__ import annotations

import importlib.util
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

INSTALL_HINT = "pip install matplotlib"
_NEEDS_TEX = {"pgf"}  # formats for which matplotlib needs another program
_DIGITS = 10
_STRONG, _MUTED, _LIGHT = "#d1495b", "#33658a", "#b8c9d9"
_COLOURS = ("#33658a", "#d1495b", "#6a994e", "#e09f3e", "#7d5ba6", "#5b8fb9", "#a7c957", "#8c564b")  # of jobs
_SHARES = ("process()", "packing", "transport", "order, pool")
_LEAST_LABEL = 0.07  # least share of the time that gets a label
_TITLE_COLUMNS = 100
_WINDOW = 3  # looks, one per second
_DPI = 120


def can_draw() -> bool:
    """Return True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_plot(option: str, file: Path) -> None:
    """End the command with an error if no picture can be written to ``file`` later."""
    if not can_draw():
        raise click.ClickException(f"{option} needs matplotlib, which is not installed: {INSTALL_HINT}")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes().keys() - _NEEDS_TEX
    if file.suffix.lstrip(".").lower() not in known:
        raise click.ClickException(f"{option} needs a file that ends in .{', .'.join(sorted(known))}; got {file}")
    if not file.absolute().parent.is_dir():
        raise click.ClickException(f"{option} needs a folder that exists, and there is no {file.parent}; make it first")
    try:
        _open_for_writing(file)
    except OSError as error:
        raise click.ClickException(
            f"{option} needs a file that can be written, and {file} cannot be: {error.strerror or error}; choose "
            "another place"
        ) from None


def _open_for_writing(file: Path) -> None:
    """Open ``file`` for writing, without a lasting change. Raises OSError."""
    flags = (
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    )  # the last for a pipe without a reader
    try:
        os.close(os.open(file, flags | os.O_EXCL, 0o600))
    except FileExistsError:
        os.close(os.open(file, flags, 0o666))
    else:
        file.unlink()


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, dpi=_DPI)
    except Exception as error:  # from the disk, from matplotlib, or from a library behind it
        what = getattr(error, "strerror", None) or f"{error or type(error).__name__}"
        raise click.ClickException(f"the picture {file} cannot be written: {what}") from None


def draw(file: Path, losses: Sequence[float], passes: int, images: Any, labels: Any, predicted: Any) -> None:
    """Save a picture of the loss of each batch, and of some ``images`` with the predictions. It needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 1.4))
    axes = upper.subplots()
    size = len(losses) / passes
    axes.plot([(number + 1) / size for number in range(len(losses))], losses, linewidth=0.8)
    axes.set(xlabel="pass", ylabel="loss (cross-entropy)", xlim=(0, passes), ylim=(0, None))
    axes.grid(alpha=0.3)
    for panel, image, label, guess in zip(lower.subplots(1, _DIGITS).flat, images, labels, predicted, strict=False):
        panel.imshow(image, cmap="gray_r")
        panel.set_axis_off()
        right = int(label) == int(guess)
        panel.set_title(f"{guess}" if right else f"{guess}, is {label}", color="black" if right else "red", fontsize=9)
    lower.suptitle("held out, and what they were taken for", fontsize=10)
    _save(figure, file)


# -- bench -------------------------------------------------------------------------------------------------------------
def draw_bench(file: Path, seen: Mapping[str, Any]) -> None:
    """Save a picture with the rate of each stage as a bar, and below them one bar for the time of a sample. ``seen``:
    the figures of ``pydp2 bench --json``."""
    from matplotlib.figure import Figure

    stages = seen["stages"]
    parts = [(name, stage["share"]) for name, stage in zip(_SHARES, stages, strict=False) if stage["share"] is not None]
    widest = max(range(len(parts)), key=lambda i: parts[i][1], default=None)
    figure = Figure(figsize=(9, 2.1 + 0.42 * len(stages)), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(len(stages), 1.2))
    _draw_rates(upper, stages, widest)
    sentence = seen["sentence"]
    title = textwrap.fill(f"{sentence[0].upper()}{sentence[1:]}.", _TITLE_COLUMNS)
    upper.set_title(_literal(title), fontsize=10, loc="left")
    _draw_shares(lower, parts, widest)
    _save(figure, file)


def _draw_rates(axes: Any, stages: Sequence[Mapping[str, Any]], widest: int | None) -> None:
    heights = range(len(stages))
    colours = [_LIGHT if stage["share"] is None else _MUTED for stage in stages]
    if widest is not None:
        colours[widest] = _STRONG
    axes.barh(heights, [stage["rate"] for stage in stages], color=colours, height=0.7)
    limit = 1.3 * (max([stage["rate"] for stage in stages if stage["share"] is not None] or [stages[0]["rate"]]) or 1.0)
    for height, stage in zip(heights, stages, strict=True):
        note = f"  ({stage['note']})" if stage["note"] else ""
        text = f"{stage['rate']:,.0f}{note}" if stage["rate"] else "none came"
        beyond = stage["rate"] > limit  # the rate of a cache, which would make the other bars too short to compare
        axes.annotate(
            f"{text}, beyond the scale" if beyond else text,
            (limit if beyond else stage["rate"], height),
            xytext=(-4 if beyond else 4, 0),
            textcoords="offset points",
            va="center",
            ha="right" if beyond else "left",
            fontsize=9,
        )
    axes.set_yticks(heights, [stage["name"] for stage in stages])
    axes.invert_yaxis()
    axes.set_xlim(0, limit)  # with room for the numbers
    axes.set_xlabel("samples/s", fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_shares(axes: Any, parts: Sequence[tuple[str, float]], widest: int | None) -> None:
    begin = 0.0
    for number, (name, share) in enumerate(parts):
        strong = number == widest
        axes.barh(0, share, left=begin, color=_STRONG if strong else _MUTED, edgecolor="white", linewidth=1.5)
        if share >= _LEAST_LABEL:
            text = textwrap.fill(f"{name} {share:.0%}", max(6, int(share * 90)), break_long_words=False)
            axes.annotate(text, (begin + share / 2, 0), ha="center", va="center", color="white", fontsize=8.5)
        begin += share
    axes.set(xlim=(0, 1), ylim=(-0.5, 0.5))
    axes.set_yticks([0] if parts else [], ["time of a sample"] if parts else [])
    axes.tick_params(axis="both", length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)


# -- stats -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Look:
    """Figures of a service at one moment. ``seconds``: time since the first look; ``jobs``: statistics of each job;
    ``idle``, ``busy``: seconds of all workers; ``server``, ``workers``: bytes of memory."""

    seconds: float
    jobs: dict[str, dict[str, float]]
    idle: float
    busy: float
    server: int
    workers: int

    @classmethod
    def of(cls, seconds: float, found: Mapping[str, Any]) -> Look:
        """Return the plotted numbers of the statistics ``found``."""
        jobs = {}
        for name, job in found["jobs"].items():
            trainer = job["trainer"]
            jobs[name] = {
                "samples": job["samples"],
                "pool": job["pool"].get("samples", 0),
                "waited": trainer.get("waited_seconds", 0.0),
                "worked": trainer.get("worked_seconds", 0.0),
            }
        idle, busy = (sum(worker[f"{what}_seconds"] for worker in found["workers"]) for what in ("idle", "busy"))
        return cls(seconds, jobs, idle, busy, found["memory"], sum(worker["memory"] for worker in found["workers"]))


def draw_stats(file: Path, looks: Sequence[Look]) -> None:
    """Save a picture of samples/s, waits, pool and memory over time, with a line for each job."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    rates, waits, pools, memory = axes = figure.subplots(4, 1, sharex=True)
    names = sorted({name for look in looks for name in look.jobs})
    for number, name in enumerate(names):
        known = [(look.seconds, look.jobs[name]) for look in looks if name in look.jobs]
        how: dict[str, Any] = {"color": _COLOURS[number % len(_COLOURS)], "label": _literal(f"job {name}")}
        times = [seconds for seconds, _ in known]
        rates.plot(times, _rates([(seconds, job["samples"]) for seconds, job in known]), **how)
        waits.plot(times, _rates([(job["waited"] + job["worked"], job["waited"]) for _, job in known]), **how)
        pools.plot(times, [job["pool"] for _, job in known], **how)
    times = [look.seconds for look in looks]
    workers = _rates([(look.idle + look.busy, look.idle) for look in looks])
    waits.plot(times, workers, color="#888888", linestyle="--", label="workers")
    stacked = [[look.server / 2**20 for look in looks], [look.workers / 2**20 for look in looks]]
    memory.stackplot(times, stacked, labels=("server", "workers"), colors=(_MUTED, _LIGHT))
    rates.set(title=f"delivered, mean of {_WINDOW} s", ylabel="samples/s", ylim=(0, None))
    waits.set(title=f"share of the time that trainer and workers wait, mean of {_WINDOW} s", ylim=(0, 1.03))
    waits.yaxis.set_major_formatter("{x:.0%}")
    pools.set(title="pool", ylabel="samples", ylim=(0, None))
    memory.set(title="memory", ylabel="MiB", ylim=(0, None), xlabel="seconds watched", xlim=(times[0], times[-1]))
    for axis in axes:
        axis.title.set(fontsize=10, x=0, ha="left")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:  # empty if there was no job
            axis.legend(fontsize=8, frameon=False, ncols=6, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    for axis in (rates, pools, memory):
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _save(figure, file)


def _rates(sums: Sequence[tuple[float, float]]) -> list[float]:
    """Return the increase of the second numbers of ``sums`` divided by that of the first ones, over some looks each. It
    is nan if there was no increase, or counting began again."""
    found = [math.nan]
    for number in range(1, len(sums)):
        (before, less), (now, more) = sums[max(0, number - _WINDOW)], sums[number]
        found.append((more - less) / (now - before) if more >= less and now > before else math.nan)
    return found


def _literal(text: str) -> str:
    """Return ``text`` with escapes for dollars, which would begin a formula in matplotlib."""
    return text.replace("$", r"\$")

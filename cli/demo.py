"""``pydp2 demo``: a model learns the digits from batches of a service."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.live_line import LiveLine
from pydp2_cli.output import can_redraw, stderr_console
from pydp2_cli.picture import INSTALL_HINT, can_draw, check_plot, draw
from pydp2_cli.stats_line import BOTTLENECK_TEXTS

if TYPE_CHECKING:
    from rich.console import Console

PASSES = 5
MIN_ACCURACY = 0.93
"""Minimum held-out accuracy; below it the demo fails."""
_BATCH = 32
_PICTURE = "pydp2-demo.png"

Step = Callable[[int, float], None]


@click.command("demo", short_help="Train a classifier on handwritten digits.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"File for a plot of the loss and some predicted digits; needs matplotlib; default: {_PICTURE} if matplotlib "
    "is installed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(picture: Path | None, as_json: bool) -> None:
    """Train a classifier on handwritten digits.

    A service reads 1438 digits, and a softmax classifier in plain numpy trains on them for five passes. Then the demo
    prints the accuracy on 359 other digits. The exit code is 1 if the accuracy is below 0.93.
    """
    from pydp2_samples import path
    from pydp2_samples.softmax import Softmax

    import pydp2

    if picture is not None:
        check_plot("--picture", picture)
    root = path("digits")
    total = sum(entry.read_bytes().count(b"\n") for entry in _entries(root))  # one digit a line
    console = stderr_console()
    model = Softmax()
    losses: list[float] = []
    began = time.perf_counter()
    with (
        pydp2.launch("train.list", "digits_provider.process", root=root) as service,
        service.connect(batch_size=_BATCH, world_size=1) as data,
    ):
        with _progress(console, total) as step:
            for number in range(PASSES):
                for batch in data:
                    losses.append(model.step(batch))
                    step(number, losses[-1])
        stats = service.stats()
        samples, seconds = data.samples, time.perf_counter() - began
    # The same in one line. Another service, with is_train=False, reads the held-out digits.
    with pydp2.load(
        "test.list", "digits_provider.process", root=root, is_train=False, batch_size=_BATCH, world_size=1
    ) as held_out:
        unseen = list(held_out)
    accuracy = model.accuracy(unseen)
    saved, problem = _picture(picture or Path(_PICTURE), losses, model, unseen[0])
    waits = _waits(stats)
    result = {
        "accuracy": accuracy,
        "held_out": sum(map(len, unseen)),
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "waits": waits,
        "bottleneck": stats["bottleneck"],
        "picture": saved,
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        _tell(result, problem)
    if picture is not None and problem:
        raise click.ClickException(problem)
    if accuracy < MIN_ACCURACY:
        raise click.ClickException(f"the accuracy must be at least {MIN_ACCURACY}, it is {accuracy:.4f}")


def _entries(root: Path) -> list[Path]:
    return [root / entry for entry in (root / "train.list").read_text("utf-8").split()]


def _waits(stats: dict[str, Any]) -> dict[str, float]:
    """Return the seconds in which trainer and workers worked and waited."""
    return {
        "trainer_waited": stats["trainer"]["waited_seconds"],
        "trainer_worked": stats["trainer"]["worked_seconds"],
        "workers_waited": sum(worker["idle_seconds"] for worker in stats["workers"]),
        "workers_worked": sum(worker["busy_seconds"] for worker in stats["workers"]),
    }


def _tell(result: dict[str, Any], problem: str) -> None:
    waits = result["waits"]
    click.echo(f"accuracy       {result['accuracy']:.4f} on {result['held_out']} digits that were held out")
    click.echo(
        f"samples/s      {result['samples_per_second']:,.0f}: {result['samples']:,} in {result['seconds']:.2f} s, "
        "from launch to the last batch"
    )
    click.echo(f"who waited     {BOTTLENECK_TEXTS[result['bottleneck']]}")
    for who in ("trainer", "workers"):
        waited, worked = waits[f"{who}_waited"], waits[f"{who}_worked"]
        click.echo(f"               {who}: waited {waited:.2f} s, worked {worked:.2f} s")
    click.echo(f"picture        {result['picture'] or f'none: {problem}'}")


def _picture(file: Path, losses: list[float], model: Any, batch: Any) -> tuple[str | None, str]:
    """Draw the picture. Return the name of its file and "", or None and the reason why there is none."""
    if not can_draw():
        return None, f"matplotlib is not installed ({INSTALL_HINT})"
    images, labels = batch["pixel"], batch["label"]
    try:
        draw(file, losses, PASSES, images.reshape(-1, 8, 8), labels, model.predict(images))
    except click.ClickException as error:  # the working directory may be read-only
        return None, error.message
    return str(file), ""


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Step]:
    """Return a context with ``step(pass, loss)``, to be called after each batch. It redraws a line, or prints one line
    per pass if the terminal cannot redraw."""
    batches = -(-total // _BATCH)
    if not can_redraw(console):
        yield _lines(console, batches)
        return
    line = LiveLine(console.file, bold=True)
    done, total = 0, PASSES * batches

    def step(number: int, loss: float) -> None:
        nonlocal done
        done += 1
        parts = [f"pass {number + 1} of {PASSES}", f"{done} of {total} batches", f"loss {loss:.3f}"]
        line.show(parts) if done == total else line.update(parts)

    try:
        yield step
    finally:
        console.print()


def _lines(console: Console, batches: int) -> Step:
    losses: list[float] = []

    def step(number: int, loss: float) -> None:
        losses.append(loss)
        if len(losses) == batches:
            console.print(f"pass {number + 1} of {PASSES}: {batches} batches, mean loss {sum(losses) / batches:.3f}")
            losses.clear()

    return step

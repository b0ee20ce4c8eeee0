"""Play schedules of hosts, many or one: ``python -m tests.simulated --schedules 100000``, ``… --seed 17``."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import click

from .schedules import play

_TOLD = 1000  # schedules between two lines about the progress


@click.command()
@click.option("--schedules", type=click.IntRange(1), default=300, show_default=True, help="Number of schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first one.")
@click.option("--seed", type=click.IntRange(0), help="Play the schedule of this seed alone.")
def main(schedules: int, first: int, seed: int | None) -> None:
    """Play schedules of a simulated network; print the seeds of those that fail."""
    if seed is not None:
        first, schedules = seed, 1
    began = time.monotonic()
    done: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for count, number in enumerate(range(first, first + schedules), 1):
            try:
                done += play(number, Path(folder)).done
            except (Exception, AssertionError):
                failed += 1
                click.echo(f"{traceback.format_exc()}\nseed {number} failed: python -m tests.simulated --seed {number}")
            if count % _TOLD == 0:
                click.echo(f"{count} schedules, {time.monotonic() - began:.0f} s, {failed} failed", err=True)
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(done.items()))
    click.echo(f"{schedules} schedules in {time.monotonic() - began:.1f} s, {failed} failed; {faults}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

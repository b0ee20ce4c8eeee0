"""Write a line about the cause if a trainer waits long for the first batch of a pass or for the service.

Filling the pool before the first batch may take minutes, and a program that prints nothing looks as if it hung. The
line goes to ``sys.stderr`` of the trainer, because a notebook shows that. It is written once for each cause.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from pydp2.errors import Error, count_text, shorten
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import is_json, log_event
from pydp2.system.long_sample import long_sample
from pydp2.system.stdlib import os, time

LOGGER = "pydp2.client"
"""Logger of the lines about a trainer."""
NOTICE_VARIABLE = "PYDP2_NOTICE_SECONDS"
"""Environment variable with the seconds that a wait lasts before the line is written; 0: never."""
_NOTICE_SECONDS = 2.0  # default of the variable
_AGAIN_SECONDS = 2.0  # seconds between two looks at the cause of the same wait
_ASK_SECONDS = 1.0  # seconds for the statistics; it is short, because the batch may come meanwhile
_SUGGESTED_POOL = 4096  # largest pool that the line suggests, in samples
_BATCHES_IN_POOL = 8  # batches that the suggested pool holds at least
_MOST_NAME = 120  # characters that are shown of a file's name
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def notice_seconds() -> float:
    """Return the seconds that a wait lasts before the line is written."""
    try:
        given = float(os.environ.get(NOTICE_VARIABLE, _NOTICE_SECONDS))
    except ValueError:
        return _NOTICE_SECONDS
    return given if given > 0 else inf


def write_notice(text: str, *, job: str = "") -> None:
    """Write a line for the user, if possible. It begins with a line feed under a progress bar of tqdm, which leaves the
    cursor behind the bar."""
    if "tqdm" in sys.modules and sys.stderr is not None and not is_json():
        with contextlib.suppress(Exception):
            sys.stderr.write("\n")
    log_event(LOGGER, text, LogEvent.TRAINER_WAITS, **({"job": job} if job else {}))


class WaitNotice:
    """Wait notice of trainer ``number`` of its job (None with ``share="dynamic"``). ``options``: those of the job.
    ``ask(seconds)`` returns the statistics of its service."""

    def __init__(
        self, ask: Callable[[float], Mapping[str, Any]], job: str, number: int | None, options: Mapping[str, Any]
    ) -> None:
        self._ask = ask
        self._job, self._number, self._batch_size = job, number, int(options["batch_size"])
        self._run = -1
        self._look_at = 0.0
        self._causes: set[str] = set()

    def patience(self, run: int, done: int, most: float) -> float:
        """Return the seconds to wait for the next message, at most ``most``. Write the line first if the trainer has
        waited long for the first batch of ``run``. ``done``: number of batches of the run that have come."""
        now = time.monotonic()
        if done:
            return most
        if run != self._run:
            self._look_at = now + notice_seconds()  # before the next line: an exception may come between them
            self._run = run
        elif now >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + _AGAIN_SECONDS
        return min(most, self._look_at - now)

    def _look(self) -> None:
        """Write a line with the cause of the wait, unless there was one with this cause."""
        try:
            figures = self._ask(_ASK_SECONDS)
        except Error:  # the wait itself raises if the service is lost
            return
        first = figures.get("jobs", {}).get(self._job, {}).get("first_trainer")
        if self._number is not None and first not in (None, self._number):
            return  # one line is enough for all trainers of the job
        cause, text = describe_wait(figures, self._job, self._batch_size)
        if cause not in self._causes:
            self._causes.add(cause)
            write_notice(f"waiting for the first batch: {text}", job=self._job)


def describe_wait(figures: Mapping[str, Any], job: str, batch_size: int) -> tuple[str, str]:
    """Return the cause of the wait for the first batch of a pass of ``job``, as a word and as text, according to
    ``figures``, the statistics of the service."""
    session = figures.get("jobs", {}).get(job, {})
    workers = [worker for worker in figures.get("workers", ()) if worker["active"]]
    fill = session.get("fill")
    if not workers:
        return "workers", "no worker is ready"
    if fill is None:
        return "pass", "the service has not begun the pass"
    samples, nbytes = session["pool"]["samples"], session["pool"]["bytes"]
    rate = sum(worker["samples_per_second"] for worker in workers)
    if fill["is_full"]:
        lacking = session["ranks_to_come"]
        if lacking:
            return "ranks", f"{count_text(lacking, 'trainer')} of the job did not connect yet"
        return "delivery", "the pool is full, and the batch is on its way"
    if sample := long_sample(workers):
        return "sample", f"{sample}; sample_timeout ends it"
    if not samples:
        return "samples", f"no sample came yet of {shorten(fill['file'], _MOST_NAME) or 'any file'}"
    text = f"{count_text(samples, 'sample', form=',')} ({_rounded(nbytes)}) in the pool, {rate:,.0f}/s; "
    level, limit = fill["weight"], _exact(fill["pool_bytes"])
    if fill["waits_for_all"]:  # the provider's pool_size has no effect
        return "pool", f"{text}the pool takes all samples of a cached pass, or pool_bytes={limit}"
    # Suggest no more samples than the pool has now, if possible: a larger pool would not be full any earlier.
    size = max(_BATCHES_IN_POOL * batch_size, min(_SUGGESTED_POOL, 1 << samples.bit_length() - 1))
    if level is None:
        return "pool", (
            f"{text}the pool fills until the pass ends or pool_bytes={limit}; pool_size={size} in @provider, or a "
            "smaller pool_bytes, starts earlier"
        )
    text += f"the first batch needs {level:,}, or pool_bytes={limit}"
    return "pool", text if level <= size else f"{text}; a smaller pool_size in @provider starts earlier"


def _exact(count: int) -> str:
    """Return a size in the form that options have, such as 1 GiB."""
    for size, unit in _UNITS:
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count:,} bytes"


def _rounded(count: float) -> str:
    """Return a size as readable text, such as 310 MB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"

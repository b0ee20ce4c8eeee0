"""Run a file twice, in two processes, and find the first sample that differs.

A service runs a file again when a worker dies, and when a job continues in another process. It must yield the same
samples then. Each process is a fresh interpreter that starts the provider as a worker does. The first process reads
only the file. The second one has read the beginning of another file before, which stays open, so that effects of one
file on the next show too. Both run at the same time and send checksums of the packed samples; the program compares
these, and asks both for the values of the first sample that differs.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pydp2.data.columns.checksum import crc32
from pydp2.data.columns.columns import Array
from pydp2.diagnostics.local_provider import load_provider, provider_process, receive_task
from pydp2.errors import BadSample, Error
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import receive_plain, send_plain
from pydp2.providers import StartedProvider
from pydp2.providers.local_reader import LocalReader

_MOST_SAMPLES = 1000
_MOST_BYTES = 1 << 26
_MOST_SECONDS = 5.0  # seconds for drawing samples
_BEFORE = 16  # samples of another file that the second process reads before
_PATIENCE = 60.0  # seconds for an answer, beside those that the caller has measured
_WEIGHT = "calc_batch_size"
_ENDED = "the end of the file"
_COUNTS = ("subs", "steps", "nnz", "nbytes")  # kinds of arrays with lengths
_SHOWN = 60  # bytes that are shown of a text around the first difference


@dataclass(frozen=True)
class Difference:
    """First sample of ``file`` that differs between two runs, its slot, or '' if one run has no such sample, and the
    values of both runs. ``start``: where the second run began, if the first one was a whole reading."""

    file: str
    sample: int
    slot: str
    first: str
    second: str
    start: int | None = None

    @property
    def text(self) -> str:
        """Full text."""
        place = f"file {self.file}, sample {self.sample}{f', slot {self.slot}' if self.slot else ''}"
        if self.start is not None:
            return (
                f"{place}: process() with start={self.start} must yield what a whole reading yields, but gave "
                f"{self.second} in place of {self.first}; make its first yield that of sample `start`, and let no "
                "sample depend on those before it"
            )
        return (
            f"{place}: process() must yield the same whenever it runs, but gave {self.first} in one process and "
            f"{self.second} in another; pydp2 seeds settings.rng and the global generators of random, numpy and torch, "
            "but not an own default_rng() without a seed, os.urandom, the clock, or the generator of a C library: seed "
            "these from settings.rng when the file begins, and let no file change what another one yields"
        )


@dataclass(frozen=True)
class RepeatCheck:
    """Result of a comparison. ``file``: the file that ran twice; ``samples``: number of compared samples;
    ``difference``: the first difference; ``skipped``: the reason why nothing was compared, or ''."""

    file: str = ""
    samples: int = 0
    difference: Difference | None = None
    skipped: str = ""


# -- in the program ----------------------------------------------------------------------------------------------------
def check_repeats(
    spec: Mapping[str, Any], files: FileList, number: int, *, limit: int | None, seconds: float, slots: Sequence[str]
) -> RepeatCheck:
    """Run file ``number`` of ``files`` twice and compare its first samples, at most ``limit``.

    ``seconds``: time that provider and file took in this process. ``slots``: names of the slots.
    """
    other = (number + 1) % len(files)
    most = _MOST_SAMPLES if limit is None else min(limit, _MOST_SAMPLES)
    deadline = time.monotonic() + _PATIENCE + 10 * seconds
    name = files[number]
    with contextlib.ExitStack() as runs:
        tasks = ({**spec, "number": number, "before": before, "most": most} for before in (-1, other))
        processes = (provider_process(__name__, "run_again", task, files, purpose="check") for task in tasks)
        first, second = (_Run(runs.enter_context(process), deadline) for process in processes)
        try:
            first_run, second_run = first.answer(), second.answer()
            for y in range(max(len(first_run["checks"]), len(second_run["checks"]))):
                left, right = _checks_at(first_run, y), _checks_at(second_run, y)
                if left is None or right is None:  # one run was stopped before this sample
                    return RepeatCheck(name, y)
                if left == right:
                    continue
                slot = next((s for s, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
                slot_name = [*slots, _WEIGHT][slot] if len(left) == len(right) > 1 else ""
                values = _difference(first.ask(y, slot), second.ask(y, slot))
                return RepeatCheck(name, y, Difference(name, y, slot_name, *values))
        except _NoAnswerError as error:
            return RepeatCheck(name, skipped=str(error))
    return RepeatCheck(name, len(first_run["checks"]))


def _checks_at(run: dict[str, Any], y: int) -> list[int] | None:
    """Return the checksums of sample ``y``; None if the run was stopped before."""
    checks: list[list[int]] = run["checks"]
    if y < len(checks):
        return checks[y]
    return [] if run["is_whole"] else None


def _difference(first: dict[str, Any], second: dict[str, Any]) -> tuple[str, str]:
    """Return texts with the values of both at the first difference."""
    if "text" in first or "text" in second:
        return _as_text(first), _as_text(second)
    for kind, dtype, first_bytes, second_bytes in zip(
        first["kinds"], first["dtypes"], first["arrays"], second["arrays"], strict=True
    ):
        if len(first_bytes) != len(second_bytes):
            size = np.dtype(dtype).itemsize
            return f"{len(first_bytes) // size} {kind}", f"{len(second_bytes) // size} {kind}"
        if first_bytes != second_bytes:
            at = int(np.flatnonzero(np.frombuffer(first_bytes, np.uint8) != np.frombuffer(second_bytes, np.uint8))[0])
            if kind == "bytes":
                lo = max(0, at - _SHOWN // 3)
                return repr(first_bytes[lo : lo + _SHOWN]), repr(second_bytes[lo : lo + _SHOWN])
            index = at // np.dtype(dtype).itemsize
            left, right = (np.frombuffer(data, dtype)[index].item() for data in (first_bytes, second_bytes))
            if kind in _COUNTS:
                return f"{left} {kind}", f"{right} {kind}"
            where = f"{kind}[{index}] = " if len(first_bytes) > np.dtype(dtype).itemsize else ""
            return f"{where}{left!r}", f"{where}{right!r}"
    return "-", "-"


def _as_text(answer: dict[str, Any]) -> str:
    return str(answer.get("text", "another sample"))


class _NoAnswerError(Exception):
    """A process gave no result."""


class _Run:
    """Run of the file in the process that ``channel`` leads to, which answers until ``deadline`` (on
    time.monotonic)."""

    def __init__(self, channel: socket.socket, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline

    def answer(self) -> dict[str, Any]:
        """Wait for the answer of the process."""
        if not select.select([self._channel], [], [], max(0.0, self._deadline - time.monotonic()))[0]:
            raise _NoAnswerError("a process that ran it again did not come to an end")
        try:
            answer = receive_plain(self._channel)
        except (EOFError, OSError):
            raise _NoAnswerError("a process that ran it again ended without a result") from None
        if "error" in answer:
            raise _NoAnswerError(answer["error"])
        return answer

    def ask(self, sample: int, slot: int) -> dict[str, Any]:
        """Return the content of slot ``slot`` of sample ``sample`` in that process."""
        send_plain(self._channel, {"sample": sample, "slot": slot})
        return self.answer()


# -- in the processes --------------------------------------------------------------------------------------------------
def run_again(descriptor: int) -> int:
    """Run the file that the program names, and answer its questions until it ends the connection."""
    channel, spec, files = receive_task(descriptor)
    with open(os.devnull, "w") as nowhere:  # the program has shown the output of the provider already
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        running = load_provider(spec, files)
        before = _read_before(running, files, spec["before"])
        file = _DrawnFile(running, files[spec["number"]], spec["number"])
        file.draw(spec["most"])
        del before
    except BaseException as error:
        send_plain(channel, {"error": f"it raised {type(error).__name__} in a process of its own: {error}"[:500]})
        return 1
    send_plain(channel, {"checks": file.checks, "is_whole": file.is_whole})
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked = receive_plain(channel)
            send_plain(channel, file.slot_content(asked["sample"], asked["slot"]))
    return 0


def _read_before(running: StartedProvider, files: FileList, number: int) -> Iterator[Any] | None:
    """Read the beginning of file ``number``, and return the open generator. Its exceptions do not matter here."""
    if number < 0:
        return None
    opened = running.open_file(files[number], file_index=number, seed=0, pass_id=1)
    with contextlib.suppress(Exception):
        for _ in islice(opened, _BEFORE):
            pass
    return opened


class _DrawnFile:
    """First samples of a file: their checksums by slot, and their packed values."""

    def __init__(self, running: StartedProvider, name: str, number: int) -> None:
        self._fields = running.schema.slots.fields
        self._reader = LocalReader(running, running.open_file(name, file_index=number, seed=0, pass_id=0))
        self._packed: list[Sequence[Sequence[Array]] | str] = []  # a text for a bad sample or an exception
        self._weights: list[int] = []
        self.checks: list[list[int]] = []
        self.is_whole = False

    def draw(self, most: int) -> None:
        """Draw at most ``most`` samples, within the limits of memory and time."""
        until, nbytes = time.perf_counter() + _MOST_SECONDS, 0
        while len(self.checks) < most and nbytes < _MOST_BYTES and time.perf_counter() < until:
            samples = next(self._reader, None)
            if samples is None or samples.raised:
                self.is_whole = True
            if samples is None:
                return
            for _, error in samples.errors:
                self._add_wrong(error)
            if samples.indices:
                columns = samples.packed.columns
                self._packed.append(columns.arrays)
                self._weights += samples.weights
                self.checks.append([*(checksum(slot) for slot in columns.arrays), *samples.weights])
                nbytes += columns.nbytes

    def _add_wrong(self, error: Error) -> None:
        # The user knows the class of the exception that process raised; the error here has only builtin names.
        what = error.got if isinstance(error, BadSample) else type(error.__context__ or error).__name__
        self._packed.append(what)
        self._weights.append(0)
        self.checks.append([crc32(what.encode(errors="surrogatepass"))])

    def slot_content(self, y: int, slot: int) -> dict[str, Any]:
        """Return the arrays of slot ``slot`` of sample ``y``; a number above the last slot stands for its weight."""
        if y >= len(self._packed):
            return {"text": _ENDED}
        packed = self._packed[y]
        if isinstance(packed, str):
            return {"text": packed}
        if slot >= len(packed):
            return {"text": f"weight {self._weights[y]}"}
        fields = self._fields[slot]
        return {
            "kinds": [field.kind for field in fields],
            "dtypes": [array.dtype.str for array in packed[slot]],
            "arrays": [array.tobytes() for array in packed[slot]],
        }


def checksum(arrays: Sequence[Array]) -> int:
    """Return the CRC-32 of the arrays of a slot, with their lengths."""
    value = 0
    for array in arrays:
        value = crc32(array.tobytes(), crc32(len(array).to_bytes(8, "little"), value))
    return value

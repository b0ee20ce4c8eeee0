"""Consume the batches of every run: touch all data, count, time, and refuse a pass without each sample exactly once."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks import latency, processes
from benchmarks.job import Batch, Job, Total, Workload

_PAGE = 4096  # bytes of a page; one element of each is read, so that bytes which never arrived cannot count
_STEADY = (0.25, 0.9)  # the part of a pass without effects of its start and end


class WrongPass(AssertionError):
    """A pass did not deliver each sample exactly once."""


def consume(batches: Callable[[], Iterable[Any]], workload: Workload, expected: Total, convert: Any = None) -> dict:
    """Consume one pass over ``batches()``; the time includes this call and ``iter()``.

    Args:
        convert: function from a batch to a dict of arrays with ``label``; None: a batch is such a dict.

    Returns:
        began: start on time.perf_counter; samples; seconds; first: seconds to the first batch; steady: samples/s
        between 25 % and 90 % of the pass; cpu, trainer_cpu, server_cpu, others: see
        :class:`benchmarks.processes.Meter`.

    Raises:
        WrongPass: samples, sum of labels or number of elements are not those of the data.
    """
    low, high = (int(expected.samples * share) for share in _STEADY)
    marks: list[tuple[int, float]] = []
    samples = labels = elements = 0
    first = sink = 0.0
    meter = processes.Meter()
    began = time.perf_counter()
    for batch in batches():
        if not first:
            first = time.perf_counter() - began
        arrays: Batch = batch if convert is None else convert(batch)
        for array in arrays.values():
            sink += float(array.reshape(-1)[:: max(1, _PAGE // array.itemsize)].sum())
        label = arrays["label"]
        samples += len(label)
        labels += int(label.sum())
        for name in workload.counted:
            elements += arrays[name].size
        if samples >= (high if marks else low) and len(marks) < 2:
            marks.append((samples, time.perf_counter()))
    seconds = time.perf_counter() - began
    cost = meter.stop()
    got = Total(samples, labels, elements)
    if got != expected:
        raise WrongPass(f"a pass must deliver {expected}, got {got}")
    (few, early), (many, late) = marks[0], marks[-1]
    steady = (many - few) / (late - early) if late > early else samples / seconds
    return {"began": began, "samples": samples, "seconds": seconds, "first": first, "steady": steady} | cost


def passes(job: Job, batches: Callable[[], Iterable[Any]], convert: Any = None) -> list[dict]:
    """Consume as many passes as the job has; ``batches()`` is called for each.

    With the option ``step`` of the job, a step follows each batch, and the result of a pass also has ``felt``: see
    :class:`benchmarks.latency.Felt`. With ``train`` a model trains with the batches: see :mod:`benchmarks.training`.
    """
    if job.option("train"):
        return importlib.import_module("benchmarks.training").passes(job, batches, convert)  # it needs torch
    expected = job.total()
    step = job.option("step")
    if step is None:
        return [consume(batches, job.kind, expected, convert) for _ in range(job.passes)]
    results = []
    for _ in range(job.passes):
        felt = latency.Felt(step, convert)
        result = consume(partial(_stepping, felt, batches), job.kind, expected)
        results.append(result | {"felt": felt.figures()})
    return results


def _stepping(felt: latency.Felt, batches: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    return felt.stepping(batches())

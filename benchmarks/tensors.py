"""Measure the cost of tensors over arrays: the steps of a framework's loader beside those of a client.

Both read the same samples in alternating passes, from the cache in memory, or from the provider. Either the loop does
nothing else, and the figures are the times from step to step. Or it computes after each ``next()``, and the figures are
the times of these calls, which matter to a user whose steps are slower than the loader. Processor time is that of the
trainer's process; on a busy machine it varies less than the time from step to step.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

import pydp2
from benchmarks.latency import Felt
from pydp2 import CacheType, dense_vector, integer_value, integer_value_sequence, provider, sparse_binary_vector

STEPS = ("images", "dense", "words", "ctr")
FRAMEWORKS = ("torch", "jax", "paddle", "tf")
_FILES = [str(number) for number in range(8)]  # the name of a file is the seed of its samples
_SAMPLES = 2560  # samples of a file
_BATCH = 128
_WIDTH = 1_000_000


def _images(settings: Any, filename: str) -> Any:
    random = np.random.default_rng(int(filename))
    for _ in range(_SAMPLES):
        yield {"image": random.random((3, 32, 32), np.float32), "label": int(random.integers(10))}


def _dense(settings: Any, filename: str) -> Any:
    random = np.random.default_rng(int(filename))
    for _ in range(_SAMPLES):
        yield {"pixel": random.random(784, np.float32), "label": int(random.integers(10))}


def _words(settings: Any, filename: str) -> Any:
    random = np.random.default_rng(int(filename))
    for _ in range(_SAMPLES):
        yield {"word": random.integers(0, 50_000, random.integers(1, 100)).tolist(), "label": int(random.integers(2))}


def _ctr(settings: Any, filename: str) -> Any:
    random = np.random.default_rng(int(filename))
    for _ in range(_SAMPLES):
        ids = sorted(set(random.integers(0, _WIDTH, 26).tolist()))
        yield {"ids": ids, "numbers": random.random(13, np.float32), "label": int(random.integers(2))}


_in_memory = partial(provider, cache=CacheType.CACHE_PASS_IN_MEM)
_TYPES = {
    "images": {"image": dense_vector(3072, shape=(3, 32, 32)), "label": integer_value(10)},
    "dense": {"pixel": dense_vector(784), "label": integer_value(10)},
    "words": {"word": integer_value_sequence(50_000), "label": integer_value(2)},
    "ctr": {"ids": sparse_binary_vector(_WIDTH), "numbers": dense_vector(13), "label": integer_value(2)},
}
images, images_read = (declare(input_types=_TYPES["images"])(_images) for declare in (_in_memory, provider))
dense, dense_read = (declare(input_types=_TYPES["dense"])(_dense) for declare in (_in_memory, provider))
words, words_read = (declare(input_types=_TYPES["words"])(_words) for declare in (_in_memory, provider))
ctr, ctr_read = (declare(input_types=_TYPES["ctr"])(_ctr) for declare in (_in_memory, provider))


def _pass(steps: Iterable[Any], use: Callable[[Any], object]) -> tuple[float, float]:
    """Return the microseconds from step to step in one pass, and of processor time for a step."""
    steps = iter(steps)
    use(next(steps))
    count, began, worked = 0, time.perf_counter(), time.process_time()
    for step in steps:
        use(step)
        count += 1
    return (time.perf_counter() - began) * 1e6 / count, (time.process_time() - worked) * 1e6 / count


def _felt(steps: Iterable[Any], use: Callable[[Any], object], milliseconds: float) -> tuple[float, float]:
    """Return the microseconds of a ``next()`` in one pass: median and mean."""
    felt = Felt(milliseconds, use)
    for _ in felt.stepping(steps):
        pass
    times = np.array(felt.times[1:]) * 1e6
    return float(np.median(times)), float(times.mean())


def measure(
    name: str, rounds: int, *, framework: str = "torch", cached: bool = True, milliseconds: float = 0.0
) -> dict[str, float]:
    """Return medians over alternating passes, in microseconds, and the ratios of loader and arrays. Without ``cached``
    each pass runs the provider. ``milliseconds``: time that the loop computes after each ``next()``, and only these
    calls are measured; 0: it does nothing else, and the time from step to step is measured."""
    one_pass = partial(_felt, milliseconds=milliseconds) if milliseconds else _pass
    second = "mean" if milliseconds else "processor"
    loader = importlib.import_module(f"pydp2.{framework}").loader
    with (
        pydp2.launch(_FILES, f"{__file__}:{name}{'' if cached else '_read'}", workers=2) as service,
        service.connect(batch_size=_BATCH, job="arrays") as client,
        loader(service.address, batch_size=_BATCH, job="tensors") as tensors,
    ):
        kinds: list[tuple[Iterable[Any], Callable[[Any], object]]] = [
            (client, lambda batch: batch.values()),
            (tensors, lambda step: step),
        ]
        for kind in kinds:
            one_pass(*kind)  # fills the cache
        runs = [[one_pass(*kind) for kind in kinds] for _ in range(rounds)]
    result: dict[str, float] = {}
    for i, kind in enumerate(("arrays", "tensors")):
        result[kind], result[f"{kind} ({second})"] = (statistics.median(run[i][j] for run in runs) for j in range(2))
    result["ratio"] = result["tensors"] / result["arrays"]
    result[f"ratio ({second})"] = result[f"tensors ({second})"] / result[f"arrays ({second})"]
    return result


def show(names: Sequence[str], rounds: int, *, framework: str, cached: bool = True, milliseconds: float = 0.0) -> None:
    if framework == "torch":
        importlib.import_module("torch").set_num_threads(1)
    for name in names:
        figures = measure(name, rounds, framework=framework, cached=cached, milliseconds=milliseconds)
        shown = "  ".join(f"{key} {value:.{2 if 'ratio' in key else 0}f}" for key, value in figures.items())
        print(f"{framework:6} {name:8} {shown}", flush=True)

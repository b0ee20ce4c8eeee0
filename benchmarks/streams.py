"""Make streams of others, as the peers need them: batches behind a shuffle buffer, and several streams as one.

This module does not import pydp2.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

AHEAD = 8
"""Number of items that wait in :func:`merged`, and of batches that each worker of a peer makes ahead."""
_END = object()


def shuffled_batches(
    samples: Iterable[Any], size: int, collate: Callable[[list[Any]], Any], batch_size: int, seed: int
) -> Iterator[Any]:
    """Yield batches behind the usual shuffle buffer of ``size`` samples, as in the workers of most peers."""
    draw = random.Random(seed)
    number = draw.random
    waiting: list[Any] = []
    batch: list[Any] = []
    for sample in samples:
        if len(waiting) < size:
            waiting.append(sample)
            continue
        index = int(number() * size)
        batch.append(waiting[index])
        waiting[index] = sample
        if len(batch) == batch_size:
            yield collate(batch)
            batch = []
    draw.shuffle(waiting)
    batch += waiting
    del waiting
    for begin in range(0, len(batch), batch_size):
        yield collate(batch[begin : begin + batch_size])


def merged(sources: list[Iterable[Any]]) -> Iterator[Any]:
    """Yield the items of all sources, in order of arrival; a thread reads each source."""
    ready: queue.Queue[Any] = queue.Queue(AHEAD)

    def pump(source: Iterable[Any]) -> None:
        try:
            for item in source:
                ready.put(item)
            ready.put(_END)
        except BaseException as error:
            ready.put(error)

    for source in sources:
        threading.Thread(target=pump, args=(source,), daemon=True).start()
    running = len(sources)
    while running:
        item = ready.get()
        if item is _END:
            running -= 1
        elif isinstance(item, BaseException):
            raise item
        else:
            yield item

"""Measure how well a pass is shuffled: how far apart samples come that are neighbours in the list, and the reverse.

Theory
------
A pass gives the samples of the list in another order. Two mistakes make an order bad, and each hides behind a figure
that looks only for the other one:

* A small pool gives neighbours of the list soon after each other. Samples that follow each other in the stream lie
  close together in the list.
* Reading many files in turns without a pool gives samples of many files in a row, far apart in the list. But neighbours
  of the list still come soon after each other.

So there are two distances: that in the list between samples that follow each other in the stream, and that in the
stream between samples that follow each other in the list. In a full shuffle of n samples, both are n / 3 on average.
The quality is the smaller of the two, as a share of n / 3. Only a whole pass has it: within the first part of a pass,
everything that was read so far may be mixed well, although it is a small part of the list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from pydp2.api.service import launch, require_allowed_process
from pydp2.api.sources import Files, Source
from pydp2.diagnostics.bench import OF_OTHERS
from pydp2.errors import Error
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, LoadChoices, check_keywords, takes
from pydp2.providers import Provider

_MOST = 50_000_000  # samples: their origins have 24 bytes each
_ROWS, _COLUMNS = 12, (64, 32, 16, 8)  # of the picture
_IN_CELL = 20  # samples on average, so that chance shows little
_BATCH = 128

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShuffleQuality:
    """How well a pass is shuffled. ``quality``: 0, as in the list, to 1, as a full shuffle; the smaller one of
    ``list_distance`` (between samples that follow each other in the stream) and ``stream_distance`` (between samples
    that follow each other in the list), each as a share of what a full shuffle has.

    ``files_per_batch``: number of list entries in a batch, on average; ``full_files_per_batch``: the same in a full
    shuffle. ``picture``: share of the samples in each cell, times the number of cells: a row is a part of the list, a
    column a part of the pass; 1 everywhere in a full shuffle. (12, columns) float64, where columns is 8, 16, 32 or 64,
    so that a cell has enough samples.
    """

    samples: int
    batches: int
    quality: float
    list_distance: float
    stream_distance: float
    files_per_batch: float
    full_files_per_batch: float
    picture: npt.NDArray[np.float64]


def shuffle_quality_of(entries: Ints, sample_indices: Ints, batch_sizes: Ints) -> ShuffleQuality:
    """Return how well samples are shuffled. ``entries``, ``sample_indices``: (samples,) list entry and sample index of
    each, in the order of the stream; ``batch_sizes``: (batches,) rows of each batch."""
    count = len(entries)
    in_list = np.empty(count, np.int64)
    by_list = np.lexsort((sample_indices, entries))
    in_list[by_list] = np.arange(count)  # the place in the list of each sample of the stream
    full = max(count / 3, 1.0)
    list_distance = min(1.0, _mean_step(in_list) / full)
    stream_distance = min(1.0, _mean_step(by_list) / full)  # the place in the stream of each sample of the list
    batch_of = np.repeat(np.arange(len(batch_sizes)), batch_sizes)
    pairs = len(np.unique(batch_of * (int(entries.max()) + 1) + entries))  # of batch and list entry
    shares = np.unique(entries, return_counts=True)[1] / count
    sizes, weights = np.unique(batch_sizes, return_counts=True)
    expected = [float((1 - (1 - shares) ** size).sum()) for size in sizes]
    columns = next((each for each in _COLUMNS if count >= each * _ROWS * _IN_CELL), _COLUMNS[-1])
    cells = np.histogram2d(in_list, np.arange(count), (_ROWS, columns), ((0, count), (0, count)))[0]
    return ShuffleQuality(
        samples=count,
        batches=len(batch_sizes),
        quality=min(list_distance, stream_distance),
        list_distance=list_distance,
        stream_distance=stream_distance,
        files_per_batch=pairs / len(batch_sizes),
        full_files_per_batch=float(np.average(expected, weights=weights)),
        picture=cells / count * cells.size,
    )


def _mean_step(places: Ints) -> float:
    return float(np.abs(np.diff(places)).mean()) if len(places) > 1 else 0.0


@takes(SERVICE_OPTIONS, JOB_OPTIONS)
def shuffle_quality(
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    batch_size: int = _BATCH,
    **options: Unpack[LoadChoices],
) -> ShuffleQuality:
    """Read one whole pass of a list, and return how well it is shuffled; see docs/slow.md, "Is the shuffle good?".

    ``files``, ``provider``, ``args``, ``is_train`` and ``root`` are those of :func:`pydp2.launch`.

    Args:
        batch_size: as for :func:`pydp2.connect`.
        options: the other options of :func:`pydp2.load`. Options for other trainers and for files that stay after the
            end (``bind, connection, keys, share, state_dir, …``) have no effect.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: an argument is not valid.
        Error: the pass has fewer than two samples, or more than 50 million; and what :func:`pydp2.load` raises.
    """
    check_keywords(shuffle_quality, options)
    require_allowed_process()
    given: dict[str, Any] = {**options, "batch_size": batch_size, "origin": True}
    service = {name: given[name] for name in SERVICE_OPTIONS if name in given and name not in OF_OTHERS}
    job = {name: given[name] for name in JOB_OPTIONS if name in given and name != "share"}
    entries, sample_indices, sizes, count = list[Ints](), list[Ints](), list[int](), 0
    source: dict[str, Any] = {"args": args, "is_train": is_train, "root": root}
    with launch(files, provider, **source, **service) as running, running.connect(**job, world_size=1) as data:
        for batch in data:
            rows = len(batch) - batch.padding
            entries.append(batch.origin.entry[:rows])
            sample_indices.append(batch.origin.sample[:rows])
            sizes.append(rows)
            count += rows
            if count > _MOST:
                raise Error(
                    f"the shuffle quality needs a pass of at most {_MOST:,} samples, and this one has more; measure it "
                    "on a part of the list, with a pool_size that is as much smaller"
                )
    if count < 2:
        raise Error(f"the shuffle quality needs a pass of two samples at least, and this one has {count}")
    return shuffle_quality_of(np.concatenate(entries), np.concatenate(sample_indices), np.array(sizes, np.int64))

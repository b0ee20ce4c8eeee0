"""The peers: each reads the same files with its own reader where it has one, else with :mod:`.libraries`, shuffles in
the workers in a buffer of as many samples, and delivers batches of numpy arrays.

Each is set up as in :mod:`benchmarks.peers`. A peer raises LookupError for a workload that it has no way for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import streams
from benchmarks.formats import libraries
from benchmarks.formats.consumer import BATCH, measure, pool, size_of
from benchmarks.formats.files import WINDOW


def shuffled_batches(samples: Iterable[Any], size: int, seed: int) -> Iterator[libraries.Batch]:
    """Return batches behind the usual shuffle buffer of ``size`` samples."""
    return streams.shuffled_batches(samples, size, libraries.collate, BATCH, seed)


class _Files:
    """Batches of every so many-th file; each iteration is a pass."""

    def __init__(self, workload: str, files: list[str], number: int = 0, workers: int = 1) -> None:
        self.workload, self.files, self.seed = workload, files[number::workers], 0

    def __iter__(self) -> Iterator[libraries.Batch]:
        self.seed += 1
        samples = (sample for file in self.files for sample in libraries.samples(self.workload, file))
        return shuffled_batches(samples, pool(self.workload), self.seed)


def _as_it_is(batch: Any) -> Any:
    return batch


def _options(workers: int, collate: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the options of a DataLoader of torch."""
    return {
        "num_workers": workers,
        "persistent_workers": True,
        "prefetch_factor": streams.AHEAD,
        "collate_fn": collate,
    }


def torch_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """PyTorch's DataLoader over an IterableDataset of the library."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Dataset(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            return iter(_Files(workload, files, worker.id, worker.num_workers))

    torch.set_num_threads(1)
    loader = DataLoader(
        Dataset(),
        batch_size=None,
        **_options(workers, _as_it_is),
    )
    return measure(samples, lambda: loader, size_of)


def datasets_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """Hugging Face datasets: ``to_iterable_dataset`` with a shard for each file, in a DataLoader. It makes Arrow
    files of parquet and JSON before the first pass. Its format of Python objects was faster here than that of numpy,
    which makes an array of each value."""
    import datasets
    import torch
    from torch.utils.data import DataLoader

    kind = {"parquet": "parquet", "jsonl": "json"}.get(workload.partition("_")[0])
    if kind is None:
        raise LookupError(f"datasets has no reader of {workload} that leaves records as they are")
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    folder = str(Path(files[0]).with_name("datasets-cache"))
    whole = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=folder)
    stream = whole.to_iterable_dataset(num_shards=len(files)).shuffle(seed=1, buffer_size=pool(workload))

    def collate(some: list[dict[str, Any]]) -> libraries.Batch:
        if workload == "parquet_text":
            return {"data": [sample["text"] for sample in some]}
        if workload == "jsonl_tokens":
            return {"data": np.array([sample["tokens"] for sample in some], np.int64)}
        return {"data": np.array([list(sample.values()) for sample in some], np.float32)}

    loader = DataLoader(
        stream,
        batch_size=BATCH,
        **_options(workers, collate),
    )
    return measure(samples, lambda: loader, size_of)


def webdataset_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """The package webdataset: its reader, shuffle and WebLoader."""
    import torch
    import webdataset

    if not workload.startswith("tar"):
        raise LookupError("webdataset reads tar alone")
    torch.set_num_threads(1)

    def sample(record: dict[str, Any]) -> tuple[np.ndarray, int]:
        return np.frombuffer(record["jpg"], np.uint8), int(record["cls"])

    stream = webdataset.WebDataset(files, shardshuffle=False).shuffle(pool(workload)).map(sample)
    loader = webdataset.WebLoader(
        stream.batched(BATCH, collation_fn=libraries.collate),
        batch_size=None,
        **_options(workers, _as_it_is),
    )
    return measure(samples, lambda: loader, size_of)


def grain_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """Grain: its ParquetIterDataset; random access and a whole shuffle for windows of tokens; else a dataset that reads
    with the library, as in ``benchmarks.peers.with_grain``."""
    import grain
    from absl import flags

    flags.FLAGS(["grain"])
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=streams.AHEAD // 2)

    class Reading(grain.DatasetIterator):
        def __init__(self, own: list[str]) -> None:
            super().__init__()
            self._samples = (sample for file in own for sample in libraries.samples(workload, file))

        def __next__(self) -> Any:
            return next(self._samples)

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass  # no run of a benchmark resumes

    class Dataset(grain.IterDataset):
        def __init__(self) -> None:
            super().__init__()
            self._files = files

        def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
            self._files = self._files[sl]

        def __iter__(self) -> Reading:
            return Reading(self._files)

    class Windows:
        def __init__(self) -> None:
            self._parts = [np.memmap(file, np.uint16, "r") for file in files]
            self._each = len(self._parts[0]) // WINDOW

        def __len__(self) -> int:
            return self._each * len(self._parts)

        def __getitem__(self, number: int) -> np.ndarray:
            part, at = divmod(int(number), self._each)
            return self._parts[part][at * WINDOW : (at + 1) * WINDOW].astype(np.int64)

    def batches() -> Any:
        if workload == "tokens":
            mixed = grain.MapDataset.source(Windows()).shuffle(seed=1).to_iter_dataset()
        else:
            mixed = grain.experimental.WindowShuffleIterDataset(Dataset(), window_size=pool(workload), seed=1)
        joined = mixed.batch(BATCH, drop_remainder=False, batch_fn=libraries.collate)
        return joined.mp_prefetch(options)

    return measure(samples, batches, size_of)


def spdl_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """SPDL: a subprocess for each worker, with its ring of shared memory for large samples; one thread for each
    receives its batches."""
    from spdl.pipeline import SharedMemoryRingBuffer, iterate_in_subprocess

    sources = []
    for number in range(workers):
        ring = {} if workload.startswith("parquet") else {"arena": SharedMemoryRingBuffer(256 << 20)}
        make = partial(_Files, workload, files, number, workers)
        sources.append(iterate_in_subprocess(make, buffer_size=streams.AHEAD, mp_context="fork", timeout=120, **ring))
    return measure(samples, lambda: streams.merged(sources), size_of)

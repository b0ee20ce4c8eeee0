"""Measure pydp2 alone, ``python -m benchmarks figures [NAME ...]``: medians of alternating rounds."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pydp2
from benchmarks.figures import data, measure, providers

Figures = dict[str, Any]


def _words_reader(dictionary: str) -> Callable[[str], Any]:
    return partial(providers.read_words, providers.read_dictionary(dictionary))


def throughput(folder: Path, rounds: int, workload: str) -> Figures:
    """Measure strict and relaxed order against the bare generator in two processes: samples/s of a whole first pass."""
    if workload == "words":
        files = data.words(folder)
        dictionary = str(folder / "dict.txt")
        make: Callable[[], Any] = partial(_words_reader, dictionary)
        args: dict[str, Any] = {"args": {"dictionary": dictionary}}
    else:
        files, args = data.digits(), {}
        make = lambda: providers.read_digits  # noqa: E731
    rows: list[dict[str, float]] = []
    for _ in range(rounds):
        bare = measure.bare(make, files)
        strict = measure.served(files, workload, **args)[0]
        relaxed = measure.served(files, workload, order="relaxed", **args)[0]
        count = strict["samples"]
        rows.append(
            {
                "bare": count / bare,
                "strict": count / strict["seconds"],
                "relaxed": count / relaxed["seconds"],
                "strict/bare": bare / strict["seconds"],
                "strict/relaxed": relaxed["seconds"] / strict["seconds"],
                "first_batch": strict["first"],
            }
        )
    return _medians(rows) | {"samples": count}


def first_batch(folder: Path, rounds: int) -> Figures:
    """Measure the seconds to the first batch: from load(), and from iter() on a running service."""
    files = data.words(folder)
    args = {"dictionary": str(folder / "dict.txt")}
    rows = []
    for _ in range(rounds):
        began = time.perf_counter()
        with pydp2.load(files, measure.ADDRESS + "words", args=args, workers=2, batch_size=128) as client:
            next(iter(client))
            from_load = time.perf_counter() - began
            began = time.perf_counter()
            next(iter(client))
            rows.append({"load": from_load, "iter": time.perf_counter() - began})
    return _medians(rows)


def tiny_files(folder: Path, rounds: int, count: int = 10_000) -> Figures:
    """Measure ``count`` files of one sample: seconds of a pass, peak memory of server and worker in MB."""
    files = data.tiny(folder, count)
    rows = []
    for _ in range(rounds):
        with (
            pydp2.launch(files, measure.ADDRESS + "tiny", workers=2) as service,
            service.connect(batch_size=128) as client,
        ):
            result = measure.drain(client)
            workers = [measure.memory(w["pid"])["peak"] for w in service.stats()["workers"]]
            server = measure.memory(service.pid)["peak"]
        assert result["samples"] == count
        rows.append({"seconds": result["seconds"], "server_peak_mb": server, "worker_peak_mb": max(workers)})
    return _medians(rows)


def long_list(folder: Path, rounds: int, count: int = 1_000_000) -> Figures:
    """Measure a list of ``count`` entries: seconds from load() to the first batch, memory of the server in MB then."""
    path = folder / "long.list"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"some/folder/with/a/name/entry-{i}\n" for i in range(count)))
    rows = []
    for _ in range(rounds):
        began = time.perf_counter()
        with (
            pydp2.launch(path, measure.ADDRESS + "entries", workers=2) as service,
            service.connect(batch_size=128) as client,
        ):
            next(iter(client))
            seconds = time.perf_counter() - began
            server = measure.memory(service.pid)
            workers = [measure.memory(w["pid"])["pss"] for w in service.stats()["workers"]]
        rows.append(
            {
                "first_batch": seconds,
                "server_rss_mb": server["rss"],
                "server_pss_mb": server["pss"],
                "worker_pss_mb": max(workers),
            }
        )
    return _medians(rows)


def kills(folder: Path, rounds: int, every: float = 0.2) -> Figures:
    """Measure 200,000 samples in 200 files while a random worker is killed about every ``every`` seconds."""
    files = data.words(folder, files=200)
    args = {"dictionary": str(folder / "dict.txt")}
    rows = []
    same = True
    for _ in range(rounds):
        calm = measure.served(files, "words", args=args)[0]
        fire = measure.under_fire(files, "words", every, args=args)
        same = same and (calm["crc"], calm["samples"]) == (fire["crc"], fire["samples"])
        rows.append(
            {
                "calm": calm["samples"] / calm["seconds"],
                "under_fire": fire["samples"] / fire["seconds"],
                "ratio": calm["seconds"] / fire["seconds"],
                "kills": fire["kills"],
                "replaced_after": fire["replaced"],
                "replaced_worst": fire["replaced_worst"],
            }
        )
    return _medians(rows) | {"exact_and_in_order": same}


def origins(folder: Path, rounds: int, name: str) -> Figures:
    """Measure what ``origin=True`` costs: samples/s of a pass with and without it, and processor time of server and
    trainer for a sample, in us."""
    files = data.digits() if name == "digits" else [str(n) for n in range(8)]
    rows = []
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)
        without, with_it = (measure.with_processor_time(files, name, origin=wanted) for wanted in order)
        if number % 2 == 0:
            without, with_it = with_it, without
        assert with_it["crc"] == without["crc"]
        rows.append(
            {
                "without": without["samples"] / without["seconds"],
                "with": with_it["samples"] / with_it["seconds"],
                "with/without": without["seconds"] / with_it["seconds"],
                "us_without": 1e6 * without["processor"] / without["samples"],
                "us_with": 1e6 * with_it["processor"] / with_it["samples"],
                "us_with/without": with_it["processor"] / without["processor"],
            }
        )
    return _medians(rows)


def _medians(rows: list[dict[str, float]]) -> Figures:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


FIGURES: dict[str, Callable[[Path, int], Figures]] = {
    "words": partial(throughput, workload="words"),
    "digits": partial(throughput, workload="digits"),
    "first_batch": first_batch,
    "tiny_files": tiny_files,
    "long_list": long_list,
    "kills": kills,
    "origins_digits": partial(origins, name="digits"),
    "origins_small_rows": partial(origins, name="small_rows"),
}


def show(names: list[str], folder: Path, rounds: int, as_json: bool) -> None:
    """Measure and print the figures in ``names``, all figures if it is empty."""
    for name in names or FIGURES:
        figures = FIGURES[name](folder, rounds)
        if as_json:
            print(json.dumps({"name": name, "rounds": rounds, **figures}), flush=True)
        else:
            print(f"{name} (medians of {rounds})", flush=True)
            for key, value in figures.items():
                print(f"  {key:20} {value:,.3f}" if isinstance(value, float) else f"  {key:20} {value}", flush=True)

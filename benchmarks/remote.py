"""Measure files of a store on loopback against the same files on the disk: rates, requests, bytes.

The store is a web server with ranges in a process of its own, which shares the cores with all others. Runs alternate:
from the disk, from the store into an empty cache, from a filled one, and from a store that answers each request late.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

ROOT = Path(__file__).parents[1]
METHODS = ("disk", "store", "filled", "late")
_DEADLINE = 600  # seconds
_COUNTS = "/counts"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = Path()
    delay = 0.0
    counts: dict[str, int] = {"GET": 0, "HEAD": 0, "bytes": 0}  # noqa: RUF012 - of the only server of a process

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == _COUNTS:
            body = json.dumps(self.counts).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            for name in self.counts:
                self.counts[name] = 0
            return
        time.sleep(self.delay)
        path = self.folder / self.path.lstrip("/")
        size = path.stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or size) + 1, size)
        self.counts[self.command] += 1
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{hashlib.md5(str(path).encode()).hexdigest()}"')
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            self.counts["bytes"] += stop - start
            self.wfile.flush()
            with path.open("rb") as file:
                self.connection.sendfile(file, start, stop - start)


def serve(folder: str, delay: float) -> None:
    """Serve the files of ``folder``; print the port."""
    _Handler.folder, _Handler.delay = Path(folder), delay
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


@contextlib.contextmanager
def serving(folder: Path, delay: float = 0.0) -> Iterator[str]:
    """A server of ``folder`` in the block; its URL."""
    command = [sys.executable, "-m", "benchmarks.remote", "serve", str(folder), "--delay", str(delay)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def make(folder: Path, megabytes: int) -> list[str]:
    """Write parquet files of rows with an id, a vector of 64 numbers and a text; return their names."""
    import pyarrow
    from pyarrow import parquet

    random, names, rows = np.random.default_rng(1), [], 8192
    for number in range(max(1, megabytes // 8)):
        count = 3 * rows
        vectors = random.integers(0, 256, (count, 64)).astype(np.float32) / 255
        table = pyarrow.table(
            {
                "id": np.arange(count) + number * count,
                "vector": pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), 64),
                "text": [f"text number {i} of file {number}" for i in range(count)],
            }
        )
        parquet.write_table(table, folder / f"{number:04}.parquet", row_group_size=rows)
        names.append(f"{number:04}.parquet")
    return names


def one_pass(entries: list[str], cache: str, workers: int) -> tuple[float, int, float]:
    """Return seconds and samples of a pass, from the first batch on that was asked for, and the megabytes that the
    process that fetches has at its end."""
    import pydp2

    with pydp2.load(entries, batch_size=256, workers=workers, remote_cache=cache) as data:
        began, rows = time.perf_counter(), 0
        for batch in data:
            rows += len(batch)
        seconds, remote = time.perf_counter() - began, data.stats()["remote"]
        return seconds, rows, remote["memory"] / 1e6 if remote else 0.0


def many_files(folder: Path, count: int, workers: int, ranks: int) -> dict[str, Any]:
    """Read ``count`` files of 200 kB in one pass of ``ranks`` ranks; return requests and bytes."""
    import pydp2

    names = [f"{number:05}.jsonl" for number in range(count)]
    for number, name in enumerate(names):
        (folder / name).write_text("".join(f'{{"n": {number * 1000 + i}, "t": "{"x" * 180}"}}\n' for i in range(1000)))
    size = sum((folder / name).stat().st_size for name in names)

    def train(rank: int) -> None:
        with service.connect(batch_size=256, rank=rank, world_size=ranks) as data:
            taken[rank] = sum(len(batch) for batch in data)

    taken = [0] * ranks
    with serving(folder) as url, tempfile.TemporaryDirectory() as cache:
        with pydp2.launch([f"{url}/{name}" for name in names], workers=workers, remote_cache=cache) as service:
            threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_DEADLINE)
        counts = json.load(urlopen(f"{url}{_COUNTS}"))
    return {"samples": sum(taken), "size": size} | counts


def show(given: argparse.Namespace) -> int:
    """Run the rounds, and print the rates."""
    rates: dict[str, list[float]] = {method: [] for method in METHODS}
    most = dict.fromkeys(METHODS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        names = make(files, given.megabytes)
        with serving(files) as url, serving(files, given.delay / 1000) as late:
            for _ in range(given.rounds):
                shutil.rmtree(Path(folder) / "cache", ignore_errors=True)
                for method in METHODS:
                    root = {"disk": str(files), "late": late}.get(method, url)
                    cache = Path(folder) / ("late" if method == "late" else "cache")
                    command = [sys.executable, "-m", "benchmarks.remote", "read", str(cache), str(given.workers)]
                    done = subprocess.run(
                        [*command, *(f"{root}/{name}" for name in names)], cwd=ROOT, capture_output=True, text=True,
                        timeout=_DEADLINE, check=True, env=os.environ | {"XDG_CACHE_HOME": f"{folder}/home"},
                    )  # fmt: skip
                    seconds, rows, megabytes = json.loads(done.stdout.splitlines()[-1])
                    rates[method].append(rows / seconds)
                    most[method] = max(most[method], megabytes)
                    if method == "late":
                        shutil.rmtree(cache)
        disk = statistics.median(rates["disk"])
        for method, found in rates.items():
            median = statistics.median(found)
            print(
                f"{method:<6} {median:9,.0f} samples/s ({min(found):,.0f} to {max(found):,.0f}), "
                f"{method} / disk: {median / disk:.2f}, fetch process {most[method]:.0f} MB"
            )
        if given.files:
            small = Path(folder) / "small"
            small.mkdir()
            found_counts = many_files(small, given.files, 8, 4)
            print(
                f"{given.files} files, 8 workers, 4 ranks: {found_counts['GET']} GET, {found_counts['HEAD']} HEAD, "
                f"{found_counts['bytes'] / found_counts['size']:.3f} of the bytes, {found_counts['samples']:,} samples"
            )
    return 0


def add_to(commands: Any) -> None:
    """Add the command to those of the benchmarks."""
    parser = commands.add_parser("remote", help="files of a store on loopback against those of the disk")
    parser.add_argument("--megabytes", type=int, default=160, help="of parquet files; default: %(default)s")
    parser.add_argument("--delay", type=float, default=30.0, help="ms of each request to the late store")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--files", type=int, default=1000, help="small files whose requests are counted; 0: none")
    parser.set_defaults(do=show)


def main() -> None:
    """Serve files, or read them once and print seconds and samples."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="what", required=True)
    server = commands.add_parser("serve")
    server.add_argument("folder")
    server.add_argument("--delay", type=float, default=0.0)
    reader = commands.add_parser("read")
    reader.add_argument("cache")
    reader.add_argument("workers", type=int)
    reader.add_argument("entries", nargs="+")
    given = parser.parse_args()
    if given.what == "serve":
        serve(given.folder, given.delay)
    else:
        print(json.dumps(one_pass(given.entries, given.cache, given.workers)))


if __name__ == "__main__":
    main()

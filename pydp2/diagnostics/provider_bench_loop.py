"""Loop over a provider alone: draw samples bare, and draw, check and pack them as a worker does."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import mmap
import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydp2.data.columns.columns import frame_count
from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.packers.sample_loop import SampleMarker
from pydp2.diagnostics.slot_costs import slot_costs
from pydp2.errors import BadSample, ProviderError, from_wire
from pydp2.host.worker.chunk_builder import ChunkBuilder
from pydp2.host.worker.sample_drawer import SampleDrawer
from pydp2.host.worker.task import NO_SAMPLE, FileTask
from pydp2.options.file_list import FileList
from pydp2.protocol.file_ranges import FileAssignment
from pydp2.protocol.worker_status import FIELD_COUNT, RUNNING, SAMPLE_INDEX, STARTED_NS
from pydp2.providers import StartedProvider, user_error, with_location
from pydp2.providers.source_providers import SourceProviders

FIRST, BARE, PACKED = range(3)
"""Ways of drawing: the first samples one by one, then bare, and packed."""
AREA = 64 * 1024
"""Bytes of a :class:`ResultPage`."""
_TEXT = 512  # offset of the report in a page
_LENGTH = struct.Struct("<i")
_SLICE = 0.02  # seconds of each way of drawing, in turn
_KEPT = 48  # samples that are drawn one by one at first
_KEPT_SECONDS = 0.5  # seconds after which this ends, even with fewer samples


@dataclass(frozen=True)
class LoopCounts:
    """Cost of one way of drawing, in seconds of all units together: ``wall``, ``cpu`` (of all their threads), and
    ``queued``, in which they could have run but other processes had the core (0 if the kernel does not say)."""

    samples: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    queued: float = 0.0

    def __add__(self, other: LoopCounts) -> LoopCounts:
        return LoopCounts(
            self.samples + other.samples, self.wall + other.wall, self.cpu + other.cpu, self.queued + other.queued
        )


class ResultPage:
    """Shared memory with the counts of one unit, as float64 for each way of drawing, and a report."""

    def __init__(self, memory: mmap.mmap, unit: int) -> None:
        view = memoryview(memory)[unit * AREA : (unit + 1) * AREA]
        self._numbers = view[:_TEXT].cast("d")
        self._text = view[_TEXT:]

    def count(self, way: int, samples: int, wall: float, cpu: float, queued: float, nbytes: int = 0) -> None:
        """Add these counts to those of ``way``."""
        for i, more in enumerate((samples, wall, cpu, queued)):
            self._numbers[4 * way + i] += more
        self._numbers[12] += nbytes

    def counted(self, way: int) -> LoopCounts:
        samples, *seconds = self._numbers[4 * way : 4 * way + 4]
        return LoopCounts(int(samples), *seconds)

    @property
    def nbytes(self) -> int:
        return int(self._numbers[12])

    def write_report(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        if len(data) <= len(self._text) - _LENGTH.size:
            self._text[_LENGTH.size : _LENGTH.size + len(data)] = data
            _LENGTH.pack_into(self._text, 0, len(data))  # last, so that an incomplete report does not count

    def read_report(self) -> dict[str, Any]:
        size = _LENGTH.unpack_from(self._text)[0]
        report: dict[str, Any] = json.loads(bytes(self._text[_LENGTH.size : _LENGTH.size + size])) if size else {}
        return report


class ProviderLoop:
    """Loop that draws from the files ``own`` repeatedly."""

    def __init__(self, running: StartedProvider, files: FileList, own: Sequence[int], area: ResultPage) -> None:
        self._running, self._files, self._own, self._area = running, files, own, area
        schema = running.schema
        self._builder = ChunkBuilder(schema, lambda error, task, y: with_location(error, files[task.file], y))
        row = memoryview(bytearray(8 * FIELD_COUNT)).cast("q")
        marker = SampleMarker(row, SAMPLE_INDEX, STARTED_NS, RUNNING, False)
        self._drawer = SampleDrawer(SourceProviders([running]), self._builder, files, marker)
        self._checksums = frame_count(schema.slots) + 1
        self._kept: list[list[Any]] = []
        self._step = 1  # samples that are drawn bare between two looks at the clock
        self._drawn = 0

    def run(self, until: float) -> None:
        """Draw until the time ``until``, or return earlier if no file has any samples."""
        gc.collect()
        gc.freeze()  # as in a worker
        runs = self._runs()
        current = next(runs, None)
        draws = {FIRST: self._look, BARE: self._bare, PACKED: self._pack}
        for way, end in self._ways(until):
            draw, clock, samples, self._nbytes = draws[way], _Clock(), 0, 0
            while current is not None:
                more, over = draw(*current, end)
                samples += more
                self._drawn += more
                if not over:
                    break
                current = next(runs, None)
            self._area.count(way, samples, *clock.read(), self._nbytes)
            if way == FIRST:
                schema = self._running.schema
                costs = slot_costs(schema.slots, schema.check, self._kept)
                self._kept.clear()
                self._area.write_report({"slots": [asdict(cost) for cost in costs], "caches": bool(schema.cache)})
            if current is None:
                return

    def _ways(self, until: float) -> Iterator[tuple[int, float]]:
        """Yield each way of drawing with the time at which its turn ends."""
        yield FIRST, min(until, time.perf_counter() + _KEPT_SECONDS)
        for way in itertools.cycle((BARE, PACKED)):
            now = time.perf_counter()
            if now >= until and way == BARE:
                return  # but not between the two, so that each way has at least one turn
            yield way, now + _SLICE

    def _runs(self) -> Iterator[tuple[Iterator[Any], FileTask]]:
        """Yield open files one after the other, in random order, so that the first ones are like the others."""
        numbers = list(self._own)
        for pass_id in itertools.count():
            drawn = self._drawn
            random.Random(pass_id).shuffle(numbers)
            for number in numbers:
                opened = self._running.open_file(self._files[number], file_index=number, seed=0, pass_id=pass_id)
                self._running.show_context(opened.context)
                given = FileAssignment(number, 0, 0, 0, 0, NO_SAMPLE, NO_SAMPLE, False, [])
                task = FileTask.from_assignment(given, self._checksums)
                task.iterator = opened.iterator
                yield opened.iterator, task
            if self._drawn == drawn:
                return

    # Each of these methods draws until ``end``, and returns the number of samples, and True if the file has ended.
    def _look(self, iterator: Iterator[Any], task: FileTask, end: float) -> tuple[int, bool]:
        drawn = 0
        while time.perf_counter() < end and len(self._kept) < _KEPT:
            try:
                sample = next(iterator)
            except StopIteration:
                return drawn, True
            except BaseException as error:
                raise user_error(error, self._files[task.file], drawn, self._files) from None
            if type(sample) is ManySamples:  # packed together, so there is no cost of single values
                return drawn + len(sample), False
            drawn += 1
            with contextlib.suppress(BadSample, ProviderError):  # the packed way of drawing reports it
                self._kept.append(self._running.arrange(sample))
        return drawn, False

    def _bare(self, iterator: Iterator[Any], task: FileTask, end: float) -> tuple[int, bool]:
        samples = drawn = 0
        step, clock = self._step, time.perf_counter
        began = clock()
        try:
            while began < end:
                before = drawn
                for sample in itertools.islice(iterator, step):
                    drawn += 1
                    samples += 1 if type(sample) is not ManySamples else len(sample)
                now = clock()
                if drawn - before < step:
                    return samples, True
                if now - began < _SLICE / 16:
                    step *= 2
                elif now - began > _SLICE / 4 and step > 1:
                    step //= 2
                began = now
        except BaseException as error:
            raise user_error(error, self._files[task.file], task.next_index + samples, self._files) from None
        finally:
            self._step = step
        return samples, False

    def _pack(self, iterator: Iterator[Any], task: FileTask, end: float) -> tuple[int, bool]:
        """Pack samples as the loop of a worker does, without sending them."""
        builder, draw, edge, before = self._builder, self._drawer.draw, task.next_stop, task.next_index
        self._drawer.task = task
        while task.yielded is not None or time.perf_counter() < end:
            draw(task, edge)
            if builder.is_full or task.is_over:
                self._cut()
            if task.is_over:
                return task.next_index - before, True
        return task.next_index - before, False

    def _cut(self) -> None:
        for packed in self._builder.finish():
            self._nbytes += packed.columns.nbytes
            for part in packed.ranges:
                if part.error:
                    raise from_wire(part.error)


class _Clock:
    """Clock that counts seconds since it was made: wall time, processor time, and time waiting for a processor."""

    def __init__(self) -> None:
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        try:
            queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            queued = 0.0
        return time.perf_counter(), time.process_time(), queued

    def read(self) -> tuple[float, float, float]:
        """Return wall, processor and waiting seconds."""
        wall, cpu, queued = self._now()
        return wall - self._began[0], cpu - self._began[1], queued - self._began[2]

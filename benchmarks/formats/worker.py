"""Read a file as a worker of pydp2 does, up to the chunks that it would send: drawn, checked, packed, with checksums.

Sending is left out: it is the copy of a chunk into shared memory.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

from benchmarks.formats.files import WINDOW
from pydp2.data.columns.columns import frame_count
from pydp2.data.packers.sample_loop import SampleMarker
from pydp2.host.worker.chunk_builder import ChunkBuilder
from pydp2.host.worker.sample_drawer import SampleDrawer
from pydp2.host.worker.task import NO_SAMPLE, FileTask
from pydp2.protocol.file_ranges import FileAssignment
from pydp2.protocol.worker_status import FIELD_COUNT, RUNNING, SAMPLE_INDEX, STARTED_NS
from pydp2.providers.address import resolve
from pydp2.providers.source_providers import SourceProviders
from pydp2.providers.started_provider import StartedProvider
from pydp2.system.freed_memory import keep_freed_memory

_ARGS: dict[str, dict[str, Any]] = {"tokens": {"length": WINDOW, "dtype": "uint16"}}


def provider(workload: str) -> tuple[str, dict[str, Any]]:
    """Return the address of the provider of a workload, and its arguments."""
    return f"pydp2.formats.{workload.partition('_')[0]}", _ARGS.get(workload, {})


@functools.cache
def _started(workload: str, path: str) -> StartedProvider:
    """Do once what a worker does when it starts."""
    keep_freed_memory()
    address, args = provider(workload)
    started = resolve(address).start(args=args, file_list=[path])
    gc.collect()
    gc.freeze()
    return started


def chunks(workload: str, path: str) -> Iterator[int]:
    """Read a file; yield the number of samples of each chunk."""
    started = _started(workload, path)
    builder = ChunkBuilder(started.schema, lambda error, task, y: error)
    row = memoryview(bytearray(8 * FIELD_COUNT)).cast("q")
    marker = SampleMarker(row, SAMPLE_INDEX, STARTED_NS, RUNNING, timed=False)
    drawer = SampleDrawer(SourceProviders([started]), builder, [path], marker)
    opened = started.open_file(path, file_index=0, seed=0, pass_id=0)
    started.show_context(opened.context)
    given = FileAssignment(0, 0, 0, 0, 0, NO_SAMPLE, NO_SAMPLE, False, [])
    task = FileTask.from_assignment(given, frame_count(started.schema.slots) + 1)
    task.iterator = opened.iterator
    drawer.task = task
    while not task.is_over:
        drawer.draw(task, task.next_stop)
        if builder.is_full or task.is_over:
            for chunk in builder.finish():
                for part in chunk.ranges:
                    if part.error:
                        raise ValueError(str(part.error))
                yield chunk.columns.rows
    opened.close()

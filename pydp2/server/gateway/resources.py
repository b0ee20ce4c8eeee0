"""Make and keep what the jobs of a service share: memory for rows, caches, counts, and the bytes to be read ahead."""

from __future__ import annotations

import contextlib
import os
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydp2.data.columns.block_list import BlockList
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.heap import SharedHeap
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout, is_usable
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec
from pydp2.order.sample_source import SampleRun
from pydp2.server.available_memory import AvailableMemory, available_memory
from pydp2.server.cache.counts import CountStore
from pydp2.server.cache.disk import DiskCache
from pydp2.server.cache.disk_messages import CacheSource, cache_key
from pydp2.server.cache.disk_thread import DiskThread
from pydp2.server.cache.file_format import FORMAT_VERSION
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.blocked_samples import BlockedSamples
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_counts import FileCounts
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.workers.cell_grants import CellGrants
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.transport import Hub, SharedRegion

_READ_AHEAD = 256 << 20  # bytes read ahead of the merge, where the memory limit allows,
_READ_AHEAD_WORKER = 16 << 20  # or so many for each worker, if that is more


def read_ahead_budget(workers: int, memory_limit: int) -> int:
    """Return the number of bytes that ``workers`` workers may read ahead of the merge, with this memory limit."""
    return min(max(_READ_AHEAD, _READ_AHEAD_WORKER * workers), memory_limit // 2)


def memory_figures(have: AvailableMemory | None = None) -> dict[str, Any]:
    """Return what there is as plain data: ``have``, or (None) what there is now."""
    have = have or available_memory()
    return {"bytes": have.bytes, "where": have.where}


class Resources:
    """Memory, cache and counts that the jobs of a service share. They are made once the ``schema`` of its provider and
    the fingerprint ``source`` of the provider's code are known. ``cell_grants``: cells of its samples, None where
    workers write none."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        hub: Hub,
        log: WriteLog,
        budget: int,
        schema: Schema,
        source: str,
        cell_grants: CellGrants | None = None,
    ) -> None:
        self._spec, self._files, self._hub, self._log = spec, files, hub, log
        self.budget = budget
        """Bytes that may be read ahead."""
        self.schema, self.source = schema, source
        self.disk_threads: list[DiskThread[Any]] = []
        """Threads that read and write the cache and the counts on disk; :meth:`take_disk_answers` takes their
        answers."""
        self.pool_memory: CellGrants | SharedPool | None = cell_grants
        """Memory of the rows of pools, if trainers see it."""
        if cell_grants is None and not schema.cached_in_memory:
            self.pool_memory = create_shared_pool(schema.slots)
        if self.pool_memory is not None:  # trainers on this machine gather for themselves
            hub.fd_offer.offered = self.pool_memory.for_trainers
        self._block_list = BlockList(spec.blocked)
        self._blocked = BlockedSamples(self._block_list, files.__getitem__) if self._block_list else None
        self._disk: DiskCache | None = None  # where the provider asks for one
        self.cache = self._new_cache() if schema.cache else None
        self.counts = self._new_counts()
        self._available: AvailableMemory | None = None

    def _new_cache(self) -> CacheFill:
        spec, schema = self._spec, self.schema
        if schema.cached_on_disk and self._has_known_code:
            cached = cache_source(schema, spec, self._files, self.source)
            self._disk = DiskCache(spec.cache_dir, cached, spec.cache_size)
            self.disk_threads.append(self._disk)
        elif schema.cached_on_disk:
            self._log(
                "nothing is cached on disk: the provider is not in a file, so pydp2 could not notice when it changes",
                LogEvent.CACHE_NOT_WRITTEN,
            )
        return CacheFill(self._new_memory_cache() if schema.cached_in_memory else None, self._disk)

    def _new_memory_cache(self) -> MemoryCache[SampleRun] | None:
        layout = RegionLayout(self.schema.slots, self._spec.memory_limit - self.budget)
        if not layout.max_rows:
            least = layout.min_row_bytes
            ahead = read_ahead_budget(self._spec.workers, 2 * least)
            self._log(
                f"the cache in memory cannot keep a single sample: one needs at least {least} bytes, and "
                f"the cache may have {layout.limit} of memory_limit={self._spec.memory_limit}; every pass reads its "
                f"files again; raise memory_limit to {least + ahead} or more",
                LogEvent.CACHE_LIMITED,
            )
            return None
        row_store = None
        with contextlib.suppress(OSError):  # without that many addresses each file lies where it was read
            region = SharedRegion(layout.size)
            row_store = AppendOnlyStore(layout, region.memory, region.writable_descriptor)
            if region.read_only_descriptor is not None:  # here, too
                self._hub.fd_offer.offered = region.read_only_descriptor, layout.note
        return MemoryCache(layout.limit, row_store, self._block_list)

    def _new_counts(self) -> FileCounts:
        spec, store = self._spec, None
        if spec.remember_counts and spec.cache_dir and self._has_known_code:
            cached = cache_source(self.schema, spec, self._files, self.source)
            store = CountStore(Path(spec.cache_dir), cached, self._block_list)
            self.disk_threads.append(store)
        label = self._files.__getitem__
        return FileCounts(len(self._files), label, store, early_ends=spec.skip_errors)

    @property
    def _has_known_code(self) -> bool:
        """True if the code of every provider is in a file."""
        return all(self.source.split(","))

    @property
    def available(self) -> AvailableMemory:
        """Memory that there was before the first job: the processes of the service have what they have, and no job has
        a pool yet."""
        if self._available is None:
            self._available = available_memory()
        return self._available

    @property
    def is_caching(self) -> bool:
        """True if what comes from workers now is kept for later passes where it lies."""
        memory = None if self.cache is None else self.cache.memory
        return memory is not None and memory.row_store is None and not memory.full

    def read_context(self) -> ReadContext:
        """Return what the passes of a job read with."""
        spec = self._spec
        return ReadContext(
            workers=spec.workers,
            budget=self.budget,
            label=lambda file: self._files[file],
            skip_errors=spec.skip_errors,
            error_budget=spec.error_budget,
            cache=self.cache,
            counts=self.counts,
            blocked=self._blocked,
        )

    def rows_in_cache(self, peer: bytes, picked: BatchRows) -> int:
        """Return the number of rows from which ``peer`` can gather those that were ``picked``; 0: it cannot."""
        shared = picked.shared_row_count
        return shared if shared and self._hub.fd_offer.is_used_by(peer) else 0

    def take_disk_answers(self) -> None:
        """Take what was found and done on the disk."""
        notices = [*(() if self.cache is None else self.cache.take_disk_answers()), *self.counts.take_disk_answers()]
        for notice in notices:
            self._log(notice.text, notice.event)

    def figures(self) -> dict[str, Any]:
        """Return statistics as plain data."""
        memory = None if self.cache is None else self.cache.memory
        cache: dict[str, Any] = {} if memory is None else {"files": len(memory), "bytes": memory.bytes}
        if self._disk is not None:
            cache |= {"disk": self._disk.figures()}
        return {"cache": cache, "counts": self.counts.summary(), "memory_available": memory_figures(self._available)}

    def close(self) -> None:
        """Remember the counts, and end the threads."""
        self.counts.remember()
        for thread in self.disk_threads:
            thread.stop()


def cache_source(schema: Schema, spec: ServiceSpec, files: FileList, source: str) -> CacheSource:
    """Return what the cache on disk has to tell apart: all that decides what a provider yields for a file. Options
    of the job and levels of the pool are not in it, because they decide what becomes of samples later. Several sources
    with the same terms count as one; if the terms differ, the list decides which file has which."""
    declared = schema.to_wire()
    told = {name: declared[name] for name in ("slots", "check", "check_fail_continue", "weighted")}
    terms = [
        (fingerprint, each.provider, blake2b(each.args, digest_size=16).digest(), each.is_train)
        for fingerprint, each in zip(source.split(","), spec.sources, strict=True)
    ]
    origin: tuple[Any, ...] = terms[0]
    if len(set(terms)) > 1:
        origin = (terms, [each.first_file for each in spec.sources], files.fingerprint())
    key = cache_key(
        FORMAT_VERSION,
        *origin,
        list(spec.input_order),
        spec.root,
        told,
        sys.byteorder,
    )
    more = len(spec.providers) - 1
    label = f"{spec.providers[0]} and {more} more" if more else spec.providers[0]
    return CacheSource(key, label, files, spec.root, schema.slots, schema.weighted, spec.fetch_address)


class SharedPool:
    """Heap in ``region`` of ``layout``, for the pools of all jobs. ``for_trainers``: its descriptor, and the note of
    its layout."""

    def __init__(self, region: SharedRegion, layout: RegionLayout) -> None:
        self._region = region
        self.rows = SharedHeap(layout, region.memory)
        assert region.read_only_descriptor is not None
        self.for_trainers = region.read_only_descriptor, HEAP_NOTE_PREFIX + layout.note

    def release_memory(self) -> None:
        """There is no job: give the memory back."""
        self.rows.release_memory()

    def close(self) -> None:
        """Close the descriptors: no process is shown the memory any more."""
        self._region.close()


def create_shared_pool(slots: Slots) -> SharedPool | None:
    """Return memory for the pools of a service with samples of ``slots``. None: memory cannot be shared here, or so
    many addresses are not to be had."""
    if not is_usable():
        return None
    layout = RegionLayout(slots, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), movable=True)
    if not layout.max_rows:
        return None
    try:
        region = SharedRegion(layout.size)
    except (OSError, OverflowError):
        return None
    region.close_writable()
    if region.read_only_descriptor is None:
        return None
    return SharedPool(region, layout)

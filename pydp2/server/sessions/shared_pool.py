"""Make the memory in which the pools of all jobs keep their rows, and which trainers see (docs/architecture.md)."""

from __future__ import annotations

import os

from pydp2.data.rowstore.region_layout import RegionLayout
from pydp2.data.rowstore.shared_heap import HEAP_NOTE_PREFIX, PassRows, SharedHeap, is_usable
from pydp2.data.schema.input_types import Slots
from pydp2.transport import SharedRegion


class SharedPool:
    """Heap in ``region`` of ``layout``, for the stores of all jobs. ``for_trainers``: its descriptor, and the note of
    its layout."""

    def __init__(self, region: SharedRegion, layout: RegionLayout) -> None:
        self._region = region
        self._heap = SharedHeap(layout, region.memory)
        assert region.read_only_descriptor is not None
        self.for_trainers = region.read_only_descriptor, HEAP_NOTE_PREFIX + layout.note

    def store(self) -> PassRows:
        """Return a store for the pool of a pass."""
        return PassRows(self._heap)

    def release_memory(self) -> None:
        """There is no job: give the memory back."""
        self._heap.release_memory()

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

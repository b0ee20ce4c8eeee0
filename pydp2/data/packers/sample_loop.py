"""Run a provider's generator: the innermost loop of a worker, in Python or in the compiled form.

The compiled form also packs what it draws, as far as it is certain of it; see :mod:`pydp2.data.native`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Protocol

from pydp2.data.native import _packing
from pydp2.data.packers.slot_writers import SlotWriter
from pydp2.data.schema.input_types import Slots
from pydp2.system.stdlib import time


class SampleMarker(NamedTuple):
    """Place where a worker notes which sample it asks for: a row of shared int64, and the fields in it for the sample's
    number, for when that began (``time.monotonic_ns``; noted only if ``timed``), and for whether it runs."""

    row: memoryview
    sample_field: int
    since_field: int
    running_field: int
    timed: bool

    def begin_sample(self, sample_index: int) -> None:
        """Note that sample ``sample_index`` begins."""
        row = self.row
        row[self.sample_field] = sample_index
        if self.timed:
            row[self.since_field] = time.monotonic_ns()
        row[self.running_field] = 1


class PackingBudget(NamedTuple):
    """Budget of what may be packed before the loop checks again: ``max_rows``, bytes of columns (``column_bytes``), and
    bytes where each row costs ``row_overhead`` more (``credit_bytes``)."""

    max_rows: int
    column_bytes: int
    credit_bytes: int
    row_overhead: int


class SampleLoop(Protocol):
    """Loop that draws samples; see :class:`PythonSampleLoop`."""

    in_user_code: bool
    send_pending: bool
    counts_collected: bool
    measures: bool
    packing_ns: int

    def next_unpacked(
        self, iterator: Iterator[Any], sample_index: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any: ...
    def collect_counts(self) -> tuple[int, int]: ...


class PythonSampleLoop:
    """Loop that draws samples from generators. In this form it packs none of them.

    ``in_user_code``: the thread that draws is in the user's code. ``send_pending``: another thread is about to send, or
    sends; it sets ``counts_collected`` when it has called :meth:`collect_counts`. While ``measures`` is true, the loop
    adds to ``packing_ns`` what it needs for packing: an estimate, from some of the samples.
    """

    __slots__ = ("_marker", "counts_collected", "in_user_code", "measures", "packing_ns", "send_pending")

    def __init__(self, marker: SampleMarker) -> None:
        self._marker = marker
        self.in_user_code = self.send_pending = self.counts_collected = self.measures = False
        self.packing_ns = 0

    def next_unpacked(
        self, iterator: Iterator[Any], sample_index: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any:
        """Return the next sample of ``iterator`` that is not packed; ``sample_index`` is the number of the first.

        Samples before it were packed within the budget (see :class:`PackingBudget`) and ``ns`` nanoseconds;
        :meth:`collect_counts` tells how many. Raises what the iterator raises, and StopIteration at its end.
        """
        self._marker.begin_sample(sample_index)
        self.in_user_code = True
        try:
            return next(iterator)
        finally:
            self.in_user_code = False

    def collect_counts(self) -> tuple[int, int]:
        """Return how many samples were packed since the last call, and the bytes of their columns."""
        return 0, 0


def sample_loop(
    packs: tuple[SlotWriter, ...], slots: Slots, single: bool, marker: SampleMarker, other_names: Collection[str] = ()
) -> SampleLoop:
    """Return the loop that draws samples for ``packs``. ``single``: the only slot's value is yielded bare.
    ``other_names``: names that are no slots but were declared; a sample with a key beyond these is returned once."""
    if _packing is None or not isinstance(packs[0], _packing.NativeSlotWriter):
        return PythonSampleLoop(marker)
    return _packing.NativeSampleLoop(
        packs,
        slots.names,
        tuple(other_names),
        single,
        marker.row,
        (marker.sample_field, marker.since_field, marker.running_field),
        marker.timed,
    )

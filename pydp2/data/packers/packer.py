"""Pack samples into columns: each one the moment it was yielded; values are judged for many samples at once.

The hot loop of a worker is :meth:`Packer.add`. :mod:`.slot_writers` turns values into bytes; :mod:`.normalise` judges
types and lengths at once, :mod:`.vector_checks` the values later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints, is_held_elsewhere
from pydp2.data.native import is_active
from pydp2.data.packers.many_samples import exceeds_id_dtype, is_as_stored, slots_of_ints
from pydp2.data.packers.sample_loop import SampleLoop, SampleMarker, sample_loop
from pydp2.data.packers.slot_writers import SlotWriter, slot_writers
from pydp2.data.packers.vector_checks import check_values
from pydp2.data.schema.input_types import Slots
from pydp2.errors import BadSample, bad_value, count_text

_CHUNK_BYTES = 4 << 20


class PackedSamples(NamedTuple):
    """Result of :meth:`Packer.finish`: the good rows, the bytes of each (``(rows,)``), and the bad ones by their
    position in the order of :meth:`Packer.add`. The rows may lie in memory that :meth:`Packer.add_columns` was given
    last: then they are right until its owner changes it."""

    columns: Columns
    sample_bytes: Ints
    bad: list[tuple[int, BadSample]]


class _LeafBuffers:
    """Memory for the elements of columns that are added one after the other: they lie together from the first copy on,
    so that no second one joins them. A new array of ``nbytes`` is begun where the last one is full; of the share of a
    leaf in them, if all rows have ``row_bytes``.

    Memory is used again, because its first use costs more than a copy, unless somebody still has a part of it."""

    __slots__ = ("_arrays", "_nbytes", "_rows", "_used")

    def __init__(self, nbytes: int, row_bytes: int) -> None:
        self._nbytes = nbytes
        self._rows = nbytes // row_bytes + 1 if row_bytes else 0
        self._arrays: dict[tuple[int, int], Array] = {}
        self._used: dict[tuple[int, int], int] = {}

    def copy(self, slot: int, leaf: int, array: Array) -> Array:
        """Return a copy of ``array``, elements of leaf ``leaf`` of ``slot``, behind those that came before."""
        key, count = (slot, leaf), len(array)
        used = self._used.get(key, 0)
        if not used and key in self._arrays and is_held_elsewhere(self._arrays, key):
            del self._arrays[key]
        memory = self._arrays.get(key)
        if memory is None or used + count > len(memory):
            # What is never written costs no memory, but each new page costs time. A quarter more, because the last
            # samples of a chunk, which may be large, go beyond its size.
            entries = self._rows or self._nbytes * 5 // 4 * count // max(1, array.nbytes)
            memory, used = np.empty((max(count, entries), *array.shape[1:]), array.dtype), 0
            self._arrays[key] = memory
        self._used[key] = used + count
        copied = memory[used : used + count]
        copied[...] = array
        return copied

    def restart(self) -> None:
        """Begin at the front again: what was copied belongs to others now."""
        self._used.clear()


def _nbytes(arrays: list[list[Array]]) -> int:
    return sum(array.nbytes for made in arrays for array in made)


class Packer:
    """Packer of arranged samples into columns.

    ``strict``: ints are refused where floats are declared ("write float(x)"), else they are converted. ``rows`` and
    ``nbytes``: what was added since the last cut, bad rows included. ``native``: in the compiled form (default: if it
    was built). ``chunk_bytes``: about so many bytes are added between two cuts. See docs/semantics.md.

    Columns that were added are copied as late as possible (:meth:`copy_lent`), because a chunk that consists of them
    alone need not be copied at all.
    """

    __slots__ = (
        "_bad",
        "_checked_rows",
        "_leaves",
        "_lent",
        "_parts",
        "_slots",
        "_strict",
        "_writers",
        "nbytes",
        "rows",
    )

    def __init__(
        self, slots: Slots, strict: bool, native: bool | None = None, *, chunk_bytes: int = _CHUNK_BYTES
    ) -> None:
        self._slots, self._strict = slots, strict
        self._leaves = _LeafBuffers(chunk_bytes, slots.row_bytes or 0)
        self._writers = slot_writers(slots, strict, is_active() if native is None else native)
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._checked_rows = 0
        self._leaves.restart()
        self._parts: list[Columns] = []
        self._lent: list[int] = []  # the parts whose elements may lie in memory of the provider
        self._bad: list[tuple[int, BadSample]] = []

    def add(self, values: list[Any]) -> int:
        """Pack one arranged sample and return the bytes of its columns.

        Raises :class:`BadSample` for a wrong number of values, a None, a wrong type or length; the packer is then as it
        was before. Ranges, overflow and duplicates are found by :meth:`verify`.
        """
        writers = self._writers
        if len(values) != len(writers):
            raise bad_value("all slots", count_text(len(writers), "value"), f"{len(values)}")
        size = slot = 0
        for value in values:  # counting by hand, because zip and enumerate cost as much as packing a label
            try:
                size += writers[slot].add(value)
            except Exception:
                size += self._add_checked(writers[slot], value)
            slot += 1  # noqa: SIM113
        self.rows += 1
        self.nbytes += size
        return size

    def _add_checked(self, writer: SlotWriter, value: object) -> int:
        pending = self.rows - self._checked_rows
        writer.rollback(pending)
        try:
            return writer.add_checked(value)
        except BaseException:
            for each in self._writers:
                each.rollback(pending)
            raise

    def sample_loop(self, single: bool, marker: SampleMarker, other_names: Collection[str] = ()) -> SampleLoop:
        """Return the loop that draws samples and may pack them here; :meth:`count_packed` is told of these. ``single``:
        the only slot's value is yielded bare. ``other_names``: names that are no slots but were declared."""
        return sample_loop(self._writers, self._slots, single, marker, other_names)

    def count_packed(self, rows: int, nbytes: int) -> None:
        """Count ``rows`` samples that the sample loop has packed, good in every way."""
        self.rows += rows
        self.nbytes += nbytes

    def verify(self) -> list[tuple[int, BadSample]]:
        """Judge the rows not judged yet, and return the bad ones among them by their position since the last cut."""
        pending = self.rows - self._checked_rows
        if not pending:
            return []
        arrays, bad = [], dict[int, BadSample]()
        for slot, adder in enumerate(self._writers):
            made, wrong = check_values(self._slots, slot, *adder.finish())
            arrays.append(made)
            bad = wrong | bad  # if several slots are bad, the first one is named
        return self._record_checked(pending, arrays, bad)

    def add_columns(self, columns: Columns) -> list[tuple[int, BadSample]] | None:
        """Pack the samples of ``columns``, at least one, which :meth:`ManySamples.columns` returned, and judge them.
        Return the bad ones by their position since the last cut. What lies in ``columns`` must not change before
        :meth:`copy_lent` or :meth:`finish`.

        Return None and add nothing if the samples must be added one by one, so that each is blamed for
        what is found first then.
        """
        arrays, bad = self._stored_arrays(columns), dict[int, BadSample]()
        if arrays is None:
            if slots_of_ints(columns) and self._strict:
                return None
            self.verify()
            arrays, bad = self._judge(columns)
            # A NumPy scalar is judged as it is added, and named by its own type.
            if bad and (exceeds_id_dtype(columns) or any(each.is_scalar for each in self._slots.types)):
                return None
        else:
            self.verify()
        self._lent.append(len(self._parts))
        self.rows += columns.rows
        self.nbytes += columns.rows * row_bytes if (row_bytes := self._slots.row_bytes) else _nbytes(arrays)
        return self._record_checked(columns.rows, arrays, bad)

    def _stored_arrays(self, columns: Columns) -> list[list[Array]] | None:
        """Return the arrays of ``columns`` if any value in them is right, because each is of the very dtype and shape
        of a dense slot; else None."""
        if any(self._slots.depths):
            return None
        arrays = [given[0] for given in columns.arrays]
        if not all(map(is_as_stored, self._slots.types, arrays)) or any(array.dtype.kind == "V" for array in arrays):
            return None
        return [[np.ascontiguousarray(array)] for array in arrays]

    def _judge(self, columns: Columns) -> tuple[list[list[Array]], dict[int, BadSample]]:
        """Return the arrays of ``columns`` in the dtypes of their slots, and the bad samples by their row."""
        arrays, bad, of_ints = [], dict[int, BadSample](), slots_of_ints(columns)
        for slot, (given, depth) in enumerate(zip(columns.arrays, self._slots.depths, strict=True)):
            if not depth and given[0].dtype.kind != "V" and is_as_stored(self._slots.types[slot], given[0]):
                arrays.append([np.ascontiguousarray(given[0])])
                continue
            counts, leaves = list(given[:depth]), given[depth:]
            runs: list[Any] = []
            if slot in of_ints:
                leaves = (leaves[0].astype(np.float64),)
            if leaves[0].size:
                runs = [dict(zip("iv", leaves, strict=True))] if len(leaves) > 1 else [leaves[0].reshape(-1)]
            made, wrong = check_values(self._slots, slot, counts, runs, False)
            arrays.append(made)
            bad = wrong | bad
        return arrays, bad

    @property
    def is_one_block(self) -> bool:
        """True if all that was added are columns that were added at once, and not copied."""
        return len(self._lent) == 1 == len(self._parts) and self._checked_rows == self.rows

    def copy_lent(self) -> None:
        """Copy what lies in columns that were added: from now on their memory may change."""
        for number in self._lent:
            part = self._parts[number]
            arrays = [
                [*made[:depth], *(self._leaves.copy(slot, i, array) for i, array in enumerate(made[depth:]))]
                for slot, (made, depth) in enumerate(zip(part.arrays, self._slots.depths, strict=True))
            ]
            self._parts[number] = Columns(self._slots, part.rows, arrays)
        self._lent.clear()

    def _record_checked(
        self, rows: int, arrays: list[list[Any]], bad: dict[int, BadSample]
    ) -> list[tuple[int, BadSample]]:
        """Note the columns of the ``rows`` samples after those already judged, and which of them are bad."""
        found = [(self._checked_rows + row, bad[row]) for row in sorted(bad)]
        self._parts.append(Columns(self._slots, rows, arrays))
        self._bad += found
        self._checked_rows = self.rows
        return found

    def undo_last(self) -> None:
        """Take back the last row, which :meth:`verify` has judged alone and found good."""
        self.nbytes -= self._parts.pop().nbytes
        self.rows -= 1
        self._checked_rows -= 1

    def finish(self) -> PackedSamples:
        """Return the good rows as columns, and empty the packer."""
        self.verify()
        if len(self._parts) > 1:  # copied behind each other they need no second copy to be joined
            self.copy_lent()
        columns = Columns.concat(self._parts) if self._parts else Columns.empty(self._slots)
        bad = self._bad
        if bad:
            columns = columns.take(np.delete(np.arange(columns.rows), [row for row, _ in bad]))
        self._clear()
        return PackedSamples(columns, columns.sample_bytes(), bad)

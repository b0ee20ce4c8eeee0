"""Samples to columns: pack each one the moment it was yielded, judge the values of many at once.

The hot loop of a worker is :meth:`Packer.add`. How a value becomes bytes is said in :mod:`.adders`, what is bad in
:mod:`.checks` (types and lengths, at once) and :mod:`.verdicts` (values, later).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pydp2.errors import BadSample
from pydp2.inputs.adders import Adder
from pydp2.inputs.columns import Columns, Ints
from pydp2.inputs.spec import Slots
from pydp2.inputs.verdicts import judge


class Cut(NamedTuple):
    """What :meth:`Packer.cut` hands over: the good rows, the bytes of each (``(rows,)``), and the bad ones by their
    position in the order of :meth:`Packer.add`."""

    columns: Columns
    sample_bytes: Ints
    bad: list[tuple[int, BadSample]]


class Packer:
    """Packs wrapped samples into columns.

    ``strict``: ints are refused where floats are declared ("write float(x)"), else they are converted. ``rows`` and
    ``nbytes``: what was added since the last cut, bad rows included. See docs/semantics.md.
    """

    __slots__ = ("_adders", "_bad", "_parts", "_slots", "_verified", "nbytes", "rows")

    def __init__(self, slots: Slots, strict: bool) -> None:
        self._slots = slots
        self._adders = tuple(Adder(slots, i, strict) for i in range(len(slots)))
        self._reset()

    def _reset(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._verified = 0
        self._parts: list[Columns] = []
        self._bad: list[tuple[int, BadSample]] = []

    def add(self, values: list[Any]) -> int:
        """Pack one wrapped sample; the bytes of its columns.

        Raises :class:`BadSample` for a wrong number of values, a None, a wrong type or length; the packer is then as
        it was before. Ranges, overflow and duplicates are found by :meth:`verify`.
        """
        adders = self._adders
        if len(values) != len(adders):
            expected, got = f"{len(adders)} values", f"{len(values)}"
            raise BadSample(f"all slots: expected {expected}, got {got}", slot="all slots", expected=expected, got=got)
        size = slot = 0
        for value in values:  # counting by hand, because zip and enumerate cost as much as packing a label
            try:
                size += adders[slot].add(value)
            except Exception:
                size += self._general(adders[slot], value)
            slot += 1  # noqa: SIM113
        self.rows += 1
        self.nbytes += size
        return size

    def _general(self, adder: Adder, value: object) -> int:
        pending = self.rows - self._verified
        adder.rollback(pending)
        try:
            return adder.add_checked(value)
        except BaseException:
            for each in self._adders:
                each.rollback(pending)
            raise

    def verify(self) -> list[tuple[int, BadSample]]:
        """Judge the rows not judged yet; the bad ones among them by their position since the last cut."""
        pending = self.rows - self._verified
        if not pending:
            return []
        arrays, bad = [], dict[int, BadSample]()
        for slot, adder in enumerate(self._adders):
            made, wrong = judge(self._slots, slot, *adder.hand_over())
            arrays.append(made)
            bad = wrong | bad  # of several bad slots the first one is named
        found = [(self._verified + row, bad[row]) for row in sorted(bad)]
        self._parts.append(Columns(self._slots, pending, arrays))
        self._bad += found
        self._verified = self.rows
        return found

    def withdraw(self) -> None:
        """Take back the last row, which :meth:`verify` has judged alone and found good."""
        self.nbytes -= self._parts.pop().nbytes
        self.rows -= 1
        self._verified -= 1

    def cut(self) -> Cut:
        """The good rows as columns, over memory of their own; the packer is empty again."""
        self.verify()
        columns = Columns.concat(self._parts) if self._parts else Columns.empty(self._slots)
        bad = self._bad
        if bad:
            columns = columns.take(np.delete(np.arange(columns.rows), [row for row, _ in bad]))
        self._reset()
        return Cut(columns, columns.sample_bytes(), bad)

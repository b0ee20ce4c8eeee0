"""Measure the cost of packing slot by slot, and note the form in which the values of each slot were yielded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2.data.native import is_active
from pydp2.data.packers.slot_writers import SlotWriter, slot_writers
from pydp2.data.schema.input_types import Slots
from pydp2.diagnostics.slot_figures import SlotFigures

_ROUNDS = 3
_MOST = 0.1  # seconds for all slots together, approximately


@dataclass(frozen=True)
class SlotCost:
    """Cost of one slot. ``seconds``: seconds per sample; ``form``: form of most of its values; ``given``: their dtype
    if they are arrays, otherwise ''; ``dtype``: the declared dtype; ``unsure``: share of values that took the slow
    path."""

    slot: str
    declared: str
    form: str
    given: str
    dtype: str
    seconds: float
    unsure: float


def slot_costs(slots: Slots, strict: bool, samples: Sequence[Sequence[Any]]) -> list[SlotCost]:
    """Return the cost of each slot, from arranged ``samples``; [] without samples. Bad samples do not count."""
    samples = [values for values in samples if len(values) == len(slots)]
    if not samples:
        return []
    costs = []
    for number, adder in enumerate(slot_writers(slots, strict, is_active())):
        figures = SlotFigures.of(slots.label(number), slots.types[number], slots.fields[number])
        values = [sample[number] for sample in samples]
        for value in values:
            figures.add_value(value)
        form = max(figures.given, key=lambda name: figures.given[name])
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        given = arrays[0].dtype.name if len(arrays) > len(values) // 2 else ""
        once = max(_timed(adder, values[:1])[0], 1e-9)
        values = values[: max(1, int(_MOST / len(slots) / _ROUNDS / once))]
        rounds = [_timed(adder, values) for _ in range(_ROUNDS)]
        seconds = min(duration for duration, _ in rounds) / len(values)
        dtype = slots.types[number].element_dtype.name
        costs.append(SlotCost(figures.slot, figures.declared, form, given, dtype, seconds, rounds[0][1] / len(values)))
    return costs


def _timed(adder: SlotWriter, values: Sequence[Any]) -> tuple[float, int]:
    """Return the seconds for all values, and the number of those for which the fast path was not enough."""
    done = unsure = 0
    began = time.perf_counter()
    for value in values:
        try:
            adder.add(value)
        except Exception:
            adder.rollback(done)
            unsure += 1
            try:
                adder.add_checked(value)
            except Exception:  # also one that the value itself raises; packing the whole sample reports it
                adder.rollback(done)
                continue
        done += 1
    seconds = time.perf_counter() - began
    adder.finish()
    return seconds, unsure

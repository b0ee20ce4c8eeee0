"""Measure the cost of packing slot by slot, and note the form in which the values of each were given."""

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
_MOST = 0.1  # seconds for all slots together, more or less


@dataclass(frozen=True)
class SlotCost:
    """Cost of one slot. ``seconds`` a sample; ``form``: how most of its values were given; ``given``: their dtype if
    they are arrays, else ''; ``dtype``: the declared one; ``unsure``: the share of values that took the slow path."""

    slot: str
    declared: str
    form: str
    given: str
    dtype: str
    seconds: float
    unsure: float


def slot_costs(slots: Slots, strict: bool, samples: Sequence[Sequence[Any]]) -> list[SlotCost]:
    """Return the cost of each slot, from wrapped ``samples``; [] without samples. Samples that are bad there do not
    count."""
    samples = [values for values in samples if len(values) == len(slots)]
    if not samples:
        return []
    costs = []
    for number, adder in enumerate(slot_writers(slots, strict, is_active())):
        figures = SlotFigures.of(slots.label(number), slots.types[number], slots.fields[number])
        values = [sample[number] for sample in samples]
        for value in values:
            figures.add_value(value)
        form = max(figures.given, key=lambda each: figures.given[each])
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        given = arrays[0].dtype.name if len(arrays) > len(values) // 2 else ""
        once = max(_timed(adder, values[:1])[0], 1e-9)
        values = values[: max(1, int(_MOST / len(slots) / _ROUNDS / once))]
        rounds = [_timed(adder, values) for _ in range(_ROUNDS)]
        seconds = min(each for each, _ in rounds) / len(values)
        dtype = slots.types[number].element_dtype.name
        costs.append(SlotCost(figures.slot, figures.declared, form, given, dtype, seconds, rounds[0][1] / len(values)))
    return costs


def _timed(adder: SlotWriter, values: Sequence[Any]) -> tuple[float, int]:
    """Return the seconds for all values, and how many of them the fast path could not decide."""
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
            except Exception:  # also of the value itself: packed with the others, it is told
                adder.rollback(done)
                continue
        done += 1
    seconds = time.perf_counter() - began
    adder.finish()
    return seconds, unsure

"""Select the values of a batch for a framework, and their structure: all of them by name, or pairs ``(x, y)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pydp2.data.schema.input_types import STRING_TYPES, Slots, is_bfloat16
from pydp2.errors import OptionError

Selected: TypeAlias = str | int | Sequence[str | int]
"""One slot, or several, by name or position."""


class Selection:
    """Selection of some of ``slots``: their numbers in ``order``, and :meth:`arrange`, which structures their values.

    The structure is a dict by name, or a tuple if slots have no names. With ``x`` and ``y`` it is a pair, with ``x``
    alone a tuple of one; both items are a value, or a tuple of values if several slots were named. Raises OptionError
    for a slot that does not exist, for ``y`` alone, and for a slot of strings or bfloat16, of which the adapters of
    these frameworks make no tensors.
    """

    def __init__(self, slots: Slots, x: Selected | None = None, y: Selected | None = None) -> None:
        self._names = slots.names
        self._parts: list[tuple[int, int | None]] | None = None  # begin in ``order``, and end if it is a list
        if x is None:
            if y is not None:
                raise OptionError("y needs x, the slot or slots that the model gets")
            self.order = list(range(len(slots)))
            self._require_numbers(slots)
            return
        self.order = []
        self._parts = []
        for part in (x,) if y is None else (x, y):
            begin = len(self.order)
            if isinstance(part, str | int):
                self.order.append(_position(slots, part))
                self._parts.append((begin, None))
            else:
                self.order += [_position(slots, slot) for slot in part]
                self._parts.append((begin, len(self.order)))
        self._require_numbers(slots)

    def _require_numbers(self, slots: Slots) -> None:
        for slot in self.order:
            declared = slots.types[slot]
            if declared.type in STRING_TYPES or is_bfloat16(declared.element_dtype):
                what = "strings" if declared.type in STRING_TYPES else "bfloat16"
                raise OptionError(
                    f"{slots.label(slot)} has {what}, of which this loader makes no tensors; leave it out of x and y, "
                    "or make other numbers of it in the provider"
                )

    def arrange(self, values: Sequence[Any]) -> Any:
        """Return ``values``, one for each slot of ``order``, in the structure of the selection."""
        if self._parts is None:
            return tuple(values) if self._names is None else dict(zip(self._names, values, strict=True))
        return tuple(values[begin] if end is None else tuple(values[begin:end]) for begin, end in self._parts)


def _position(slots: Slots, slot: str | int) -> int:
    try:
        return slots.index(slot) if isinstance(slot, str) else range(len(slots))[slot]
    except (KeyError, IndexError):
        known = ", ".join(slots.names) if slots.names is not None else f"0 to {len(slots) - 1}"
        raise OptionError(f"there is no slot {slot!r} for x or y; slots: {known}") from None

"""From what ``process`` yields to a list of slot values: the single slot, dicts, tuples, and the guard between them.

What the values are is none of its business; :mod:`.packer` looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydp2.errors import BadSample, provider_error
from pydp2.inputs.checks import describe
from pydp2.inputs.spec import Slots


class Wrapper:
    """Brings samples into the order of ``slots``; whose names say that the types were declared as a dict.

    ``single``: whether there is one slot, whose value is yielded bare (default: as ``slots`` has it).
    See docs/semantics.md.
    """

    __slots__ = ("_count", "_names", "_single", "_slots")

    def __init__(self, slots: Slots, single: bool | None = None) -> None:
        self._slots = slots
        self._names = slots.names
        self._count = len(slots)
        self._single = len(slots) == 1 if single is None else single

    def wrap(self, sample: Any) -> list[Any]:
        """The values of ``sample`` by slot position.

        Raises :class:`BadSample` for an absent name or a wrong number of values, and a ProviderError that is also a
        TypeError for a dict where the types have no names: that is an error of the program, not of the sample.
        """
        kind = type(sample)
        if kind is dict or (kind is not tuple and kind is not list and isinstance(sample, Mapping)):
            return self._by_name(sample)
        if self._single:
            return [sample]
        if not isinstance(sample, list | tuple):
            raise self._wrong(f"{self._words()} with {self._count} values", describe(sample))
        if len(sample) != self._count:
            raise self._wrong(f"{self._count} values", f"{len(sample)} in {describe(sample)}")
        return list(sample)

    def _by_name(self, sample: Mapping[Any, Any]) -> list[Any]:
        if self._names is None:
            raise provider_error(
                f"a sample must be {'the value of the slot' if self._single else 'a list or tuple'}, because "
                f"input_types is not a dict, but process yielded {describe(sample)}; declare input_types as a dict, "
                "or yield the values in its order",
                "TypeError",
            )
        try:
            return [sample[name] for name in self._names]
        except KeyError:
            pass
        absent = [n for n in self._names if n not in sample]
        if not absent:  # a mapping of the user's own that contradicts itself
            absent = [self._names[0]]
        expected = f"a value for {', '.join(map(repr, absent))}"
        got = f"a dict with {', '.join(map(repr, list(sample)[:10])) or 'nothing'}"
        raise BadSample(f"{absent[0]}: expected {expected}, got {got}", slot=absent[0], expected=expected, got=got)

    def _words(self) -> str:
        return "a dict, list or tuple" if self._names is not None else "a list or tuple"

    def _wrong(self, expected: str, got: str) -> BadSample:
        return BadSample(f"all slots: expected {expected}, got {got}", slot="all slots", expected=expected, got=got)

"""From what ``process`` yields to a list of slot values: the single slot, dicts, tuples, and the guard between them.

What the values are is none of its business; :mod:`.packer` looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pydp2.errors import BadSample, counted, provider_error
from pydp2.inputs.checks import describe
from pydp2.inputs.spec import Slots


class Wrapper:
    """Brings samples into the order of ``slots``; whose names say that the types were declared as a dict.

    ``single``: whether there is one slot, whose value is yielded bare (default: as ``slots`` has it). ``declared``:
    names that are no slots but were declared. ``on_unknown``: called with a text about the first keys that were not
    declared; such keys are ignored. See docs/semantics.md.
    """

    __slots__ = ("_count", "_declared", "_names", "_seen_unknown", "_single", "on_unknown")

    def __init__(self, slots: Slots, single: bool | None = None, declared: Collection[str] = ()) -> None:
        self._names = slots.names
        self._declared = {*(slots.names or ()), *declared}
        self._count = len(slots)
        self._single = len(slots) == 1 if single is None else single
        self._seen_unknown = False
        self.on_unknown: Callable[[str], None] | None = None

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
            raise self._wrong(f"{self._words()} with {counted(self._count, 'value')}", describe(sample))
        if len(sample) != self._count:
            raise self._wrong(counted(self._count, "value"), f"{len(sample)} in {describe(sample)}")
        return list(sample)

    def _by_name(self, sample: Mapping[Any, Any]) -> list[Any]:
        if self._names is None:
            raise provider_error(
                f"a sample must be {'the value of the slot' if self._single else 'a list or tuple'}, because "
                f"input_types is not a dict, but process yielded {describe(sample)}; declare input_types as a dict, "
                "or yield the values in its order",
                "TypeError",
            )
        if len(sample) > self._count and not self._seen_unknown and not self._declared.issuperset(sample):
            self.look_for_unknown(sample)
        # Other mappings may make up a value for what they lack, as a defaultdict does.
        if type(sample) is dict or all(name in sample for name in self._names):
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

    def look_for_unknown(self, keys: Iterable[Any]) -> None:
        """Tell, once, which of the ``keys`` of a sample were not declared."""
        unknown = [repr(key) for key in keys if key not in self._declared]
        if unknown and not self._seen_unknown and self._names is not None:
            self._seen_unknown = True
            if self.on_unknown is not None:
                known = ", ".join(self._names)
                self.on_unknown(
                    f"process yielded {', '.join(unknown[:10])}, which no slot is called: ignored, here and from now "
                    f"on; the slots are {known}; declare it in input_types, or leave it out (said once)"
                )

    def _words(self) -> str:
        return "a dict, list or tuple" if self._names is not None else "a list or tuple"

    def _wrong(self, expected: str, got: str) -> BadSample:
        return BadSample(f"all slots: expected {expected}, got {got}", slot="all slots", expected=expected, got=got)

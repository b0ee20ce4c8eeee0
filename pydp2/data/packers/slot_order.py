"""Arrange what ``process`` yields as a list of slot values: the single slot, dicts, tuples, and the guard between them.

The values themselves are left to :mod:`.packer`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pydp2.data.packers.normalise import describe
from pydp2.data.schema.input_types import Slots
from pydp2.errors import BadSample, bad_value, count_text, provider_error


class SlotOrder:
    """Arranger of samples in the order of ``slots``; names of these say that the types were declared as a dict.

    ``single``: whether there is one slot, whose value is yielded bare (default: as ``slots`` has it). ``other_names``:
    names that are no slots but were declared (those of slots are left out). ``on_unknown``: called with a text about
    the first keys that were not declared; such keys are ignored. See docs/semantics.md.
    """

    __slots__ = ("_count", "_known_names", "_names", "_single", "_unknown_reported", "on_unknown", "other_names")

    def __init__(self, slots: Slots, single: bool | None = None, other_names: Collection[str] = ()) -> None:
        self._names = slots.names
        self.other_names = frozenset(other_names).difference(slots.names or ())
        self._known_names = self.other_names.union(slots.names or ())
        self._count = len(slots)
        self._single = len(slots) == 1 if single is None else single
        self._unknown_reported = False
        self.on_unknown: Callable[[str], None] | None = None

    def arrange(self, sample: Any) -> list[Any]:
        """Return the values of ``sample`` by slot position.

        Raises :class:`BadSample` for an absent name or a wrong number of values, and if ``process`` yielded one in
        place of a sample that it could not read; and a ProviderError that is also a
        TypeError for a dict where the types have no names: that is an error of the program, not of the sample.
        """
        kind = type(sample)
        if kind is dict or (kind is not tuple and kind is not list and isinstance(sample, Mapping)):
            return self._arrange_by_name(sample)
        if kind is BadSample:
            raise sample
        if self._single:
            return [sample]
        if not isinstance(sample, list | tuple):
            raise self._bad_sample(
                f"{self._expected_container()} with {count_text(self._count, 'value')}", describe(sample)
            )
        if len(sample) != self._count:
            raise self._bad_sample(count_text(self._count, "value"), f"{len(sample)} in {describe(sample)}")
        return list(sample)

    def _arrange_by_name(self, sample: Mapping[Any, Any]) -> list[Any]:
        if self._names is None:
            raise provider_error(
                f"a sample must be {'the value of the slot' if self._single else 'a list or tuple'}, because "
                f"input_types is not a dict, but process yielded {describe(sample)}; declare input_types as a dict, "
                "or yield the values in its order",
                "TypeError",
            )
        if len(sample) > self._count and not self._unknown_reported and not self._known_names.issuperset(sample):
            self.report_unknown(sample)
        # Other mappings may make up a value for what they lack, as a defaultdict does.
        if type(sample) is dict or all(name in sample for name in self._names):
            try:
                return list(map(sample.__getitem__, self._names))
            except KeyError:
                pass
        absent = [n for n in self._names if n not in sample]
        if not absent:  # a mapping of the user's own that contradicts itself
            absent = [self._names[0]]
        expected = f"a value for {', '.join(map(repr, absent))}"
        got = f"a dict with {', '.join(map(repr, list(sample)[:10])) or 'nothing'}"
        raise bad_value(absent[0], expected, got)

    def report_unknown(self, keys: Iterable[Any]) -> None:
        """Report, once, which of the ``keys`` of a sample were not declared."""
        unknown = [repr(key) for key in keys if key not in self._known_names]
        if unknown and not self._unknown_reported and self._names is not None:
            self._unknown_reported = True
            if self.on_unknown is not None:
                known = ", ".join(self._names)
                self.on_unknown(
                    f"process yielded {', '.join(unknown[:10])}, which no slot is called: ignored, here and from now "
                    f"on; the slots are {known}; declare it in input_types, or leave it out (said once)"
                )

    def _expected_container(self) -> str:
        return "a dict, list or tuple" if self._names is not None else "a list or tuple"

    def _bad_sample(self, expected: str, got: str) -> BadSample:
        return bad_value("all slots", expected, got)

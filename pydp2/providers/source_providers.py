"""Hold the started providers of all sources of a service, and compare what they declare.

A job reads the files of all sources as one stream, so the server knows one declaration: all sources must agree on it.
What concerns only the reading of a file, such as whether ``process`` can begin at any sample, may differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error, count_text, from_wire, provider_error, to_wire
from pydp2.providers.options import CacheType
from pydp2.providers.started_provider import StartedProvider

_DECLARED_AS = {"shuffle": "should_shuffle", "weighted": "calc_batch_size"}  # names in @provider that differ


class SourceProviders:
    """Started providers of a service, one for each source.

    ``first_files``: number of the first file of each source, in rising order; the first is 0. ``names``: their names.

    Attributes:
        started: the providers.
        schema: the schema that all of them declare.
        is_single_slot: True if there is only one slot, whose value is yielded without a list.
        other_names: names that are no slots but that a provider has declared.
        can_start: True if at least one provider can begin at any sample of a file.

    Raises:
        ProviderError: two sources declare something else (ValueError). The text names both.
    """

    def __init__(
        self, started: Sequence[StartedProvider], first_files: Sequence[int] = (0,), names: Sequence[str] = ("",)
    ) -> None:
        self.started = tuple(started)
        self._first_files = tuple(first_files)
        first = self.started[0]
        self.schema = first.schema
        for name, other in zip(names[1:], self.started[1:], strict=True):
            if difference := schema_difference(names[0], self.schema, name, other.schema):
                raise provider_error(difference, "ValueError")
        self.is_single_slot = first.is_single_slot
        self.other_names = frozenset[str]().union(*(each.slot_order.other_names for each in self.started))
        self.can_start = any(each.can_start for each in self.started)

    def of_file(self, file: int) -> StartedProvider:
        """Return the provider of the source to which ``file`` belongs, a number in the file list."""
        return self.started[bisect_right(self._first_files, file) - 1]

    def report_unknown_to(self, report: Callable[[str], None]) -> None:
        """Call ``report`` with a text about the first keys of samples that were not declared."""
        for each in self.started:
            each.slot_order.on_unknown = report


@contextmanager
def naming_source(name: str) -> Iterator[None]:
    """Put the name of the source in front of the text of an error that is raised in the context; nothing if ``name`` is
    ""."""
    try:
        yield
    except Error as error:
        if not name:
            raise
        raise from_wire(to_wire(error) | {"message": f"source {name!r}: {error}"}) from None


def schema_difference(name: str, schema: Schema, other_name: str, other: Schema) -> str:
    """Return text with the first difference between the schemas of the sources ``name`` and ``other_name``, and the
    remedy; '' if they are equal."""
    option = next((f.name for f in fields(Schema) if getattr(schema, f.name) != getattr(other, f.name)), "")
    if not option:
        return ""
    if option == "slots":
        here, there = _different_slots(schema.slots, other.slots)
        remedy = "declare the same input_types in both"
    else:
        here, there = (_option_text(option, getattr(each, option)) for each in (schema, other))
        option = _DECLARED_AS.get(option, option)
        remedy = f"set {option} for both in @provider or in the init_hook"
    return (
        f"all sources of a service must have the same {option}, and source {name!r} has {here}, source "
        f"{other_name!r} has {there}; {remedy}, or start a service for each and mix their streams (docs/mixing.md)"
    )


def _different_slots(slots: Slots, other: Slots) -> tuple[str, str]:
    """Return texts with the first slot that differs, in both; with the number of slots if that differs."""
    if len(slots) != len(other):
        return count_text(len(slots), "slot"), count_text(len(other), "slot")
    labelled, other_labelled = ([(each.label(i), each.types[i]) for i in range(len(each))] for each in (slots, other))
    different = next(pair for pair in zip(labelled, other_labelled, strict=True) if pair[0] != pair[1])
    here, there = (f"{label}: {declared!r}" for label, declared in different)
    return here, there


def _option_text(option: str, value: Any) -> str:
    """Return the text of the value that a schema has for ``option``."""
    if option == "cache":
        return CacheType(value).name
    if option == "weighted":
        return "one" if value else "none"
    return repr(value)

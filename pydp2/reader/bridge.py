"""Turn a reader creator into a provider, which a service runs in many processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

from pydp2.errors import OptionTypeError
from pydp2.providers import Provider, provider
from pydp2.providers.options import ProviderKeywords
from pydp2.reader.contract import Reader, check_reader, iterating


def provider_from_reader(reader_creator: Callable[[str], Reader], **options: Unpack[ProviderKeywords]) -> Provider:
    """Return a provider whose ``process(settings, filename)`` yields the entries of ``reader_creator(filename)``.

    The items of an entry are the values of the slots, by position; for a single slot an entry may be the bare item.
    ``options`` are those of ``@provider``, including ``input_types``. pydp2 finds the provider by the name that it is
    assigned to, so put it at the top level of a module: ``process = provider_from_reader(lines_of, input_types=[…])``.
    See docs/readers.md.

    Raises OptionTypeError, OptionError: ``reader_creator`` cannot be called, or ``options`` are wrong.
    """
    if not callable(reader_creator):
        raise OptionTypeError(f"reader_creator must be a function of a file's name, got {reader_creator!r:.80}")

    def process(settings: Any, filename: str) -> Iterator[Any]:
        single = _single(settings)
        with iterating(check_reader("what reader_creator returns", reader_creator(filename))) as (entries,):
            for entry in entries:
                yield entry[0] if single and type(entry) is tuple and len(entry) == 1 else entry

    process.__module__ = sys._getframe(1).f_globals.get("__name__", __name__)  # where it is assigned to a name
    process.__qualname__ = process.__name__ = "provider_from_reader"
    process.__doc__ = reader_creator.__doc__
    process.source_function = reader_creator  # type: ignore[attr-defined]  # if it changes, the provider changes
    return provider(**options)(process)


def _single(settings: Any) -> bool:
    """Return True if there is one slot."""
    named = isinstance(settings.input_types, Mapping) and settings.input_order
    return len(settings.input_order if named else settings.input_types) == 1

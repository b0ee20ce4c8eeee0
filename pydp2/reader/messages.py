"""Messages from the threads and processes that read to those that consume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydp2.reader.contract import Reader, iterating
from pydp2.system.prefetch import QueueClosed

ITEM, END, RAISED = "item", "end", "raised"
ReaderMessage = tuple[str, Any]
"""Pair of a kind and a value: an item, the end (None), or the exception that was raised."""


def read_into(reader: Reader, put: Callable[[ReaderMessage], None]) -> None:
    """Call ``put`` with a message for each entry of a pass, then for its end or its exception. Raises QueueClosed."""
    try:
        with iterating(reader) as (entries,):
            for entry in entries:
                put((ITEM, entry))
    except QueueClosed:
        raise
    except BaseException as error:  # the consumer also gets a KeyboardInterrupt or SystemExit of the reader
        put((RAISED, error))
    else:
        put((END, None))

"""State what travels between the threads and processes that read and those that consume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydp2.prefetch import QueueClosed
from pydp2.reader.contract import Reader, iterating

ITEM, END, RAISED = "item", "end", "raised"
ReaderMessage = tuple[str, Any]
"""An item, the end, or the exception that was raised."""


def read_into(reader: Reader, put: Callable[[ReaderMessage], None]) -> None:
    """Put the entries of a pass as messages, then its end or what it raised. Raises QueueClosed."""
    try:
        with iterating(reader) as (entries,):
            for entry in entries:
                put((ITEM, entry))
    except QueueClosed:
        raise
    except BaseException as error:  # a KeyboardInterrupt or SystemExit of the reader is the consumer's affair, too
        put((RAISED, error))
    else:
        put((END, None))

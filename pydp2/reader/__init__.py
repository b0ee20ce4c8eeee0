"""Readers of Paddle V2: functions that give samples, made, decorated, batched, fed and trained from.

``from pydp2 import reader`` and then ``reader.shuffle(…)``, ``reader.batch(…)`` as there. See docs/readers.md.
"""

from pydp2.errors import ComposeNotAligned
from pydp2.reader.decorators import batch, cache, chain, compose, firstn, map_readers, shuffle
from pydp2.reader.mapping import xmap_readers
from pydp2.reader.merging import multiprocess_reader
from pydp2.reader.prefetch import buffered

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]

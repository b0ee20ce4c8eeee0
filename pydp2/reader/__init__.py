"""Readers of Paddle V2: functions that give samples, made, decorated, batched, fed and trained from.

``from pydp2 import reader`` and then ``reader.shuffle(…)``, ``reader.batch(…)`` as there. See docs/readers.md.
"""

from pydp2.errors import ComposeNotAligned
from pydp2.reader.creators import np_array, recordio, text_file
from pydp2.reader.decorators import Fake, batch, cache, chain, compose, firstn, map_readers, shuffle
from pydp2.reader.mapping import xmap_readers
from pydp2.reader.merging import multiprocess_reader
from pydp2.reader.pipe import PipeReader
from pydp2.reader.prefetch import buffered

__all__ = [
    "ComposeNotAligned",
    "Fake",
    "PipeReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "np_array",
    "recordio",
    "shuffle",
    "text_file",
    "xmap_readers",
]

"""Readers of Paddle V2: make functions that give samples, combine them, and train from them.

After ``from pydp2 import reader``, programs call ``reader.shuffle(…)`` and ``reader.batch(…)`` as in Paddle. See
docs/readers.md.
"""

from pydp2.errors import ComposeNotAligned
from pydp2.reader.bridge import provider_from_reader
from pydp2.reader.cloud import CloudReader, cloud_reader
from pydp2.reader.creators import np_array, recordio, text_file
from pydp2.reader.decorators import Fake, batch, cache, chain, compose, firstn, map_readers, shuffle
from pydp2.reader.feeding import DataFeeder, FedBatch
from pydp2.reader.mapping import xmap_readers
from pydp2.reader.merging import multiprocess_reader
from pydp2.reader.pipe import PipeReader
from pydp2.reader.prefetch import buffered
from pydp2.reader.training import BeginIteration, BeginPass, EndForwardBackward, EndIteration, EndPass, train

__all__ = [
    "BeginIteration",
    "BeginPass",
    "CloudReader",
    "ComposeNotAligned",
    "DataFeeder",
    "EndForwardBackward",
    "EndIteration",
    "EndPass",
    "Fake",
    "FedBatch",
    "PipeReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "cloud_reader",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "np_array",
    "provider_from_reader",
    "recordio",
    "shuffle",
    "text_file",
    "train",
    "xmap_readers",
]

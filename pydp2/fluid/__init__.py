"""Fluid's C++ readers in Python: ``read_next``, ``has_next``, ``reinit``, and decorators that nest. See docs/fluid.md.

These are the public names of this package; users write ``pydp2.fluid.<name>``.
"""

from pydp2.errors import EOFException
from pydp2.fluid.base import DecoratedReader, Reader, from_reader
from pydp2.fluid.batching import batch
from pydp2.fluid.buffering import double_buffer
from pydp2.fluid.ctr import ctr_reader
from pydp2.fluid.drawing import random_data_generator
from pydp2.fluid.files import FileReader, register_file_reader
from pydp2.fluid.holding import ReaderHolder
from pydp2.fluid.opening import open_files
from pydp2.fluid.preprocessing import Preprocessor
from pydp2.fluid.recordio import (
    convert_reader_to_recordio_file,
    convert_reader_to_recordio_files,
    open_recordio_file,
)
from pydp2.fluid.repeating import multi_pass
from pydp2.fluid.sharing import threaded
from pydp2.fluid.shuffling import shuffle
from pydp2.fluid.tensors import LoDTensor, check_lod, from_ragged, to_ragged

__all__ = [
    "DecoratedReader",
    "EOFException",
    "FileReader",
    "LoDTensor",
    "Preprocessor",
    "Reader",
    "ReaderHolder",
    "batch",
    "check_lod",
    "convert_reader_to_recordio_file",
    "convert_reader_to_recordio_files",
    "ctr_reader",
    "double_buffer",
    "from_ragged",
    "from_reader",
    "multi_pass",
    "open_files",
    "open_recordio_file",
    "random_data_generator",
    "register_file_reader",
    "shuffle",
    "threaded",
    "to_ragged",
]

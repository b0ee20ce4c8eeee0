"""PyDataProvider2's one-generator interface over an exact, shared data service. Start at README.md.

``from pydp2 import *`` gives what ``from paddle.trainer.PyDataProvider2 import *`` gave, and shadows no builtin.
"""

import sys as _sys

if _sys.platform == "win32":  # before anything is imported that Windows does not have
    raise ImportError(
        "pydp2 needs Linux (macOS works too, without promises): its workers are forked and share memory in ways that "
        "Windows does not offer; use WSL"
    )

from pydp2 import errors as errors
from pydp2.api.bench import bench as bench
from pydp2.api.check import check as check
from pydp2.api.kept import CacheEntry as CacheEntry
from pydp2.api.kept import CacheFolder as CacheFolder
from pydp2.api.peek import peek as peek
from pydp2.api.replay import replay as replay
from pydp2.api.service import Service as Service
from pydp2.api.service import connect as connect
from pydp2.api.service import launch as launch
from pydp2.api.service import load as load
from pydp2.api.sources import Source as Source
from pydp2.api.sources import define_py_data_sources2
from pydp2.client import Client as Client
from pydp2.inputs import Batch as Batch
from pydp2.inputs import Csr as Csr
from pydp2.inputs import (
    DataType,
    InputType,
    SequenceType,
    dense_array,
    dense_slot,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    index_slot,
    integer_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_binary_vector_sub_sequence,
    sparse_float_vector,
    sparse_float_vector_sequence,
    sparse_float_vector_sub_sequence,
    sparse_non_value_slot,
    sparse_value_slot,
    sparse_vector,
    sparse_vector_sequence,
    sparse_vector_sub_sequence,
)
from pydp2.inputs import Ragged as Ragged
from pydp2.inputs import rows as rows
from pydp2.inputs.checksum import checksums as checksums
from pydp2.inputs.drawing import packing as packing
from pydp2.providers import CacheType, provider
from pydp2.providers import Provider as Provider

__version__ = "0.1.0"

__all__ = [
    "CacheType",
    "DataType",
    "InputType",
    "SequenceType",
    "define_py_data_sources2",
    "dense_array",
    "dense_slot",
    "dense_vector",
    "dense_vector_sequence",
    "dense_vector_sub_sequence",
    "index_slot",
    "integer_sequence",
    "integer_value",
    "integer_value_sequence",
    "integer_value_sub_sequence",
    "provider",
    "sparse_binary_vector",
    "sparse_binary_vector_sequence",
    "sparse_binary_vector_sub_sequence",
    "sparse_float_vector",
    "sparse_float_vector_sequence",
    "sparse_float_vector_sub_sequence",
    "sparse_non_value_slot",
    "sparse_value_slot",
    "sparse_vector",
    "sparse_vector_sequence",
    "sparse_vector_sub_sequence",
]

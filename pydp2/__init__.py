"""PyDataProvider2's one-generator interface over an exact, shared data service. Start at README.md.

``from pydp2 import *`` gives what ``from paddle.trainer.PyDataProvider2 import *`` gave, and shadows no builtin.

A name is imported when it is first asked for (PEP 562), so that ``import pydp2`` takes milliseconds.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing

import pydp2.data.columns.converters as _converters
import pydp2.system.release as _release

if _sys.platform == "win32":  # before anything is imported that Windows does not have
    raise ImportError(
        "pydp2 needs Linux (macOS works too, without promises): its workers are forked and share memory in ways that "
        "Windows does not offer; use WSL"
    )

if _typing.TYPE_CHECKING:  # for type checkers and editors; a test compares it with the names that can be imported
    from pydp2 import errors as errors
    from pydp2.api.cache_admin import CacheEntry as CacheEntry
    from pydp2.api.cache_admin import CacheFolder as CacheFolder
    from pydp2.api.counting import FileCount as FileCount
    from pydp2.api.counting import ListCount as ListCount
    from pydp2.api.counting import count as count
    from pydp2.api.service import Service as Service
    from pydp2.api.service import connect as connect
    from pydp2.api.service import launch as launch
    from pydp2.api.service import load as load
    from pydp2.api.service import prepare as prepare
    from pydp2.api.service import stats as stats
    from pydp2.api.sources import Source as Source
    from pydp2.api.sources import define_py_data_sources2
    from pydp2.api.sources import list_files as list_files
    from pydp2.api.worker_host import WorkerHost as WorkerHost
    from pydp2.client import Client as Client
    from pydp2.client.row_kinds import MixedBatch as MixedBatch
    from pydp2.data.columns.batch import Batch as Batch
    from pydp2.data.columns.batch import BinaryArray as BinaryArray
    from pydp2.data.columns.batch import Csr as Csr
    from pydp2.data.columns.batch import Origin as Origin
    from pydp2.data.columns.batch import Ragged as Ragged
    from pydp2.data.columns.batch import StringArray as StringArray
    from pydp2.data.columns.checksum import checksums as checksums
    from pydp2.data.columns.packed_batch import PackedBatch as PackedBatch
    from pydp2.data.native import packing as packing
    from pydp2.data.packers.many_samples import rows as rows
    from pydp2.data.schema.input_types import (
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
    from pydp2.data.schema.input_types import raw as raw
    from pydp2.data.schema.input_types import raw_sequence as raw_sequence
    from pydp2.data.schema.input_types import scalar as scalar
    from pydp2.data.schema.input_types import scalar_sequence as scalar_sequence
    from pydp2.data.schema.input_types import text as text
    from pydp2.data.schema.input_types import text_sequence as text_sequence
    from pydp2.diagnostics.bench import bench as bench
    from pydp2.diagnostics.check import check as check
    from pydp2.diagnostics.peek import peek as peek
    from pydp2.diagnostics.rebuild import rebuild as rebuild
    from pydp2.diagnostics.replay import replay as replay
    from pydp2.diagnostics.shuffle_quality import ShuffleQuality as ShuffleQuality
    from pydp2.diagnostics.shuffle_quality import shuffle_quality as shuffle_quality
    from pydp2.diagnostics.trace import trace as trace
    from pydp2.providers import CacheType, provider
    from pydp2.providers import Provider as Provider
    from pydp2.streams.mixing import mix as mix
    from pydp2.streams.sequence_packing import pack_sequences as pack_sequences

__version__ = _release.RELEASE

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

_HOMES = dict.fromkeys(__all__, "pydp2.data.schema.input_types") | {
    "Batch": "pydp2.data.columns.batch",
    "BinaryArray": "pydp2.data.columns.batch",
    "CacheEntry": "pydp2.api.cache_admin",
    "CacheFolder": "pydp2.api.cache_admin",
    "CacheType": "pydp2.providers",
    "Client": "pydp2.client",
    "MixedBatch": "pydp2.client.row_kinds",
    "PackedBatch": "pydp2.data.columns.packed_batch",
    "Csr": "pydp2.data.columns.batch",
    "Origin": "pydp2.data.columns.batch",
    "FileCount": "pydp2.api.counting",
    "ListCount": "pydp2.api.counting",
    "Provider": "pydp2.providers",
    "Ragged": "pydp2.data.columns.batch",
    "Service": "pydp2.api.service",
    "Source": "pydp2.api.sources",
    "StringArray": "pydp2.data.columns.batch",
    "WorkerHost": "pydp2.api.worker_host",
    "bench": "pydp2.diagnostics.bench",
    "check": "pydp2.diagnostics.check",
    "checksums": "pydp2.data.columns.checksum",
    "connect": "pydp2.api.service",
    "count": "pydp2.api.counting",
    "define_py_data_sources2": "pydp2.api.sources",
    "errors": "pydp2.errors",  # the module itself
    "launch": "pydp2.api.service",
    "list_files": "pydp2.api.sources",
    "load": "pydp2.api.service",
    "mix": "pydp2.streams.mixing",
    "pack_sequences": "pydp2.streams.sequence_packing",
    "packing": "pydp2.data.native",
    "peek": "pydp2.diagnostics.peek",
    "prepare": "pydp2.api.service",
    "provider": "pydp2.providers",
    "raw": "pydp2.data.schema.input_types",
    "raw_sequence": "pydp2.data.schema.input_types",
    "rebuild": "pydp2.diagnostics.rebuild",
    "replay": "pydp2.diagnostics.replay",
    "rows": "pydp2.data.packers.many_samples",
    "scalar": "pydp2.data.schema.input_types",
    "scalar_sequence": "pydp2.data.schema.input_types",
    "ShuffleQuality": "pydp2.diagnostics.shuffle_quality",
    "shuffle_quality": "pydp2.diagnostics.shuffle_quality",
    "stats": "pydp2.api.service",
    "trace": "pydp2.diagnostics.trace",
    "text": "pydp2.data.schema.input_types",
    "text_sequence": "pydp2.data.schema.input_types",
}
"""Public names, and the module that each is imported from."""


if not _typing.TYPE_CHECKING:  # for a type checker, a module with this function has every name

    def __getattr__(name: str) -> _typing.Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'pydp2' has no attribute {name!r}")
        module = _importlib.import_module(_HOMES[name])
        value = globals()[name] = module if module.__name__ == f"pydp2.{name}" else getattr(module, name)
        return value


def _to_tensors(*arguments: _typing.Any, **options: _typing.Any) -> _typing.Any:
    """Return the values of a batch as tensors of torch. The first call imports torch."""
    return _importlib.import_module("pydp2.torch").to_tensors(*arguments, **options)


_converters.converters["torch"] = _to_tensors


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

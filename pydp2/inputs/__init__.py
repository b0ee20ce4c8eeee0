"""What a sample is: its declared types, its checks, its columns, and the batch that a trainer gets of them.

The public names of this part; users reach them as ``pydp2.<name>``.
"""

from pydp2.inputs.batch import Batch, Csr, Ragged
from pydp2.inputs.columns import Columns, crc, frame_count, schema
from pydp2.inputs.packer import Cut, Packer
from pydp2.inputs.rows import Rows, rows
from pydp2.inputs.spec import (
    DataType,
    Field,
    InputType,
    SequenceType,
    Slots,
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
from pydp2.inputs.store import ColumnStore
from pydp2.inputs.wrap import Wrapper

__all__ = [
    "Batch",
    "ColumnStore",
    "Columns",
    "Csr",
    "Cut",
    "DataType",
    "Field",
    "InputType",
    "Packer",
    "Ragged",
    "Rows",
    "SequenceType",
    "Slots",
    "Wrapper",
    "crc",
    "dense_array",
    "dense_slot",
    "dense_vector",
    "dense_vector_sequence",
    "dense_vector_sub_sequence",
    "frame_count",
    "index_slot",
    "integer_sequence",
    "integer_value",
    "integer_value_sequence",
    "integer_value_sub_sequence",
    "rows",
    "schema",
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

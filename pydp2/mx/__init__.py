"""Data providers as MXNet's Julia interface had them: named arrays of fixed shapes, batch by batch (docs/mxnet.md).

One module each: the interface, epochs and the threads that prepare them, and the providers.
"""

from pydp2.mx.arrays import ArrayDataProvider, NDArrayIter
from pydp2.mx.interface import AbstractDataProvider, DataBatch, DataProvider, SlicedArray

__all__ = [
    "AbstractDataProvider",
    "ArrayDataProvider",
    "DataBatch",
    "DataProvider",
    "NDArrayIter",
    "SlicedArray",
]

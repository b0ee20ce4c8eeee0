"""Data providers as MXNet's Julia interface had them: named arrays of fixed shapes, batch by batch (docs/mxnet.md).

One module each: the interface, epochs and the threads that prepare them, and the providers.
"""

from pydp2.mx.arrays import ArrayDataProvider, NDArrayIter
from pydp2.mx.client_provider import ClientProvider
from pydp2.mx.csv_iter import CSVIter, CSVProvider
from pydp2.mx.image_iter import ImageRecordIter, ImageRecordProvider
from pydp2.mx.interface import AbstractDataProvider, DataBatch, DataProvider, SlicedArray
from pydp2.mx.mnist_iter import MNISTIter, MNISTProvider

__all__ = [
    "AbstractDataProvider",
    "ArrayDataProvider",
    "CSVIter",
    "CSVProvider",
    "ClientProvider",
    "DataBatch",
    "DataProvider",
    "ImageRecordIter",
    "ImageRecordProvider",
    "MNISTIter",
    "MNISTProvider",
    "NDArrayIter",
    "SlicedArray",
]

"""HDF5: arrays by name, in groups like folders; the first axis of an array is samples.

h5py reads it. A file is opened in the worker that reads it, and no file is open at a fork, because HDF5 keeps the state
of open files in the process. Nothing outside of the file is read: links to other files, virtual datasets and external
storage are refused.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.library_errors import errors_of
from pydp2.formats.row_arrays import (
    Array,
    ArrayFile,
    Indices,
    Kind,
    RowArray,
    checked_keys,
    decide_slots,
    listed,
    serve_rows,
)
from pydp2.formats.serving import text
from pydp2.formats.source import local_path, open_source
from pydp2.providers import provider


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError("HDF5 needs h5py, which is not installed: pip install 'h5py>=3.10'") from error


def open_arrays(
    path: str | os.PathLike[str], keys: Sequence[str] | None = None, group: str = "", raw: Sequence[str] = ()
) -> ArrayFile:
    """Return the arrays of a file, or of a ``group`` of it; a context manager. See :func:`read`."""
    h5py, name = _h5py(), os.fspath(path)
    local, release = local_path(path)
    try:
        with open_source(path) as source:
            if not h5py.is_hdf5(local):
                raise source.unexpected("an HDF5 file", source.head()[:8], 0)
        with errors_of(name):
            file = h5py.File(local, "r", locking="best-effort")
    except BaseException:
        release()
        raise

    def close() -> None:
        file.close()
        release()

    try:
        with errors_of(name, lambda: f"group {group or '/'}"):
            if group and not isinstance(file.get(group), h5py.Group):
                raise OptionError(f"{name} has no group {group}")
            parent = file[group] if group else file
            names = list(parent) if keys is None else list(dict.fromkeys(_dataset(parent, key) for key in keys))
        for key in raw:
            if key not in names:
                raise OptionError(f"raw names the array {key}; {name} has {listed(names)}")
        arrays = []
        for key in names:
            with errors_of(name, lambda: f"array {key}"):  # noqa: B023 - it is called in the block
                if (item := _item(parent, key, keys is None)) is not None:
                    arrays.append(_row_array(key, item, raw))
        return ArrayFile(name, arrays, keys, close)
    except BaseException:
        close()
        raise


def _dataset(group: Any, key: str) -> str:
    """Return the name of the dataset that ``key`` or the part of it before a dot names."""
    return key if key in group else key.partition(".")[0]


def _item(group: Any, name: str, is_any: bool) -> Any:
    """Return the dataset of a name, None for a group if ``is_any``."""
    h5py = _h5py()
    link = group.get(name, getlink=True)
    if link is None and is_any:
        raise ValueError("the group lists it, and does not have it")
    if link is None:
        raise OptionError(f"{group.file.filename} has no array {name}; it has {listed(group)}")
    if isinstance(link, h5py.ExternalLink):
        raise ValueError(f"is a link to the file {link.filename}: list that file")
    item = group[name]
    if is_any and not isinstance(item, h5py.Dataset):
        return None
    if not isinstance(item, h5py.Dataset) or not item.shape:
        raise ValueError("expected a dataset with an axis of samples; keys=[…] serves the arrays that it names alone")
    if item.is_virtual or item.external:
        raise ValueError("has its values in other files: write them into one file")
    return item


def _check_written(item: Any) -> None:
    """Raise ValueError if a part of a dataset was never written: its values are not in the file."""
    if item.chunks is None:
        have, need = item.id.get_storage_size(), item.size * item.id.get_type().get_size()
    else:
        have = item.id.get_num_chunks()
        need = math.prod(-(-side // chunk) for side, chunk in zip(item.shape, item.chunks, strict=True))
    if have < need:
        what = "bytes" if item.chunks is None else "chunks"
        raise ValueError(f"expected {need} {what}, got {have}: the rest was never written")


def _row_array(name: str, item: Any, raw: Sequence[str]) -> RowArray:
    h5py = _h5py()
    created = item.id.get_create_plist()
    for number in range(created.get_nfilters()):
        code, _, _, label = created.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            raise ValueError(
                f"needs the filter {code} ({label.decode(errors='replace')}), which is not installed: pip install "
                "hdf5plugin, and set HDF5_PLUGIN_PATH to its hdf5plugin.PLUGIN_PATH"
            )

    def kind_of(dtype: np.dtype[Any]) -> Kind:
        if h5py.check_ref_dtype(dtype) is not None:
            raise OptionTypeError("a reference to another object is no value")
        if h5py.check_string_dtype(dtype) is not None:
            return "raw" if name in raw else "text"
        inner = h5py.check_vlen_dtype(dtype)
        if inner is not None and name in raw and inner == np.uint8:
            return "raw"
        if inner is not None:
            if not isinstance(inner, np.dtype) or inner.kind not in "biuf" or inner.subdtype:
                raise OptionTypeError("lists of any length must be of numbers")
            return inner
        return "raw" if dtype.kind == "V" else None

    chunk_rows = item.chunks[0] if item.chunks and not item.dtype.hasobject else 0  # strings lie beside the chunks
    array = RowArray(name, item.shape, item.dtype, chunk_rows, kind_of, lambda lo, hi: item[lo:hi])
    _check_written(item)
    return array


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    keys: Sequence[str] | None = None,
    group: str = "",
) -> Iterator[dict[str, Array]]:
    """Yield the rows of a file, some at a time: a dict of arrays by name, as h5py gives them.

    Args:
        path: the file.
        start: index of the first row wanted, counted within the part.
        part: the part of the rows to read; its borders are those of chunks.
        indices: int64, rising: the rows to read, counted within the part, and no others. Default: all.
        keys: names of the datasets, below ``group``; ``a.b`` reads a. Default: all datasets of the group.
        group: the group that has them. Default: the top level of the file.

    Raises:
        FormatError: the file is damaged, or a dataset has values that no slot takes, or in another file.
        OptionError: there is no such dataset or group.
        ImportError: h5py is not installed.
        OSError: the file cannot be read.
    """
    with open_arrays(path, checked_keys("keys", keys), text("group", group)) as file:
        yield from file.blocks(part, start, indices)


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    keys: Sequence[str] | None = None,
    group: str = "",
    raw: Sequence[str] | None = None,
) -> None:
    given = checked_keys("keys", keys), text("group", group), checked_keys("raw", raw) or ()
    decide_slots(settings, file_list, lambda name: open_arrays(name, *given))


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples]:
    """Serve the rows of HDF5 files: each dataset is a slot of its name, each field of a compound one ``a.b``.

    Arguments of the hook:
        keys: names of the datasets or fields to serve, in this order. Default: all datasets of the group.
        group: the group that has them. Default: the top level of the file.
        raw: names of datasets whose strings, or lists of uint8, are served as bytes.
    """
    return serve_rows(settings, filename, start, indices)

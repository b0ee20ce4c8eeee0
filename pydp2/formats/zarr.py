"""Zarr, version 2 and 3: arrays in chunks, each chunk a file of its own, in a folder or a zip file.

The package zarr reads it. Its functions are coroutines. They usually run in a thread with an event loop, which would
not survive a fork, and hand files and codecs over to more threads. Here each open folder has an event loop of its own,
in the thread that reads, and :class:`_SameThread` in place of the other threads. So no thread is ever started.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.folders import is_folder
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
from pydp2.remote import is_remote
from pydp2.remote.remote_file import open_ahead

_AHEAD = 8  # chunks that are asked for before their rows are read


def _zarr(module: str) -> Any:
    try:
        blosc: Any = importlib.import_module("numcodecs.blosc")
        blosc.use_threads = False
        return importlib.import_module(f"zarr.{module}")
    except ImportError as error:
        raise ImportError("Zarr needs the package zarr, which is not installed: pip install 'zarr>=3.1'") from error


class _SameThread(ThreadPoolExecutor):
    """Executor that calls each function at once, in the calling thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _nothing() -> None:
    pass


def open_arrays(path: str | os.PathLike[str], keys: Sequence[str] | None = None, group: str = "") -> ArrayFile:
    """Return the arrays of a folder or zip file, or of a ``group`` of it; a context manager. See :func:`read`."""
    name, storage, release = os.fspath(path), _zarr("storage"), _nothing
    on_rows: Callable[[Any, int, int], None] | None = None
    if is_remote(name) and is_folder(name):
        store = importlib.import_module("pydp2.formats.zarr_store").RemoteStore(name)
        on_rows = partial(_open_next, store.url)
    elif Path(path).is_dir():
        store = storage.LocalStore(name, read_only=True)
    else:
        with open_source(path) as source:
            if not source.head().startswith(b"PK"):
                raise source.unexpected("a folder, or a zip file", source.head()[:4], 0)
        local, release = local_path(path)
        store = storage.ZipStore(local, mode="r", read_only=True)
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_SameThread())

    def close() -> None:
        loop.close()
        with contextlib.suppress(AttributeError):  # of a zip file that could not be opened
            store.close()
        release()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are no arrays, and types that others may not know
            with errors_of(name, lambda: f"group {group or '/'}"):
                found = loop.run_until_complete(_members(name, store, keys, group))
            arrays = []
            for key, item in found.items():
                with errors_of(name, lambda: f"array {key}"):  # noqa: B023 - it is called in the block
                    arrays.append(_row_array(key, item, loop.run_until_complete, on_rows))
        return ArrayFile(name, arrays, keys, close)
    except BaseException:
        close()
        raise


async def _members(name: str, store: Any, keys: Sequence[str] | None, group: str) -> dict[str, Any]:
    """Return the arrays of a group, or those that ``keys`` name; a single array is called data."""
    api = _zarr("api.asynchronous")
    node = await api.open(store=store, path=group or None, mode="r")
    if hasattr(node, "getitem") and hasattr(node, "chunks"):
        return {"data": node}
    if keys is None:
        return await _arrays(node)
    chosen = {}
    for key in keys:  # without a listing, which a web server does not have
        for array in dict.fromkeys([key, key if "/" in key else key.partition(".")[0]]):
            with contextlib.suppress(KeyError):
                chosen[array] = await node.getitem(array)
                break
        else:
            raise OptionError(f"{name} has no array {array}; it has {listed(await _arrays(node))}")
    return chosen


async def _arrays(node: Any) -> dict[str, Any]:
    members = {key: item async for key, item in node.members()}
    return {key: item for key, item in sorted(members.items()) if hasattr(item, "chunks")}


def _row_array(
    name: str,
    item: Any,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    on_rows: Callable[[Any, int, int], None] | None,
) -> RowArray:
    if not hasattr(item, "chunks") or not item.shape:
        raise ValueError("expected an array with an axis of samples; keys=[…] serves the arrays that it names alone")
    if _names_pickle(item.metadata.to_dict()):
        raise ValueError("its values are pickles, and nothing is unpickled: write them with another codec")

    def read(lo: int, hi: int) -> Array:
        values: Array = run(_rows(item, lo, hi))
        if on_rows is not None:
            on_rows(item, lo, hi)
        return values

    return RowArray(name, item.shape, item.dtype, item.chunks[0], _kind_of, read)


async def _rows(item: Any, lo: int, hi: int) -> Array:
    return np.asarray(await item.getitem((slice(lo, hi), ...)))


def _open_next(url: str, item: Any, lo: int, hi: int) -> None:
    """Ask for the files of the chunks that have the rows after ``hi``, as many as rows ``lo`` to ``hi`` had."""
    size = item.shards or item.chunks
    rows = range(-(-hi // size[0]), -(-min(2 * hi - lo, item.shape[0]) // size[0]))
    places = itertools.product(
        rows, *(range(-(-n // count)) for n, count in zip(item.shape[1:], size[1:], strict=True))
    )
    for place in itertools.islice(places, _AHEAD):
        open_ahead(f"{url}{item.path}/{item.metadata.encode_chunk_key(place)}")


def _names_pickle(metadata: Any) -> bool:
    """Return True if a codec somewhere in ``metadata`` unpickles."""
    if isinstance(metadata, dict):
        is_codec = any("pickle" in str(metadata.get(key, "")).lower() for key in ("id", "name"))
        return is_codec or any(map(_names_pickle, metadata.values()))
    if hasattr(metadata, "codec_id"):
        return bool("pickle" in metadata.codec_id)
    return isinstance(metadata, list | tuple) and any(map(_names_pickle, metadata))


def _kind_of(dtype: np.dtype[Any]) -> Kind:
    return {"T": "text", "U": "text", "S": "raw", "V": "raw", "O": "raw"}.get(dtype.kind)


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    keys: Sequence[str] | None = None,
    group: str = "",
) -> Iterator[dict[str, Array]]:
    """Yield the rows of a folder or zip file, some at a time: a dict of arrays by name, as zarr gives them.

    Args:
        path: the folder or zip file, or its URL.
        start: index of the first row wanted, counted within the part.
        part: the part of the rows to read; its borders are those of chunks.
        indices: int64, rising: the rows to read, counted within the part, and no others. Default: all.
        keys: names of the arrays, below ``group``; ``a.b`` reads a. Default: all arrays of the group.
        group: the group that has them. Default: the root.

    Raises:
        FormatError: a chunk or the metadata are damaged, or an array has values that no slot takes.
        OptionError: there is no such array.
        ImportError: zarr is not installed.
        OSError: a file cannot be read.
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
) -> None:
    given = checked_keys("keys", keys), text("group", group)
    decide_slots(settings, file_list, lambda name: open_arrays(name, *given))


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples]:
    """Serve the rows of zarr's arrays: each array is a slot of its name, each field of a compound one ``a.b``; a single
    array that is in no group is called ``data``.

    Arguments of the hook:
        keys: names of the arrays or fields to serve, in this order. Default: all arrays of the group.
        group: the group that has them. Default: the root.
    """
    return serve_rows(settings, filename, start, indices)

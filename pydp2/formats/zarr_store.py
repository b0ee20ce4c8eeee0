"""Give the package zarr the files of a folder in a store, for reading alone.

Everything runs in the thread that reads (:mod:`.zarr`). So a file is asked for before others have their turn, and read
after that: then all chunks of a request are under way at the same time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from pydp2.remote.remote_file import MissingFile, RemoteFile, open_ahead, remote_children, remote_files

_OPEN = 8  # files that stay open: chunks of one shard are in one file


class RemoteStore(Store):  # type: ignore[misc]  # it has no types where zarr is not installed
    """Folder ``url``. Raises StoreError for what its store does not give."""

    supports_writes = supports_deletes = False
    supports_listing = True

    def __init__(self, url: str) -> None:
        super().__init__(read_only=True)
        self.url = f"{url.rstrip('/')}/"
        self._files: OrderedDict[str, RemoteFile] = OrderedDict()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes of a file, or some of them; None if there is no such file."""
        if key not in self._files:
            open_ahead(self.url + key)
            await asyncio.sleep(0)
        try:
            file = self._opened(key)
        except MissingFile:
            return None
        start, stop = 0, file.size
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = max(0, stop - byte_range.suffix)
        return (prototype or default_buffer_prototype()).buffer.from_bytes(file.pread(stop - start, start))

    def _opened(self, key: str) -> RemoteFile:
        if key not in self._files:
            self._files[key] = RemoteFile(self.url + key)
        self._files.move_to_end(key)
        while len(self._files) > _OPEN:
            self._files.popitem(last=False)[1].close()
        return self._files[key]

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return the bytes of several ranges."""
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return True if there is the file ``key``."""
        try:
            self._opened(key)
        except MissingFile:
            return False
        return True

    async def list(self) -> AsyncIterator[str]:
        """Yield the names of all files."""
        for url in remote_files(self.url):
            yield url[len(self.url) :]

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of all files that begin with ``prefix``."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of files and folders in the folder ``prefix``, without it."""
        folder = f"{self.url}{prefix.strip('/')}/" if prefix.strip("/") else self.url
        for url in remote_children(folder):
            yield url[len(folder) :].rstrip("/")

    async def set(self, key: str, value: Any) -> None:
        """Refuse to write."""
        raise NotImplementedError("this folder is read only")

    async def delete(self, key: str) -> None:
        """Refuse to delete."""
        raise NotImplementedError("this folder is read only")

    def close(self) -> None:
        """Close the files that are open."""
        while self._files:
            self._files.popitem()[1].close()
        super().close()

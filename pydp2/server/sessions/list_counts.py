"""Keep the counts of a list, in memory for the passes of a service and on disk for those that come later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydp2.server.cache.counts import CountsLoaded, CountStore
from pydp2.server.cache.disk_messages import CacheNotice, CacheOrigin
from pydp2.server.dispatch.file_counts import FileCounts


class ListCounts:
    """Counts of the ``files`` files of a list. ``folder``: directory of the cache in which those of ``origin`` are
    remembered; None: they are not."""

    def __init__(
        self, files: int, label: Callable[[int], str], folder: Path | None, origin: CacheOrigin, *, early_ends: bool
    ) -> None:
        self.store = None if folder is None else CountStore(folder, origin)
        """Reads and writes the file in which counts are remembered, in a thread of its own; None: there is no file."""
        self.counts = FileCounts(files, label, self.store, early_ends=early_ends)
        self._key = origin.key
        if self.store is not None:
            self.counts.is_loading = True
            self.store.load()

    def take_disk_answers(self) -> list[CacheNotice]:
        """Take in what is remembered; what there is to say."""
        said: list[CacheNotice] = []
        for answer in () if self.store is None else self.store.take_answers():
            if isinstance(answer, CountsLoaded):
                self.counts.load(answer)
            else:
                said.append(answer)
        return said

    def remember(self) -> None:
        """Remember what was counted since the last call."""
        if self.store is not None:
            self.store.write()

    def summary(self) -> dict[str, Any]:
        """Return the sums, and under which key they are remembered ("": they are not), as plain data."""
        return self.counts.summary() | {"key": "" if self.store is None else self._key}

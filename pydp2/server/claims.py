"""Who fills the cache with which file: of several readings that come to a file, one (docs/order.md, "Cache")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydp2.cache import PassCache
from pydp2.order import Run


class Claims:
    """Of the files that ``cache`` does not have yet, each has one reading at most that offers what it commits of it."""

    def __init__(self, cache: PassCache[Run]) -> None:
        self.cache = cache
        self._claimed: set[int] = set()

    def has(self, file: int) -> bool:
        """Whether all of ``file`` is in the cache."""
        return self.cache.has(file)

    def take(self, file: int) -> bool:
        """Whoever asks is about to read all of ``file``: whether it is to offer what it reads."""
        if self.cache.full or file in self._claimed or self.cache.has(file):
            return False
        self._claimed.add(file)
        return True

    def offer(self, file: int, run: Run | None, holes: Sequence[Sequence[Any]]) -> None:
        """What is next in ``file`` was committed."""
        self.cache.offer(file, run, holes)

    def complete(self, file: int) -> None:
        """``file`` ended and was offered whole."""
        self.cache.complete(file)
        self._claimed.discard(file)

    def drop(self, file: int) -> None:
        """``file`` will not be complete."""
        self.cache.drop(file)
        self._claimed.discard(file)

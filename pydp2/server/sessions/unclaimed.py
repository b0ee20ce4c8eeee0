"""Keep batches of ranks that are not there yet, by group. Their cost does not depend on how many ranks there are."""

from __future__ import annotations

from collections.abc import Mapping

from pydp2.server.sessions.trainer import InFlightBatch


class UnclaimedBatches:
    """Batches that wait for ranks that have not come in this pass: of each group, its batches by rank."""

    def __init__(self) -> None:
        self._groups: list[dict[int, InFlightBatch]] = []
        self.nbytes = 0
        """What all of it costs."""

    def __len__(self) -> int:
        """Groups: so many batches wait for a rank at most."""
        return len(self._groups)

    @property
    def first(self) -> int | None:
        """First batch of the first group, None if there is none."""
        return next(iter(self._groups[0].values())).first if self._groups else None

    def add(self, batches: Mapping[int, InFlightBatch]) -> None:
        """Keep the ``batches`` of a group that belong to ranks that are not there."""
        if batches:
            self._groups.append(dict(batches))
            self.nbytes += sum(held.cost for held in batches.values())

    def claim(self, rank: int) -> list[InFlightBatch]:
        """Remove and return what waits for ``rank``, which has come, in order."""
        mine = [held for batches in self._groups if (held := batches.pop(rank, None)) is not None]
        self._groups = [batches for batches in self._groups if batches]
        self.nbytes -= sum(held.cost for held in mine)
        return mine

    def clear(self) -> None:
        """Drop all batches: the pass is over."""
        for batches in self._groups:
            for held in batches.values():
                held.release()
        self._groups.clear()
        self.nbytes = 0

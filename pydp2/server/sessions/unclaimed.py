"""Batches of ranks that are not there yet, by group. What they cost does not depend on how many ranks there are."""

from __future__ import annotations

from collections.abc import Mapping

from pydp2.server.sessions.trainer import InFlightBatch


class UnclaimedBatches:
    """What waits for ranks that have not come in this pass, until they come: of each group their batches, by rank."""

    def __init__(self) -> None:
        self._groups: list[dict[int, InFlightBatch]] = []
        self.nbytes = 0
        """What all of it costs."""

    def __len__(self) -> int:
        """Groups: so many batches wait for a rank at most."""
        return len(self._groups)

    @property
    def first(self) -> int | None:
        """The first batch of the first group, if there is any."""
        return next(iter(self._groups[0].values())).first if self._groups else None

    def add(self, batches: Mapping[int, InFlightBatch]) -> None:
        """A group was cut; of it, these belong to ranks that are not there."""
        if batches:
            self._groups.append(dict(batches))
            self.nbytes += sum(held.cost for held in batches.values())

    def claim(self, rank: int) -> list[InFlightBatch]:
        """``rank`` has come: what waits for it, in order. It waits here no longer."""
        mine = [held for batches in self._groups if (held := batches.pop(rank, None)) is not None]
        self._groups = [batches for batches in self._groups if batches]
        self.nbytes -= sum(held.cost for held in mine)
        return mine

    def clear(self) -> None:
        """The pass is over."""
        self._groups.clear()
        self.nbytes = 0

"""Number the trainers of a job: the peers of each rank one after the other (docs/order.md, "Ranks").

The *peers* of a rank are trainers that get the same batches.
"""

from __future__ import annotations

from typing import NamedTuple


class TrainerNumbers(NamedTuple):
    """Numbers of the trainers of a job of ``world`` ranks with ``peers`` trainers each: peer ``k`` of rank ``r`` has
    the number ``r * peers + k``. Where a rank has one trainer, this is the rank."""

    world: int = 1
    peers: int = 1

    @property
    def total(self) -> int:
        """Number of all trainers."""
        return self.world * self.peers

    def of(self, rank: int, peer: int = 0) -> int:
        """Return the number of peer ``peer`` of rank ``rank``."""
        return rank * self.peers + peer

    def rank(self, number: int) -> int:
        """Return the rank of trainer ``number``, which says which batches it gets."""
        return number // self.peers

    def peer(self, number: int) -> int:
        """Return which peer of its rank trainer ``number`` is."""
        return number % self.peers

    def name(self, number: int) -> str:
        """Return the name of trainer ``number`` for messages."""
        rank, peer = self.rank(number), self.peer(number)
        return f"rank {rank}" if self.peers == 1 else f"peer {peer} of rank {rank}"

    def keywords(self, number: int, *, world: bool = True) -> str:
        """Return the keywords with which trainer ``number`` connects, with or without ``world_size``."""
        rank, peer = self.rank(number), self.peer(number)
        along = "" if self.peers == 1 else f", share_along=({peer}, {self.peers})"
        return f"rank={rank}{f', world_size={self.world}' if world else ''}{along}"

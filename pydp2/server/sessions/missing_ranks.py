"""Says which rank the others wait for."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from pydp2.server.sessions.trainer import Trainer


class AbsentRanks(NamedTuple):
    """Ranks that are not there: the first of them, how many there are beside these, and which were there once."""

    ranks: Sequence[int]
    others: int
    parted: Set[int]


class MissingRanks:
    """Missing ranks of a job of ``world`` ranks. Each is named once for each time that it is missing, after
    ``missed`` seconds."""

    def __init__(self, job: str, world: int, missed: float) -> None:
        self._job = job
        self._world = world
        self._missed = missed
        self._since = 0.0
        self._named: set[int] = set()

    def rank_returned(self, trainer: Trainer) -> None:
        """Note that ``trainer`` is there again."""
        self._named.discard(trainer.rank)

    def overdue_messages(self, late: Sequence[Trainer], absent: AbsentRanks, now: float) -> list[str]:
        """Return the lines for the log when others wait for the trainers that are ``late``, and for ranks that are
        not there."""
        if not (late or absent.ranks):
            self._since = 0.0
            return []
        self._since = self._since or now
        if now - self._since < self._missed:
            return []
        said = [(f"rank {each.rank}", self._why(each, now)) for each in late if each.rank not in self._named]
        ranks = [rank for rank in absent.ranks if rank not in self._named]
        self._named.update(ranks, (each.rank for each in late))
        if ranks:
            who = f"rank {ranks[0]}" if len(ranks) + absent.others == 1 else f"ranks {', '.join(map(str, ranks))}"
            who += f" and {absent.others} others" if absent.others else ""
            why = "left" if absent.parted >= {*ranks} else "never came"
            said.append((who, f"{why}; connect with rank={ranks[0]}, world_size={self._world}"))
        return [f"job {self._job!r} waits for {who}, which {why}" for who, why in said]

    def _why(self, trainer: Trainer, now: float) -> str:
        if trainer.peer:
            return f"has not asked for a batch for {now - trainer.last_heard:.0f} s ({trainer.process})"
        return f"is gone since {now - trainer.last_heard:.0f} s; connect it again with rank={trainer.rank}"

"""Says which rank the others wait for."""

from __future__ import annotations

from collections.abc import Sequence

from pydp2.server.member import Member

MISSED = 5.0
"""Seconds that trainers wait for a rank before it is said which one is missing."""


class Missing:
    """Of a job of ``world`` ranks; each is named once for each time that it is missing."""

    def __init__(self, job: str, world: int) -> None:
        self._job = job
        self._world = world
        self._since = 0.0
        self._named: set[int] = set()

    def came(self, member: Member) -> None:
        """``member`` is there again."""
        self._named.discard(member.rank)

    def look(self, late: Sequence[Member], now: float) -> list[str]:
        """What is to be said when others wait for those who are ``late``."""
        if not late:
            self._since = 0.0
            return []
        self._since = self._since or now
        if now - self._since < MISSED:
            return []
        new = [member for member in late if member.rank not in self._named]
        self._named.update(member.rank for member in new)
        return [f"job {self._job!r} waits for rank {each.rank}, which {self._why(each, now)}" for each in new]

    def _why(self, member: Member, now: float) -> str:
        if member.peer:
            return f"has not asked for a batch for {now - member.heard:.0f} s (process {member.pid})"
        if member.heard:
            return f"is gone since {now - member.heard:.0f} s; connect it again with rank={member.rank}"
        return f"never came; connect with rank={member.rank}, world_size={self._world}"

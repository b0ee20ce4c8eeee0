"""Count the peers that a hub did not let in, by address and reason. Pure: time is an argument.

Strangers may come as often as they like and from many addresses: what is kept and what is logged of them has limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN_KEY = "without a key that is allowed"
"""Reason to refuse a peer."""
OTHERS = "others"
"""In place of the address of peers for which there is no room."""
_MAX_ENTRIES = 256
_FREQUENT = 20  # refusals of one address in a minute
_MINUTE = 60.0
_MAX_LINES = 10  # lines of the log in a minute


@dataclass(slots=True)
class _Entry:
    """Refusals of one address for one reason. ``recent``: those since ``since``, a minute at most."""

    count: int = 0
    last: float = 0.0
    recent: int = 0
    since: float = 0.0
    logged_at: float = float("-inf")


class Refusals:
    """Refusals of one hub."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._lines, self._lines_since = 0, float("-inf")

    def add(self, address: str, reason: str, now: float) -> int:
        """Count a peer at ``address`` that was refused for ``reason``. Return how often that has happened if the log is
        to say it now, else 0: it says it at first, then once a minute, and a few lines a minute in all."""
        entry = self._entry(address, reason)
        if now - entry.since > _MINUTE:
            entry.since, entry.recent = now, 0
        entry.count, entry.recent, entry.last = entry.count + 1, entry.recent + 1, now
        if now - self._lines_since > _MINUTE:
            self._lines, self._lines_since = 0, now
        if now - entry.logged_at <= _MINUTE or self._lines >= _MAX_LINES:
            return 0
        entry.logged_at, self._lines = now, self._lines + 1
        return entry.count

    def _entry(self, address: str, reason: str) -> _Entry:
        """Return the entry of ``address`` and ``reason``. If there is no room for it, the one that was refused longest
        ago becomes one of the others."""
        found = self._entries.get((address, reason))
        if found is not None:
            return found
        named = [key for key in self._entries if key[0] != OTHERS]
        if len(named) >= _MAX_ENTRIES:
            oldest = min(named, key=lambda key: self._entries[key].last)
            moved = self._entries.pop(oldest)
            others = self._entries.setdefault((OTHERS, oldest[1]), _Entry())
            others.count, others.last = others.count + moved.count, max(others.last, moved.last)
        return self._entries.setdefault((address, reason), _Entry())

    def is_frequent(self, address: str, reason: str, now: float) -> bool:
        """Return True if peers at ``address`` were refused for ``reason`` so often in the last minute that little is
        done for the next one. While so many addresses come that there is no room for them, so it is for each new
        one."""
        entry = self._entries.get((address, reason))
        if entry is None:
            return sum(now - each.last <= _MINUTE for each in self._entries.values()) >= _MAX_ENTRIES
        return entry.recent >= _FREQUENT and now - entry.since <= _MINUTE

    def to_plain(self, now: float) -> list[dict[str, Any]]:
        """Return all of it as plain data, the latest first."""
        latest = sorted(self._entries.items(), key=lambda each: -each[1].last)
        return [
            {"address": address, "reason": reason, "count": entry.count, "seconds_ago": round(now - entry.last, 3)}
            for (address, reason), entry in latest
        ]

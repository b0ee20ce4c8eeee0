"""Share what the fetch process does with the process that started it, in a page of memory."""

from __future__ import annotations

import mmap
import struct
import time
from typing import Any, Protocol

SIZE = 4096
_FIELDS = struct.Struct("<Q5Q128s256s")  # a number that is odd while the rest is being written


class _Counters(Protocol):
    requests: int
    bytes: int
    hits: int
    retries: int


class FetchStatus:
    """Page of memory that one process writes and another one reads."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._number = 0

    def write(self, counters: _Counters, wait: tuple[str, str, float] | None) -> None:
        """Write the counters, and store, reason and beginning of a wait."""
        store, reason, since = wait or ("", "", 0.0)
        numbers = counters.requests, counters.bytes, counters.hits, counters.retries, int(since * 1000)
        self._number += 2
        texts = store.encode()[:127], reason.encode(errors="replace")[:255]
        self._memory[:8] = struct.pack("<Q", self._number - 1)
        self._memory[8 : _FIELDS.size] = _FIELDS.pack(0, *numbers, *texts)[8:]
        self._memory[:8] = struct.pack("<Q", self._number)

    def read(self) -> dict[str, Any]:
        """Return the numbers, the store that is waited for, or "", and how long it has been."""
        for _ in range(100):
            before = self._memory[:8]
            number, requests, count, hits, retries, since, store, reason = _FIELDS.unpack(self._memory[: _FIELDS.size])
            if not number % 2 and before == self._memory[:8]:
                break
        name = store.rstrip(b"\0").decode(errors="replace")
        return {
            "requests": requests,
            "bytes": count,
            "hits": hits,
            "retries": retries,
            "waits_for": name,
            "reason": reason.rstrip(b"\0").decode(errors="replace"),
            "waiting_seconds": time.monotonic() - since / 1000 if name else 0.0,
        }

"""Keep the numbers of rows that stay on the hosts of their workers: trainers fetch the rows from the row servers there
(docs/hosts.md, "Rows that stay on their host").

The service knows of such a row its host and its handle there, and decides with that where the row goes. When the row is
not needed any more, the row server of the host is told so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.base import SplitRows
from pydp2.data.rowstore.ids import IdAllocator, grown

_NAME_BYTES = 16  # of a row in a message: its position and its handle


class RowServers:
    """Row servers of the hosts of a service: which rows each has, and which it may forget. As a memory of rows
    (:class:`.base.RowMemory`) it has :class:`HostRows`, whose values nobody can read here."""

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._released: dict[int, list[Ints]] = {}
        self._ids = IdAllocator()
        self._host = self._handle = np.zeros(0, np.int64)  # of each row, by id
        self.off: frozenset[int] = frozenset()
        """Hosts whose row servers keep no more rows."""
        self.loss_count = 0
        """How often rows were lost with their host."""

    # -- row servers -----------------------------------------------------------------------------------------------
    def add(self, host: int, address: str) -> None:
        """Add the row server of ``host``, from which trainers fetch at ``address``."""
        self._addresses[host], self._counts[host], self._released[host] = address, 0, []

    def remove(self, host: int) -> None:
        """Forget the row server of ``host``, which is gone, and its rows, which are lost."""
        self._apply_releases()
        self._released.pop(host, None)
        self._addresses.pop(host, None)
        self.off -= {host}
        self.loss_count += self._counts.pop(host, 0) > 0

    def __contains__(self, host: int) -> bool:
        """Return True if ``host`` has a row server."""
        return host in self._addresses

    def __len__(self) -> int:
        """Return the number of row servers."""
        return len(self._addresses)

    def host_at(self, address: object) -> int | None:
        """Return the host whose row server has ``address``."""
        return next((host for host, known in self._addresses.items() if known == address), None)

    def turn_off(self, host: int) -> bool:
        """Note that no more rows stay on ``host``. Return False if that was known."""
        known, self.off = self.off, self.off | {host}
        return host not in known

    def row_count(self, host: int) -> int:
        """Return how many rows the row server of ``host`` has to keep."""
        self._apply_releases()
        return self._counts.get(host, 0)

    def take_released(self) -> list[tuple[int, Ints]]:
        """Return the rows that were released since the last call, by host."""
        self._apply_releases()
        taken = [(host, np.concatenate(several)) for host, several in self._released.items() if several]
        for host, _ in taken:
            self._released[host] = []
        return taken

    # -- rows ------------------------------------------------------------------------------------------------------
    def accept(self, host: int, handles: Ints, sizes: Ints) -> HostRows:
        """Return the rows of a chunk that stayed on ``host``."""
        self._counts[host] += len(handles)
        return HostRows(self, host, handles, sizes)

    def give_back(self, host: int, handles: Ints) -> None:
        """Note that rows of ``host`` are not needed any more."""
        if host in self._counts and len(handles):
            self._counts[host] -= len(handles)
            self._released[host].append(handles)

    @property
    def high_water(self) -> int:
        """Number of ids that were used at some time."""
        return self._ids.high_water

    @property
    def held_bytes(self) -> int:
        """Number of bytes that the rows have here: 0."""
        return 0

    def holds(self, rows: Any) -> bool:
        """Return True for rows that stayed on a host."""
        return isinstance(rows, HostRows)

    def append(self, columns: HostRows) -> Ints:
        """Keep the numbers of all rows, and return their ids: ``(rows,)``."""
        self._apply_releases()
        ids = self._ids.allocate(columns.rows)
        if self._ids.high_water > len(self._host):
            self._host, self._handle = (grown(each, len(self._ids.live)) for each in (self._host, self._handle))
        self._host[ids], self._handle[ids], self._ids.live[ids] = columns.host, columns.handles, True
        return ids

    def carried_bytes(self, ids: Ints, nbytes: int) -> int:
        """Return the bytes of the names of the rows: all of them lie elsewhere."""
        return _NAME_BYTES * len(ids)

    def split(self, ids: Ints) -> SplitRows:
        """Return where the rows lie."""
        by_host, found = _grouped(self._host[ids])
        order = np.empty(len(ids), np.int64)
        order[by_host] = np.arange(len(ids))
        elsewhere = [[self._addresses.get(host, ""), len(rows)] for host, rows in found]  # "": it is gone
        return SplitRows(self, ids[:0], elsewhere, order, self._handle[ids[by_host]])

    def shared_row_count(self, ids: Ints) -> int:
        """Return 0: nobody sees the rows in memory of this host."""
        return 0

    def handles(self, ids: Ints) -> Ints:
        """Return the handles of the rows in their row servers."""
        return self._handle[ids]

    def take(self, ids: Any) -> NoReturn:
        """Raise RuntimeError, as :meth:`sources` and :meth:`lengths` do."""
        raise RuntimeError("rows that stay on their host are fetched from there")

    def sources(self, ids: Ints) -> NoReturn:
        """Raise RuntimeError."""
        self.take(ids)

    def lengths(self, ids: Ints, slot: int) -> NoReturn:
        """Raise RuntimeError."""
        self.take(ids)

    def release_later(self, ids: Ints) -> None:
        """Give the rows back; the row servers are told with the next message."""
        self._ids.released.append(ids)

    def _apply_releases(self) -> None:
        if self._ids.released:
            ids = self._ids.take_released()
            self._ids.mark_released(ids)
            for host, some in _grouped(self._host[ids])[1]:
                self.give_back(host, self._handle[ids[some]])
            self._ids.free(ids)


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows of a chunk that stayed on ``host``: their ``handles`` there, and the bytes of each; both int64 (rows,)."""

    servers: RowServers
    host: int
    handles: Ints
    sizes: Ints

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.handles)

    def sample_bytes(self) -> Ints:
        """Return the bytes of each row: ``(rows,)``."""
        return self.sizes

    def slice(self, lo: int, hi: int) -> HostRows:
        """Return rows ``lo`` to ``hi``, not included."""
        return HostRows(self.servers, self.host, self.handles[lo:hi], self.sizes[lo:hi])

    def take(self, rows: Ints) -> HostRows:
        """Return the given rows, which are the same rows."""
        return HostRows(self.servers, self.host, self.handles[rows], self.sizes[rows])

    def release(self) -> None:
        """Give back the rows: no pool takes them."""
        self.servers.give_back(self.host, self.handles)


def _grouped(hosts: Ints) -> tuple[Ints, list[tuple[int, Ints]]]:
    """Return the positions of ``hosts`` in the order of their values, and those of each value."""
    if len(hosts) and (hosts == hosts[0]).all():  # often there is one, and the rest costs ten times as much
        positions = np.arange(len(hosts))
        return positions, [(hosts.item(0), positions)]
    by_host = np.argsort(hosts, kind="stable")
    edges = np.flatnonzero(np.diff(hosts[by_host])) + 1
    groups = np.split(by_host, edges) if len(hosts) else []
    return by_host, [(hosts.item(group[0]), group) for group in groups]

"""Keep the numbers of rows that stay on the hosts of their workers: trainers fetch the rows from the row servers there
(docs/hosts.md, "Rows that stay on their host").

The service knows of such a row its host and its handle there, and decides with that where the row goes. When the row is
not needed any more, the row server of the host is told so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.batch_rows import RowView
from pydp2.data.rowstore.cells import CellStore
from pydp2.data.rowstore.gather import Selection, mark_released
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.pass_store import grown
from pydp2.data.rowstore.shared_heap import PassRows

_FIRST_ROWS = 1 << 12


class RowServers:
    """Row servers of the hosts of a service: which rows each has, and which it may forget."""

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._released: dict[int, list[Ints]] = {}
        self.off: frozenset[int] = frozenset()
        """Hosts whose row servers keep no more rows."""

    def add(self, host: int, address: str) -> None:
        """Add the row server of ``host``, from which trainers fetch at ``address``."""
        self._addresses[host], self._counts[host], self._released[host] = address, 0, []

    def remove(self, host: int) -> bool:
        """Forget the row server of ``host``, which is gone. Return True if rows were lost with it."""
        self._released.pop(host, None)
        self._addresses.pop(host, None)
        self.off -= {host}
        return self._counts.pop(host, 0) > 0

    def __contains__(self, host: int) -> bool:
        """Return True if ``host`` has a row server."""
        return host in self._addresses

    def __len__(self) -> int:
        """Return the number of row servers."""
        return len(self._addresses)

    def address_of(self, host: int) -> str:
        """Return the address of the row server of ``host``; "" if it is gone."""
        return self._addresses.get(host, "")

    def host_at(self, address: object) -> int | None:
        """Return the host whose row server has ``address``."""
        return next((host for host, known in self._addresses.items() if known == address), None)

    def turn_off(self, host: int) -> bool:
        """Note that no more rows stay on ``host``. Return False if that was known."""
        known, self.off = self.off, self.off | {host}
        return host not in known

    def row_count(self, host: int) -> int:
        """Return how many rows the row server of ``host`` has to keep."""
        return self._counts.get(host, 0)

    def accept(self, host: int, handles: Ints, sizes: Ints) -> HostRows:
        """Return the rows of a chunk that stayed on ``host``."""
        self._counts[host] += len(handles)
        return HostRows(self, host, handles, sizes)

    def release(self, host: int, handles: Ints) -> None:
        """Note that rows of ``host`` are not needed any more."""
        if host in self._counts and len(handles):
            self._counts[host] -= len(handles)
            self._released[host].append(handles)

    def take_released(self) -> list[tuple[int, Ints]]:
        """Return the rows that were released since the last call, by host."""
        taken = [(host, np.concatenate(several)) for host, several in self._released.items() if several]
        for host, _ in taken:
            self._released[host] = []
        return taken


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

    def release(self) -> None:
        """Give back the rows: no pool takes them."""
        self.servers.release(self.host, self.handles)


class HostSplit(NamedTuple):
    """Rows of a message, by where they lie: ``here``, and on hosts as ``[row server, rows]`` for each.

    ``order``: for each row of the message its place among those here and those of the hosts, in this order;
    ``handles``: of the rows on hosts. Both int64.
    """

    here: RowView
    on_hosts: list[list[Any]]
    order: Ints
    handles: Ints


class HostRowStore:
    """Store of a pool of which some rows stay on hosts; the others lie in ``local``.

    The id of a row is its id in ``local``, or ~ its number here.
    """

    def __init__(self, local: HeapStore | CellStore | PassRows, servers: RowServers) -> None:
        self.local = local
        self._servers = servers
        self._never_on = servers.off
        self._host = np.zeros(_FIRST_ROWS, np.int64)
        self._handle = np.zeros(_FIRST_ROWS, np.int64)
        self._live = np.zeros(_FIRST_ROWS, np.bool_)
        self._free: Ints = np.arange(_FIRST_ROWS - 1, -1, -1, dtype=np.int64)  # a stack
        self._free_count = _FIRST_ROWS
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows here have or had."""
        return self.local.held_bytes

    def append(self, columns: Any) -> Ints:
        """Keep all rows of ``columns``, or the numbers of those that stay on their host, and return their
        ids: ``(rows,)``."""
        if not isinstance(columns, HostRows):
            return self.local.append(columns)
        if self._closed:
            raise RuntimeError("the store is closed: its pass is over")
        rows = self._take_numbers(columns.rows)
        self._host[rows], self._handle[rows], self._live[rows] = columns.host, columns.handles, True
        return ~rows

    def may_have_rows_on(self, host: int) -> bool:
        """Return True if rows may be on ``host``, or on their way to there: its row server was not off before."""
        return host not in self._never_on

    def _take_numbers(self, count: int) -> Ints:
        while count > self._free_count:
            old = len(self._host)
            self._host, self._handle = grown(self._host, 2 * old), grown(self._handle, 2 * old)
            self._live = grown(self._live, 2 * old)
            free = np.empty(2 * old, np.int64)
            free[:old] = np.arange(2 * old - 1, old - 1, -1)
            free[old : old + self._free_count] = self._free[: self._free_count]
            self._free, self._free_count = free, self._free_count + old
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count][::-1].copy()

    def split(self, ids: Ints) -> HostSplit | None:
        """Return where the rows ``ids`` lie; None: all of them are here."""
        elsewhere = np.flatnonzero(ids < 0)
        if not len(elsewhere):
            return None
        hosts, handles = self._host[~ids[elsewhere]], self._handle[~ids[elsewhere]]
        by_host, found = _grouped(hosts)
        here = np.flatnonzero(ids >= 0)
        order = np.empty(len(ids), np.int64)
        order[here] = np.arange(len(here))
        order[elsewhere[by_host]] = np.arange(len(here), len(ids))
        on_hosts = [[self._servers.address_of(host), len(rows)] for host, rows in found]
        return HostSplit(RowView(self.local, ids[here]), on_hosts, order, handles[by_host])

    def take(self, ids: Any) -> Columns:
        """Return rows that are here, as columns over fresh, writable arrays."""
        return self.local.take(self._only_here(ids))

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return where the entries of rows lie that are here, as :class:`.heap.HeapStore` does."""
        return self.local.sources(self._only_here(ids))

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each of some rows that are here: ``(rows,)``."""
        return self.local.lengths(self._only_here(ids), slot)

    def _only_here(self, ids: Any) -> Ints:
        rows = np.asarray(ids, np.int64)
        if (rows < 0).any():
            raise RuntimeError("rows that stay on their host are fetched from there")
        return rows

    def shared_row_count(self, ids: Ints) -> int:
        """Return what the store of rows here does; 0: some of ``ids`` do not lie here."""
        return 0 if (ids < 0).any() else self.local.shared_row_count(ids)

    def handles(self, ids: Ints) -> Ints:
        """Return the handles of rows that are here."""
        return self.local.handles(ids)

    def release_later(self, ids: Ints) -> None:
        """Give the rows back; the row servers are told with the next message. Raises KeyError for a row of a host that
        is not live, or given twice."""
        elsewhere = ids < 0
        if not elsewhere.any():
            self.local.release_later(ids)
            return
        if not elsewhere.all():
            self.local.release_later(ids[~elsewhere])
        if self._closed:
            return
        rows = ~ids[elsewhere]
        if not mark_released(self._live, np.ascontiguousarray(rows)):
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")
        self._tell_released(rows)
        self._free[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)

    release = release_later

    def _tell_released(self, rows: npt.NDArray[np.int64]) -> None:
        for host, some in _grouped(self._host[rows])[1]:
            self._servers.release(host, self._handle[rows[some]])

    def close(self) -> None:
        """Give back all rows that are left on hosts: the pass is over, and no batch of it is wanted any more."""
        if not self._closed:
            self._closed = True
            self._tell_released(np.flatnonzero(self._live))


def _grouped(hosts: Ints) -> tuple[Ints, list[tuple[int, Ints]]]:
    """Return the positions of ``hosts`` in the order of their values, and those of each value."""
    if len(hosts) and (hosts == hosts[0]).all():  # often there is one, and the rest costs ten times as much
        positions = np.arange(len(hosts))
        return positions, [(hosts.item(0), positions)]
    by_host = np.argsort(hosts, kind="stable")
    edges = np.flatnonzero(np.diff(hosts[by_host])) + 1
    groups = np.split(by_host, edges) if len(hosts) else []
    return by_host, [(hosts.item(group[0]), group) for group in groups]


def count_on_hosts(rows: RowView) -> int:
    """Return how many of ``rows`` stay on their host."""
    return int(np.count_nonzero(rows.row_ids < 0)) if isinstance(rows.store, HostRowStore) else 0


def split_rows_by_host(rows: RowView) -> HostSplit | None:
    """Return where the ``rows`` of a message lie; None: all of them are here."""
    return rows.store.split(rows.row_ids) if isinstance(rows.store, HostRowStore) else None

"""Fetch rows that stay on hosts from the row servers there (docs/hosts.md, "Rows that stay on their host").

Theory of operation
-------------------
Some rows of a batch exist only on the host that made them, and a host may end, be cut off or stand still at any moment,
with or without a word. A batch is delivered in its turn and with all of its rows, or not at all. So each row that is
asked for comes to one of two ends: it is here, or the address of its row server is reported as unreachable. The service
then takes the pass up where no trainer misses a batch, has the files read again, and gets the rows of such a host
itself from then on. That is always right, and dear: it costs every rank of the job the time to fill the pool again. So
a row server that does its work must not be reported, and one that does not must be reported soon, because the other
ranks wait for this one.

* *When to ask.* Rows are asked for when their message is read, not when their batch is wanted: they are on their way
  while the trainer works with the batches before. For this the client reads messages ahead of its need.
* *How much.* Nothing is seen of an answer before the whole of it has come. If all rows of a message came in one, a slow
  line would look like a dead one. So batches are fetched a few at a time, and large ones piece by piece.
* *How long.* An address is given up after a time of silence, not a time since the question: every piece that comes from
  it renews the patience with all that it was asked for. An error of the network cannot be waited for, because a cable
  that is pulled out says nothing. Time in which nobody looked does not count: the trainer computed, or the process was
  stopped, and a connection that ended meanwhile was not made anew.
* *With whom.* What silences one host (a switch, a firewall) silences others. Reported one after the other, each would
  cost a new run. So the report has all that are silent by now, and those that were never heard a second early.
* *Twice.* If a connection ends, what has no answer is asked for again over the next one. That is safe, because a host
  keeps its rows until the service releases them, and an answer has the number of its request: the second one, or one
  for a run that was left, finds no request and is dropped. A row server that lacks a row, or breaks the protocol, is
  given up at once.
* *Interrupted.* An exception may come at any instruction (:mod:`.run_protocol`). While requests are noted, the
  connection counts as damaged, which leads to a new run. What a message asked for stays until its batches have replaced
  it, so the replacement can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ProtocolError, RemoteProtocolError, ServiceUnreachable
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_PACK_BYTES
from pydp2.protocol.link_states import LinkRole, row_link
from pydp2.system.stdlib import time
from pydp2.transport import Line, Poller, owned_arrays
from pydp2.transport.keys import KeyPair
from pydp2.transport.line import ACK_TIMEOUT
from pydp2.transport.sockets import new_context

PATIENCE_SECONDS = 4.5
"""Number of seconds that a row server may be silent while rows are waited for."""
PIECE_BYTES = 1 << 20
"""Number of bytes of an answer, unless one row is larger: a slow line that several trainers share brings it in time. (A
connection over which no whole frame comes for 10 s ends.)"""
_MOST_PATIENCE = 2.0  # times as long for a row that is larger than a piece; soon after, its connection would end
_NEARLY_SECONDS = 1.0  # too early: a row server that was never heard is given up with another one, at one cost
_LOOK_SECONDS = 1.0  # between two looks; after more, this process stood still or its trainer worked
_RETRY_SECONDS = 0.2  # seconds between two attempts to connect
_MAX_ROW_SERVERS = 1024  # in one message
_MAX_UNREACHABLE = 32  # row servers that are named at once: their addresses have to fit into a header


@dataclass(slots=True)
class _HostRequest:
    """Rows ``handles`` of one row server, and their ``columns`` once they are here. ``due``: when they have to be,
    ``patience`` seconds after the row server was last heard; ``is_refused``: it does not have them, or sends something
    else."""

    number: int
    address: str
    handles: Ints
    patience: float
    due: float
    columns: Columns | None = None
    is_refused: bool = False


@dataclass(slots=True)
class RemoteRows:
    """Rows of some batches of a message, of which some come from hosts; they are gathered together.

    ``here``: those that came with the message; ``order``: for each row its place among those and the rows of
    ``requests``, in this order.
    """

    here: Columns
    order: Ints
    requests: list[_HostRequest]
    _columns: Columns | None = field(default=None)

    @property
    def is_here(self) -> bool:
        """True if all rows have come."""
        return all(each.columns is not None for each in self.requests)

    @property
    def is_gathered(self) -> bool:
        """True once the rows are in the order of the batches."""
        return self._columns is not None

    def sizes(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the bytes of rows ``lo`` to ``hi`` twice, if rows are alike; 0 before they are gathered."""
        total = 0 if self._columns is None else self._columns.nbytes
        nbytes = total * (hi - lo) // max(1, len(self.order))
        return nbytes, nbytes

    def columns(self, lo: int, hi: int) -> Columns:
        """Return rows ``lo`` to ``hi``, once all are here."""
        if self._columns is None:
            parts = [self.here, *(each.columns for each in self.requests if each.columns is not None)]
            whole = Columns.concat([part for part in parts if part.rows] or parts[:1])
            in_order = bool((self.order == np.arange(len(self.order))).all())
            self._columns = whole if in_order else whole.take(self.order)
            empty = self.here = Columns.empty(self.here.slots)
            for each in self.requests:
                each.columns = empty  # it is in memory once
        return self._columns if hi - lo == len(self.order) else self._columns.slice(lo, hi)


class _NamedRows(NamedTuple):
    """Rows that a message names: those that came ``here`` with it, and the ``handles`` of those at ``addresses``.
    ``ends``: where each of these groups of rows ends, int64; ``row_bytes``: bytes of a row, on average."""

    here: Columns
    handles: Ints
    addresses: list[str]
    ends: Ints
    row_bytes: float


class RowFetcher:
    """Fetches rows of ``slots`` for a client with the keys ``key_pair``, over a connection to each row server."""

    def __init__(self, slots: Slots, key_pair: KeyPair) -> None:
        self._slots, self._key_pair = slots, key_pair
        self._zmq = new_context()
        self._lines: dict[str, Line] = {}
        self._retry_at: dict[str, float] = {}
        self._requests: dict[int, _HostRequest] = {}  # those without an answer
        self._heard: set[str] = set()  # addresses from which something has come at any time
        self._looked = time.monotonic()
        self._numbers = count(1)
        # The part of each batch of a message, by run and first batch, until its batches have replaced the message:
        self._parts: dict[tuple[int, int], list[tuple[RemoteRows, int, int]]] = {}
        self._link = row_link(LinkRole.CLIENT)

    def begin(self, head: m.BatchHead, counts: Sequence[int], frames: Sequence[memoryview]) -> None:
        """Ask for the rows of the message ``head``, of batches with ``counts`` rows. Raises RemoteProtocolError."""
        rows, on_hosts = sum(counts), [*_row_counts(head)]
        if len(frames) < 2 or rows < sum(size for _, size in on_hosts):
            raise RemoteProtocolError("BatchHead: rows on hosts need a frame with their order, and one with handles")
        *here, order_frame, handle_frame = frames
        order, handles = _int64(order_frame, rows), _int64(handle_frame, sum(size for _, size in on_hosts))
        if (np.sort(order) != np.arange(rows)).any():
            raise RemoteProtocolError("BatchHead: rows on hosts that are not in an order")
        named = _NamedRows(
            Columns.from_frames(self._slots, rows - len(handles), owned_arrays(here)),
            handles,
            [address for address, _ in on_hosts],
            np.cumsum([rows - len(handles), *(size for _, size in on_hosts)]),
            head.nbytes / max(1, rows),
        )
        edges = [0, *accumulate(counts)]
        step = max(1, len(counts) * MAX_PACK_BYTES // max(1, head.nbytes))  # batches that are fetched together
        parts: list[tuple[RemoteRows, int, int]] = []
        for begin in range(0, len(counts), step):
            ends = edges[begin : begin + step + 1]
            remote = self._remote_rows(named, order[ends[0] : ends[-1]])
            parts += [(remote, lo - ends[0], hi - ends[0]) for lo, hi in pairwise(ends)]
        self._parts[head.request_id, head.batch_index] = parts

    def _remote_rows(self, named: _NamedRows, places: Ints) -> RemoteRows:
        """Ask for the rows of ``named`` at ``places``."""
        is_whole = len(places) == named.ends[-1]  # all rows of the message
        if is_whole:
            by_place, order = np.arange(len(places)), places
        else:
            sorting = np.argsort(places)
            by_place, order = places[sorting], np.empty_like(places)
            order[sorting] = np.arange(len(places))
        at, *ends = np.searchsorted(by_place, named.ends).tolist()
        here = named.here if is_whole else named.here.take(by_place[:at])
        requests, step = [], int(max(1, PIECE_BYTES / max(1, named.row_bytes)))
        for address, end in zip(named.addresses, ends, strict=True):
            for begin in range(at, end, step):
                handles = named.handles[by_place[begin : min(end, begin + step)] - named.here.rows]
                requests.append(self._ask(address, handles, named.row_bytes))
            at = end
        return RemoteRows(here, order, requests)

    def _ask(self, address: str, handles: Ints, row_bytes: float) -> _HostRequest:
        patience = PATIENCE_SECONDS * min(_MOST_PATIENCE, max(1.0, row_bytes / PIECE_BYTES))
        request = _HostRequest(next(self._numbers), address, handles, patience, time.monotonic() + patience)
        self._requests[request.number] = request
        if (line := self._line_to(address)) is not None:
            self._send(line, request)
        return request

    def _send(self, line: Line, request: _HostRequest) -> None:
        message = m.FetchRows(request.number)
        self._link.check_sending(message)
        line.send([m.encode(message), request.handles])

    def _line_to(self, address: str) -> Line | None:
        """Return the connection to ``address``; None: it cannot be had now."""
        if (line := self._lines.get(address)) is not None:
            return line
        if time.monotonic() < self._retry_at.get(address, 0.0):
            return None
        try:
            line = self._lines[address] = Line(
                self._zmq, address, watch=True, key_pair=self._key_pair, ack_timeout=ACK_TIMEOUT
            )
        except ServiceUnreachable:  # it is no address, or a name that is not known here
            self._retry_at[address] = time.monotonic() + _RETRY_SECONDS
        return line

    def parts(self, run: int, batch_index: int) -> list[tuple[RemoteRows, int, int]]:
        """Return the rows that each batch of the message of ``run`` that begins with this one has a part of, and that
        part. They stay until :meth:`note_taken`: a call that is interrupted asks for them again. Raises
        RemoteProtocolError if they were not asked for."""
        parts = self._parts.get((run, batch_index))
        if parts is None:
            raise RemoteProtocolError("BatchHead: rows on hosts that were not asked for")
        return parts

    def note_taken(self, run: int, batch_index: int) -> None:
        """Note that batches have replaced the message, so that nobody asks for its parts again."""
        self._parts.pop((run, batch_index), None)

    def forget(self) -> None:
        """Forget all that was asked for: a new run begins."""
        self._requests.clear()
        self._parts.clear()

    def drop(self, run: int, batch_index: int) -> None:
        """Forget what was asked for because of one message: its run was left."""
        for rows, _, _ in self._parts.pop((run, batch_index), []):
            for request in rows.requests:
                self._requests.pop(request.number, None)

    def receive(self) -> None:
        """Take what came, and connect again where a connection has ended. What a row server sends in place of rows
        counts as if it did not have them."""
        now = time.monotonic()
        heard = {address for address, line in [*self._lines.items()] if self._take_from(address, line)}
        self._heard |= heard
        # A silence in which nobody looked says nothing: a connection that ended in it was not made anew.
        is_late = now - self._looked > _LOOK_SECONDS
        self._looked = now
        for request in self._requests.values():
            if is_late or request.address in heard:
                request.due = now + request.patience
        for address in {each.address for each in self._requests.values()} - {*self._lines}:
            if (again := self._line_to(address)) is not None:
                for request in self._requests.values():
                    if request.address == address:
                        self._send(again, request)

    def _take_from(self, address: str, line: Line) -> bool:
        """Take what came over ``line``, and close it if it has ended. Return True if something came."""
        came = False
        try:
            while (frames := line.receive(0)) is not None:
                came = True
                self._received(address, frames)
        except ProtocolError:
            for request in [each for each in self._requests.values() if each.address == address]:
                self._refuse(request)
        if line.is_lost:
            del self._lines[address]
            line.close()
            self._retry_at[address] = time.monotonic() + _RETRY_SECONDS
        return came

    def unreachable(self, rows: RemoteRows) -> list[str]:
        """Return the addresses of row servers that did not send some of ``rows`` in time, or do not have them ("": the
        service did not know it any more), as of the last call of :meth:`receive`; none: there are none.

        With them come those of all others that are given up by now, or would be soon and were never heard.
        """
        lost = [each for each in rows.requests if each.columns is None and (each.is_refused or self._looked > each.due)]
        others = [each for each in self._requests.values() if lost and self._is_given_up(each)]
        return [*dict.fromkeys(each.address for each in (*lost, *others))][:_MAX_UNREACHABLE]

    def _is_given_up(self, request: _HostRequest) -> bool:
        early = 0.0 if request.address in self._heard else _NEARLY_SECONDS
        return self._looked > request.due - early

    def _received(self, address: str, frames: list[memoryview]) -> None:
        message, body = m.decode(frames)
        self._link.check_received(message)
        assert isinstance(message, m.FetchedRows)  # the link takes nothing else
        request = self._requests.get(message.request_id)
        if request is None or request.address != address:
            return  # of a run that was left
        if message.gone:
            self._refuse(request)
            return
        if message.rows != len(request.handles):
            raise RemoteProtocolError(f"FetchedRows: {message.rows} rows where {len(request.handles)} were asked for")
        request.columns = Columns.from_frames(self._slots, message.rows, owned_arrays(body))
        del self._requests[message.request_id]

    def _refuse(self, request: _HostRequest) -> None:
        request.is_refused = True
        del self._requests[request.number]

    @property
    def handles(self) -> list[Any]:
        """Handles that are readable when something has come."""
        return [line.handle for line in self._lines.values()]

    def wait(self, timeout_ms: int, others: Sequence[Any] = ()) -> None:
        """Wait until something has come, or one of ``others`` is readable."""
        poller = Poller()
        for each in (*self.handles, *others):
            poller.add(each)
        poller.wait(timeout_ms)

    def close(self) -> None:
        """Close the connections."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._zmq.destroy(linger=0)


def _row_counts(head: m.BatchHead) -> Iterator[tuple[str, int]]:
    """Yield the row servers of ``head``, and the number of rows of each. Raises RemoteProtocolError."""
    if len(head.elsewhere) > _MAX_ROW_SERVERS:
        raise RemoteProtocolError(f"BatchHead: rows on {len(head.elsewhere)} hosts, at most {_MAX_ROW_SERVERS} may be")
    for item in head.elsewhere:
        if not isinstance(item, list) or [type(value) for value in item] != [str, int] or item[1] <= 0:
            raise RemoteProtocolError("BatchHead: the rows of a host are its row server and their number")
        yield item[0], item[1]


def _int64(frame: memoryview, entries: int) -> Ints:
    if frame.nbytes != 8 * entries:
        raise RemoteProtocolError("BatchHead: one number for each row is needed")
    return np.frombuffer(frame, "<i8").astype(np.int64)

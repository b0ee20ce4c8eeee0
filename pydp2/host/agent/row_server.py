"""Keep rows on the host of their workers, and send them to the trainers that get them (docs/hosts.md, "Rows that stay
on their host").

The agent takes the rows out of what a worker sends; the service gets their handles and sizes. It says which rows are
not needed any more, and which trainers may fetch. All rows go when the session of the host ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Columns, Ints, frame_count
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import ProtocolError, RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FileRange
from pydp2.protocol.link_states import LinkRole, row_link
from pydp2.transport import Hub, PeerGone, array_views
from pydp2.transport.keys import KeyPair, advertised_address, new_key_pair

MAX_REQUEST = 64 << 20
"""Number of bytes that a frame of a trainer may have."""
_MAX_REQUESTS = 64  # of trainers answered in one round: workers are heard in between


class TrainerKeys:
    """Keys of a row server: its own ``pair``, and those of the trainers that may fetch rows."""

    def __init__(self, pair: KeyPair) -> None:
        self.pair = pair
        self.allowed: frozenset[str] = frozenset()
        """Public keys of these trainers."""

    def role_of(self, key: str) -> str | None:
        """Return ``trainer`` for a key that may fetch rows, None for others."""
        return "trainer" if key in self.allowed else None

    def refresh(self) -> None:
        """Do nothing: the service says when there are others."""


class RowServer:
    """Rows of a host, which trainers with the ``keys`` fetch through ``hub``."""

    def __init__(self, hub: Hub, keys: TrainerKeys) -> None:
        self.hub = hub
        """Hub that trainers connect to."""
        self._keys = keys
        self._link = row_link(LinkRole.HOST)
        self._schema: Schema | None = None
        self._store: HeapStore | None = None
        self._dispatches: set[int] = set()  # whose rows stay
        self._attempts: dict[int, int] = {}  # attempts of these dispatches
        self._is_off = False

    def note_provider(self, schema: dict[str, Any]) -> None:
        """Note what a worker declares."""
        if self._schema is None:
            self._schema = Schema.from_wire(schema)
            self._store = HeapStore(self._schema.slots)

    @property
    def address(self) -> str:
        """Address at which trainers find it."""
        return advertised_address(self.hub.address, None)

    # -- what the service says -------------------------------------------------------------------------------------
    def begin_session(self) -> None:
        """Forget all rows: the service does not know them any more."""
        self._dispatches.clear()
        self._attempts.clear()
        self._keys.allowed = frozenset()
        self._is_off = False
        if self._store is not None:
            self._store.clear()

    def note_sent_to_worker(self, message: m.Message) -> None:
        """Note what the service tells a worker: of which attempts the rows stay."""
        match message:
            case m.BeginDispatch(dispatch_id, _, _, True) if not self._is_off:
                self._dispatches.add(dispatch_id)
            case m.Assign(dispatch_id, items) if dispatch_id in self._dispatches:
                for item in items:
                    if isinstance(item, list) and len(item) > 1 and type(item[1]) is int:
                        self._attempts[item[1]] = dispatch_id
            case m.EndDispatch(dispatch_id) if dispatch_id in self._dispatches:
                self._dispatches.discard(dispatch_id)
                self._attempts = {attempt: of for attempt, of in self._attempts.items() if of != dispatch_id}

    def handle(self, message: m.RowReaders | m.ReleaseRows | m.SendRows, body: Sequence[Any]) -> None:
        """Do what the service says. Raises RemoteProtocolError."""
        match message:
            case m.RowReaders(keys):
                self.allow(keys)
            case m.ReleaseRows():
                self.release(body)
            case m.SendRows():
                self.turn_off()

    def allow(self, keys: Collection[Any]) -> None:
        """Let the trainers with these public keys fetch rows, and no others."""
        self._keys.allowed = frozenset(key for key in keys if isinstance(key, str))

    def turn_off(self) -> None:
        """Keep no rows any more, beside those that are here."""
        self._is_off = True
        self._dispatches.clear()
        self._attempts.clear()

    def release(self, body: Sequence[Any]) -> None:
        """Give up the rows whose handles are in the one frame of ``body``. Raises RemoteProtocolError for rows that are
        not here."""
        if len(body) != 1 or memoryview(body[0]).nbytes % 8:
            raise RemoteProtocolError("ReleaseRows: one frame with handles is needed")
        ids = self._known(np.frombuffer(body[0], "<i8").astype(np.int64))
        if ids is None or self._store is None or len(np.unique(ids)) != len(ids):
            raise RemoteProtocolError("ReleaseRows: rows that are not here")
        self._store.release(ids)

    # -- what workers send -----------------------------------------------------------------------------------------
    def keep(self, frames: Sequence[memoryview]) -> list[Any] | None:
        """Keep the rows of a worker's message ``frames``, and return the message that the service gets in its place.
        None: it is to go as it is. Raises RemoteProtocolError."""
        if not self._dispatches or self._schema is None or self._store is None or len(frames) < 2:
            return None
        message, body = m.decode(frames)
        if not isinstance(message, m.Chunk) or not message.rows or message.naming_frames:
            return None
        if any(FileRange.from_wire(part).attempt not in self._attempts for part in message.parts):
            return None
        slots = self._schema.slots
        columns = Columns.from_frames(slots, message.rows, array_views(body[: frame_count(slots)]))
        sizes = np.ascontiguousarray(columns.sample_bytes(), np.int64)
        handles = self._store.handles(self._store.append(columns))
        return [m.encode(replace(message, naming_frames=2)), handles, sizes, *map(bytes, body[frame_count(slots) :])]

    @property
    def row_count(self) -> int:
        """Number of rows that are kept."""
        return 0 if self._store is None else len(self._store)

    # -- what trainers ask for -------------------------------------------------------------------------------------
    def serve(self, now: float) -> bool:
        """Answer trainers. Return True if there may be more to do at once."""
        self.hub.accept(now)
        for peer in self.hub.take_dropped():
            self.hub.end_peer(peer)
        for _ in range(_MAX_REQUESTS):
            received = self.hub.receive()
            if received is None:
                return False
            peer, frames = received
            try:
                self._answer(peer, frames)
            except ProtocolError:
                self.hub.note_refusal(peer, "broke the protocol", now)
                self.hub.end_peer(peer)
            except PeerGone:
                self.hub.forget_peer(peer)
        return True

    def _answer(self, peer: bytes, frames: list[memoryview]) -> None:
        message, body = m.decode(frames)
        self._link.check_received(message)
        assert isinstance(message, m.FetchRows)  # the link takes nothing else
        if len(body) != 1 or body[0].nbytes % 8:
            raise RemoteProtocolError("FetchRows: one frame with handles is needed")
        columns = self.take(np.frombuffer(body[0], "<i8").astype(np.int64))
        if columns is None:
            answer, found = m.FetchedRows(message.request_id, 0, True), []
        else:
            answer, found = m.FetchedRows(message.request_id, columns.rows, False), columns.frames()
        self._link.check_sending(answer)
        self.hub.send(peer, [m.encode(answer), *found])

    def take(self, handles: Ints) -> Columns | None:
        """Return the rows with these ``handles``, in that order; None: some are not here."""
        ids = self._known(handles)
        return None if ids is None or self._store is None else self._store.take(ids)

    def _known(self, handles: Ints) -> Ints | None:
        """Return the ids of the rows with these ``handles``; None: some are not here."""
        return None if self._store is None else self._store.known(handles)


def start_row_server(context: Any, address: str) -> RowServer:
    """Return a row server that is bound to ``address`` in the ZeroMQ ``context``. Raises OptionError,
    ServiceUnreachable."""
    keys = TrainerKeys(new_key_pair())
    return RowServer(Hub(context, address, MAX_REQUEST, access=keys), keys)

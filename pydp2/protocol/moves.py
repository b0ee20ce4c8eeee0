"""The legal moves: who may say what in which state of a link. Tables that code, docs and tests read.

A link has one state, kept by both ends. A message that the table does not list in the present state is refused: as a
LocalProtocolError when we were about to send it, as a RemoteProtocolError when it came in.
"""

from __future__ import annotations

from enum import Enum

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.messages import Message


class Role(Enum):
    """One end of a link."""

    SERVER = "server"
    WORKER = "worker"
    CLIENT = "client"


class State(Enum):
    """Where a link stands."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    GREETED = "greeted"
    IDLE = "idle"
    IN_PASS = "in pass"
    CLOSED = "closed"


S, W, C = Role.SERVER, Role.WORKER, Role.CLIENT
Table = dict[tuple[State, Role, type[Message]], State]

WORKER_LINK: Table = {
    (State.NEW, W, m.Hello): State.STARTING,
    (State.STARTING, W, m.Declared): State.READY,
    (State.STARTING, W, m.Broken): State.CLOSED,
    (State.READY, W, m.Chunk): State.READY,
    (State.READY, W, m.Broken): State.CLOSED,
    (State.READY, S, m.BeginReading): State.READY,
    (State.READY, S, m.Assign): State.READY,
    (State.READY, S, m.Grant): State.READY,
    (State.READY, S, m.Want): State.READY,
    (State.READY, S, m.Places): State.READY,
    (State.READY, S, m.EndReading): State.READY,
    (State.STARTING, S, m.Quit): State.CLOSED,
    (State.READY, S, m.Quit): State.CLOSED,
    # What was under way when the server said Quit
    (State.CLOSED, W, m.Chunk): State.CLOSED,
    (State.CLOSED, W, m.Declared): State.CLOSED,
    (State.CLOSED, W, m.Broken): State.CLOSED,
}

CLIENT_LINK: Table = {
    (State.NEW, C, m.AskStats): State.NEW,
    (State.NEW, S, m.Stats): State.NEW,
    (State.NEW, S, m.Closing): State.CLOSED,
    (State.NEW, C, m.Attach): State.GREETED,
    (State.GREETED, S, m.Welcome): State.IDLE,
    (State.GREETED, S, m.Refused): State.NEW,
    (State.GREETED, S, m.Closing): State.CLOSED,
    (State.IDLE, C, m.BeginPass): State.IN_PASS,
    (State.IN_PASS, C, m.BeginPass): State.IN_PASS,
    (State.IN_PASS, C, m.Need): State.IN_PASS,
    (State.IN_PASS, C, m.LeavePass): State.IDLE,
    (State.IN_PASS, S, m.BatchHead): State.IN_PASS,
    (State.IN_PASS, S, m.PassEnd): State.IDLE,
    (State.IN_PASS, S, m.Failed): State.IDLE,
    # Need and LeavePass may cross the end of the pass, batches may cross LeavePass
    (State.IDLE, C, m.Need): State.IDLE,
    (State.IDLE, C, m.LeavePass): State.IDLE,
    (State.IDLE, S, m.BatchHead): State.IDLE,
    (State.IDLE, S, m.PassEnd): State.IDLE,
    (State.IDLE, S, m.Failed): State.IDLE,
    **{(s, C, m.AskStats): s for s in (State.IDLE, State.IN_PASS)},
    **{(s, S, m.Stats): s for s in (State.GREETED, State.IDLE, State.IN_PASS)},
    **{(s, S, m.Probe): s for s in (State.IDLE, State.IN_PASS, State.GREETED)},
    **{(s, C, m.Detach): State.NEW for s in (State.GREETED, State.IDLE, State.IN_PASS)},
    **{(s, S, m.Closing): State.CLOSED for s in (State.IDLE, State.IN_PASS)},
    # What was under way when the client left
    **{(State.NEW, S, k): State.NEW for k in (m.BatchHead, m.PassEnd, m.Failed, m.Probe, m.Welcome)},
}


class Link:
    """One end's view of a link: checks every message against the table."""

    def __init__(self, table: Table, me: Role, other: Role) -> None:
        self._table, self._me, self._other = table, me, other
        self.state = State.NEW

    def sending(self, message: Message) -> None:
        """``message`` is about to be sent."""
        self._move(self._me, message)

    def received(self, message: Message) -> None:
        """``message`` came in."""
        self._move(self._other, message)

    def stale(self) -> None:
        """A message that closed a pass turned out to belong to one that we had left: the present pass goes on."""
        self.state = State.IN_PASS

    def _move(self, sender: Role, message: Message) -> None:
        after = self._table.get((self.state, sender, type(message)))
        if after is None:
            text = f"a {sender.value} may not send {type(message).__name__} in state '{self.state.value}'"
            raise LocalProtocolError(text) if sender is self._me else RemoteProtocolError(text)
        self.state = after


def worker_link(me: Role) -> Link:
    """A link between a worker and the server, seen from ``me``."""
    return Link(WORKER_LINK, me, W if me is S else S)


def client_link(me: Role) -> Link:
    """A link between a client and the server, seen from ``me``."""
    return Link(CLIENT_LINK, me, C if me is S else S)

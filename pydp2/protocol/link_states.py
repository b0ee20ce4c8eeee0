"""Define which end of a link may send which messages in which state, in tables that code, docs and tests read.

A link has one state, which both ends keep. A message that the table does not list in the present state is refused: with
a LocalProtocolError before it is sent, with a RemoteProtocolError when it is received.
"""

from __future__ import annotations

from enum import Enum

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.messages import Message


class LinkRole(Enum):
    """End of a link."""

    SERVER = "server"
    WORKER = "worker"
    CLIENT = "client"
    HOST = "host"


class LinkState(Enum):
    """State of a link."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    GREETED = "greeted"
    ASKED = "asked"
    IDLE = "idle"
    IN_PASS = "in pass"
    JOINED = "joined"
    PREPARED = "prepared"
    DRAINING = "draining"
    CARRIES_DATA = "carries data"
    CLOSED = "closed"


S, W, C, H = LinkRole.SERVER, LinkRole.WORKER, LinkRole.CLIENT, LinkRole.HOST
TransitionTable = dict[tuple[LinkState, LinkRole, type[Message]], LinkState]

WORKER_LINK: TransitionTable = {
    (LinkState.NEW, W, m.Hello): LinkState.STARTING,
    (LinkState.STARTING, W, m.Declared): LinkState.READY,
    (LinkState.STARTING, W, m.Broken): LinkState.CLOSED,
    (LinkState.READY, W, m.Chunk): LinkState.READY,
    (LinkState.READY, W, m.Broken): LinkState.CLOSED,
    (LinkState.READY, S, m.BeginDispatch): LinkState.READY,
    (LinkState.READY, S, m.Assign): LinkState.READY,
    (LinkState.READY, S, m.Grant): LinkState.READY,
    (LinkState.READY, S, m.Want): LinkState.READY,
    (LinkState.READY, S, m.GrantCells): LinkState.READY,
    (LinkState.READY, S, m.EndDispatch): LinkState.READY,
    (LinkState.READY, S, m.Retire): LinkState.READY,
    (LinkState.READY, S, m.StealFile): LinkState.READY,
    (LinkState.READY, S, m.RecordSpans): LinkState.READY,
    (LinkState.READY, W, m.RecordedSpans): LinkState.READY,
    (LinkState.READY, W, m.ReturnFiles): LinkState.READY,
    (LinkState.STARTING, S, m.Quit): LinkState.CLOSED,
    (LinkState.READY, S, m.Quit): LinkState.CLOSED,
    # Messages that were under way when the server said Quit
    (LinkState.CLOSED, W, m.Chunk): LinkState.CLOSED,
    (LinkState.CLOSED, W, m.ReturnFiles): LinkState.CLOSED,
    (LinkState.CLOSED, W, m.RecordedSpans): LinkState.CLOSED,
    (LinkState.CLOSED, W, m.Declared): LinkState.CLOSED,
    (LinkState.CLOSED, W, m.Broken): LinkState.CLOSED,
}

CLIENT_LINK: TransitionTable = {
    (LinkState.NEW, C, m.AskStats): LinkState.NEW,
    (LinkState.NEW, S, m.Stats): LinkState.NEW,
    (LinkState.NEW, C, m.AskFiles): LinkState.NEW,
    (LinkState.NEW, S, m.Files): LinkState.NEW,
    (LinkState.NEW, C, m.AskSamples): LinkState.NEW,
    (LinkState.NEW, S, m.Samples): LinkState.NEW,
    (LinkState.NEW, C, m.SetWeights): LinkState.NEW,
    (LinkState.NEW, S, m.WeightsSet): LinkState.NEW,
    (LinkState.NEW, S, m.Refused): LinkState.NEW,
    (LinkState.NEW, S, m.Closing): LinkState.CLOSED,
    (LinkState.NEW, C, m.AskTrace): LinkState.ASKED,
    (LinkState.ASKED, S, m.Probe): LinkState.ASKED,
    (LinkState.ASKED, S, m.Trace): LinkState.NEW,
    (LinkState.ASKED, S, m.Refused): LinkState.NEW,
    (LinkState.ASKED, S, m.Closing): LinkState.CLOSED,
    (LinkState.NEW, C, m.Attach): LinkState.GREETED,
    (LinkState.GREETED, S, m.Welcome): LinkState.IDLE,
    (LinkState.GREETED, S, m.Refused): LinkState.NEW,
    (LinkState.GREETED, S, m.Closing): LinkState.CLOSED,
    (LinkState.IDLE, C, m.BeginPass): LinkState.IN_PASS,
    (LinkState.IN_PASS, C, m.BeginPass): LinkState.IN_PASS,
    (LinkState.IN_PASS, C, m.Need): LinkState.IN_PASS,
    (LinkState.IN_PASS, C, m.LeavePass): LinkState.IDLE,
    (LinkState.IN_PASS, S, m.BatchHead): LinkState.IN_PASS,
    (LinkState.IN_PASS, S, m.BeginAgain): LinkState.IN_PASS,
    (LinkState.IN_PASS, S, m.PassEnd): LinkState.IDLE,
    (LinkState.IN_PASS, S, m.Failed): LinkState.IDLE,
    # Need and LeavePass may cross the end of the pass, batches may cross LeavePass
    (LinkState.IDLE, C, m.Need): LinkState.IDLE,
    (LinkState.IDLE, C, m.LeavePass): LinkState.IDLE,
    (LinkState.IDLE, S, m.BatchHead): LinkState.IDLE,
    (LinkState.IDLE, S, m.BeginAgain): LinkState.IDLE,
    (LinkState.IDLE, S, m.PassEnd): LinkState.IDLE,
    (LinkState.IDLE, S, m.Failed): LinkState.IDLE,
    **{(s, C, k): s for s in (LinkState.IDLE, LinkState.IN_PASS) for k in (m.AskStats, m.AskFiles, m.RowsUnreachable)},
    **{(s, C, m.RecordedSpans): s for s in (LinkState.IDLE, LinkState.IN_PASS)},
    **{(s, S, m.RecordSpans): s for s in (LinkState.GREETED, LinkState.IDLE, LinkState.IN_PASS)},
    **{(s, S, k): s for s in (LinkState.GREETED, LinkState.IDLE, LinkState.IN_PASS) for k in (m.Stats, m.Files)},
    **{(s, S, m.Probe): s for s in (LinkState.IDLE, LinkState.IN_PASS, LinkState.GREETED)},
    **{(s, C, m.Detach): LinkState.NEW for s in (LinkState.GREETED, LinkState.IDLE, LinkState.IN_PASS)},
    **{(s, S, m.Closing): LinkState.CLOSED for s in (LinkState.IDLE, LinkState.IN_PASS)},
    # Messages that were under way when the client left
    **{
        (LinkState.NEW, S, k): LinkState.NEW
        for k in (m.BatchHead, m.PassEnd, m.Failed, m.Probe, m.Welcome, m.RecordSpans)
    },
    (LinkState.NEW, S, m.BeginAgain): LinkState.NEW,
}

# A row server identifies its clients by their keys, so no message begins or ends a link.
ROW_LINK: TransitionTable = {
    (LinkState.NEW, C, m.FetchRows): LinkState.NEW,
    (LinkState.NEW, H, m.FetchedRows): LinkState.NEW,
}

_AT_WORK = (LinkState.PREPARED, LinkState.DRAINING)

HOST_LINK: TransitionTable = {
    (LinkState.NEW, H, m.AskSpec): LinkState.NEW,
    (LinkState.NEW, S, m.Spec): LinkState.NEW,
    **{(s, S, m.Refused): LinkState.CLOSED for s in (LinkState.NEW, LinkState.JOINED, *_AT_WORK)},
    (LinkState.NEW, H, m.Join): LinkState.JOINED,
    (LinkState.JOINED, S, m.Spec): LinkState.JOINED,
    (LinkState.JOINED, S, m.DataOpened): LinkState.JOINED,
    (LinkState.JOINED, H, m.Prepared): LinkState.PREPARED,
    **{(s, S, k): s for s in _AT_WORK for k in (m.StartWorker, m.KillWorker, m.ToWorker)},
    **{(s, S, k): s for s in _AT_WORK for k in (m.RowReaders, m.ReleaseRows, m.SendRows)},
    **{(s, H, m.HostBeat): s for s in (LinkState.JOINED, *_AT_WORK)},
    **{(s, S, m.HostReceived): s for s in (LinkState.JOINED, *_AT_WORK)},
    (LinkState.PREPARED, H, m.Drain): LinkState.DRAINING,
    **{(s, S, m.Closing): LinkState.CLOSED for s in (LinkState.NEW, LinkState.JOINED, *_AT_WORK)},
    # The other connections of a host
    (LinkState.NEW, H, m.OpenData): LinkState.CARRIES_DATA,
    **{(LinkState.CARRIES_DATA, H, k): LinkState.CARRIES_DATA for k in (m.WorkerStarted, m.FromWorker, m.WorkerExited)},
    # Messages that were under way when the server ended the session
    **{(LinkState.CLOSED, H, k): LinkState.CLOSED for k in (m.HostBeat, m.Prepared, m.Drain)},
}


class Link:
    """State of a link at one end, which checks every message against the table."""

    def __init__(self, table: TransitionTable, own_role: LinkRole, peer_role: LinkRole) -> None:
        self._table, self._own_role, self._peer_role = table, own_role, peer_role
        self.state = LinkState.NEW

    def check_sending(self, message: Message) -> None:
        """Check that ``message`` may be sent now, and move to the next state."""
        after = self._table.get((self.state, self._own_role, type(message)))
        if after is None:
            raise LocalProtocolError(self._refusal(self._own_role, message))
        self.state = after

    def check_received(self, message: Message) -> None:
        """Check that ``message`` may come in now, and move to the next state."""
        after = self._table.get((self.state, self._peer_role, type(message)))
        if after is None:
            raise RemoteProtocolError(self._refusal(self._peer_role, message))
        self.state = after

    def stay_in_pass(self) -> None:
        """Stay in the present pass, because the message that ended a pass belonged to an earlier one."""
        self.state = LinkState.IN_PASS

    def _refusal(self, sender: LinkRole, message: Message) -> str:
        return f"a {sender.value} may not send {type(message).__name__} in state '{self.state.value}'"


def worker_link(own_role: LinkRole) -> Link:
    """Return a link between a worker and the server, seen from ``own_role``."""
    return Link(WORKER_LINK, own_role, W if own_role is S else S)


def client_link(own_role: LinkRole) -> Link:
    """Return a link between a client and the server, seen from ``own_role``."""
    return Link(CLIENT_LINK, own_role, C if own_role is S else S)


def host_link(own_role: LinkRole) -> Link:
    """Return a link between a host and the server, for any of its connections, seen from ``own_role``."""
    return Link(HOST_LINK, own_role, H if own_role is S else S)


def row_link(own_role: LinkRole) -> Link:
    """Return a link between a client and the row server of a host, seen from ``own_role``."""
    return Link(ROW_LINK, own_role, H if own_role is C else C)

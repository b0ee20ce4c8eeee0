"""The tables of legal moves: complete, and the same for both ends, whatever crosses on the way."""

from __future__ import annotations

import random
from collections import deque

import pytest

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import (
    CLIENT_LINK,
    HOST_LINK,
    ROW_LINK,
    WORKER_LINK,
    Link,
    LinkRole,
    LinkState,
    TransitionTable,
    client_link,
    host_link,
    row_link,
    worker_link,
)
from tests.protocol.conftest import EXAMPLES
from tests.seeds import each_seed

EXAMPLE = {type(example): example for example in EXAMPLES}
TABLES = {
    "worker": (WORKER_LINK, LinkRole.WORKER),
    "client": (CLIENT_LINK, LinkRole.CLIENT),
    "host": (HOST_LINK, LinkRole.HOST),
}
both_tables = pytest.mark.parametrize("name", TABLES)


def ends(name: str) -> tuple[Link, Link]:
    """The server's end of a link, and the other one."""
    if name == "worker":
        return worker_link(LinkRole.SERVER), worker_link(LinkRole.WORKER)
    if name == "host":
        return host_link(LinkRole.SERVER), host_link(LinkRole.HOST)
    return client_link(LinkRole.SERVER), client_link(LinkRole.CLIENT)


def moves_of(table: TransitionTable, state: LinkState, role: LinkRole) -> list[type[m.Message]]:
    return [kind for (at, who, kind) in table if at is state and who is role]


def test_every_message_is_said_by_somebody_and_on_one_link_only() -> None:
    """Clients and hosts are refused, and told of the end, in the same words; workers and clients record in the same."""
    said = {name: {kind for _, _, kind in table} for name, (table, _) in TABLES.items()}
    fetched = {kind for _, _, kind in ROW_LINK}
    assert said["worker"] | said["client"] | said["host"] | fetched == set(m.MESSAGES.values())
    assert fetched & (said["worker"] | said["client"] | said["host"]) == set()
    assert said["worker"] & said["client"] == {m.RecordSpans, m.RecordedSpans}
    assert said["worker"] & said["host"] == set()
    assert said["client"] & said["host"] == {m.Refused, m.Closing}


def test_every_message_is_said_by_one_side_only() -> None:
    for table, _ in TABLES.values():
        for kind in {kind for _, _, kind in table}:
            assert len({who for _, who, said in table if said is kind}) == 1


@both_tables
def test_only_the_two_ends_of_a_link_speak_on_it(name: str) -> None:
    table, other = TABLES[name]
    assert {who for _, who, _ in table} == {LinkRole.SERVER, other}


@both_tables
def test_every_state_of_a_link_can_be_reached_and_left_unless_it_is_the_last(name: str) -> None:
    table, _ = TABLES[name]
    reached, todo = set[LinkState](), [LinkState.NEW]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [after for (before, _, _), after in table.items() if before is state]
    named = {state for before, _, _ in table for state in (before,)} | set(table.values())
    assert reached == named
    for state in named - {LinkState.CLOSED, LinkState.CARRIES_DATA}:  # the data of a host ends without a message
        assert any(before is state and after is not state for (before, _, _), after in table.items())
    assert all(after is LinkState.CLOSED for (before, _, _), after in table.items() if before is LinkState.CLOSED)


def test_every_state_belongs_to_a_link() -> None:
    named = {state for table, _ in TABLES.values() for state in ({at for at, _, _ in table} | set(table.values()))}
    assert named == set(LinkState)


@both_tables
def test_whatever_the_table_lists_is_taken_and_everything_else_is_refused(name: str) -> None:
    table, other = TABLES[name]
    for state in LinkState:
        for sender in (LinkRole.SERVER, other):
            for kind, message in EXAMPLE.items():
                after = table.get((state, sender, kind))
                server, peer = ends(name)
                for link, mine in ((server, sender is LinkRole.SERVER), (peer, sender is other)):
                    link.state = state
                    say = link.check_sending if mine else link.check_received
                    if after is not None:
                        say(message)
                        assert link.state is after
                        continue
                    error = LocalProtocolError if mine else RemoteProtocolError
                    with pytest.raises(error) as caught:
                        say(message)
                    assert str(caught.value) == (
                        f"a {sender.value} may not send {kind.__name__} in state '{state.value}'"
                    )
                    assert link.state is state


@both_tables
@each_seed(200)
def test_both_ends_agree_when_each_message_arrives_before_the_next_is_sent(name: str, seed: int) -> None:
    choose = random.Random(seed)
    table, other = TABLES[name]
    server, peer = ends(name)
    for _ in range(60):
        options = [(who, kind) for who in (LinkRole.SERVER, other) for kind in moves_of(table, server.state, who)]
        if not options:
            break
        who, kind = choose.choice(options)
        sender, receiver = (server, peer) if who is LinkRole.SERVER else (peer, server)
        sender.check_sending(EXAMPLE[kind])
        receiver.check_received(EXAMPLE[kind])
        assert server.state is peer.state


class Trainer:
    """Sends what a client may send in the state in which *it* thinks the link is, as ``pydp2.client`` does."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.passes = 0

    @property
    def listens(self) -> bool:
        """Between passes it does not; then what is under way waits for the next one."""
        return self.link.state is not LinkState.IDLE

    def options(self) -> list[m.Message]:
        match self.link.state:
            case LinkState.NEW:
                return [m.Attach(m.WIRE_VERSION, "default", 0, 1, "", {}, 1), m.AskStats(), m.AskFiles()]
            case LinkState.IDLE | LinkState.IN_PASS:
                begin = m.BeginPass(self.passes, 0, 0, 2, {}, 0, [], "")
                going: list[m.Message] = (
                    [m.LeavePass(self.passes - 1, 0), m.Need(self.passes - 1, 1, 0, 0, 0)] if self.passes else []
                )
                going.append(m.RecordedSpans(0, 0, True))
                return [begin, m.AskStats(), m.AskFiles(), m.RowsUnreachable([]), m.Detach(self.passes, 0), *going]
        return []

    def heard(self, message: m.Message) -> None:
        self.link.check_received(message)
        if isinstance(message, m.PassEnd | m.Failed) and message.request_id != self.passes - 1:
            self.link.stay_in_pass()


class Served:
    """Sends what a server may send for what it has heard; a pass that was left or ended is not spoken of again."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.running: int | None = None
        self.answers: deque[m.Message] = deque()

    def options(self) -> list[m.Message]:
        out: list[m.Message] = list(self.answers)[:1]
        if self.running is not None:
            out += [
                m.BatchHead(self.running, 0, 1, 1, 1, 0, 0, 1, [], {}, 0),
                m.PassEnd(self.running, 1, 1, 0, True),
                m.Failed(self.running, {}),
            ]
        if self.link.state in (LinkState.IDLE, LinkState.IN_PASS, LinkState.GREETED):
            out += [m.Probe(), m.RecordSpans(True)]
        return out

    def said(self, message: m.Message) -> None:
        if self.answers and message is self.answers[0]:
            self.answers.popleft()
        if isinstance(message, m.PassEnd | m.Failed):
            self.running = None

    def heard(self, message: m.Message) -> None:
        self.link.check_received(message)
        match message:
            case m.Attach():
                self.answers.append(m.Welcome({}, {}))
            case m.AskStats():
                self.answers.append(m.Stats())
            case m.AskFiles():
                self.answers.append(m.Files())
            case m.BeginPass(run):
                self.running = run
            case m.LeavePass(run) if run == self.running:
                self.running = None
            case m.Detach():
                self.running = None
                self.answers.clear()


@each_seed(300)
def test_trainer_and_server_understand_each_other_however_their_messages_cross(seed: int) -> None:
    choose = random.Random(seed)
    served, trainer = Served(client_link(LinkRole.SERVER)), Trainer(client_link(LinkRole.CLIENT))
    to_server, to_trainer = deque[m.Message](), deque[m.Message]()
    for _ in range(200):
        step = choose.random()
        if step < 0.3 and to_server:
            served.heard(to_server.popleft())
        elif step < 0.6 and to_trainer and trainer.listens:
            trainer.heard(to_trainer.popleft())
        elif step < 0.8 and (said := trainer.options()):
            message = choose.choice(said)
            if isinstance(message, m.Detach) and choose.random() < 0.8:
                continue
            trainer.link.check_sending(message)
            trainer.passes += isinstance(message, m.BeginPass)
            to_server.append(message)
            if isinstance(message, m.Detach):  # a client closes its connection then: what is under way is lost
                to_trainer.clear()
                while to_server:
                    served.heard(to_server.popleft())
                assert served.link.state is LinkState.NEW
                trainer, to_trainer = Trainer(client_link(LinkRole.CLIENT)), deque()
                served = Served(client_link(LinkRole.SERVER))
        elif said := served.options():
            message = choose.choice(said)
            served.link.check_sending(message)
            served.said(message)
            to_trainer.append(message)
    while to_server:
        served.heard(to_server.popleft())
    while to_trainer and trainer.listens:
        trainer.heard(to_trainer.popleft())
    assert served.link.state is trainer.link.state or to_trainer


@each_seed(200)
def test_worker_and_server_understand_each_other_however_their_messages_cross(seed: int) -> None:
    """What a worker had under way when the server said Quit is taken; nothing of the server's comes after Quit."""
    choose = random.Random(seed)
    server, worker = ends("worker")
    queues: dict[LinkRole, deque[m.Message]] = {LinkRole.SERVER: deque(), LinkRole.WORKER: deque()}
    said_quit = False
    for _ in range(80):
        who = choose.choice([LinkRole.SERVER, LinkRole.WORKER])
        sender, receiver = (server, worker) if who is LinkRole.SERVER else (worker, server)
        if queues[who] and choose.random() < 0.5:
            receiver.check_received(queues[who].popleft())
            continue
        kinds = moves_of(WORKER_LINK, sender.state, who)
        if who is LinkRole.SERVER and (said_quit or choose.random() < 0.9):
            kinds = [kind for kind in kinds if kind is not m.Quit]
        if who is LinkRole.WORKER and sender.state is LinkState.CLOSED:
            kinds = []  # it ends after Quit
        if kinds:
            kind = choose.choice(kinds)
            said_quit = said_quit or kind is m.Quit
            sender.check_sending(EXAMPLE[kind])
            queues[who].append(EXAMPLE[kind])
            if kind is m.Broken:
                break
    for message in queues[LinkRole.WORKER]:
        server.check_received(message)
    assert server.state in (LinkState.NEW, LinkState.STARTING, LinkState.READY, LinkState.CLOSED)


def test_a_client_asks_a_row_server_and_that_answers() -> None:
    client, host = row_link(LinkRole.CLIENT), row_link(LinkRole.HOST)
    for _ in range(2):
        client.check_sending(m.FetchRows(1))
        host.check_received(m.FetchRows(1))
        host.check_sending(m.FetchedRows(1, 0, True))
        client.check_received(m.FetchedRows(1, 0, True))
    with pytest.raises(LocalProtocolError, match="a client may not send FetchedRows"):
        client.check_sending(m.FetchedRows(1, 0, True))
    with pytest.raises(RemoteProtocolError, match="a client may not send Need"):
        host.check_received(m.Need(1, 1, 0, 0, 0))

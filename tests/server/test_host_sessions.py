"""Which hosts may run workers of a service, and what becomes of a session."""

from __future__ import annotations

import pytest

from pydp2.errors import HostRefused, RemoteProtocolError
from pydp2.host.worker_activity import WorkerActivity, WorkerSeconds
from pydp2.protocol import messages as m
from pydp2.server.hosts.host_sessions import (
    MAX_DATA_CONNECTIONS,
    HostSession,
    HostSessions,
    check_state_directory,
)


@pytest.fixture
def sessions() -> HostSessions:
    return HostSessions(2, "1.0")


def join(sessions: HostSessions, session: str = "s", name: str = "node", worker_slots: int = 2) -> HostSession:
    return sessions.join(session.encode(), name, worker_slots, session, 0.0)


def test_hosts_are_numbered_from_one_and_never_twice(sessions: HostSessions) -> None:
    assert [join(sessions, s).host for s in "ab"] == [1, 2]
    sessions.end(1)
    assert join(sessions, "c").host == 3
    assert [each.host for each in sessions] == [2, 3]


def test_hosts_of_one_name_are_told_apart(sessions: HostSessions) -> None:
    assert [join(sessions, s).name for s in "abc"] == ["node", "node#2", "node#3"]
    sessions.end(2)
    assert join(sessions, "d").name == "node#2"


@pytest.mark.parametrize(("version", "release"), [(1, "1.0"), (2, "1.1"), (3, "2.0")], ids=["wire", "release", "both"])
def test_a_host_of_another_release_is_told_what_to_install(sessions: HostSessions, version: int, release: str) -> None:
    sessions.check_version(2, "1.0")
    with pytest.raises(HostRefused, match=rf"needs the pydp2 of its service, which is 1\.0 .* it has {release}"):
        sessions.check_version(version, release)


@pytest.mark.parametrize("worker_slots", [0, 1025])
def test_a_host_with_no_or_too_many_workers_is_refused(sessions: HostSessions, worker_slots: int) -> None:
    with pytest.raises(HostRefused, match="must have 1 to 1024 workers"):
        join(sessions, worker_slots=worker_slots)


def test_a_session_is_of_one_host_alone(sessions: HostSessions) -> None:
    join(sessions, "a")
    for session in ("a", ""):
        with pytest.raises(HostRefused, match="must be its own"):
            join(sessions, session)


def test_data_belongs_to_the_session_that_it_names(sessions: HostSessions) -> None:
    session = join(sessions, "a")
    session.link.check_received(m.Join(2, "1.0", "node", 2, "a", "", {}))
    assert sessions.open_data(b"data", "b", 1.0) is None
    assert sessions.open_data(b"data", "a", 1.0) is sessions.open_data(b"more", "a", 1.0) is session
    assert sessions.at(b"data") is sessions.at(b"more") is sessions.at(b"a") is session
    assert sessions.end(session.host) is session
    assert sessions.at(b"data") is sessions.at(b"more") is sessions.at(b"a") is None
    assert sessions.end(session.host) is None


def test_a_session_has_so_many_connections_for_data_and_none_once_it_is_prepared(sessions: HostSessions) -> None:
    full, begun = join(sessions, "a"), join(sessions, "b")
    for session in (full, begun):
        session.link.check_received(m.Join(2, "1.0", "node", 2, session.session, "", {}))
    for number in range(MAX_DATA_CONNECTIONS):
        assert sessions.open_data(b"data %d" % number, "a", 1.0) is full
    assert sessions.open_data(b"one more", "a", 1.0) is None
    begun.link.check_received(m.Prepared([]))
    assert sessions.open_data(b"late", "b", 1.0) is None
    assert sessions.at(b"one more") is sessions.at(b"late") is None


def test_a_host_is_silent_until_it_is_heard_again(sessions: HostSessions) -> None:
    session = join(sessions, "a")
    assert sessions.silent(10.0, 10.0) == []
    assert sessions.silent(10.5, 10.0) == [session]
    session.note_beat(10.5, m.HostBeat(7, [[3, 1, 2, 4]], {"memory": 5}, []))
    assert sessions.silent(20.0, 10.0) == []
    assert (session.beat_ns, session.running, session.figures) == (7, {3: (1, 2, 4)}, {"memory": 5})


def test_beats_tell_what_the_workers_of_a_host_do(sessions: HostSessions) -> None:
    session = join(sessions, "a")
    activity = session.activities[3] = WorkerActivity()
    activity.begin(9.0)
    session.note_beat(10.0, m.HostBeat(7, [[3, 1, 2, 4]], {}, [[3, 600_000]]))
    assert session.since == {3: 9.4}
    assert activity.seconds == pytest.approx(WorkerSeconds(busy=1.0, generator=0.6))
    session.note_beat(11.0, m.HostBeat(8, [[3, 1, 2, 4]], {}, [[3, 1_600_000]]))
    assert activity.seconds == pytest.approx(WorkerSeconds(busy=2.0, generator=1.6))
    session.note_beat(12.0, m.HostBeat(9, [], {}, [[3, 250_000], [4, 1]]))
    assert activity.seconds == pytest.approx(WorkerSeconds(busy=2.75, idle=0.25, generator=1.6))
    assert session.running == {}


@pytest.mark.parametrize("since", [[[1]], [[1, -2]], [[1, 2.5]], [3]])
def test_times_of_a_beat_that_are_none_are_refused(sessions: HostSessions, since: list[object]) -> None:
    with pytest.raises(RemoteProtocolError, match="HostBeat"):
        join(sessions, "a").note_beat(11.0, m.HostBeat(8, [], {}, since))


@pytest.mark.parametrize("running", [[[1, 2, 3]], [[1, 2, 3, -1]], [[1, 2, 3, "4"]], [5]])
def test_a_beat_that_is_none_is_refused_and_changes_nothing(sessions: HostSessions, running: list[object]) -> None:
    session = join(sessions, "a")
    with pytest.raises(RemoteProtocolError, match="HostBeat"):
        session.note_beat(1.0, m.HostBeat(7, running, {}, []))
    assert (session.heard_at, session.beat_ns, session.running) == (0.0, 0, {})


def test_a_host_is_told_how_much_came_once_it_is_much(sessions: HostSessions) -> None:
    session = join(sessions, "a")
    session.received = (1 << 20) - 1
    assert not session.owes_report
    session.received += 1
    assert session.owes_report
    session.reported = session.received
    assert not session.owes_report


def test_a_host_that_lacks_a_file_of_another_is_told_which(sessions: HostSessions) -> None:
    name = "file-{}".format
    a, b, c, d = (join(sessions, each) for each in "abcd")
    sessions.note_opened(b, [1, 1, 1], name)
    sessions.note_opened(a, [1, 1, 1], name)
    for opened, lacks in (([0, 1, 1], "file-0"), ([1, 0, 1], "file-1")):
        with pytest.raises(HostRefused, match=f"{lacks} is not there on {c.name}, but it is on {b.name}; mount it"):
            sessions.note_opened(c, opened, name)
    sessions.note_opened(d, [1, 1, 1], name)


def test_a_host_that_has_a_file_which_one_at_work_lacks_is_told_which(sessions: HostSessions) -> None:
    a, b, c = (join(sessions, each) for each in "abc")
    sessions.note_opened(a, [0, 0, 0], str)
    with pytest.raises(HostRefused, match=f"file-1 is there on {b.name}, but not on {a.name}, which joined before"):
        sessions.note_opened(b, [0, 1, 0], "file-{}".format)
    sessions.note_opened(c, [0, 0, 0], str)
    sessions.end(a.host)
    with pytest.raises(HostRefused, match=f"but not on {c.name}"):
        sessions.note_opened(b, [0, 1, 0], str)
    sessions.end(c.host)
    sessions.note_opened(b, [0, 1, 0], str)


def test_the_files_of_the_service_itself_count(sessions: HostSessions) -> None:
    sessions.note_opened(None, [1, 0], str)
    with pytest.raises(HostRefused, match="0 is not there on node, but it is on the host of the service"):
        sessions.note_opened(join(sessions, "a"), [0, 0], str)


def test_entries_that_are_no_files_anywhere_do_not_matter(sessions: HostSessions) -> None:
    for host in "abc":
        sessions.note_opened(join(sessions, host), [0, 0], str)


def test_code_that_differs_is_named(sessions: HostSessions) -> None:
    sessions.check_source("head", "11", {"a.py": "1", "b.py": "2"})
    sessions.check_source("same", "11", {"a.py": "1", "b.py": "2"})
    sessions.check_source("imports less", "11", {"a.py": "1"})
    with pytest.raises(HostRefused, match=r"b\.py is another one on node; copy the same files there"):
        sessions.check_source("node", "11", {"a.py": "1", "b.py": "3"})
    with pytest.raises(HostRefused, match="it is another one on node"):
        sessions.check_source("node", "12", {})
    with pytest.raises(HostRefused, match="it is another one on node"):
        HostSessionsWithMany().check_source("node", "11", {"*": "2"})


def test_the_first_host_of_a_service_that_goes_on_needs_the_provider_of_its_state_directory() -> None:
    check_state_directory("a", [])
    with pytest.raises(HostRefused, match="was written, and it is another one on b: pool_size was 8, is 9; slots was"):
        check_state_directory("b", ["pool_size was 8, is 9", "slots was 1, is 2"])


class HostSessionsWithMany(HostSessions):
    """Sessions whose provider has too many modules to name each."""

    def __init__(self) -> None:
        super().__init__(2, "1.0")
        self.check_source("head", "11", {"*": "1"})


def test_the_hosts_of_a_service_have_a_limited_number_of_workers_together(sessions: HostSessions) -> None:
    for session in "abcd":
        join(sessions, session, worker_slots=1024)
    with pytest.raises(HostRefused, match="may have 4096 workers together, with this one they would have 4097"):
        join(sessions, "e", worker_slots=1)
    sessions.end(1)
    join(sessions, "e", worker_slots=1)


def test_a_name_is_shown_as_a_terminal_can_show_it(sessions: HostSessions) -> None:
    assert join(sessions, name="\x1b[2Jnode\n7\u202e").name == "?[2Jnode?7?"
    assert len(join(sessions, "b", name="x" * 60_000).name) == 100


def test_of_the_figures_of_a_host_only_known_numbers_are_kept(sessions: HostSessions) -> None:
    session = join(sessions)
    figures = {"pid": 7, "memory": "x" * 60_000, "round_trip_ms": 0.5, "window_bytes": [[[]]], "other": 1}
    session.note_beat(1.0, m.HostBeat(5, [], figures, []))
    assert session.figures == {"pid": 7, "round_trip_ms": 0.5}

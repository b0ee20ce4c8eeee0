"""Keep the sessions of the hosts that run workers of a service, and decide which host may have one. Pure: time is an
argument.

A host has a session from the moment it joins until it is lost, leaves or is turned away; when it comes back it gets a
new one. Nothing of an old session counts any more (docs/hosts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydp2.errors import HostRefused
from pydp2.host.worker_activity import WorkerActivity
from pydp2.protocol.file_ranges import check_ints
from pydp2.protocol.link_states import Link, LinkRole, LinkState, host_link
from pydp2.protocol.messages import HostBeat
from pydp2.system.rates import RateCounter

MAX_WORKER_SLOTS = 1024
"""Number of workers that one host may run."""
MAX_DATA_CONNECTIONS = 8
"""Number of data connections that a host may have."""
MAX_BEATS = 4
"""Number of beats that are answered within one interval; more than that come after a delay, or from a host that does
not keep to the interval."""
_MAX_HOSTS = 1024
_MAX_ALL_WORKER_SLOTS = 4096  # workers of all hosts: even an idle one takes memory and time of the server
_FIGURES = ("pid", "memory", "waiting_bytes", "window_bytes", "round_trip_ms")
_NAME_LENGTH = 100
_SERVICE_HOST = "the host of the service"
_REPORT_BYTES = 1 << 20  # bytes after which the host is told how much was received


@dataclass(slots=True)
class HostSession:
    """Session of host number ``host``: its connection ``control``, and its connections ``data``, once it has opened
    them."""

    host: int
    name: str
    worker_slots: int
    session: str
    control: bytes
    heard_at: float
    link: Link = field(default_factory=lambda: host_link(LinkRole.SERVER))
    data: dict[bytes, Link] = field(default_factory=dict)
    sent_at: float = 0.0
    beat_ns: int = 0
    compresses: bool = False
    received: int = 0  # bytes of its data, as they came over the connections
    inflated: int = 0  # the same, with compressed frames inflated
    beat_at: float = 0.0
    """Time of the last beat that was answered."""
    reported: int = 0
    drain_until: float = 0.0
    running: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    """Time at which each of its workers began to ask for its sample, or to have nothing to do."""
    activities: dict[int, WorkerActivity] = field(default_factory=dict)
    """Activities of its workers, by number; beats tell what they do."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    ends_at: dict[int, float] = field(default_factory=dict)
    """Workers that the host was told to end, with the deadline for each."""
    rates: RateCounter = field(default_factory=RateCounter)
    lacked: Sequence[int] = ()
    """Sampled entries that are not files on the host."""

    @property
    def peers(self) -> set[bytes]:
        """All connections of the host."""
        return {self.control, *self.data}

    @property
    def owes_report(self) -> bool:
        """True if it is time to tell the host how much was received."""
        return self.received - self.reported >= _REPORT_BYTES

    def note_beat(self, now: float, beat: HostBeat) -> None:
        """Store the content of a beat. Raises RemoteProtocolError."""
        rows = [check_ints("HostBeat", row, 4) for row in beat.running]
        since = [check_ints("HostBeat", pair, 2) for pair in beat.since]
        known = {name: beat.figures.get(name) for name in _FIGURES}
        self.figures = {name: value for name, value in known.items() if type(value) in (int, float)}
        self.heard_at, self.beat_ns = now, beat.sent_ns
        self.running = {worker: (file, attempt, index) for worker, file, attempt, index in rows}
        self.since = {worker: now - us / 1e6 for worker, us in since}
        for worker, activity in self.activities.items():
            activity.note(self.running.get(worker), now, now - self.since.get(worker, now))

    def stats(self, now: float) -> dict[str, Any]:
        """Return statistics of the host as plain data."""
        return {
            **self.figures,
            "host": self.name,
            "number": self.host,
            "places": self.worker_slots,
            "state": self.link.state.value,
            "silent_seconds": round(now - self.heard_at, 3),
            "received_bytes": self.received,
            "inflated_bytes": self.inflated,
            "data_connections": len(self.data),
        }


class HostSessions:
    """Sessions of a service with this ``version`` of the wire and this ``release`` of pydp2."""

    def __init__(self, version: int, release: str) -> None:
        self._version, self._release = version, release
        self._sessions: dict[int, HostSession] = {}
        self._at: dict[bytes, HostSession] = {}
        self._next = 1
        self._opened: dict[int, str] = {}  # sampled entries that are files on a host, with its name
        self._source: tuple[str, Mapping[str, Any]] | None = None  # fingerprint and modules of the first provider

    def __iter__(self) -> Iterator[HostSession]:
        return iter([*self._sessions.values()])

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, host: int) -> HostSession | None:
        """Return the session of ``host``, if it has one."""
        return self._sessions.get(host)

    def at(self, peer: bytes) -> HostSession | None:
        """Return the session to which the connection ``peer`` belongs."""
        return self._at.get(peer)

    def check_version(self, version: int, release: str) -> None:
        """Raise HostRefused unless a host with these versions can run workers of this service."""
        if (version, release) != (self._version, self._release):
            raise HostRefused(
                f"a host needs the pydp2 of its service, which is {self._release} (wire {self._version}), it has "
                f"{release} (wire {version}); install that release there"
            )

    def join(self, peer: bytes, name: str, worker_slots: int, session: str, now: float) -> HostSession:
        """Return the new session of a host that joins over ``peer``. Raises HostRefused."""
        if not 1 <= worker_slots <= MAX_WORKER_SLOTS:
            raise HostRefused(
                f"a host must have 1 to {MAX_WORKER_SLOTS} workers, it has {worker_slots}; start more agents"
            )
        if len(self._sessions) >= _MAX_HOSTS:
            raise HostRefused(f"the service has {_MAX_HOSTS} hosts, which is the limit; end one of them")
        others = sum(host.worker_slots for host in self._sessions.values())
        if others + worker_slots > _MAX_ALL_WORKER_SLOTS:
            raise HostRefused(
                f"the hosts of a service may have {_MAX_ALL_WORKER_SLOTS} workers together, with this one they would "
                f"have {others + worker_slots}; start fewer there"
            )
        if not session or any(host.session == session for host in self._sessions.values()):
            raise HostRefused("the session of a host must be its own; join again")
        made = HostSession(
            self._next, self._free_name(shown(name, _NAME_LENGTH) or "host"), worker_slots, session, peer, now
        )
        self._next += 1
        self._sessions[made.host] = self._at[peer] = made
        return made

    def _free_name(self, name: str) -> str:
        taken = {host.name for host in self._sessions.values()}
        names = (name if n == 1 else f"{name}#{n}" for n in range(1, _MAX_HOSTS + 2))
        return next(free for free in names if free not in taken)

    def open_data(self, peer: bytes, session: str, now: float) -> HostSession | None:
        """Add the data connection ``peer`` to the session, and return the session; None if there is no such session, or
        it may have no more connections."""
        found = next((host for host in self._sessions.values() if host.session == session), None)
        if found is None or found.link.state is not LinkState.JOINED or len(found.data) >= MAX_DATA_CONNECTIONS:
            return None
        found.data[peer], found.heard_at = host_link(LinkRole.SERVER), now
        self._at[peer] = found
        return found

    def end(self, host: int) -> HostSession | None:
        """End the session of ``host``. Return it, if there was one."""
        found = self._sessions.pop(host, None)
        if found is not None:
            for peer in found.peers:
                self._at.pop(peer, None)
        return found

    def silent(self, now: float, limit: float) -> list[HostSession]:
        """Return the sessions that have sent nothing for ``limit`` seconds."""
        return [host for host in self._sessions.values() if now - host.heard_at > limit]

    # -- checks that all hosts agree -------------------------------------------------------------------------------
    def note_opened(self, session: HostSession | None, opened: Sequence[Any], entry: Callable[[int], str]) -> None:
        """Note which sampled entries are files on the host of ``session`` (None: that of the service). Raises
        HostRefused if the host lacks a file that another host has, or has one that an earlier host lacks: a host is
        never turned away because of a later one. ``entry(i)`` returns the name of sampled entry ``i``."""
        name = _SERVICE_HOST if session is None else session.name
        lacked = [i for i, is_file in enumerate(opened) if not is_file]
        for i in lacked:
            if i in self._opened:
                raise HostRefused(
                    f"a host needs the files of the list; {entry(i)} is not there on {name}, but it is on "
                    f"{self._opened[i]}; mount it at the same path, start the agent with --root, or --map OLD=NEW"
                )
        for other in self._sessions.values():
            for i in other.lacked:
                if opened[i]:
                    raise HostRefused(
                        f"all hosts need the files of the list; {entry(i)} is there on {name}, but not on "
                        f"{other.name}, which joined before; end {other.name}, or mount it there (--root, --map "
                        "OLD=NEW), and start this agent again"
                    )
        for i, is_file in enumerate(opened):
            if is_file:
                self._opened.setdefault(i, name)
        if session is not None:
            session.lacked = lacked

    def check_source(self, name: str | None, fingerprint: str, modules: Mapping[str, Any]) -> None:
        """Compare the code of the provider on the host ``name`` (None: that of the service) with the first code that
        was declared. Raises HostRefused, naming what differs."""
        if self._source is None:
            self._source = fingerprint, modules
            return
        name = name or "this host"
        first, first_modules = self._source
        differing = sorted(path for path, known in modules.items() if first_modules.get(path, known) != known)
        if fingerprint != first or differing:
            named = ", ".join(differing[:3]) if differing and differing != ["*"] else "it"
            raise HostRefused(
                f"a host needs the code of the provider as the service has it; {named} is another one on {name}; copy "
                "the same files there, and start the agent again"
            )


def check_state_directory(name: str, wrong: Sequence[str]) -> None:
    """Raise HostRefused if ``wrong`` has differences between the provider of the first host, ``name``, and that of the
    state directory. Otherwise they would end the service."""
    if wrong:
        raise HostRefused(
            "a host needs the provider with which the state directory of the service was written, and it is another "
            f"one on {name}: {'; '.join(wrong)}; copy the same files there, and start the agent again, or, if it was "
            "changed on purpose, start the service with another state_dir"
        )


def shown(text: str, limit: int) -> str:
    """Return the first ``limit`` characters of ``text``, which a host sent, with "?" for unprintable ones."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])

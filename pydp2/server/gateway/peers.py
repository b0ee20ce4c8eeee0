"""Keep the peers of a service: their links and jobs, those that vanished a moment ago, and those that were refused.

Nothing can be sent to a peer that vanished, but its last messages may still be under way: a Detach tells that it left
in order, and did not die. The connection of a refused peer without a key stays, because libzmq cannot end that of one
peer. So a client that was only heard no more would wait for an answer without end, and each is told why.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydp2.errors import ProtocolError, RemoteProtocolError, shorten, to_wire
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import Link, LinkRole, LinkState, client_link
from pydp2.server.jobs.membership import Trainer
from pydp2.server.jobs.session import JobSession
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.transport import Hub, PeerGone

_MAX_VANISHED = 64  # peers that are remembered
_MAX_REFUSED = 1024  # peers that are remembered: one more of them would be told again
_MAX_REASON = 2000  # characters


_QUESTIONS = m.AskStats | m.AskFiles | m.AskSamples | m.AskTrace | m.SetWeights  # of peers that need no job


@dataclass(slots=True)
class VanishedPeer:
    """Peer of ``trainer``, or of none, that vanished at the time ``when``; 0 once its job was told. ``session`` is that
    of its process, which :attr:`trainer` may not have any more when its last message is read."""

    job_session: JobSession | None
    trainer: Trainer | None
    when: float
    session: str = ""

    def __post_init__(self) -> None:
        self.session = "" if self.trainer is None else self.trainer.session

    def may_still_detach(self, job_session: JobSession, attach: m.Attach) -> bool:
        """Return True if it had the place in ``job_session`` that another process asks for with ``attach``, and it is
        not known yet whether it died or left in order."""
        if not self.when or self.job_session is not job_session or self.session == attach.session:
            return False
        return self.trainer is not None and self.trainer is job_session.trainers.registry.replaced_by(attach)


class Peers:
    """Peers of ``hub``. ``log(text, event)`` writes what the user is to know."""

    def __init__(self, hub: Hub, log: WriteLog) -> None:
        self._hub, self._log = hub, log
        self._links: dict[bytes, Link] = {}
        self._refused: dict[bytes, None] = {}
        self.jobs: dict[bytes, JobSession] = {}
        """Jobs of the peers that are attached."""
        self.vanished: dict[bytes, VanishedPeer] = {}

    def __contains__(self, peer: bytes) -> bool:
        """Return True if ``peer`` is connected."""
        return peer in self._links

    def all(self) -> list[bytes]:
        """Return the peers that are connected."""
        return list(self._links)

    def trainer_of(self, peer: bytes) -> tuple[JobSession, Trainer] | None:
        """Return the trainer that ``peer`` is attached as, with its job. None: it is not attached, or another process
        has its place."""
        job_session = self.jobs.get(peer)
        trainer = None if job_session is None else job_session.trainers.registry.by_peer(peer)
        return None if job_session is None or trainer is None else (job_session, trainer)

    # -- messages --------------------------------------------------------------------------------------------------
    def is_refused(self, peer: bytes) -> bool:
        """Return True if ``peer`` was refused: nothing that it says counts."""
        return peer in self._refused

    def check_received(self, peer: bytes, message: m.Message) -> None:
        """Note that ``peer`` says ``message``. Raises RemoteProtocolError if it may not."""
        link = self._links.get(peer)
        if link is None:
            if not isinstance(message, _QUESTIONS | m.Attach):
                raise RemoteProtocolError(f"{type(message).__name__} from a client that is not attached")
            link = self._links[peer] = client_link(LinkRole.SERVER)
        link.check_received(message)

    def send(self, peer: bytes, message: m.Message, frames: Sequence[Any] = ()) -> bool:
        """Send ``peer`` a message. Return False if it is not connected any more."""
        link = self._links.get(peer)
        if link is None:
            return False
        link.check_sending(message)
        try:
            self._hub.send(peer, [m.encode(message), *frames])
        except PeerGone:
            self.vanish(peer)
            return False
        self.forget_if_unattached(peer)
        return True

    def refuse(self, peer: bytes, error: ProtocolError, now: float) -> None:
        """Tell ``peer`` that the service does not take what it sent, and hear it no more."""
        why = shorten(str(error), _MAX_REASON)
        self._log(f"a client broke the protocol: {why}", LogEvent.PROTOCOL_BROKEN)
        self._hub.note_refusal(peer, "broke the protocol", now)
        refused = RemoteProtocolError(
            f"the service does not take what this client sent, and has parted from it: {why}; use the same release of "
            "pydp2 on both sides, and connect again"
        )
        with contextlib.suppress(PeerGone):
            self._hub.send(peer, [m.encode(m.Closing("it broke the protocol", to_wire(refused)))])
        self._refused[peer] = None
        if len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._hub.end_peer(peer)
        self.forget(peer)

    # -- coming and going ------------------------------------------------------------------------------------------
    def forget_if_unattached(self, peer: bytes) -> None:
        """Forget ``peer`` if it only asked, was refused, or left."""
        link = self._links.get(peer)
        if link is not None and link.state is LinkState.NEW:
            self.forget(peer)

    def forget(self, peer: bytes) -> None:
        """Forget the connection of ``peer``."""
        self._links.pop(peer, None)
        self.jobs.pop(peer, None)
        self._hub.forget_peer(peer)

    def forget_job(self, job_session: JobSession) -> None:
        """Forget which peers are attached to a job that is over."""
        self.jobs = {peer: job for peer, job in self.jobs.items() if job is not job_session}

    def vanish(self, peer: bytes) -> None:
        """Note that nothing can be sent to ``peer`` any more."""
        now = time.monotonic()
        found = self.trainer_of(peer)
        job_session, trainer = (self.jobs.get(peer), None) if found is None else found
        if found is not None:
            self.note_used(*found)
        self.forget(peer)
        self.vanished[peer] = VanishedPeer(job_session, trainer, now if trainer is not None else 0.0)
        if found is not None:
            found[0].trainers.connection_lost(found[1], now)
        if len(self.vanished) > _MAX_VANISHED:
            del self.vanished[next(iter(self.vanished))]

    def may_still_detach(self, job_session: JobSession, attach: m.Attach) -> bool:
        """Return True if the trainer before that of ``attach`` vanished a moment ago: its last message, which says
        whether it left in order, may not have been read yet."""
        return any(peer.may_still_detach(job_session, attach) for peer in self.vanished.values())

    def silent_since(self, deadline: float) -> Iterator[tuple[JobSession, Trainer]]:
        """Yield, once, the trainers whose peers vanished before ``deadline`` and have not left in order."""
        for peer in self.vanished.values():
            if peer.when and peer.when < deadline:
                peer.when = 0.0
                if peer.job_session is not None and peer.trainer is not None:
                    yield peer.job_session, peer.trainer

    def probe(self, trainer: Trainer | None) -> None:
        """Send ``trainer`` a message that it need not answer, to find out whether it vanished."""
        if trainer is not None and trainer.peer:
            self.send(trainer.peer, m.Probe())

    def note_used(self, job_session: JobSession, trainer: Trainer | None) -> None:
        """Note what ``trainer`` shows to be used; that counts although its process has died."""
        if trainer is not None and trainer.peer:
            job_session.trainers.note_used(trainer, self._hub.progress_of(trainer.peer))
            job_session.note_used(trainer, time.monotonic())

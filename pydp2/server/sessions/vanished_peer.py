"""Remember a peer to which nothing can be sent any more, while its last messages may be under way."""

from __future__ import annotations

from pydp2.protocol import messages as m
from pydp2.server.sessions.job_session import JobSession
from pydp2.server.sessions.trainer import Trainer


class VanishedPeer:
    """Peer that is gone since ``when``; 0 once its job was told."""

    def __init__(self, job_session: JobSession | None, trainer: Trainer | None, when: float) -> None:
        self.job_session, self.trainer, self.when = job_session, trainer, when
        self.session = "" if trainer is None else trainer.session
        """Session of its process, which :attr:`trainer` may not have any more when its last message is read."""

    def may_leave(self, job_session: JobSession, attach: m.Attach) -> bool:
        """Return True if it had the place in ``job_session`` that another process asks for with ``attach``, and it is
        not known yet whether it died or left in order."""
        if not self.when or self.job_session is not job_session or self.session == attach.session:
            return False
        return self.trainer is not None and self.trainer is job_session.trainers.registry.by_rank(attach.rank)

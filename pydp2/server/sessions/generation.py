"""Know where the ranks of a job began together: with the job, from a state that all load, or at a pass that all go to
(docs/order.md, "Ranks")."""

from __future__ import annotations

from collections.abc import Collection

from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import Trainer


class Generation:
    """Stretch of a job that began with the state ``loaded`` ("": with the job), from which the ranks ``joined``
    began."""

    def __init__(self, loaded: str = "", joined: Collection[int] = (), pass_before: int = -1) -> None:
        self.loaded = loaded
        self.joined = {*joined}
        self.pass_before = pass_before
        """Pass that all ranks had ended when it began; -1: that was not waited for."""

    def add(self, trainer: Trainer) -> None:
        """Note that ``trainer`` begins from the state."""
        self.joined.add(trainer.rank)
        trainer.joined, trainer.waits_for, trainer.unanswered = True, "", self.loaded

    def has_had(self, trainer: Trainer, begin: m.BeginPass, *, known: bool) -> bool:
        """Return True if ``begin`` asks for the pass that all had ended before, whose end ``trainer`` has lost.
        ``known``: it has begun a run since this service was started."""
        heard = begin.after_pass and trainer.has_asked(begin) and known and not trainer.waits_for
        return not trainer.joined and begin.pass_id == self.pass_before and (heard or not begin.state_name)

    def has_told(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if ``begin`` asks again for what ``trainer`` was told the end of in this generation."""
        return trainer.rank in self.joined and trainer.was_told and trainer.has_asked(begin)

    def is_left(
        self, trainer: Trainer, begin: m.BeginPass, *, known: bool, is_unfinished: bool, is_there: bool
    ) -> bool:
        """Return True if the state that ``trainer`` has loaded is not where this generation began, or it has had
        batches since then.

        ``is_unfinished``: there is something of the present pass to come for it; ``is_there``: all that the state says
        is to come.
        """
        if begin.state_name != self.loaded:
            return True
        if trainer.rank not in self.joined:
            return False
        if trainer.has_asked(begin):  # a service that was started again cannot tell for which of two equal passes
            return begin.after_pass and (trainer.waits_for != "" or not (known or is_unfinished))
        return not is_there

"""Know where the ranks of a job began together: with the job, from a state that all load, or at a pass that all go to
(docs/order.md, "Ranks")."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pydp2.errors import Rewound
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import EarlyEnds
from pydp2.server.sessions.trainer import Trainer


def went_back(job: str) -> Rewound:
    """Return the error of a rank that is not in the generation of ``job`` any more."""
    return Rewound(
        f"another rank of job {job!r} has loaded a state or called set_epoch(), and the service went there: load the "
        "same state here, too, or call set_epoch() with the same number"
    )


def not_known(job: str, rank: int, loss: str = "") -> Rewound:
    """Return the error of a rank that needs what a service that was started again does not know. ``loss``: why, if
    its last snapshot could not be used."""
    return Rewound(
        f"the service was started again and does not know any more what rank {rank} of job {job!r} needs to go on"
        f"{loss and f' ({loss})'}; load the same state in all ranks"
    )


def cut_off(job: str, pass_id: int) -> Rewound:
    """Return the error of a rank in a pass that cannot be taken up."""
    return Rewound(
        f"the service was started again in the middle of pass {pass_id} of job {job!r}, which has no state there, "
        'because order="relaxed"; load the same state in all ranks'
    )


def in_other_pass(job: str, pass_id: int, rank: int, wanted: int) -> Rewound:
    """Return the error of a rank that asks for a pass which the job is not in."""
    return Rewound(
        f"job {job!r} is in pass {pass_id}, rank {rank} asks for pass {wanted}: load the same state in all ranks, or "
        "none in any"
    )


class Generation:
    """Stretch of a job that began with the state ``loaded`` ("": with the job), from which the ranks ``joined``
    began."""

    def __init__(self, loaded: str = "", joined: Collection[int] = (), previous_pass: int = -1) -> None:
        self.loaded = loaded
        self.joined = {*joined}
        self.previous_pass = previous_pass
        """Pass that all ranks had ended when it began; -1: that was not waited for."""
        self._early_ends: tuple[int, EarlyEnds] = (-1, {})

    def keep_early_ends(self, pass_id: int, early_ends: EarlyEnds) -> None:
        """Keep what is known of files of pass ``pass_id`` that end early: this generation begins in it once more, and
        ranks that go on by themselves know of them."""
        self._early_ends = pass_id, {**early_ends}

    def early_ends_of(self, pass_id: int) -> EarlyEnds:
        """Return what was kept of pass ``pass_id``."""
        return self._early_ends[1] if self._early_ends[0] == pass_id else {}

    def add(self, trainer: Trainer) -> None:
        """Note that ``trainer`` begins from the state."""
        self.joined.add(trainer.rank)
        trainer.joined, trainer.waits_for, trainer.unanswered = True, "", self.loaded

    def has_had(self, trainer: Trainer, begin: m.BeginPass, *, known: bool) -> bool:
        """Return True if ``begin`` asks for the pass that all had ended before, whose end ``trainer`` has lost.
        ``known``: it has begun a run since this service was started."""
        heard = begin.after_pass and trainer.has_asked(begin) and known and not trainer.waits_for
        return not trainer.joined and begin.pass_id == self.previous_pass and (heard or not begin.state_name)

    def has_told(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if ``begin`` asks again for what ``trainer`` was told the end of in this generation."""
        return trainer.rank in self.joined and trainer.was_told and trainer.has_asked(begin)

    def is_left(
        self, trainer: Trainer, begin: m.BeginPass, others: Iterable[Trainer] | None, *, known: bool,
        is_unfinished: bool, is_there: bool,
    ) -> bool:  # fmt: skip
        """Return True if the state that ``trainer`` has loaded is not where this generation began, or it has had
        batches since then, or it is new and finds none of the ``others`` that share what follows (None: nobody does).

        ``is_unfinished``: there is something of the present pass to come for it; ``is_there``: all that the state says
        is to come.
        """
        if begin.state_name != self.loaded:
            return True
        if trainer.rank not in self.joined:
            there = (
                each.peer or (begin.was_answered and not each.run) for each in others or () if each.rank in self.joined
            )
            return others is not None and trainer.joined and not any(there)
        if trainer.has_asked(begin):  # a service that was started again cannot tell for which of two equal passes
            return begin.after_pass and (trainer.waits_for != "" or not (known or is_unfinished))
        return not is_there

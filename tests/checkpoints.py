"""Keep what trainers of a job were given, and their checkpoints, where a service may tell them to go back.

The batches that count are those of one line of events: what was given before the checkpoint that all load, and what
was given from there on. Pure: who calls it from threads holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """A state, where it stands, and how many batches had been given in all when it was saved."""

    state: S
    at: tuple[int, int]
    beyond: tuple[int, ...]
    taken: int

    def has(self, taken: int, pass_id: int, index: int) -> bool:
        """Whether it knows the batch ``index`` that was the ``taken``-th to be given."""
        return taken <= self.taken and ((pass_id, index) < self.at or (pass_id == self.at[0] and index in self.beyond))


class Checkpoints(Generic[S, T]):
    """Batches ``T`` and states ``S`` of ``count`` trainers; ``shared``: a state of one of them holds for all."""

    def __init__(self, count: int, *, shared: bool) -> None:
        self.shared = shared
        self._given: list[list[tuple[int, int, int, T]]] = [[] for _ in range(count)]
        self._saved: list[dict[tuple[int, int], Checkpoint[S]]] = [{} for _ in range(count)]
        self._generations = [0] * count
        self._loaded: Checkpoint[S] | None = None
        self._is_forked = False  # the service went to the state that all have loaded a second time
        self.generation = 0
        """How often the trainers went back."""
        self.taken = 0
        """Batches given so far, also those that do not count any more."""

    def given(self, who: int) -> list[T]:
        """The batches of ``who`` that count."""
        return [batch for *_, batch in self._given[who]]

    def is_present(self, who: int) -> bool:
        """Whether ``who`` has gone back as often as the others."""
        return self._generations[who] == self.generation

    def give(self, who: int, pass_id: int, index: int, batch: T) -> None:
        """Note that ``who`` was given a batch. It does not count if others have gone back meanwhile."""
        self.taken += 1
        if self.is_present(who):
            self._given[who].append((self.taken, pass_id, index, batch))

    def save(self, who: int, state: S, at: tuple[int, int], beyond: Collection[int] = ()) -> None:
        """Keep a state of ``who``."""
        if self.is_present(who):
            self._saved[who][at] = Checkpoint(state, at, tuple(beyond), self.taken)

    def go_back(self, who: int) -> None:
        """``who`` is told that the service does not know where to go on: all have to load the latest state that all
        have. Nothing changes where another one was told before."""
        if not self.is_present(who):
            return
        known = set(self._saved[who]) if self.shared else set.intersection(*map(set, self._saved))
        before = 0 if self._loaded is None else self._loaded.taken
        if self._loaded is None or not self._is_forked:
            self._loaded = self._saved[who][max(known)]
        self.generation, self._is_forked = self.generation + 1, False
        seen: set[tuple[int, int]] = set()  # of a batch that came twice since the last state, that of ``who`` counts
        for each in sorted(range(len(self._given)), key=lambda one: one != who):
            self._cut_off(each, self._loaded.at)
            self._given[each] = [one for one in self._given[each] if one[0] <= before or one[1:3] not in seen]
            seen |= {one[1:3] for one in self._given[each] if one[0] > before}

    def follow(self, who: int) -> S:
        """Return the state that ``who`` has to load, because others load it."""
        assert self._loaded is not None
        self._is_forked = self._is_forked or self.is_present(who)
        self._cut_off(who, self._loaded.at)
        self._generations[who] = self.generation
        return self._loaded.state

    def _cut_off(self, who: int, at: tuple[int, int]) -> None:
        """Forget what ``who`` has had, and saved, since the state at ``at``."""
        assert self._loaded is not None
        saved = self._saved[who]
        then = self._loaded if self.shared else saved[at]
        self._given[who] = [one for one in self._given[who] if then.has(*one[:3])]
        earlier = {key: one for key, one in saved.items() if key < at and one.taken <= then.taken}
        self._saved[who] = {**earlier, at: then}

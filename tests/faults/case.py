"""What a fault of the battery is: a schedule that is drawn from a seed, and a round that plays it and judges.

A schedule is plain data, so that it can be printed, replayed, and made smaller one event at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench

SIZES = ("quick", "full")


class Skip(Exception):
    """This machine, or this release, cannot have the fault; the text says why."""


@dataclass(frozen=True)
class Event:
    """Something bad that happens. ``at``: a batch or a second, as the fault says; ``which``: a number in [0, 1) that
    chooses among those whom it can meet."""

    what: str
    at: float = 0.0
    which: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A round of one fault. ``setup``: plain data, what the round is about; ``events``: what happens in it."""

    fault: str
    seed: int
    size: str
    setup: dict[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    def to_json(self) -> str:
        """As one line, which ``--schedule`` takes."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Inverse of :meth:`to_json`."""
        data = json.loads(text)
        return cls(**{**data, "events": tuple(Event(**event) for event in data["events"])})

    def without(self, number: int) -> Schedule:
        """The same without the event ``number``."""
        return replace(self, events=self.events[:number] + self.events[number + 1 :])


@dataclass
class Report:
    """What a round that held has to tell. ``kills``: how often somebody was killed; ``figures``: name to a number, or
    to some; ``notes``: what was found out, for instance a part that this release does not have; ``course``: figures as
    they went in the round, rows with the same names."""

    kills: int = 0
    figures: dict[str, float | list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    course: list[dict[str, float]] = field(default_factory=list)


Draw = Callable[[Random, str], tuple[dict[str, Any], list[Event]]]


@dataclass(frozen=True)
class Fault:
    """One row of the battery. ``draw(random, size)`` gives setup and events; ``play`` raises AssertionError where the
    goal is missed, and Skip. ``seconds``: how long a full round may take before it counts as hanging."""

    name: str
    title: str
    goal: str
    draw: Draw
    play: Callable[[Bench, Schedule], Report]
    seconds: float = 120.0

    def schedule(self, seed: int, size: str) -> Schedule:
        """The round that ``seed`` stands for."""
        setup, events = self.draw(Random(f"{self.name} {seed} {size}"), size)
        return Schedule(self.name, seed, size, setup, tuple(events))


def nothing(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Draws nothing: for rounds that are all alike."""
    return {}, []


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], left: Callable[[], bool]) -> Schedule:
    """``schedule`` with as few events as it takes to fail: they are left out one by one, the later ones first, as long
    as ``left()`` says that there is time."""
    number = len(schedule.events)
    while number > 0 and left():
        number -= 1
        smaller = schedule.without(number)
        if fails(smaller):
            schedule = smaller
    return schedule

"""Trainers of one job as threads of this process: they go on however often their service is killed, and what they were
given is judged by the oracle.

They do what real ones do: save a checkpoint every few steps, and when they are told that the service cannot go on
(``Rewound``), load the latest that all of them have.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydp2
from pydp2.client import Target, ask_stats
from pydp2.errors import Error, Rewound

from ..checkpoints import Checkpoints
from .data import Dataset, expected, sign_batch

WAIT = 40.0


@dataclass(frozen=True)
class Given:
    """A batch that a trainer was given, and the early-end records that it knew then."""

    pass_id: int
    index: int
    line: str
    early_ends: tuple[tuple[int, int], ...]


@dataclass
class Trainer:
    """What is known of one of them. ``has_begun``: it has had a batch, or the end of a pass."""

    who: int
    place: dict[str, Any]
    has_begun: bool = False
    done: bool = False
    steps: int = 0


class JobTrainers:
    """``count`` trainers at ``address``; ``share``: "one", "ranks" or "dynamic"; ``job``: their options.

    ``pause``: seconds that a step takes. ``every``: steps between checkpoints. ``act``: called behind each step with
    the trainer and its last batch; True: it goes back to the last checkpoint.
    """

    def __init__(
        self,
        address: str,
        job: dict[str, Any],
        share: str,
        count: int,
        passes: int,
        every: int,
        pause: float = 0.0,
        act: Callable[[Trainer, Given], bool] = lambda me, given: False,
    ) -> None:
        self._act = act
        self.handed_on: set[tuple[int, str]] = set()
        """Batches, each with its trainer, that others may have been given, too: it was away with them."""
        self.held_long: set[tuple[int, str]] = set()
        """Batches, each with its trainer, that it had in hand when it began a pass anew after a long silence."""
        self._address, self.job, self._passes = address, job, passes
        self._every, self._pause = every, pause
        self.share = share
        places: list[dict[str, Any]] = [{"share": "dynamic"} if share == "dynamic" else {} for _ in range(count)]
        if share == "ranks":
            places = [{"rank": rank, "world_size": count} for rank in range(count)]
        self._trainers = [Trainer(who, place) for who, place in enumerate(places)]
        self.kept = Checkpoints[dict[str, Any], Given](count, shared=share == "dynamic")
        self._change = threading.Condition()
        self._all = threading.Barrier(count, timeout=WAIT)
        self._began = time.monotonic()
        self.story: list[str] = []
        """What happened that is not in the stream, for who looks for a reason."""
        self.renewed: list[float] = []
        """When the first batch over a new connection was there."""
        self.error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in self._trainers]
        for thread in self._threads:
            thread.start()

    @property
    def taken(self) -> int:
        """Batches given so far, also those that were taken back by a state."""
        return self.kept.taken

    @property
    def rewound(self) -> int:
        """How often the trainers went back to a checkpoint."""
        return self.kept.generation

    # -- as they train -------------------------------------------------------------------------------------------------
    def _run(self, me: Trainer) -> None:
        try:
            with pydp2.connect(self._address, **self.job, **me.place) as client:
                self.kept.save(me.who, client.state_dict(), (0, 0))
                self._all.wait()
                while True:
                    try:
                        self._train(client, me)
                    except Rewound as error:
                        self._go_back(client, me, error)
                    else:
                        if not self.kept.is_present(me.who):
                            self._follow(client, me)
                        elif self._wait_for_others(me):
                            return
        except BaseException as error:
            with self._change:
                self.error = self.error or error
                self._change.notify_all()
            self._all.abort()

    def _train(self, client: pydp2.Client, me: Trainer) -> None:
        """To the end, or until the others have gone back."""
        line, steps = client._connection._line, 0  # another one after each way back
        held: Given | None = None  # the last batch
        begun, came = 0, 0.0  # how many runs had begun by then, one for each pass; and when it came

        def runs(pass_id: int) -> int:
            """How many have begun by now, in this pass."""
            run = client._session.progress.run
            is_late = time.monotonic() - came > self.job["lease"] / 2  # others begin anew because one loads a state
            if held is not None and is_late and run > begun + pass_id - held.pass_id:
                self.held_long.add((me.who, held.line))
            return run

        for pass_id in range(client.state_dict()["pass"], self._passes):
            for batch in client:
                now = time.monotonic()
                state = client.state_dict()
                text = f"{batch.pass_id} {batch.index} {sign_batch(batch)} {batch.pool_weight}"
                early_ends = tuple((file, y) for file, y, _ in state["early_ends"])
                steps += 1
                with self._change:
                    given = Given(batch.pass_id, batch.index, text, early_ends)
                    held, begun, came = given, runs(pass_id), now
                    self.kept.give(me.who, batch.pass_id, batch.index, given)
                    if steps % self._every == 0:
                        self.kept.save(me.who, state, (state["pass"], state["batch"]), state["acknowledged_ahead"])
                    me.has_begun = True
                    if client._connection._line is not line:
                        line = client._connection._line
                        self.renewed.append(now)
                    self._change.notify_all()
                    if not self.kept.is_present(me.who):
                        return
                if self._pause:
                    time.sleep(self._pause)
                me.steps += 1
                if self._act(me, given):
                    with self._change:
                        self._note(me, "goes back by itself")
                        self.kept.go_back(me.who)
                    return
            with self._change:
                runs(pass_id)
                me.has_begun = True
                self._change.notify_all()

    def _go_back(self, client: pydp2.Client, me: Trainer, error: Error) -> None:
        with self._change:
            self._note(me, f"Rewound: {error}")
            if not client._lacks_state():
                self.kept.go_back(me.who)
        self._follow(client, me)

    def _follow(self, client: pydp2.Client, me: Trainer) -> None:
        with self._change:
            state = self.kept.follow(me.who)
            self._note(me, f"loads {(state['pass'], state['batch'])}, generation {self.kept.generation}")
            me.done = False
            self._change.notify_all()
        client.load_state_dict(state)

    def _wait_for_others(self, me: Trainer) -> bool:
        """Until all have ended their last pass; False: they go back, and this one with them."""
        with self._change:
            me.done = True
            self._note(me, "ended")
            self._change.notify_all()
            self._change.wait_for(lambda: self._over() or not self.kept.is_present(me.who), WAIT)
            return self.error is not None or self.kept.is_present(me.who)

    def _note(self, me: Trainer, what: str) -> None:
        given = self.kept.given(me.who)
        at = given[-1].line.split()[:2] if given else "nothing"
        self.story.append(f"{time.monotonic() - self._began:.2f} {me.place} after {at}: {what}")

    # -- from outside --------------------------------------------------------------------------------------------------
    def wait(self, batches: int, seconds: float = WAIT) -> bool:
        """Until each has begun, and they have been given so many batches in all; False: they have ended before that.
        Raises what ended one of them."""
        with self._change:
            there = self._change.wait_for(lambda: self._has_had(batches) or self._over(), seconds)
        if self.error is not None:
            raise self.error
        assert there, f"{self.taken} of {batches} batches within {seconds:g} s; {self._told()}"
        return not self._over()

    def _has_had(self, batches: int) -> bool:
        return self.taken >= batches and all(each.has_begun for each in self._trainers)

    def _over(self) -> bool:
        ended = (each.done and self.kept.is_present(each.who) for each in self._trainers)
        return self.error is not None or all(ended)

    def end(self, seconds: float = WAIT) -> None:
        """Until they have ended. Raises what ended one of them."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.error is not None:
            raise self.error
        alive = any(thread.is_alive() for thread in self._threads)
        assert not alive, f"trainers did not end within {seconds:g} s; {self._told()}"

    def _told(self) -> str:
        """Where trainers and service stand, for who looks for the reason."""
        lines = [[one.line for one in self.kept.given(each.who)][-1:] for each in self._trainers]
        places = [f"{t.place} at {line}, done {t.done}" for t, line in zip(self._trainers, lines, strict=True)]
        try:
            jobs: Any = ask_stats(Target(self._address))["jobs"]
        except Error as error:
            jobs = error
        return "\n".join([f"trainers: {places}", f"the service: {jobs}", *self.story[-60:]])

    def judge(self, data: Dataset, seed: int, setup: dict[str, Any]) -> int:
        """All of what they were given is what the oracle says, each batch once, in its order, at its trainer. How many
        batches there were."""
        total, bounds = 0, None
        always = {(file, y) for file, y, how in setup["raising"] if how == "always"}
        for pass_id in range(self._passes):
            given = [self.kept.given(trainer.who) for trainer in self._trainers]
            mine = [[one for one in some if one.pass_id == pass_id] for some in given]
            count = Counter(one.line for some in mine for one in some)
            for who, some in enumerate(mine):
                for one in [*some]:
                    if count[one.line] > 1 and (who, one.line) in self.handed_on:
                        count[one.line] -= 1
                        some.remove(one)
            every = sorted((one for some in mine for one in some), key=lambda one: one.index)
            early_ends = every[-1].early_ends if every else ()
            assert all(one.early_ends == early_ends[: len(one.early_ends)] for one in every), (
                f"pass {pass_id}: early ends were changed"
            )
            assert set(early_ends) <= {(file, y) for file, y, _ in setup["raising"]}, (
                f"pass {pass_id}: early ends {early_ends}"
            )
            wanted = expected(
                data.counts, data.pool_size, self.job["batch_size"], seed, pass_id, setup["shuffle"],
                tuple(sorted({*early_ends} | always)), setup["last_batch"], setup["cached"], setup["buckets"], bounds,
                len(mine) if self.share == "ranks" else 1,
            )  # fmt: skip
            bounds = wanted.bounds
            lines = wanted.lines(pass_id)
            if self.share == "ranks" and setup["last_batch"] == "drop":
                lines = lines[: len(lines) - len(lines) % len(mine)]
            if self.share == "ranks":
                for rank, some in enumerate(mine):
                    _same([one.line for one in some], lines[rank :: len(mine)], f"pass {pass_id}, rank {rank}")
            else:
                _same([one.line for one in every], lines, f"pass {pass_id}")
            for some in mine:
                assert [one.index for one in some] == sorted(one.index for one in some) or self.share == "dynamic"
            total += len(lines)
        return total


def _same(seen: list[str], lines: list[str], where: str) -> None:
    if seen == lines:
        return
    first = next(
        (n for n, pair in enumerate(zip(seen, lines, strict=False)) if pair[0] != pair[1]), min(len(seen), len(lines))
    )
    twice = sorted({line for line in seen if seen.count(line) > 1})
    lost, others = sorted({*lines} - {*seen}), sorted({*seen} - {*lines})
    raise AssertionError(
        f"{where}: {len(seen)} batches came, {len(lines)} are right; the first that differs is number {first}: "
        f"{seen[first : first + 1]}, not {lines[first : first + 1]}; twice: {twice[:5]}; lost: {lost[:5]}; not of this "
        f"stream: {others[:5]} (pass, index, checksum, pool)"
    )

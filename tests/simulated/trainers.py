"""The trainers of a job: the real client, each in a task of its own, which writes down its state after each batch.

If one of them cannot go on, or their processes die, all of them begin again from the states of one step, as a program
does that was started again from its checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydp2.client.client import Client
from pydp2.client.connection import Target
from pydp2.client.run_protocol import MAX_REJOIN_BATCHES
from pydp2.errors import Error, JobTaken, Rewound, ServiceLost, ServiceUnreachable
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.transport.keys import KeyPair

from .cases import Outcome
from .tasks import Task

if TYPE_CHECKING:
    from .world import World

LONG = 30.0
"""Seconds: longer than all faults of a schedule together."""
ADDRESS = "tcp://head:7700?key=" + "a" * 64
Step = tuple[int, int]
"""Number of a pass, and of the batches of it that a rank has had."""
_LOST = (ServiceLost, ServiceUnreachable, Rewound, JobTaken)


CUTS_AGAIN = ("stop server", "restart server", "crash server", "cut rows", "hide rows")
"""What makes a service cut batches again that some ranks have had."""


class Trainer:
    """Process of trainer ``number``, which begins with ``state``, or where the service says."""

    def __init__(self, job: Job, number: int, state: dict[str, Any] | None) -> None:
        self.job, self.number, self.state = job, number, state
        self.had = 0
        """Batches since it began."""
        self.machine = -1 - number
        self.client: Client | None = None
        self.task = Task(job.world.network, self.machine, self._run)

    def _run(self) -> None:
        job, world = self.job, self.job.world
        world.network.clock.sleep(world.random.choice([0.0, 0.1]))
        try:
            client = self.client = Client(
                Target(ADDRESS, KeyPair("", "")), job.options, number=self.number, numbers=job.numbers, timeout=30.0
            )
            if self.state is not None:
                client.load_state_dict(self.state)
            else:
                job.begin(self.number, client.state_dict())
            while (number := job.next_pass(self.number)) < world.case.passes:
                self._read_pass(client, number)
            client.close()
        except _LOST as error:
            job.lost(self, error)

    def _read_pass(self, client: Client, number: int) -> None:
        job, world = self.job, self.job.world
        outcome = job.outcome_of(self.number, number)
        try:
            for batch in client:
                assert batch.pass_id == number
                self.had += 1
                outcome.batches.append(list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)))
                outcome.pool_weights.append(batch.pool_weight)
                outcome.paddings.append(batch.padding)
                job.note(self.number, (number, len(outcome.batches)), client.state_dict())
                if pause := world.random.choice([0.0, 0.0, 0.001, 0.02]):
                    world.network.clock.sleep(pause)
        except _LOST:
            raise
        except Error as error:
            outcome.error = error
        else:
            job.note(self.number, (number + 1, 0), client.state_dict())
        outcome.is_complete = True

    @property
    def is_far(self) -> bool:
        """True if it does not follow by itself when another rank loads its state once more: it has had more batches
        since it loaded it than a client goes on after, or the end of a pass."""
        if self.state is None:
            return False
        return self.had > MAX_REJOIN_BATCHES or self.job.next_pass(self.number) > self.state["pass"]

    def kill(self) -> None:
        """Its process dies."""
        self.task.kill()
        self.job.world.network.cut(self.machine)
        if (client := self.client) is not None:
            client._end.detach()
            client._session.release()


class Job:
    """All trainers of the job, which have ``numbers``; with one of them, what comes is the whole stream."""

    def __init__(self, world: World, numbers: TrainerNumbers, options: dict[str, Any]) -> None:
        self.world, self.numbers, self.options = world, numbers, options
        self.passes: list[list[Outcome]] = [[] for _ in range(numbers.total)]
        self.states: list[dict[Step, dict[str, Any]]] = [{} for _ in range(numbers.total)]
        """Of each trainer the states behind each step."""
        self.restarts = 0
        self._restarting = False
        self._replaced: set[Trainer] = set()  # that died, and for which others come
        self.late = 0
        """Processes that came again."""
        self.progress = world.network.clock.now
        """Time when a trainer last got a batch or came to the end of a pass."""
        self.trainers = [Trainer(self, number, None) for number in range(numbers.total)]

    @property
    def over(self) -> bool:
        """True when each trainer has had all its passes."""
        return not self._restarting and not self._replaced and all(trainer.task.over for trainer in self.trainers)

    @property
    def has_finished(self) -> bool:
        """True once a trainer has had all its passes."""
        return any(trainer.task.over for trainer in self.trainers if trainer not in self._replaced)

    @property
    def is_alone(self) -> bool:
        """True if ranks may wait for others that have finished the job: those that came again, and those that were away
        for longer than their lease, so that the job was over when they came back."""
        return (self.late > 0 or self.world.lease < LONG) and self.has_finished

    def next_pass(self, number: int) -> int:
        """Return the pass that trainer ``number`` reads next."""
        return sum(outcome.is_complete for outcome in self.passes[number])

    def outcome_of(self, number: int, pass_id: int) -> Outcome:
        """Return what trainer ``number`` has had of pass ``pass_id`` so far."""
        passes = self.passes[number]
        if pass_id == len(passes):
            passes.append(Outcome(pass_id))
        return passes[pass_id]

    def note(self, number: int, step: Step, state: dict[str, Any]) -> None:
        """Keep the state of trainer ``number`` behind ``step``. It is that of all trainers, but for checksums of other
        chunks where batches were cut again for a part of them."""
        cut_again = any(self.world.done[kind] for kind in CUTS_AGAIN)
        cut_again = cut_again or any("rows lost: " in line for line in self.world.log)  # with their host
        left_out = {"checksums", "digest"} if cut_again else set()
        for other in self.states:
            known = other.get(step, state)
            differing = {key for key in state if state[key] != known[key]} - left_out
            assert not differing, f"trainer {number} has another state behind {step}: {differing}"
        self.progress = self.world.network.clock.now
        self.states[number][step] = state

    def begin(self, number: int, place: dict[str, Any]) -> None:
        """A process without a state begins as trainer ``number`` at ``place``: what another one before it had and the
        service does not know to be used comes again."""
        passes, states = self.passes[number], self.states[number]
        if place["pass"] == place["batch"] == 0:
            self.note(number, (0, 0), place)
        passes.extend(Outcome(pass_id) for pass_id in range(len(passes), place["pass"]))  # without a batch for it
        now, had = place["pass"], max(0, -(-(place["batch"] - self.numbers.rank(number)) // self.numbers.world))
        assert had <= (len(passes[now].batches) if now < len(passes) else 0), "a batch is lost"
        for outcome in passes[:now]:
            outcome.died = outcome.died or not outcome.is_complete
            outcome.is_complete = True
        for outcome in passes[now : now + 1]:
            outcome.cut(had)
        del passes[now + 1 :]
        for later in [step for step in states if step > (now, had)]:
            del states[later]

    # -- what goes wrong -----------------------------------------------------------------------------------------------
    def lost(self, trainer: Trainer, error: Error) -> None:
        """``trainer`` cannot go on."""
        self.world.done[f"lost: {type(error).__name__}"] += 1
        self.world.check_loss(trainer, error)
        self.restart()

    def replace(self, trainer: Trainer, seconds: float) -> None:
        """The process of ``trainer`` dies, and another one takes its place."""
        trainer.kill()
        self._replaced.add(trainer)
        self.late += 1

        def start() -> None:
            if trainer in self._replaced:
                self._replaced.remove(trainer)
                self.trainers[trainer.number] = Trainer(self, trainer.number, None)

        self.world.network.at(seconds, start)

    def restart(self) -> None:
        """All processes end, and the program is started again, from a checkpoint."""
        if not self._restarting and not self.world.is_over:
            self._restarting = True
            self.world.network.at(0.0, self._restart)

    def _restart(self) -> None:
        self.end()
        self._replaced.clear()
        self.restarts += 1
        self.late += 1
        random = self.world.random
        steps = sorted(set.intersection(*(set(states) for states in self.states))) or [(0, 0)]
        step = random.choice([steps[-1], steps[-1], random.choice(steps)])  # of the checkpoint
        begin = next((states[step] for states in self.states if step in states), None)
        for states, passes in zip(self.states, self.passes, strict=True):
            for later in [later for later in states if later > step]:
                del states[later]
            del passes[step[0] + 1 :]
            if len(passes) > step[0]:
                passes[-1].cut(step[1])
        self.world.network.at(random.choice([0.0, 0.1, 3.0]), lambda: self._start(begin))

    def _start(self, begin: dict[str, Any] | None) -> None:
        self._restarting = False
        self.trainers = [Trainer(self, number, begin) for number in range(self.numbers.total)]

    def end(self) -> None:
        """Have all processes end where they are."""
        for trainer in self.trainers:
            trainer.kill()

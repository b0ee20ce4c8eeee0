"""A job under whatever happens to its trainers and to its service, searched by Hypothesis and not listed.

Trainers connect, take, hang back, lose their connection and die; the service is killed and started again from what it
has written down. Whatever was done before, in peace they come to the end of three passes, and each peer of a rank has
used each batch of this rank once. A sequence that fails is shown as the shortest that does.
"""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.server.jobs.delivery import Delivery, RankedDelivery, SharedDelivery
from pydp2.server.jobs.groups import BatchGroup
from pydp2.server.snapshots.job_snapshot import PassState
from tests.simulated.trainer_group import Trainer, World

PASSES = 3
FAIR = 4000  # rounds of a fair schedule: far more than three passes here take
which = st.integers(0, 5)


class Shared(RuleBasedStateMachine):
    """Up to three ranks of one job, with one trainer each or two."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: list[tuple[int, int, int]] = []  # (number, pass, batch) that those who died had used
        self.trainers: dict[int, Trainer] = {}

    @initialize(
        world=st.integers(0, 3), peers=st.integers(1, 2), length=st.sampled_from([0, 1, 2, 5, 9, 23]),
        last_batch=st.sampled_from(["keep", "drop"]), prefetch_bytes=st.sampled_from([1, 3 * BATCH_COST, 1 << 20]),
        shows=st.booleans(), prefetch=st.sampled_from([2, 7]),
    )  # fmt: skip
    def begin(
        self, world: int, peers: int, length: int, last_batch: str, prefetch_bytes: int, shows: bool, prefetch: int
    ) -> None:
        self.prefetch = prefetch
        self.dynamic = world == 0
        self.peers = 1 if self.dynamic else peers
        self.places = 3 if self.dynamic else world * peers
        self.length = length
        self.made = World(
            length, max(1, world), dynamic=self.dynamic, last_batch=last_batch, prefetch_bytes=prefetch_bytes,
            shows=shows, prefetch=prefetch, peers=self.peers,
        )  # fmt: skip
        left = 0 if self.dynamic or last_batch == "keep" else length % world
        self.expected = [(p, n) for p in range(PASSES) for n in range(length - left)]

    def _of(self, number: int) -> Trainer | None:
        return self.trainers.get(number % self.places)

    @property
    def delivery(self) -> Delivery | None:
        """How the batches of the pass under way come to the trainers."""
        return self.made.group.current

    @rule(number=which)
    def come(self, number: int) -> None:
        number %= self.places
        if number not in self.trainers:
            self.trainers[number] = self.made.come(0 if self.dynamic else number)

    @rule(number=which, steps=st.integers(1, 9))
    def take(self, number: int, steps: int) -> None:
        """It iterates, ``steps`` steps of it."""
        for _ in range(steps):
            trainer = self._of(number)
            if trainer is None or (trainer.over and trainer.position.pass_id >= PASSES):
                return
            if trainer.over:
                self.made.begin(trainer)
            elif trainer.waits:
                self.made.receive(trainer)
            else:
                self.made.next(trainer)

    @rule(steps=st.integers(1, 30), first=which)
    def train(self, steps: int, first: int) -> None:
        """All are there and take turns."""
        for number in range(self.places):
            self.come(number)
        for step in range(steps):
            self.take(first + step, 1)

    @rule(number=which)
    def break_connection(self, number: int) -> None:
        trainer = self._of(number)
        if trainer is not None and not trainer.away:
            self.made.reconnect(trainer)

    @precondition(lambda self: self.places > 1)  # the job of one rank ends with it
    @rule(number=which)
    def die(self, number: int) -> None:
        trainer = self._of(number)
        if trainer is not None and not trainer.away and len(self.trainers) > 1:
            self._count(trainer)
            self.made.vanish(trainer)
            del self.trainers[number % self.places]

    @rule()
    def write(self) -> None:
        self.made.write()

    @precondition(lambda self: not self.dynamic)  # its trainers would have to load a state
    @rule()
    def kill_service(self) -> None:
        if self.made.disk:
            self.made.crash()

    @rule(seconds=st.floats(0.1, 3.0))
    def wait(self, seconds: float) -> None:
        self.made.now += seconds
        self._spoken()
        self.made.group.check_leases(self.made.now)
        self.made.serve()

    def _spoken(self) -> None:
        """Nobody is silent for as long as a lease: what happens then is tested in test_trainer_group."""
        for trainer in self.trainers.values():
            if not trainer.away and trainer.waits:
                self.made.beat(trainer)
            trainer.run_protocol.spoke_at = self.made.now
        for member in self.made.group.registry.trainers.values():
            if member.peer:
                member.last_heard = self.made.now

    def _count(self, trainer: Trainer) -> None:
        self.dead += [(trainer.number, p, n) for p, n in trainer.used]

    @invariant()
    def nobody_is_refused(self) -> None:
        for trainer in self.trainers.values():
            assert trainer.error is None, trainer.error

    @invariant()
    def a_rank_has_its_own_batches_only(self) -> None:
        if self.trainers and not self.dynamic:
            for trainer in self.trainers.values():
                assert all(n % self.made.places.world == trainer.rank for _, n in trainer.used)

    @invariant()
    def the_states_of_trainers_agree_with_the_pass(self) -> None:
        if self.trainers:
            group = self.made.group
            for member in group.registry.trainers.values():
                assert group.current is not None or member.state is not PassState.IN
                assert not member.flow.in_flight or member.state in (PassState.BEFORE, PassState.IN)
                assert member.peer or not member.flow.sent

    @invariant()
    def few_batches_wait_for_a_rank(self) -> None:
        if self.trainers and not self.dynamic:
            most = 4 + 2 * self.prefetch + 1
            assert all(len(member.flow.in_flight) <= most for member in self.made.group.registry.trainers.values())
            if isinstance(delivery := self.delivery, RankedDelivery):
                assert len(delivery._unclaimed) <= most

    @invariant()
    def nobody_is_sent_more_than_it_may_have(self) -> None:
        if self.trainers:
            for member in self.made.group.registry.trainers.values():
                sent = member.flow.sent_bytes + member.flow.unread_bytes
                assert sent <= max(member.flow.limit, 2 * BATCH_COST)
                assert member.flow.sent_bytes == sum(
                    held.cost for held in list(member.flow.in_flight)[: member.flow.sent]
                )
                assert member.flow.in_flight_bytes == sum(held.cost for held in member.flow.in_flight)

    @invariant()
    def the_rows_of_a_batch_are_held_as_long_as_it_is_kept_and_no_longer(self) -> None:
        if self.trainers:
            group = self.made.group
            kept = [held for member in group.registry.trainers.values() for held in member.flow.in_flight]
            ahead = []
            if isinstance(delivery := self.delivery, SharedDelivery):
                kept += delivery._waiting
            elif isinstance(delivery, RankedDelivery):
                kept += [held for cuts in delivery._unclaimed._groups for held in cuts.values()]
                ahead = [outcome for outcome in delivery._ahead if isinstance(outcome, BatchGroup)]
            rows = [held.batch.rows for held in kept] + [cut.rows for one in ahead for cut in one.batches]
            assert {*map(id, rows)} == {*map(id, self.made.numbers.held_rows())}
            holders = Counter(map(id, rows))
            assert all(each._holders == holders[id(each)] for each in rows)

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        for number in range(self.places):
            self.come(number)
        for _ in range(FAIR):
            going = [each for each in self.trainers.values() if not (each.over and each.position.pass_id >= PASSES)]
            if not going:
                break
            self.made.now += 0.5
            self._spoken()
            for number in range(self.places):
                self.take(number, 1)
                self.nobody_is_refused()
            self.made.group.check_leases(self.made.now)
            self.made.serve()
        else:
            raise AssertionError(f"no end: {[(t.rank, t.position, t.waits) for t in going]}")
        for trainer in self.trainers.values():
            self._count(trainer)
        for peer in range(self.peers):
            used = sorted((p, n) for number, p, n in self.dead if number % self.peers == peer)
            assert used == self.expected
        assert all(member.state is PassState.BEFORE for member in self.made.group.registry.trainers.values())
        assert self.made.numbers.held_rows() == []


TestShared = Shared.TestCase
TestShared.settings = settings(stateful_step_count=40, deadline=None)

"""A loader over a client: values ahead of the loop, the state of the one in training, passes that begin and end."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.client import client as client_module
from pydp2.client.look_ahead import LookAhead
from pydp2.errors import BadSample, ClientUseError, OptionError, StateMismatch
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.shared_service import Ranks, open_loader
from pydp2.frameworks.worker_passes import WorkerPasses
from pydp2.streams.mixing import MixedBatch
from pydp2.streams.sequence_packing import PackedBatch
from tests.list_stream import ListStream, rows_of
from tests.runs import NUMBERS, NUMBERS_OPTIONS, eventually

from .conftest import FILES

_jobs = count()


def samples(batch: pydp2.Batch) -> list[int]:
    return list(batch[0].tolist())


def sign(batch: pydp2.Batch) -> Any:
    rows: Any = rows_of(batch) if isinstance(batch, MixedBatch) else [np.asarray(value).tolist() for value in batch]
    return batch.pass_id, batch.index, batch.padding, rows


@contextmanager
def loader(service: pydp2.Service, convert: Any = samples, **options: Any) -> Iterator[FrameworkLoader[Any]]:
    job = f"loader {next(_jobs)}"
    with FrameworkLoader(service.connect(job=job, **NUMBERS_OPTIONS), convert, **options) as data:
        yield data


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_state_is_that_of_the_value_returned_last_however_many_are_ready(
    service: pydp2.Service, expected: list[list[list[int]]], ahead: int
) -> None:
    with loader(service, ahead=ahead) as data:
        states = [data.state_dict()]
        for value in data:
            assert value == expected[0][len(states) - 1]
            assert data.batch is not None
            assert data.batch.index == len(states) - 1
            states.append(data.state_dict())
        assert data.batch is None
        assert data.state_dict()["pass"] == 1
    for done in (0, 1, len(expected[0]) // 2, len(expected[0]) - 1):
        with loader(service, ahead=ahead) as data:
            data.load_state_dict(states[done])
            assert data.state_dict() == states[done]
            assert list(data) == expected[0][done:]
            assert list(data) == expected[1]


def test_the_state_behind_the_last_value_of_a_pass_begins_the_next_one(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    """A framework that takes its place from a checkpoint of the end of an epoch would see an empty epoch otherwise."""
    with loader(service) as data:
        *_, state = [data.state_dict() for _ in data]
    assert state["pass"] == 0
    with loader(service) as data:
        data.load_state_dict(state)
        assert data.pass_id == 1
        assert [list(data) for _ in range(data.pass_id, 3)] == expected[1:]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("asks", [False, True], ids=["no question", "pass_id"])
def test_a_state_that_is_loaded_in_a_loop_ends_it_and_the_next_loop_has_all_that_follows(
    service: pydp2.Service, expected: list[list[list[int]]], ahead: int, asks: bool
) -> None:
    """Asking for ``pass_id`` looks at the first batch of what follows: the old loop may not take it."""
    with loader(service, ahead=ahead) as data:
        seen, states = [], []
        for value in data:
            seen.append(value)
            states.append(data.state_dict())
            if len(seen) == 5:
                data.load_state_dict(states[1])
                assert not asks or data.pass_id == 0
        assert seen == expected[0][:5]
        assert list(data) == expected[0][2:]
        assert list(data) == expected[1]


def mixture(rank: tuple[int, int] = (0, 1)) -> pydp2.Mixture:
    streams = [ListStream([[100 * s + i] * (i % 4) for i in range(20 + s)], 3, rank=rank) for s in range(2)]
    return pydp2.mix([(streams[0], 1), (streams[1], 2)], batch_size=4, seed=3)


def packed(rank: tuple[int, int] = (0, 1)) -> pydp2.PackedSequences:
    return pydp2.pack_sequences(mixture(rank), slot="tokens", length=6, batch_size=2)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("make", [mixture, packed])
def test_a_mixture_and_packed_sequences_are_loaded_as_a_client_is(
    make: Callable[[], pydp2.Mixture | pydp2.PackedSequences], ahead: int
) -> None:
    with make() as stream:
        whole = [[sign(batch) for batch in stream] for _ in range(3)]
    with FrameworkLoader(make(), sign, ahead=ahead) as data:
        states = [json.loads(json.dumps(data.state_dict()))]
        for number, value in enumerate(data):
            assert value == whole[0][number]
            assert isinstance(data.batch, MixedBatch | PackedBatch)
            states.append(json.loads(json.dumps(data.state_dict())))
        data.set_epoch(0)
        assert [*data] == whole[0]
        data.set_epoch(2)
        assert [*data] == whole[2]
    for done in range(len(whole[0])):
        with FrameworkLoader(make(), sign, ahead=ahead) as data:
            data.load_state_dict(states[done])
            assert data.state_dict() == states[done]
            assert [*data] == whole[0][done:]
            assert [*data] == whole[1]


def test_packed_sequences_that_ranks_share_go_on_from_the_states_of_all_of_them() -> None:
    seen: list[list[Any]] = []
    states = []
    for rank in range(2):
        with FrameworkLoader(packed((rank, 2)), sign) as data:
            values = iter(data)
            next(values)
            states.append(data.state_dict())
            seen.append([*values])
    for rank in range(2):
        with FrameworkLoader(packed((rank, 2)), sign) as data:
            data.load_state_dict(states)
            assert data.state_dict() == states[rank]
            assert [*data] == seen[rank]


def test_options_beside_a_stream_are_refused_by_name() -> None:
    with mixture() as stream:
        for options in ({"batch_size": 4}, {"provider": "a.b"}):
            arguments: dict[str, Any] = {"provider": None} | options
            with pytest.raises(OptionError, match="a Mixture has its provider and its options already"):
                open_loader(stream, ranks=Ranks(), make=lambda stream: stream, **arguments)
        assert next(iter(stream)).index == 0
        with pytest.raises(OptionError, match="cannot read from a stream"):
            WorkerPasses(stream, None, Ranks(), job="default")  # type: ignore[arg-type]


def test_a_loop_that_is_never_asked_begins_no_pass(service: pydp2.Service, expected: list[list[list[int]]]) -> None:
    with loader(service) as data:
        for _ in range(3):
            iter(data)
        unused = iter(data)
        assert list(data) == expected[0]
        assert list(unused) == expected[1]


def test_a_new_loop_leaves_the_pass_of_the_one_before_which_says_so(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    with loader(service, ahead=1) as data:
        first = iter(data)
        next(first)
        assert list(data) == expected[1]
        with pytest.raises(ClientUseError, match="a newer loop over this loader"):
            next(first)


@pytest.mark.parametrize("is_whole", [False, True])
def test_set_epoch_warns_where_it_drops_a_later_state_that_was_loaded(
    service: pydp2.Service, expected: list[list[list[int]]], is_whole: bool
) -> None:
    with loader(service) as data:
        data.set_epoch(int(not is_whole))
        for _ in data:
            state = data.state_dict()
            if not is_whole:
                break
    with loader(service) as data:
        data.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"set_epoch\(0\) drops the state .* in pass 1"):
            data.set_epoch(0)
        assert list(data) == expected[0]


def test_set_epoch_begins_any_pass_and_goes_on_in_that_of_a_state(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    with loader(service) as data:
        for epoch in (2, 0, 0, 1):
            data.set_epoch(epoch)
            assert data.pass_id == epoch
            assert list(data) == expected[epoch]
        data.set_epoch(0)
        for _ in islice(data, 2):
            state = data.state_dict()
        data.set_epoch(0)
        assert list(data) == expected[0], "from its start"
        data.load_state_dict(state)
        data.set_epoch(0)
        assert list(data) == expected[0][2:], "Hugging Face's Trainer calls it behind load_state_dict()"


@pytest.mark.parametrize("ahead", [0, 2])
def test_set_epoch_after_a_pass_that_was_left_has_the_state_of_the_pass_that_comes(
    service: pydp2.Service, expected: list[list[list[int]]], ahead: int
) -> None:
    with loader(service, ahead=ahead) as data:
        for _ in islice(data, 3):
            pass
        data.set_epoch(1)
        assert data.pass_id == 1
        state = data.state_dict()
        assert next(iter(data)) == expected[1][0]
        data.load_state_dict(state)
        assert list(data) == expected[1]


@pytest.mark.parametrize("make", [mixture, packed])
def test_set_epoch_after_a_pass_of_a_mixture_that_was_left_does_the_same(
    make: Callable[[], pydp2.Mixture | pydp2.PackedSequences],
) -> None:
    with make() as stream:
        whole = [[sign(batch) for batch in stream] for _ in range(2)]
    with FrameworkLoader(make(), sign) as data:
        assert next(iter(data)) == whole[0][0]
        data.set_epoch(1)
        assert data.pass_id == 1
        state = data.state_dict()
        assert next(iter(data)) == whole[1][0]
        data.load_state_dict(state)
        assert [*data] == whole[1]


@pytest.mark.parametrize("batches", [4, -1], ids=["in the middle", "before the last batch"])
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("epoch", [None, 0, 1])
def test_where_the_first_value_behind_a_state_cannot_be_converted_the_next_loop_has_a_whole_pass(
    service: pydp2.Service,
    expected: list[list[list[int]]],
    batches: int,
    ahead: int,
    is_held: bool,
    epoch: int | None,
) -> None:
    failing: list[int] = []

    def convert(batch: pydp2.Batch) -> list[int]:
        if failing:
            raise RuntimeError("no memory on the device, say")
        return samples(batch)

    with loader(service, convert, ahead=ahead) as data:
        for _ in islice(data, batches % len(expected[0])):
            state = data.state_dict()
        data.load_state_dict(state)
        failing.append(1)
        values = iter(data)
        with pytest.raises(RuntimeError):
            next(values)
        failing.clear()
        if not is_held:
            del values
        if epoch is not None:
            data.set_epoch(epoch)
            assert data.pass_id == epoch
        assert list(data) == expected[1 if epoch is None else epoch]


def test_a_loop_that_is_kept_takes_nothing_of_what_follows_a_state_that_is_loaded(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    with loader(service) as data:
        kept = iter(data)
        next(kept)
        state = data.state_dict()
        next(kept)
        data.load_state_dict(state)
        assert data.pass_id == 0, "for this it looks at the first batch"
        assert list(data) == expected[0][1:]
        assert next(kept, None) is None


def test_a_pass_without_a_batch_is_over_for_states_too() -> None:
    with FrameworkLoader(ListStream([], 3), sign) as data:
        assert list(data) == []
        assert data.pass_id == data.state_dict()["pass"] == 1
        data.set_epoch(0)
        assert data.pass_id == 0


def test_the_number_of_the_pass_is_known_where_the_order_is_relaxed(service: pydp2.Service) -> None:
    """There is no state in the middle of a pass then."""
    options = NUMBERS_OPTIONS | {"order": "relaxed"}
    with FrameworkLoader(service.connect(job=f"loader {next(_jobs)}", **options), index) as data:
        for epoch in range(2):
            for _ in islice(data, 3):
                assert data.pass_id == epoch


def test_changed_code_that_yields_the_same_samples_is_allowed(
    provider_file: Callable[[str], str], expected: list[list[list[int]]]
) -> None:
    with FrameworkLoader(pydp2.load(FILES, provider_file(NUMBERS), workers=1, **NUMBERS_OPTIONS), samples) as data:
        for _ in islice(data, 3):
            state = data.state_dict()
    code = provider_file(NUMBERS + "# a comment\n")
    with FrameworkLoader(pydp2.load(FILES, code, workers=1, **NUMBERS_OPTIONS), samples) as data:
        with pytest.raises(StateMismatch, match=r'pass allow=\["provider_source"\]'):
            data.load_state_dict(state)
        data.load_state_dict(state, allow=["provider_source"])
        data.load_state_dict(data.state_dict())  # it is one of this stream now
        assert list(data) == expected[0][3:]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_while_a_value_is_converted_loses_no_batch(
    service: pydp2.Service, expected: list[list[list[int]]], ahead: int, error: type[BaseException]
) -> None:
    seen: list[list[int]] = []
    failing = {3, 4, 9}

    def convert(batch: pydp2.Batch) -> list[int]:
        if batch.index in failing:
            failing.remove(batch.index)
            raise error("no memory on the device, say")
        return samples(batch)

    with loader(service, convert, ahead=ahead) as data:
        values = iter(data)
        while True:
            try:
                seen += values
                break
            except error:
                values = values if error is RuntimeError else iter(data)  # what was interrupted goes on anew, too
        assert seen == expected[0]


def test_an_error_of_the_data_comes_behind_the_values_before_it(provider_file: Callable[[str], str]) -> None:
    bad = """
        @provider(input_types=[integer_value(10)], should_shuffle=False)
        def process(settings, filename):
            yield from range(11)
    """
    with pydp2.load(["x"], provider_file(bad), batch_size=2, workers=1) as client:
        values = iter(FrameworkLoader(client, samples, ahead=3))
        assert [next(values) for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        with pytest.raises(BadSample):
            next(values)


def test_where_the_loop_reads_ahead_the_state_is_that_of_the_value_in_training(
    service: pydp2.Service, expected: list[list[list[int]]], provider: str, tmp_path: Path
) -> None:
    """As Lightning does it as long as the length is not known: a value is fetched before the one before it is used."""
    nothing_counted = pydp2.launch(FILES, provider, workers=1, cache_dir=tmp_path / "cache")
    with nothing_counted as new, loader(new, reads_ahead=1) as data:
        assert not data._has_length()
        values = iter(data)
        in_training, states = next(values), []
        while in_training is not None:
            following = next(values, None)
            states.append(data.state_dict())
            in_training = following
    for done in (1, 2, len(expected[0]) - 1):
        with loader(service) as data:
            data.load_state_dict(states[done - 1])
            assert list(data) == expected[0][done:]


def index(batch: pydp2.Batch) -> int:
    return batch.index


def test_the_state_behind_values_that_were_taken_is_the_one_of_that_time(service: pydp2.Service) -> None:
    with loader(service, index) as data:
        then = {number: data.state_dict() for number, _ in enumerate(data, 1)}
        assert {number: data.state_dict(taken=number) for number in then} == then
        for taken in (0, len(then) + 1):
            with pytest.raises(ClientUseError, match=f"behind value {taken}"):
                data.state_dict(taken=taken)


def test_a_number_of_values_that_falls_counts_something_else(service: pydp2.Service) -> None:
    """Steps of an epoch, with steps_per_epoch, while the iteration goes on."""
    with loader(service, index) as data:
        for _ in range(2):
            values = iter(data)
            for _ in range(6):
                next(values)
            assert data.state_dict(taken=5)["batch"] == data.state_dict(taken=5)["batch"] == 5
            with pytest.raises(ClientUseError, match="never falls: got 1 after 5; with steps_per_epoch"):
                data.state_dict(taken=1)


def test_where_a_framework_reads_ahead_only_the_number_that_was_taken_gives_a_state(service: pydp2.Service) -> None:
    with loader(service, index) as data:
        ahead = data.iterate(index, reads_ahead=True)
        assert [next(ahead), next(ahead), next(ahead)] == [0, 1, 2]
        with pytest.raises(ClientUseError, match="taken="):
            data.state_dict()
        state = data.state_dict(taken=1)
        ahead.close()  # type: ignore[attr-defined]  # it can be closed
        data.load_state_dict(state)
        assert next(iter(data)) == 1


def test_a_service_that_was_given_outlives_the_loader(service: pydp2.Service) -> None:
    for _ in range(2):
        with loader(service, index) as data:
            assert next(iter(data)) == 0


def test_a_loop_that_converts_otherwise_goes_on_in_a_pass_that_was_interrupted(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    def interrupted(batch: pydp2.Batch) -> int:
        if batch.index == 3:
            raise KeyboardInterrupt
        return batch.index

    with loader(service, samples, ahead=2) as data:
        values = data.iterate(interrupted)
        assert next(values) == 0
        with pytest.raises(KeyboardInterrupt):
            next(values)
        assert list(data) == expected[0][1:]


# -- beside long steps -------------------------------------------------------------------------------------------------
ROWS = """
@provider(
    input_types=[dense_vector(WIDTH), integer_value_sequence(100000)], pool_size=64, cache=CacheType.CACHE_PASS_IN_MEM
)
def process(settings, filename):
    for i in range(2000 if WIDTH < 100 else 300):
        yield [i] * WIDTH, [i] * (i % 5)
"""
ROWS_OPTIONS: dict[str, Any] = {"batch_size": 16, "workers": 1, "seed": 4}
STEP = 0.004  # seconds


class Converter:
    """Sums up the values of each batch, and notes the threads that do it. ``fails``: not in another one than that
    which made it."""

    def __init__(self, fails: bool = False) -> None:
        self.mine, self._fails = threading.get_ident(), fails
        self.threads: list[int] = []

    def __call__(self, batch: pydp2.Batch) -> tuple[int, float, int]:
        self.threads.append(threading.get_ident())
        if self._fails and threading.get_ident() != self.mine:
            raise ValueError("no")
        rows, words = batch
        assert isinstance(rows, np.ndarray)
        assert isinstance(words, pydp2.Ragged)
        return batch.index, float(rows.sum()), len(words.values)

    @property
    def ahead(self) -> int:
        """How many were converted in another thread."""
        return len(self.threads) - self.threads.count(self.mine)


@pytest.fixture
def rows(provider_file: Callable[[str], str]) -> Iterator[pydp2.Client]:
    """Batches that wait for nobody: they are in the cache."""
    with pydp2.load(["a", "b"], provider_file(ROWS.replace("WIDTH", "20000")), **ROWS_OPTIONS) as client:
        list(client)
        yield client


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("width", [4, 20_000], ids=["small batches that come together", "large ones"])
def test_beside_long_steps_batches_are_converted_in_another_thread_and_the_values_are_the_same(
    width: int, ahead: int, provider_file: Callable[[str], str]
) -> None:
    provider = provider_file(ROWS.replace("WIDTH", str(width)))
    with pydp2.load(["a", "b"], provider, **ROWS_OPTIONS) as client:
        expected = [Converter()(batch) for batch in client]
    convert = Converter()
    with FrameworkLoader(
        pydp2.load(["a", "b"], provider, **ROWS_OPTIONS), convert, ahead=ahead, context=lambda: 0
    ) as data:
        found, state = [], {}
        for number, value in enumerate(data):
            found.append(value)
            if number == 20:
                state = data.state_dict()
            assert data.batch is not None
            assert (data.batch.pass_id, data.batch.index, data.batch._ready) == (0, number, None)
            time.sleep(STEP)
        assert found == expected
        assert convert.ahead
        assert len(convert.threads) == len(expected), "each of them once"
        data.load_state_dict(state)
        assert list(data) == expected[21:]


def test_only_for_a_loop_that_gives_them_values_are_made_ahead(rows: pydp2.Client) -> None:
    convert, other = Converter(), Converter()
    data = FrameworkLoader(rows, convert, context=lambda: 0)
    for steps in (data, rows, data.iterate(other)):
        before = len(convert.threads)
        for _ in steps:  # type: ignore[attr-defined]  # one of three kinds
            time.sleep(STEP)
        assert (len(convert.threads) > before) == (steps is data)
    assert convert.ahead
    assert not other.ahead


def test_a_loader_that_says_nothing_of_threads_converts_in_that_of_the_call(rows: pydp2.Client) -> None:
    convert = Converter()
    for _ in FrameworkLoader(rows, convert):
        time.sleep(STEP)
    assert len(convert.threads) > 20
    assert not convert.ahead


def test_only_values_of_the_context_of_their_loop_are_made_ahead(
    rows: pydp2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass goes on in a context that the other thread has not, in one where it must not, and in the first one."""
    monkeypatch.setattr(client_module, "_SKIPPED_STEPS", 2)
    mine = threading.get_ident()
    context: str | None = "everywhere"
    convert = Converter()
    data = FrameworkLoader(rows, convert, context=lambda: context if threading.get_ident() == mine else "everywhere")
    ahead = []
    steps = iter(data)
    for context in ("everywhere", "here alone", None, "everywhere"):
        for _ in islice(steps, 2):  # the first of them may have been converted in a step of the context before
            time.sleep(STEP)
        before = convert.ahead
        for _ in islice(steps, 7):
            time.sleep(STEP)
        ahead.append((context, convert.ahead > before))
    assert ahead == [("everywhere", True), ("here alone", False), (None, False), ("everywhere", True)]


def test_what_could_not_be_made_ahead_for_a_while_is_made_ahead_again(
    rows: pydp2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program changed for a moment what values depend on everywhere."""
    monkeypatch.setattr(client_module, "_SKIPPED_STEPS", 2)
    convert, asked = Converter(), [0]

    def context() -> int:
        is_first = threading.get_ident() != convert.mine and asked[0] < 3
        asked[0] += is_first
        return int(is_first)

    for _ in FrameworkLoader(rows, convert, context=context):
        time.sleep(STEP)
    assert asked[0] == 3
    assert convert.ahead


def test_values_that_were_made_ahead_go_with_the_pass(rows: pydp2.Client) -> None:
    """Whoever leaves a pass may wait for long before the next one."""
    made: list[weakref.ref[set[int]]] = []

    def convert(batch: pydp2.Batch) -> set[int]:
        value = {batch.index}
        made.append(weakref.ref(value))
        return value

    data = FrameworkLoader(rows, convert, context=lambda: 0)
    steps, taken = iter(data), 0
    while len(made) == taken:
        next(steps)
        taken += 1
        time.sleep(STEP)
    assert [each for each in made if each() is not None], "one is ahead"
    steps.close()  # type: ignore[attr-defined]  # it is a loop
    assert eventually(lambda: not [each for each in made if each() is not None])


def test_the_thread_is_not_woken_for_what_it_cannot_convert(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches come together, so in most steps there is nothing else to do for it."""
    given: list[float] = []
    give = LookAhead.give

    def noted(self: LookAhead, work: Callable[[], None], *, delay: float = 0.0) -> None:
        given.append(delay)
        give(self, work, delay=delay)

    monkeypatch.setattr(LookAhead, "give", noted)
    counts: dict[str, int] = {}
    contexts = {"none": None, "not now": lambda: None, "not there": threading.get_ident}
    with pydp2.load(["a"], provider_file(ROWS.replace("WIDTH", "4")), **ROWS_OPTIONS) as client:
        list(client)
        for name, context in contexts.items():
            given.clear()
            for _ in FrameworkLoader(client, lambda batch: batch.index, context=context):
                time.sleep(STEP)
            counts[name] = len(given)
    assert set(counts) == set(contexts)
    assert max(counts.values()) < 30, "of 125 steps each"


def test_after_an_interruption_nothing_is_made_ahead_for_a_loop_that_converts_otherwise(rows: pydp2.Client) -> None:
    convert, other = Converter(), Converter()

    def interrupted(batch: pydp2.Batch) -> Any:
        if not convert.threads:
            convert.threads.append(threading.get_ident())
            raise KeyboardInterrupt
        return convert(batch)

    data = FrameworkLoader(rows, interrupted, context=lambda: 0)
    with pytest.raises(KeyboardInterrupt):
        next(iter(data))
    for _ in data.iterate(other):
        time.sleep(STEP)
    assert len(convert.threads) == 1
    assert not other.ahead


def test_a_conversion_that_raises_ahead_is_done_again_by_the_call(rows: pydp2.Client) -> None:
    convert = Converter(fails=True)
    for number, (index, *_) in enumerate(FrameworkLoader(rows, convert, context=lambda: 0)):
        assert number == index
        time.sleep(STEP)
    assert convert.ahead

"""What every loader of a framework does alike (docs/frameworks.md): each test here runs for each that is installed.

``tests/torch``, ``tests/jax``, ``tests/tf`` and ``tests/paddle`` say how to install one. What only one framework has is
tested there.
"""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count, islice
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import BadSample, ClientUseError, OptionError, OptionTypeError, StateMismatch
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.shared_service import Ranks, chosen_ranks, open_loader
from tests.conftest import nothing_stays
from tests.list_stage import rows_of
from tests.provider_code import one, yields
from tests.runs import NUMBERS, NUMBERS_OPTIONS

from .conftest import FILES, launched

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::SyntaxWarning")
Samples = list[int]
Passes = list[list[Samples]]
_jobs = count()


@dataclass(frozen=True)
class Kind:
    """Loader of a framework that needs the modules ``needs``; ``make`` takes what its ``loader()`` takes."""

    name: str
    needs: tuple[str, ...]
    make: Callable[..., FrameworkLoader[Any]]
    keeps_files_open: bool = False

    def loader(self, source: Any, provider: Any = None, **options: Any) -> FrameworkLoader[Any]:
        """A loader of ``source``. Of a service: in a job of its own, with the options of the tests."""
        if isinstance(source, pydp2.Service):
            options = {"job": f"contract {next(_jobs)}", **NUMBERS_OPTIONS, "last_batch": "keep"} | options
            source = source.address
        return self.make(source, provider, **options)


def of_no_framework(ahead: int) -> Callable[..., FrameworkLoader[Any]]:
    def make(source: Any, provider: Any, *, rank: Any = None, world_size: Any = None, **options: Any) -> Any:
        along = options.pop("share_along", None)
        ranks = chosen_ranks(rank, world_size, Ranks, along) if isinstance(source, str | list) else Ranks()
        convert: Callable[[pydp2.Batch], Any] = tuple
        return open_loader(source, provider, ranks, lambda it: FrameworkLoader(it, convert, ahead=ahead), **options)

    return make


def of(module: str, **given: Any) -> Callable[..., FrameworkLoader[Any]]:
    def make(*source: Any, **options: Any) -> FrameworkLoader[Any]:
        made: FrameworkLoader[Any] = import_module(module).loader(*source, **given, **options)
        return made

    return make


KINDS = [
    Kind("no framework", (), of_no_framework(0)),
    Kind("two ahead", (), of_no_framework(2)),
    Kind("torch", ("torch",), of("pydp2.torch")),
    Kind("jax", ("jax",), of("pydp2.jax")),
    Kind("tf", ("tensorflow",), of("pydp2.tf"), keeps_files_open=True),
    Kind("keras", ("tensorflow", "keras"), of("pydp2.keras", x=0, pad=0), keeps_files_open=True),
    Kind("paddle", ("paddle",), of("pydp2.paddle"), keeps_files_open=True),
]


def lacks(kind: Kind) -> list[str]:
    return [module for module in kind.needs if importlib.util.find_spec(module) is None]


@pytest.fixture(params=[kind for kind in KINDS if not lacks(kind)], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    for module in found.needs:
        library: Any = import_module(module)
        if module == "torch":
            library.set_num_threads(1)  # threads of its own would stay behind
        if module == "jax":
            library.devices()  # what it opens stays open
    return found


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """TensorFlow and Paddle keep descriptors and threads of their own."""
    if "kind" in request.fixturenames and request.getfixturevalue("kind").keeps_files_open:
        yield
        gc.collect()
    else:
        with nothing_stays():
            yield


def samples(value: Any) -> Samples:
    """The numbers of the first slot of a value."""
    found: Samples = np.asarray(value[0]).tolist()
    return found


def read(data: FrameworkLoader[Any]) -> list[Samples]:
    return [samples(value) for value in data]


def sign(batch: Any) -> Any:
    """All that a batch of a mixture, or of packed sequences, has."""
    rows = rows_of(batch) if isinstance(batch, pydp2.MixedBatch) else [np.asarray(value).tolist() for value in batch]
    return batch.pass_id, batch.index, batch.padding, rows


def signs(data: FrameworkLoader[Any]) -> list[Any]:
    return [sign(data.batch) for _ in data]


def of_stream(state: Any) -> Any:
    """The state of a client in that of a loader; torch wants the same keys at every place, so its loader has a text."""
    return json.loads(state["stream"]) if "stream" in state else state


def failing(data: FrameworkLoader[Any], error: type[BaseException], at: set[int]) -> None:
    """Have the conversion of batch ``n`` raise ``error`` once, for each n of ``at``."""
    convert = data._convert

    def once(batch: pydp2.Batch) -> Any:
        if batch.index in at:
            at.remove(batch.index)
            raise error("no memory on the device, say")
        return convert(batch)

    data._convert = once


@pytest.mark.parametrize("framework", [kind for kind in KINDS if kind.needs], ids=lambda kind: kind.name)
def test_the_contract_is_that_of_each_framework(framework: Kind) -> None:
    if missing := lacks(framework):
        pytest.skip(f"{missing[0]} is not installed")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


# -- a loop is a pass --------------------------------------------------------------------------------------------------
def test_each_loop_is_a_pass_and_the_batch_is_the_one_in_training(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        assert data.batch_size == 16
        for epoch, batches in enumerate(expected):
            assert (data.batch, data.pass_id) == (None, epoch)
            for number, value in enumerate(data):
                assert samples(value) == batches[number]
                assert data.batch is not None
                assert (data.batch.pass_id, data.batch.index, data.pass_id) == (epoch, number, epoch)
            assert number + 1 == len(batches) == len(data)


def test_the_origins_are_those_of_the_batch_in_training_and_no_part_of_a_value(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service, origin=True) as data:
        assert data.origin is None
        for value, found in zip(data, expected[0], strict=True):
            assert samples(value) == found
            origin = data.origin
            assert origin is not None
            files = [int(data.files[n]) for n in origin.entry.tolist()]  # type: ignore[arg-type]
            assert [1000 * n + i for n, i in zip(files, origin.sample.tolist(), strict=True)] == found
    with kind.loader(service) as data:
        next(iter(data))
        with pytest.raises(OptionError, match="pass origin=True to"):
            data.origin  # noqa: B018  # it raises


def test_a_loop_that_is_left_is_followed_by_the_next_pass_and_one_that_is_never_asked_begins_none(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        for _ in range(3):
            iter(data)
        unused = iter(data)
        assert [samples(value) for value in islice(data, 2)] == expected[0][:2]
        assert read(data) == expected[1]
        assert [samples(value) for value in unused] == expected[2]


def test_a_new_loop_leaves_the_pass_of_the_one_before_which_says_so(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        older = iter(data)
        next(older), next(older)
        newer = iter(data)
        seen = [samples(next(newer)) for _ in range(3)]
        with pytest.raises(ClientUseError, match="a newer loop over this loader"):
            next(older)
        del older
        assert seen + [samples(value) for value in newer] == expected[1]


def test_it_has_no_values_by_number_and_its_length_may_be_unknown(
    kind: Kind, provider_file: Callable[[str], str]
) -> None:
    address = provider_file(one())
    with kind.loader(["x", "y"], address, batch_size=1, workers=1, remember_counts=False) as data:
        with pytest.raises(TypeError, match="takes the place of a DataLoader, and needs none around it"):
            data[0]
        with pytest.raises(TypeError, match="not known yet") as raised:
            len(data)
        assert "DataLoader" not in str(raised.value)


# -- states ------------------------------------------------------------------------------------------------------------
def test_the_state_of_any_step_goes_on_there_and_the_one_behind_the_last_begins_the_next_pass(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    """A framework that takes its place from a checkpoint of the end of an epoch would see an empty epoch otherwise."""
    with kind.loader(service) as data:
        states = [data.state_dict(), *(data.state_dict() for _ in data)]
        assert (data.state_dict()["pass"], data.state_dict()["batch"]) == (1, 0)
    whole = len(expected[0])
    assert [(state["pass"], state["batch"]) for state in states] == [(0, batch) for batch in range(whole + 1)]
    for done in (0, 1, whole // 2, whole - 1, whole):
        state = json.loads(json.dumps(states[done]))
        with kind.loader(service) as data:
            data.load_state_dict(state)
            assert data.state_dict() == states[done]
            assert data.pass_id == (done == whole)
            assert [read(data) for _ in range(data.pass_id, 3)] == [
                rest for rest in (expected[0][done:], *expected[1:]) if rest
            ]


def test_the_state_of_a_loader_is_one_of_a_client_and_the_other_way_round(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        for _ in islice(data, 4):
            state = data.state_dict()
    with service.connect(job=f"client {next(_jobs)}", **NUMBERS_OPTIONS) as client:
        client.load_state_dict(of_stream(state))
        batches = iter(client)
        assert samples(next(batches)) == expected[0][4]
        of_client = client.state_dict()
    with kind.loader(service) as data:
        data.load_state_dict(of_client)
        assert read(data) == expected[0][5:]


@pytest.mark.parametrize("asks", [False, True], ids=["no question", "pass_id"])
def test_a_state_that_is_loaded_in_a_loop_ends_it_and_the_next_loop_has_all_that_follows(
    kind: Kind, service: pydp2.Service, expected: Passes, asks: bool
) -> None:
    """Asking for ``pass_id`` looks at the first batch of what follows: the old loop may not take it."""
    with kind.loader(service) as data:
        seen, states = [], []
        loop = iter(data)
        for value in loop:
            seen.append(samples(value))
            states.append(data.state_dict())
            if len(seen) == 5:
                data.load_state_dict(states[1])
                assert not asks or data.pass_id == 0
        assert seen == expected[0][:5]
        assert read(data) == expected[0][2:]
        assert next(loop, None) is None
        assert read(data) == expected[1]


def test_the_state_behind_values_that_were_taken_is_the_one_of_that_time(kind: Kind, service: pydp2.Service) -> None:
    """As a framework has it that reads ahead of the loop."""
    with kind.loader(service) as data:
        then = {number: data.state_dict() for number, _ in enumerate(data, 1)}
        assert {number: data.state_dict(taken=number) for number in then} == then
        for taken in (0, len(then) + 1):
            with pytest.raises(ClientUseError, match=f"behind value {taken}"):
                data.state_dict(taken=taken)
        for _ in range(2):
            ahead = data.iterate(lambda batch: batch.index, reads_ahead=True)
            assert [next(ahead) for _ in range(6)] == [*range(6)]
            with pytest.raises(ClientUseError, match="taken="):
                data.state_dict()
            state = data.state_dict(taken=2)
            assert data.state_dict(taken=5)["batch"] == data.state_dict(taken=5)["batch"] == 5
            with pytest.raises(ClientUseError, match="never falls: got 1 after 5; with steps_per_epoch"):
                data.state_dict(taken=1)
        data.load_state_dict(state)
        for _ in data:
            assert data.batch is not None
            assert data.batch.index == 2
            break


def test_values_that_were_taken_are_counted_from_where_the_loop_began(kind: Kind, service: pydp2.Service) -> None:
    with kind.loader(service) as data:
        failing(data, KeyboardInterrupt, {4})
        before: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            before.extend(data)
        had = len(before)
        assert data.state_dict(taken=had)["batch"] == had
        values = iter(data)
        next(values)
        assert data.state_dict(taken=1)["batch"] == had + 1
        with pytest.raises(ClientUseError, match="behind value 2"):
            data.state_dict(taken=2)


def test_a_damaged_state_and_one_of_another_stream_are_refused_and_nothing_has_changed(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service, batch_size=8) as other:
        foreign = other.state_dict()
    with kind.loader(service) as data:
        values = iter(data)
        assert [samples(next(values)) for _ in range(3)] == expected[0][:3]
        state = data.state_dict()
        for damaged in ({**state, "batch": 99}, [state], "x", {}, foreign):
            with pytest.raises(StateMismatch):
                data.load_state_dict(damaged)  # type: ignore[arg-type]
        assert data.state_dict() == state
        assert [samples(value) for value in values] == expected[0][3:]


def test_changed_code_that_yields_the_same_samples_is_allowed(
    kind: Kind, provider_file: Callable[[str], str], expected: Passes
) -> None:
    options: dict[str, Any] = {**NUMBERS_OPTIONS, "workers": 1, "last_batch": "keep"}
    with kind.loader(FILES, provider_file(NUMBERS), **options) as data:
        for _ in islice(data, 3):
            state = data.state_dict()
    with kind.loader(FILES, provider_file(NUMBERS + "# a comment\n"), **options) as data:
        with pytest.raises(StateMismatch, match=r'pass allow=\["provider_source"\]'):
            data.load_state_dict(state)
        data.load_state_dict(state, allow=["provider_source"])
        data.load_state_dict(data.state_dict())  # it is one of this stream now
        assert read(data) == expected[0][3:]


def test_the_number_of_the_pass_is_known_where_the_order_is_relaxed(kind: Kind, service: pydp2.Service) -> None:
    """There is no state in the middle of a pass then."""
    with kind.loader(service, order="relaxed") as data:
        for epoch in range(2):
            for _ in islice(data, 3):
                assert data.pass_id == epoch
                with pytest.raises(StateMismatch, match="no state in the middle of a pass"):
                    data.state_dict()


# -- set_epoch ---------------------------------------------------------------------------------------------------------
def test_set_epoch_begins_any_pass_and_goes_on_in_that_of_a_state(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        for epoch in (2, 0, 0, 1):
            data.set_epoch(epoch)
            assert data.pass_id == epoch
            assert read(data) == expected[epoch]
        data.set_epoch(0)
        for _ in islice(data, 2):
            state = data.state_dict()
        data.set_epoch(0)
        assert read(data) == expected[0], "from its start"
        data.load_state_dict(state)
        data.set_epoch(0)
        assert read(data) == expected[0][2:], "Hugging Face's Trainer calls it behind load_state_dict()"


def test_set_epoch_after_a_pass_that_was_left_has_the_state_of_the_pass_that_comes(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    with kind.loader(service) as data:
        for _ in islice(data, 3):
            pass
        data.set_epoch(1)
        assert data.pass_id == 1
        state = data.state_dict()
        assert samples(next(iter(data))) == expected[1][0]
        data.load_state_dict(state)
        assert read(data) == expected[1]


def test_set_epoch_begins_a_pass_anew_that_was_cut_off_again_and_again(
    kind: Kind, service: pydp2.Service, expected: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state was loaded in it."""
    with kind.loader(service) as data:
        values = iter(data)
        next(values), next(values), next(values)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(FrameworkLoader, "_take", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(values)
            values = iter(data)
        data.set_epoch(0)
        assert read(data) == expected[0]


@pytest.mark.parametrize("batch", [None, 0, 2], ids=["behind the pass before", "before the first", "in the middle"])
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_set_epoch_warns_where_it_drops_a_later_state_that_was_loaded(
    kind: Kind, service: pydp2.Service, expected: Passes, batch: int | None, is_cut_off: bool
) -> None:
    """A loop that was cut off before its first value has not used the state."""
    with kind.loader(service) as data:
        data.set_epoch(0 if batch is None else 1)
        state = data.state_dict()
        for _ in islice(data, batch):
            state = data.state_dict()
    with kind.loader(service) as data:
        data.load_state_dict(state)
        if is_cut_off:
            failing(data, KeyboardInterrupt, {batch or 0})
            with pytest.raises(KeyboardInterrupt):
                next(iter(data))
        with pytest.warns(UserWarning, match=r"set_epoch\(0\) drops the state .* in pass 1"):
            data.set_epoch(0)
        assert read(data) == expected[0]


# -- interruptions and errors ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_while_a_value_is_converted_loses_no_batch(
    kind: Kind, service: pydp2.Service, expected: Passes, error: type[BaseException]
) -> None:
    seen: list[Samples] = []
    with kind.loader(service) as data:
        failing(data, error, {1, 3, 4, 9})
        values = iter(data)
        while True:
            try:
                seen += map(samples, values)
                break
            except error:
                values = values if error is RuntimeError else iter(data)  # what was interrupted goes on anew, too
        assert seen == expected[0]


@pytest.mark.parametrize("had", [0, 1, 4])
def test_an_interruption_while_the_loop_waits_loses_no_batch(
    kind: Kind, service: pydp2.Service, expected: Passes, had: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind.loader(service) as data:
        values = iter(data)
        seen = [samples(next(values)) for _ in range(had)]
        with monkeypatch.context() as patched:
            patched.setattr(FrameworkLoader, "_take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(values)
        state = data.state_dict()
        seen += read(data)
        assert seen == expected[0]
        assert read(data) == expected[1]
        data.load_state_dict(state)
        assert read(data) == expected[0][had:]


@pytest.mark.parametrize("batches", [4, -1], ids=["in the middle", "before the last batch"])
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("epoch", [None, 0, 1])
def test_where_the_first_value_behind_a_state_cannot_be_converted_the_next_loop_has_a_whole_pass(
    kind: Kind, service: pydp2.Service, expected: Passes, batches: int, is_held: bool, epoch: int | None
) -> None:
    with kind.loader(service) as data:
        for _ in islice(data, batches % len(expected[0])):
            state = data.state_dict()
        data.load_state_dict(state)
        failing(data, RuntimeError, {state["batch"]})
        values = iter(data)
        with pytest.raises(RuntimeError):
            next(values)
        if not is_held:
            del values
        if epoch is not None:
            data.set_epoch(epoch)
            assert data.pass_id == epoch
        assert read(data) == expected[1 if epoch is None else epoch]


def test_an_error_of_the_data_comes_behind_the_values_before_it(
    kind: Kind, provider_file: Callable[[str], str]
) -> None:
    bad = yields("integer_value(10)", "range(11)", "should_shuffle=False")
    with kind.loader(["x"], provider_file(bad), batch_size=2, workers=1, last_batch="keep") as data:
        values = iter(data)
        assert [samples(next(values)) for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        with pytest.raises(BadSample):
            next(values)


def test_a_service_that_was_given_outlives_the_loader_and_the_service_of_a_list_does_not(
    kind: Kind, service: pydp2.Service, provider: str, expected: Passes
) -> None:
    for _ in range(2):
        with kind.loader(service) as data:
            assert [samples(value) for value in islice(data, 2)] == expected[0][:2]
        with pytest.raises(ClientUseError, match="closed"):
            next(iter(data))
    with kind.loader(FILES, provider, workers=1, **NUMBERS_OPTIONS, last_batch="keep") as data:
        assert read(data) == expected[0]
    with pytest.raises(pydp2.errors.Error):
        data.client.stats()


# -- other streams -----------------------------------------------------------------------------------------------------
Opened = Callable[..., pydp2.Client]


@pytest.fixture(scope="module")
def of_several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Opened]]:
    """``of_several(kind)(**options)`` opens a mixture, or packed sequences, of a service with two sources."""
    file = tmp_path_factory.mktemp("several") / "several.py"
    code = "([1000 * int(filename) + i] * (i % 4) for i in range(15 + int(filename)))"
    file.write_text("from pydp2 import *\n" + yields('{"tokens": integer_value_sequence(100000)}', code, "pool_size=8"))

    def opened(kind: str) -> Opened:
        def mixture(job: str = "", **options: Any) -> pydp2.Client:
            options = {"job": job or f"several {next(_jobs)}", "batch_size": 4, "seed": 3} | options
            return pydp2.mix({"a": 1, "b": 2}, address=service.address, **options)

        def packed(**options: Any) -> pydp2.Client:
            return pydp2.pack_sequences(mixture(**options), slot="tokens", length=6, batch_size=2)

        return {"mixture": mixture, "packed": packed}[kind]

    with launched({"a": ["0", "1"], "b": ["2", "3"]}, f"{file}:process") as service:
        yield opened


@pytest.fixture(params=["mixture", "packed"])
def make(request: pytest.FixtureRequest, of_several: Callable[[str], Opened]) -> Opened:
    return of_several(request.param)


def test_a_mixture_and_packed_sequences_are_loaded_as_a_client_is(kind: Kind, make: Opened) -> None:
    with make() as stream:
        whole = [[sign(batch) for batch in stream] for _ in range(3)]
    with kind.loader(make()) as data:
        states = [json.loads(json.dumps(data.state_dict()))]
        for number, _ in enumerate(data):
            assert isinstance(data.batch, pydp2.MixedBatch | pydp2.PackedBatch)
            assert sign(data.batch) == whole[0][number]
            states.append(json.loads(json.dumps(data.state_dict())))
        for epoch in (0, 2):
            data.set_epoch(epoch)
            assert signs(data) == whole[epoch]
    for done in (0, 1, len(whole[0]) // 2, len(whole[0]) - 1):
        with kind.loader(make()) as data:
            data.load_state_dict(states[done])
            assert data.state_dict() == states[done]
            assert [signs(data), signs(data)] == [whole[0][done:], whole[1]]
    with kind.loader(make()) as data:
        for _ in islice(data, 2):
            pass
        data.set_epoch(1)
        assert data.pass_id == 1
        state = data.state_dict()
        for _ in islice(data, 1):
            assert sign(data.batch) == whole[1][0]
        data.load_state_dict(state)
        assert signs(data) == whole[1]


def test_ranks_of_a_mixture_and_of_packed_sequences_have_one_state(kind: Kind, make: Opened) -> None:
    def ranks(job: str) -> list[FrameworkLoader[Any]]:
        return [kind.loader(make(job=job, rank=rank, world_size=2)) for rank in range(2)]

    def in_step(loaders: list[FrameworkLoader[Any]]) -> Iterator[tuple[list[Any], Any]]:
        for _ in zip(*loaders, strict=True):  # all take equally many steps
            first, second = (data.state_dict() for data in loaders)
            assert first == second
            yield [sign(data.batch) for data in loaders], first

    def read_from(state: Any) -> list[Any]:
        loaders = ranks(f"ranks {next(_jobs)}")
        for data in loaders:
            if state is not None:
                data.load_state_dict(state)
        found = [*in_step(loaders)]
        for data in loaders:
            data.close()
        return found

    whole = read_from(None)
    assert [batches for batches, _ in read_from(whole[1][1])] == [batches for batches, _ in whole[2:]]


def test_a_pass_without_a_batch_is_over_for_states_too(kind: Kind, provider_file: Callable[[str], str]) -> None:
    none = provider_file(yields("integer_value_sequence(10)", "()"))
    with kind.loader(["x"], none, batch_size=3, workers=1, last_batch="pad") as data:  # with "drop", jax refuses it
        assert [*data] == []
        assert data.pass_id == data.state_dict()["pass"] == 1
        data.set_epoch(0)
        assert data.pass_id == 0


# -- options and ranks -------------------------------------------------------------------------------------------------
def test_options_beside_a_stream_are_refused_by_name(kind: Kind, make: Opened) -> None:
    with make() as stream:
        for options in ({"batch_size": 4}, {"provider": "a.b"}):
            with pytest.raises(OptionError, match="a Client has its provider and its options already"):
                kind.loader(stream, **options)
        assert next(iter(stream)).index == 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_workers": 4}, OptionTypeError, "num_workers"),
        ({"batchsize": 4}, OptionTypeError, "no option 'batchsize', did you mean 'batch_size'"),
        ({"drop_last": True}, OptionTypeError, 'last_batch="drop"'),
        ({"batch_size": 0}, OptionError, "batch_size must be at least 1"),
        ({"rank": 1}, OptionError, "rank and world_size belong together"),
        ({"world_size": 2}, OptionError, "rank and world_size belong together"),
        ({"share_along": (0, 2)}, OptionError, "leave share_along out|pass rank and world_size with it"),
        ({"rank": 1, "world_size": 2}, OptionError, "nothing says which ranks run on this machine.*pydp2 serve"),
    ],
)
def test_options_that_cannot_be_are_refused_and_nothing_stays_behind(
    kind: Kind, provider: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        kind.loader(FILES, provider, **{"workers": 1, **NUMBERS_OPTIONS} | options)


def test_a_launcher_that_the_framework_does_not_know_is_no_reason_to_read_all_in_each_process(
    kind: Kind, provider: str, expected: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    options: dict[str, Any] = {"workers": 1, "last_batch": "keep", **NUMBERS_OPTIONS}
    with pytest.raises(OptionError, match=r"rank 1 of 2 \(OMPI_.*\), and the framework knows of no other"):
        kind.loader(FILES, provider, **options)
    with kind.loader(FILES, provider, world_size=1, **options) as data:
        assert read(data) == expected[0]


def test_peers_of_a_rank_of_a_service_take_the_same_batches(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    job, place = f"peers {next(_jobs)}", {"rank": 0, "world_size": 1}
    if "jax" in kind.name:  # a sharding says it
        with pytest.raises(OptionError, match=r"same rows of a sharding.*leave share_along out"):
            kind.loader(service, job=job, share_along=(0, 2), **place)
        return
    loaders = [kind.loader(service, job=job, share_along=(peer, 2), **place) for peer in range(2)]
    steps = [[samples(value) for value in step] for step in zip(*loaders, strict=True)]
    assert steps == [[rows, rows] for rows in expected[0]]
    for data in loaders:
        data.close()


def test_ranks_of_a_service_take_the_batches_in_turn_and_one_state_is_that_of_all(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    def ranks() -> list[FrameworkLoader[Any]]:
        job = f"ranks {next(_jobs)}"
        return [kind.loader(service, job=job, rank=rank, world_size=2, last_batch="pad") for rank in range(2)]

    def in_step(loaders: list[FrameworkLoader[Any]]) -> Iterator[tuple[list[Samples], list[Any]]]:
        for step in zip(*loaders, strict=True):  # all take equally many steps
            rows = []
            for value, data in zip(step, loaders, strict=True):
                assert data.batch is not None
                assert len(data.batch) == 16
                rows.append(samples(value)[: len(data.batch) - data.batch.padding])
            yield rows, [data.state_dict() for data in loaders]

    loaders = ranks()
    found = [*in_step(loaders)]
    for data in loaders:
        data.close()
    assert [rows for step, _ in found for rows in step if rows] == expected[0]
    assert all(states[0] == states[1] for _, states in found)
    loaders = ranks()
    for data in loaders:
        data.load_state_dict(found[2][1][0])
    assert [rows for rows, _ in in_step(loaders)] == [rows for rows, _ in found[3:]]
    for data in loaders:
        data.close()

"""mix() over a service: one service for all sources, weights that change for all ranks at once, clear refusals."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import ClientUseError, OptionError, OptionTypeError, StateMismatch

from ..runs import in_ranks, wait_until

PROVIDER = """
@provider(input_types={"n": integer_value(1000000), "tokens": integer_value_sequence(100000)}, pool_size=100)
def process(settings, filename):
    for i in range(40):
        yield {"n": int(filename) * 1000 + i, "tokens": [int(filename)] * (i % 5 + 1)}
"""
LISTS: Any = {"a": ["1", "2", "3"], "b": ["4", "5"]}
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3, "workers": 1}


def numbers(batch: pydp2.Batch) -> tuple[int, list[int], list[int]]:
    assert isinstance(batch, pydp2.MixedBatch)
    return batch.index, np.asarray(batch["n"]).tolist(), batch.source.tolist()


def test_one_service_reads_all_sources_and_each_row_names_its_own(provider_file: Callable[[str], str]) -> None:
    with pydp2.mix(LISTS, provider_file(PROVIDER), weights={"a": 1, "b": 3}, origin=True, **OPTIONS) as data:
        rows = [row for batch in data for row in zip(*numbers(batch)[1:], batch.origin.entry.tolist(), strict=True)]
        stats = data.stats()
        assert [one["rows"] for one in stats["jobs"]["default"]["sources"].values()] == [120, 80]
        assert len([worker for worker in stats["workers"] if worker["active"]]) == 1
    assert sorted(n for n, _, _ in rows) == sorted(
        1000 * int(name) + i for names in LISTS.values() for name in names for i in range(40)
    )
    assert all(LISTS["ab"[source]][entry] == str(n // 1000) for n, source, entry in rows)


def test_a_list_and_its_weight_are_enough_and_a_source_has_a_provider_of_its_own(
    provider_file: Callable[..., str],
) -> None:
    other = provider_file(PROVIDER.replace("1000 + i", "1000 + i + 500"), "other")
    pairs = [(["1"], 1), (pydp2.Source(["2"], other), 1)]
    with pydp2.mix(pairs, provider_file(PROVIDER), **OPTIONS) as data:
        seen = sorted(n for batch in data for n in numbers(batch)[1])
    assert seen == [*range(1000, 1040), *range(2500, 2540)]


def test_weights_that_rank_0_sets_hold_for_all_ranks_from_one_step_on(provider_file: Callable[[str], str]) -> None:
    options = OPTIONS | {"weights": {"a": 1, "b": 1}, "stopping_strategy": "cycle_forever"}
    seen: list[list[Any]] = [[], []]
    states, places = ["", ""], []
    both = threading.Barrier(2, timeout=60)

    with pydp2.launch(LISTS, provider_file(PROVIDER), workers=1) as service:

        def stream(rank: int, ranks: int, name: str = "shared") -> pydp2.Client:
            job = {"batch_size": 8, "seed": 3, "stopping_strategy": "cycle_forever"}
            place = {"rank": rank, "world_size": ranks, "last_batch": "pad", "job": name}
            return pydp2.mix({"a": 1, "b": 1}, address=service.address, **job, **place)  # type: ignore[arg-type]

        def train(rank: int) -> None:
            with stream(rank, 2) as data:
                for step, batch in enumerate(data):
                    seen[rank].append(numbers(batch))
                    if step == 4:
                        both.wait()
                        if rank == 0:
                            places.append(data.set_weights({"a": 0, "b": 2}))
                        both.wait()
                    if step > 4 and step == places[0][1] + 9:  # small batches are sent far ahead of their use
                        break
                states[rank] = json.dumps(data.state_dict(), sort_keys=True)

        in_ranks(train)
        ((pass_id, changed),) = places
        assert pass_id == 0
        assert changed >= 5
        for rank in range(2):
            assert all(0 not in sources for _, _, sources in seen[rank][changed:])
            assert any(0 in sources for _, _, sources in seen[rank][:changed])
        assert states[0] == states[1]
        with stream(0, 1, "alone") as data:  # the state has the weights
            data.load_state_dict(json.loads(states[0]))
            assert all(0 not in numbers(batch)[2] for batch in islice(data, 10))
    assert options


def test_a_state_goes_on_with_other_weights_on_request(provider_file: Callable[[str], str]) -> None:
    provider, forever = provider_file(PROVIDER), {"stopping_strategy": "cycle_forever"}
    with pydp2.mix(LISTS, provider, weights={"a": 1, "b": 1}, **OPTIONS, **forever) as data:
        for batch in data:
            if batch.index == 5:
                data.set_weights({"a": 1, "b": 9})
            if batch.index == 90:
                state = data.state_dict()
                break
        assert state["buckets"]["weights"], "those that were set are in the state"
    with pydp2.mix(LISTS, provider, weights={"a": 1, "b": 0}, **OPTIONS, **forever) as data:
        with pytest.raises(StateMismatch, match=r'weights was .*; allow=\["weights"\] goes on with the other weights'):
            data.load_state_dict(state)
        data.load_state_dict(state, allow=["weights"])
        assert {source for batch in islice(data, 10) for source in numbers(batch)[2]} == {0}


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ({"sources": {}}, OptionError, "at least one source"),
        ({"sources": "train.list"}, OptionTypeError, "a dict of source: weight"),
        ({"sources": {"train.list": -1}}, OptionError, "a weight must be a number from 0 on, got -1"),
        ({"sources": {"train.list": "much"}}, OptionTypeError, "a weight must be a number from 0 on"),
        ({"sources": {"train.list": 0}}, OptionError, "at least one source with a weight above 0"),
        ({"weights": {"a": 1}}, OptionError, "must name the sources of the service: a, b; got a"),
        ({"weights": [(1, {"a": 1, "b": 1})]}, OptionError, "must begin with step 0"),
        ({"weights": [(0, {"a": 1, "b": 1}), (0, {"a": 1, "b": 1})]}, OptionError, "must rise"),
        ({"weights": [3]}, OptionTypeError, r"a list of \(step, weights\)"),
        ({"order": "relaxed"}, OptionError, "no order that rows could be mixed in"),
        ({"share": "dynamic"}, OptionError, "share it by ranks"),
        ({"bucket_by": "tokens"}, OptionError, "bucket_by cannot be used where rows are mixed"),
        ({"max_passes": {"a": 2}}, OptionError, "each source is read once in a pass"),
        ({"max_passes": {"c": 2}, "stopping_strategy": "cycle_forever"}, OptionError, "max_passes names 'c'"),
        ({"weight_by": "n"}, OptionError, "weight_by must be a sequence"),
        ({"weight_by": "tokens", "batching_method": "per_stream"}, OptionError, "weight_by needs"),
        ({"stopping_strategy": "never"}, OptionError, "stopping_strategy"),
        ({"wieghts": {}}, OptionTypeError, "weights"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_a_remedy(
    call: dict[str, Any], error: type[Exception], says: str, provider_file: Callable[[str], str]
) -> None:
    given: dict[str, Any] = {"sources": LISTS, "weights": {"a": 1, "b": 1}} | OPTIONS | call
    if call.keys() == {"sources"}:
        del given["weights"]
    with pytest.raises(error, match=says):
        pydp2.mix(given.pop("sources"), provider_file(PROVIDER), **given)


def test_packing_takes_a_stream_before_its_first_loop_and_no_other(provider_file: Callable[[str], str]) -> None:
    data = pydp2.load(["1", "2"], provider_file(PROVIDER), **OPTIONS)
    pack: dict[str, Any] = {"slot": "tokens", "length": 8, "batch_size": 2}
    with pytest.raises(OptionError, match=r"slot must be a sequence of numbers, .*, and n is"):
        pydp2.pack_sequences(data, **pack | {"slot": "n"})
    with pytest.raises(OptionError, match="pad_token must be at most 2147483647"):
        pydp2.pack_sequences(data, **pack, pad_token=1 << 40)
    with pytest.raises(OptionError, match="last_row='drop' needs"):
        pydp2.pack_sequences(data, **pack, last_row="drop")
    with pytest.raises(OptionError, match="not both, got 'tokens' twice"):
        pydp2.pack_sequences(data, **pack, ragged=["tokens"])
    with pydp2.pack_sequences(data, **pack) as rows:
        tokens = sum(int(batch.segments.length.sum()) for batch in rows if isinstance(batch, pydp2.PackedBatch))
        assert tokens == 2 * sum(i % 5 + 1 for i in range(40))
        with pytest.raises(ClientUseError, match="before its first loop"):
            pydp2.pack_sequences(rows, **pack)
    with pytest.raises(OptionTypeError, match="needs a stream"):
        pydp2.pack_sequences(["1"], **pack)  # type: ignore[arg-type]
    with pytest.raises(ClientUseError):
        next(iter(data))


def test_the_share_of_the_pass_is_known_of_packed_and_mixed_rows(provider_file: Callable[[str], str]) -> None:
    options = OPTIONS | {"weights": {"a": 3, "b": 1}, "stopping_strategy": "first_exhausted", "prefetch_bytes": 1}
    mixed = pydp2.mix(LISTS, provider_file(PROVIDER), **options)
    with pydp2.pack_sequences(mixed, slot="tokens", length=8, batch_size=2) as rows:

        def progress() -> dict[str, Any]:
            (job,) = [job for name, job in rows.stats()["jobs"].items() if name.endswith(".packed")]
            found: dict[str, Any] = job["progress"]
            return found

        batches = len([*rows])  # by now enough files are counted
        assert progress() == {"batch": batches, "share": 1.0, "is_estimate": True}
        stream = iter(rows)
        next(stream)
        next(stream)  # the first one is used now
        assert wait_until(lambda: 0.0 < progress()["share"] < 1.0)
        assert progress()["batch"] < batches


def test_a_source_without_a_whole_batch_is_not_repeated_for_ever(provider_file: Callable[[str], str]) -> None:
    options = OPTIONS | {"batch_size": 100, "last_batch": "drop", "batching_method": "per_stream"}
    forever = {"stopping_strategy": "cycle_forever", "weights": {"a": 1, "b": 1}}
    with (
        pydp2.mix({"a": ["1", "2", "3"], "b": ["4"]}, provider_file(PROVIDER), **options, **forever) as data,
        pytest.raises(OptionError, match="'b' gave no row in a whole pass"),
    ):
        for _ in islice(data, 100):
            pass


def test_an_open_stream_and_an_address_are_no_sources(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["1"], provider_file(PROVIDER), **OPTIONS) as data:
        with pytest.raises(OptionTypeError, match="an open stream was given; give the lists to one mix"):
            pydp2.mix([(data, 1)], batch_size=2)  # type: ignore[list-item]
        with pytest.raises(OptionTypeError, match="mixes its sources"):
            pydp2.mix({data.address: 1}, batch_size=2)


def test_samples_with_weights_are_not_mixed(provider_file: Callable[[str], str]) -> None:
    weighted = PROVIDER.replace("pool_size=100", "pool_size=100, calc_batch_size=lambda sample: 2")
    with pytest.raises(OptionError, match="leave calc_batch_size out"):
        pydp2.mix(LISTS, provider_file(weighted), weights={"a": 1, "b": 1}, **OPTIONS)


def test_weights_are_set_for_mixtures_alone_and_for_all_sources(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["1"], provider_file(PROVIDER), **OPTIONS) as data:
        with pytest.raises(OptionError, match="mixes no sources"):
            data.set_weights({"a": 1})
        with pytest.raises(OptionTypeError, match="a dict of source and weight"):
            data.set_weights([1])  # type: ignore[arg-type]
    with pydp2.mix(LISTS, provider_file(PROVIDER), weights={"a": 1, "b": 1}, **OPTIONS) as data:
        with pytest.raises(OptionError, match="needs a weight for each source: a, b; got a"):
            data.set_weights({"a": 1})
        with pytest.raises(OptionError, match="above 0"):
            data.set_weights({"a": 0, "b": 0})


def test_ranks_of_a_packed_mixture_go_on_when_their_service_is_killed_and_started_again(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    provider = provider_file(PROVIDER.replace("range(40)", "range(300)"))
    options: dict[str, Any] = {"workers": 2, "bind": f"ipc://{tmp_path}/s", "state_dir": tmp_path / "state"}

    def read(*, kill: bool) -> list[list[Any]]:
        seen: list[list[Any]] = [[], []]
        reached = threading.Event()
        services = [pydp2.launch(LISTS, provider, **options)]

        def train(rank: int) -> None:
            place: dict[str, Any] = {"rank": rank, "world_size": 2, "job": f"job {kill}", "batch_size": 16, "seed": 3}
            mixed = pydp2.mix({"a": 1, "b": 2}, address=options["bind"], **place)
            with pydp2.pack_sequences(mixed, slot="tokens", length=16, batch_size=4) as data:
                for batch in data:
                    seen[rank].append((batch.index, np.asarray(batch["tokens"]).tolist()))
                    if rank == 0 and batch.index == 12:
                        reached.set()
                        assert killed.wait(60)

        killed = threading.Event()
        ranks = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
        for rank in ranks:
            rank.start()
        assert reached.wait(60)
        if kill:
            os.kill(services[0].pid, signal.SIGKILL)
            services[0].close()
            services.append(pydp2.launch(LISTS, provider, **options))
        killed.set()
        for rank in ranks:
            rank.join(60)
            assert not rank.is_alive()
        services[-1].close()
        return seen

    uninterrupted = read(kill=False)
    assert len(uninterrupted[0]) == len(uninterrupted[1]) > 20
    assert read(kill=True) == uninterrupted

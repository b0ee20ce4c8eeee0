"""``rebuild``: a batch of a run again, alone, from a state before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import NotRepeatable, OptionError, OptionTypeError, StateMismatch

CODE = """
@provider(input_types={"x": dense_vector(2), "words": integer_value_sequence(100)}, pool_size=100)
def process(settings, filename):
    for i in range(90):
        yield {"x": [i, float("nan") if (filename, i) == ("b", 17) else 1], "words": [i] * (i % 5)}
"""
FILES = ["a", "b", "c"]
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 11, "last_batch": "pad", "interleave": 2, "pool_bytes": 1 << 16}


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(CODE)


def sign(batch: pydp2.Batch) -> Any:
    return batch.pass_id, batch.index, batch.padding, batch["x"].tobytes(), batch["words"].values.tobytes()  # type: ignore[union-attr]


def run(provider: str, passes: int = 1, **options: Any) -> tuple[list[Any], dict[int, Any]]:
    """All batches of the last of some passes, and the states before some of them."""
    with pydp2.load(FILES, provider, workers=2, **OPTIONS | options) as data:
        for _ in range(passes):
            batches, states = [], {0: json.loads(json.dumps(data.state_dict()))}
            for batch in data:
                batches.append(sign(batch))
                if batch.index % 10 == 9:
                    states[batch.index + 1] = json.loads(json.dumps(data.state_dict()))
    return batches, states


@pytest.mark.parametrize("passes", [1, 2])
def test_any_batch_behind_a_state_can_be_made_again(provider: str, passes: int) -> None:
    batches, states = run(provider, passes)
    for at, number in ((0, 0), (0, 33), (10, 10), (20, 33), (30, 33)):
        rebuilt = pydp2.rebuild(states[at], number, FILES, provider, workers=1)
        assert sign(rebuilt.batch) == batches[number]
        assert list(rebuilt.files) == FILES
        rows = rebuilt.rows()
        assert len(rows) == len(rebuilt.batch) - rebuilt.batch.padding
        assert [row.values["x"].tolist() for row in rows if row.entry != "b" or row.sample != 17] == [
            [row.sample, 1] for row in rows if not row.not_finite
        ]
        assert all((row.entry, row.sample, row.not_finite) == ("b", 17, ["x"]) for row in rows if row.not_finite)


def test_the_state_of_a_rank_will_do_and_the_batch_may_be_that_of_another(provider: str) -> None:
    batches, _ = run(provider)
    with pydp2.launch(FILES, provider, workers=1) as service:
        clients = [service.connect(rank=rank, world_size=2, **OPTIONS) for rank in range(2)]
        loops = [iter(client) for client in clients]
        for _ in range(3):
            for loop in loops:
                next(loop)
        state = clients[1].state_dict()
        for client in clients:
            client.close()
    for number in (6, 7):
        assert sign(pydp2.rebuild(state, number, FILES, provider).batch) == batches[number]


def test_a_stream_that_is_open_goes_to_the_batch_and_stays_open(provider: str) -> None:
    batches, states = run(provider)
    with pydp2.load(FILES, provider, workers=1, **OPTIONS, origin=True) as data:
        rebuilt = pydp2.rebuild(states[10], 12, data)
        assert sign(rebuilt.batch) == batches[12]
        assert list(rebuilt.files) == FILES
        data.load_state_dict(states[20])
        assert [sign(batch) for batch in data] == batches[20:]
    with pydp2.load(FILES, provider, workers=1, **OPTIONS) as data:
        assert sign(pydp2.rebuild(states[10], 12, data).batch) == batches[12]


SOURCES = {"one": ["a"], "two": ["b", "c"]}


def mixture(provider: str) -> pydp2.Client:
    weights = [(0, {"one": 1, "two": 2}), (9, {"one": 3, "two": 1})]
    return pydp2.mix(SOURCES, provider, weights=weights, batch_size=8, seed=3, workers=1, origin=True)


def packed(provider: str) -> pydp2.Client:
    stream = pydp2.load(FILES, provider, batch_size=8, seed=3, workers=1, origin=True)
    return pydp2.pack_sequences(stream, slot="words", length=16, batch_size=2)


def packed_mixture(provider: str) -> pydp2.Client:
    return pydp2.pack_sequences(mixture(provider), slot="words", length=16, batch_size=2)


@pytest.mark.parametrize("make", [mixture, packed, packed_mixture])
def test_batches_of_mixtures_and_of_packed_sequences_are_made_from_their_lists_or_the_stream_itself(
    provider: str, make: Callable[[str], pydp2.Client]
) -> None:
    with make(provider) as stream:
        seen = []
        for batch in stream:
            if batch.index == 3:
                state = json.loads(json.dumps(stream.state_dict()))
            seen.append([value.tobytes() for value in batch if isinstance(value, np.ndarray)])
        entries = stream.files
    lists: Any = FILES if make is packed else SOURCES
    with make(provider) as stream:
        for rebuilt in (pydp2.rebuild(state, 11, stream), pydp2.rebuild(state, 11, lists, provider, workers=2)):
            assert rebuilt.batch.index == 11
            assert [value.tobytes() for value in rebuilt.batch if isinstance(value, np.ndarray)] == seen[11]
            if make is packed:
                assert list(rebuilt.files) == list(entries) == FILES
            else:
                assert (
                    [list(files) for files in rebuilt.files]
                    == [list(files) for files in entries]
                    == [["a"], ["b", "c"]]
                )
            if make is mixture:
                origin = rebuilt.batch.origin
                assert origin.source is not None
                expected = [
                    SOURCES[["one", "two"][source]][entry]
                    for source, entry in zip(origin.source, origin.entry, strict=True)
                ]
                assert [row.entry for row in rebuilt.rows()] == expected
                assert len({*expected}) > 1
            else:
                with pytest.raises(OptionError, match="pieces of several samples"):
                    rebuilt.rows()


def test_a_batch_of_a_mixture_of_several_ranks_has_the_weights_of_its_step(provider: str) -> None:
    weights = [(step, {"one": 1 + step % 2 * 9, "two": 1}) for step in range(12)]
    with pydp2.launch(SOURCES, provider, workers=1) as service:
        clients = [
            pydp2.mix(weights, address=service.address, batch_size=8, rank=rank, world_size=2, last_batch="pad")
            for rank in range(2)
        ]
        seen, states = {}, []
        for step in zip(*clients, strict=True):
            seen |= {batch.index: batch["x"].tobytes() for batch in step}  # type: ignore[union-attr]
            states.append(json.loads(json.dumps(clients[0].state_dict())))
        for client in clients:
            client.close()
    for at, number in ((0, 3), (0, 16), (3, 8), (3, 13)):
        rebuilt = pydp2.rebuild(states[at], number, SOURCES, provider, workers=1)
        assert rebuilt.batch["x"].tobytes() == seen[number]  # type: ignore[union-attr]


def test_a_mixture_is_not_made_from_one_list_and_balanced_rows_not_by_one_rank(provider: str) -> None:
    with mixture(provider) as stream:
        state = stream.state_dict()
    with pytest.raises(OptionError, match="must name the sources of the service"):
        pydp2.rebuild(state, 7, FILES, provider)
    stream = pydp2.load(FILES, provider, batch_size=8, workers=1)
    with (
        pydp2.pack_sequences(stream, slot="words", length=16, batch_size=2, balance="tokens") as rows,
        pytest.raises(OptionError, match="open the stream without balance"),
    ):
        pydp2.rebuild(rows.state_dict(), 1, rows)


def test_what_cannot_be_made_again_is_refused_with_a_remedy(provider: str, provider_file: Callable[..., str]) -> None:
    batches, states = run(provider)
    for batch, kind, text in (
        (3, OptionError, "the state is before batch 10 of pass 0, and batch 3 came earlier"),
        (-1, OptionError, "batch must be at least 0"),
        ("3", OptionTypeError, "batch must be a whole number"),
        (len(batches), OptionError, f"pass 0 has no batch {len(batches)}; give a number of a batch that was delivered"),
        (5000, OptionError, "pass 0 has no batch 5000"),
    ):
        with pytest.raises(kind, match=text):
            pydp2.rebuild(states[10], batch, FILES, provider)  # type: ignore[arg-type]
    with pytest.raises(StateMismatch, match="list was"):
        pydp2.rebuild(states[10], 12, [*FILES, "d"], provider)
    with pytest.raises(StateMismatch, match="its digest is another one"):
        pydp2.rebuild(states[10] | {"batch": 11}, 12, FILES, provider)
    with pytest.raises(NotRepeatable, match="cannot be made again"):
        pydp2.rebuild(
            states[10], 12, FILES, provider_file(CODE.replace("range(90)", "range(1, 91)")), allow=["provider_source"]
        )
    with pydp2.load(FILES, provider_file(CODE), workers=1, **OPTIONS | {"order": "relaxed"}) as data:
        relaxed = data.state_dict()
        with pytest.raises(OptionError, match="belong to the stream, which is open already"):
            pydp2.rebuild(relaxed, 0, data, provider)
    with pytest.raises(OptionError, match='order="relaxed" gives other batches each time'):
        pydp2.rebuild(relaxed, 0, FILES, provider)


def test_a_stream_of_several_ranks_and_a_state_without_a_stream_are_refused(provider: str) -> None:
    _, states = run(provider)
    with (
        pydp2.launch(FILES, provider, workers=1) as service,
        service.connect(rank=0, world_size=2, **OPTIONS) as client,
        pytest.raises(OptionError, match="shares them among 2 ranks; pass the file list, or open the stream with"),
    ):
        pydp2.rebuild(states[10], 12, client)
    with pytest.raises(StateMismatch, match="stream_identity: it is no object: it is damaged"):
        pydp2.rebuild({**states[10], "stream_identity": None}, 12, FILES, provider)


def test_a_batch_without_origins_has_no_rows(provider: str) -> None:
    _, states = run(provider)
    with pydp2.load(FILES, provider, workers=1, **OPTIONS) as data:
        rebuilt = pydp2.rebuild(states[0], 1, data)
    with pytest.raises(OptionError, match="origin=True"):
        rebuilt.rows()

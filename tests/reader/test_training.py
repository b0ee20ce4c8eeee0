"""The train loop: its events, its passes; and that a model learns by it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pydp2.data.schema.input_types import integer_value
from pydp2.errors import BadSample, OptionError, OptionTypeError
from pydp2.reader import (
    BeginIteration,
    BeginPass,
    EndForwardBackward,
    EndIteration,
    EndPass,
    Fake,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    train,
)

TYPES = {"x": integer_value(100)}


class Source:
    """A reader that counts its calls."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.calls = 0

    def __call__(self) -> Iterator[tuple[int]]:
        self.calls += 1
        return ((i,) for i in range(self.n))


def test_rd_38_the_reader_is_called_once_a_pass_and_all_is_numbered_from_0() -> None:
    source, events, seen = Source(3), [], []
    train(
        source, {"x": 0}, 2, 2, events.append,
        input_types=TYPES,
        step=lambda b: seen.append((b.pass_id, b.index, b["x"].tolist())) or b["x"].sum(),  # type: ignore[func-returns-value]
        update=lambda: seen.append("update"),
    )  # fmt: skip
    assert source.calls == 2
    assert events == [
        event
        for p in range(2)
        for event in (
            BeginPass(p),
            BeginIteration(p, 0), EndForwardBackward(p, 0), EndIteration(p, 0, 1),
            BeginIteration(p, 1), EndForwardBackward(p, 1), EndIteration(p, 1, 2),
            EndPass(p),
        )
    ]  # fmt: skip
    assert seen == [(0, 0, [0, 1]), "update", (0, 1, [2]), "update", (1, 0, [0, 1]), "update", (1, 1, [2]), "update"]


def test_a_reader_of_batches_is_taken_as_it_is() -> None:
    def sizes(reader: Any, size: int | None) -> list[int]:
        seen: list[int] = []
        train(reader, None, size, 1, input_types=TYPES, step=lambda b: seen.append(len(b)))
        return seen

    assert sizes(batch(Source(5), 2), 2) == sizes(batch(Source(5), 2), None) == [2, 2, 1]
    assert sizes(lambda: iter([[(1,)], [(2,), (3,)]]), None) == [1, 2]
    with pytest.raises(OptionError, match="gives batches of 2, and batch_size=3"):
        sizes(batch(Source(5), 2), 3)


def test_a_design_doc_provider_gives_lists_of_columns_and_its_last_short_batch_is_kept() -> None:
    seen: list[Any] = []
    types = {"x": integer_value(9), "y": integer_value(9)}
    step = lambda b: seen.append(b["y"].tolist())  # noqa: E731
    train(lambda: ([i, i] for i in range(3)), ["x", "y"], 2, 1, input_types=types, step=step)
    assert seen == [[0, 1], [2]]


def test_training_that_has_no_end_can_be_left_by_an_exception() -> None:
    closed = []

    def endless() -> Iterator[tuple[int]]:
        try:
            while True:
                yield (1,)
        finally:
            closed.append(True)

    class Enough(Exception):
        pass

    def handler(event: Any) -> None:
        if event == EndIteration(0, 100, None):
            raise Enough

    with pytest.raises(Enough):
        train(endless, None, 4, 1, handler, input_types=TYPES, step=lambda b: None)
    assert closed == [True]


def test_what_cannot_be_trained_from_is_refused() -> None:
    def run(reader: Any, **changed: Any) -> None:
        given: dict[str, Any] = {"mapping": None, "batch_size": 2, "passes": 1, "input_types": TYPES, "step": len}
        train(reader, **(given | changed))

    with pytest.raises(OptionTypeError, match="give the function itself"):
        run(Source(3)())
    with pytest.raises(OptionTypeError, match="must give an iterable"):
        run(lambda: None)
    with pytest.raises(BadSample, match="entry 1 of the mini-batch, x: "):
        run(lambda: [(1,), (100,)])
    for wrong in ({"step": None}, {"event_handler": 3}, {"update": 3}, {"mapping": 3}, {"passes": "2"}):
        with pytest.raises(TypeError):
            run(Source(3), **wrong)
    for wrong in ({"passes": -1}, {"batch_size": 0}):
        with pytest.raises(OptionError):
            run(Source(3), **wrong)


def test_a_value_that_does_not_fit_is_named_with_its_pass_and_batch_and_a_batch_reader_is_told_of() -> None:
    with pytest.raises(BadSample, match=r"^pass 0, mini-batch 1: entry 1 of the mini-batch, x: "):
        train(lambda: [(1,), (2,), (3,), (100,)], None, 2, 1, input_types=TYPES, step=len)
    with pytest.raises(BadSample, match="of a reader of mini-batches train with batch_size=None"):
        train(map_readers(list, batch(Source(5), 2)), None, 2, 1, input_types=TYPES, step=len)
    seen: list[int] = []
    mapped = map_readers(list, batch(Source(5), 2))
    train(mapped, None, None, 1, input_types=TYPES, step=lambda b: seen.append(len(b)))
    assert seen == [2, 2, 1]


@pytest.mark.parametrize(
    "decorate",
    [
        lambda batches: buffered(batches, 3),
        lambda batches: shuffle(batches, 3, seed=1),
        lambda batches: firstn(batches, 9),
        lambda batches: chain(batches),
        cache,
        lambda batches: buffered(shuffle(chain(batches), 9), 2),
        lambda batches: multiprocess_reader([batches]),
    ],
)
@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.filterwarnings("ignore:multiprocess_reader")  # this process has threads, now and then
def test_what_passes_mini_batches_on_gives_mini_batches(decorate: Any, batch_size: int | None) -> None:
    seen: list[list[int]] = []
    reader = decorate(batch(lambda: iter(range(6)), 2))
    train(reader, None, batch_size, 1, input_types=TYPES, step=lambda b: seen.append(b[0].tolist()))
    assert sorted(seen) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(OptionError, match="gives batches of 2, and batch_size=3"):
        train(reader, None, 3, 1, input_types=TYPES, step=len)


def test_what_mixes_mini_batches_of_two_sizes_has_no_size_of_its_own() -> None:
    two, three = batch(Source(4), 2), batch(Source(3), 3)
    assert chain(two, two).batch_size == 2  # type: ignore[attr-defined]
    for mixed in (chain(two, three), chain(two, Source(2)), chain(), compose(two, two), map_readers(list, two)):
        assert not hasattr(mixed, "batch_size")
    assert Fake()(two, 5).batch_size == 2  # type: ignore[attr-defined]


def test_no_sample_of_a_list_that_is_taken_for_an_entry_is_dropped_silently() -> None:
    mapped = map_readers(list, batch(lambda: iter(range(6)), 2))
    with pytest.raises(BadSample, match=r"expected 1 column, .* got an entry with 2 columns.*batch_size=None"):
        train(mapped, None, 2, 1, input_types=TYPES, step=len)


def test_the_example_learns_the_digits(capsys: Any) -> None:
    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs/examples/train_from_readers.py"))
    main: Callable[[], float] = example["main"]
    assert main() >= 0.93
    assert "pass 0" in capsys.readouterr().out

"""``pydp2.peek``: the first samples and a first batch, and nothing read beyond them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pydp2
from pydp2.errors import BadSample, OptionError, ProviderError

from ..provider_code import NOTHING_BAD_GOOD, yields

Write = Callable[..., str]
COUNTING = """
    @provider(input_types={"n": integer_value(100)}%s)
    def process(settings, filename):
        for y in range(5):
            n = 10 * int(filename) + y
            if n == STOP:
                raise OSError("read too far")
            yield {"n": n}
"""


@pytest.fixture
def counting(provider_file: Write) -> Callable[..., str]:
    """A provider that gives 10, 11, … 14 for file "1", and so on; it raises at ``stop``."""
    made = [0]

    def write(options: str = "", stop: int = -1) -> str:
        made[0] += 1
        return provider_file((COUNTING % options).replace("STOP", str(stop)), f"prov{made[0]}")

    return write


def test_samples_are_shown_as_yielded_with_their_place(counting: Write) -> None:
    seen = pydp2.peek(["1", "2"], counting(), samples=7)
    assert [(s.file, s.sample, s.values, s.weight) for s in seen.samples] == [
        *(("1", y, [10 + y], 1) for y in range(5)), ("2", 0, [20], 1), ("2", 1, [21], 1),
    ]  # fmt: skip
    assert seen.slots == [("n", "integer_value(100)")]
    assert (seen.shuffled, seen.dropped, seen.error) == (True, 0, None)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 7, 15, 100])
def test_the_batch_is_the_first_one_of_a_pass_that_is_not_shuffled(batch_size: int, counting: Write) -> None:
    seen = pydp2.peek(["1", "2", "3"], counting(), batch_size=batch_size)
    with pydp2.load(["1", "2", "3"], counting(), batch_size=batch_size, shuffle=False, workers=1) as data:
        first = next(iter(data))
    assert seen.batch is not None
    assert np.array_equal(seen.batch["n"], first["n"])
    assert (seen.batch.size, seen.batch.index, seen.batch.pool_weight) == (first.size, first.index, first.pool_weight)


@pytest.mark.parametrize("can_over", [True, False])
def test_weights_cut_the_batch_as_in_a_service(can_over: bool, counting: Write) -> None:
    options = f", calc_batch_size=lambda s: s[0] % 4, can_over_batch_size={can_over}"
    seen = pydp2.peek(["1", "2"], counting(options), batch_size=6)
    with pydp2.load(["1", "2"], counting(options), batch_size=6, shuffle=False, workers=1) as data:
        first = next(iter(data))
    assert seen.batch is not None
    assert seen.batch["n"].tolist() == first["n"].tolist()
    assert seen.batch.size == first.size
    assert [s.weight for s in seen.samples] == [2, 3, 0]


def test_nothing_is_read_that_neither_samples_nor_batch_need(counting: Write) -> None:
    assert pydp2.peek(["1", "2"], counting(stop=13), samples=2, batch_size=3).error is None
    assert pydp2.peek(["1", "2"], counting(stop=13), samples=3, batch_size=1).error is None
    assert pydp2.peek(["1", "2"], counting(stop=20), samples=5, batch_size=5).error is None
    for samples, batch_size in ((4, 1), (1, 4)):
        seen = pydp2.peek(["1", "2"], counting(stop=13), samples=samples, batch_size=batch_size)
        assert isinstance(seen.error, ProviderError)
        assert isinstance(seen.error, OSError)
        assert "file 1, sample 3: process raised OSError" in str(seen.error)


def test_what_was_seen_before_an_error_is_there(provider_file: Write) -> None:
    address = provider_file(yields("integer_value(10)", "(1, 2, 33)"))
    seen = pydp2.peek(["f"], address)
    assert isinstance(seen.error, BadSample)
    assert str(seen.error).startswith("file f, sample 2, slot 0: expected an int in [0, 10)")
    assert [s.values for s in seen.samples] == [[1], [2]]
    assert seen.batch is None


def test_a_value_that_raises_is_an_error_with_its_place(provider_file: Write) -> None:
    address = provider_file(
        """
        import pydp2
        @provider(input_types=[pydp2.raw()], check=True, check_fail_continue=True)
        def process(settings, filename):
            value = memoryview(b"b")
            value.release()
            yield from (b"a", value, b"c")
        """
    )
    seen = pydp2.peek(["f"], address)
    assert isinstance(seen.error, ProviderError)
    assert isinstance(seen.error, ValueError)
    assert str(seen.error).startswith("file f, sample 1: process raised ValueError")
    assert [s.values for s in seen.samples] == [[b"a"]]


def test_bad_samples_are_left_out_where_the_provider_says_so(provider_file: Write) -> None:
    address = provider_file(yields("integer_value(10)", "(33, 1, 'x', 2)", "check=True, check_fail_continue=True"))
    seen = pydp2.peek(["f"], address)
    assert [(s.sample, s.values) for s in seen.samples] == [(1, [1]), (3, [2])]
    assert seen.dropped == 2
    assert seen.batch is not None
    assert seen.batch[0].tolist() == [1, 2]  # type: ignore[union-attr]  # it is an array here


def test_without_samples_there_is_no_batch(provider_file: Write) -> None:
    address = provider_file("@provider(input_types=[integer_value(10)])\ndef process(settings, f):\n    yield from ()")
    seen = pydp2.peek(["f", "g"], address)
    assert (seen.samples, seen.batch, seen.error) == ([], None, None)
    assert (seen.files, seen.empty_files) == (2, 2)
    with pytest.warns(UserWarning, match="empty"):
        seen = pydp2.peek([], address)
    assert (seen.batch, seen.files, seen.empty_files) == (None, 0, 0)


def test_files_that_were_read_and_had_no_sample_are_counted(provider_file: Write) -> None:
    address = provider_file(NOTHING_BAD_GOOD)
    seen = pydp2.peek(["nothing", "bad"], address)
    assert (seen.batch, seen.files, seen.empty_files, seen.dropped) == (None, 2, 1, 1)
    seen = pydp2.peek(["nothing", "good", "nothing"], address, samples=1, batch_size=1)
    assert seen.batch is not None
    assert (seen.files, seen.empty_files) == (2, 1), "the third was not read"


def test_generators_are_closed(provider_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    address = provider_file(
        """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            try:
                yield from (1, 2, 3)
            finally:
                print("closed", filename)
        """
    )
    pydp2.peek(["f", "g", "h"], address, samples=4, batch_size=1)
    assert capsys.readouterr().out == "closed f\nclosed g\n"


def test_numbers_that_cannot_be_are_refused(counting: Write) -> None:
    with pytest.raises(OptionError, match="samples must be a whole number from 0, got -1"):
        pydp2.peek(["1"], counting(), samples=-1)
    with pytest.raises(OptionError, match="batch_size must be at least 1"):
        pydp2.peek(["1"], counting(), batch_size=0)

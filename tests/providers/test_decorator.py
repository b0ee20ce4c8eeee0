"""A decorated ``process`` run by hand: what may be yielded, and what is said about what may not."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle  # noqa: TID251  # that a provider pickles by its name is what is tested
from collections import UserDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.data.schema.input_types import (
    dense_vector,
    integer_value,
    integer_value_sequence,
    sparse_binary_vector,
    text,
)
from pydp2.errors import BadSample, OptionTypeError, ProviderError
from pydp2.providers import Provider, provider

AB = {"a": integer_value(10), "b": integer_value(100)}


def yielding(*samples: Any, **options: Any) -> Provider:
    """A provider whose every file holds ``samples``."""

    @provider(**options)
    def process(settings: Any, filename: str) -> Any:
        yield from samples

    return process


@provider(input_types=[integer_value(10)])
def top_level(settings: Any, filename: str) -> Any:
    """Says one."""
    yield 1


# -- the decorated object ---------------------------------------------------------------------------------------------


def test_the_decorated_object_is_still_its_function() -> None:
    assert vars(top_level)["__name__"] == "top_level"
    assert top_level.__doc__ == "Says one."
    assert top_level.__module__ == __name__
    assert inspect.isgeneratorfunction(top_level.function)
    assert inspect.unwrap(top_level) is top_level.function
    assert list(top_level(None, "x")) == [1]
    assert repr(top_level).startswith("<provider ")
    assert repr(top_level).endswith("test_decorator.top_level>")


def test_pickling_and_copying_give_the_same_object_by_its_name() -> None:
    assert copy.deepcopy(top_level) is top_level
    assert pickle.loads(pickle.dumps(top_level)) is top_level


@pytest.mark.parametrize("wrong", [3, int, len, "process"])
def test_only_functions_of_settings_and_filename_can_be_decorated(wrong: Any) -> None:
    decorate = provider(input_types=[integer_value(3)])
    with pytest.raises(OptionTypeError):
        decorate(wrong)


def test_a_process_with_other_parameters_is_refused() -> None:
    with pytest.raises(OptionTypeError, match=r"called with \(settings, filename\), .*process takes \(filename: "):

        @provider(input_types=[integer_value(3)])
        def process(filename: str) -> Any:
            yield 1


def test_an_async_process_is_refused() -> None:
    with pytest.raises(OptionTypeError, match="is async"):

        @provider(input_types=[integer_value(3)])
        async def process(settings: Any, filename: str) -> Any:
            yield 1


def test_decorating_twice_is_refused() -> None:
    with pytest.raises(OptionTypeError, match="decorates a generator function, got <provider"):
        provider(input_types=[integer_value(3)])(top_level)


def test_forgotten_parentheses_are_told() -> None:
    with pytest.raises(OptionTypeError, match="needs its arguments: write @provider"):

        @provider  # type: ignore[arg-type]
        def process(settings: Any, filename: str) -> Any:
            yield 1


# -- what may be yielded ----------------------------------------------------------------------------------------------


def test_pd_01_slots_are_declared_in_order() -> None:
    process = yielding((1, [0.5, 0.5]), input_types=[integer_value(3), dense_vector(2)])
    assert process.start().schema.slots.types == (integer_value(3), dense_vector(2))
    assert list(process.samples("x")) == [[1, [0.5, 0.5]]]


def test_pd_13_a_yielded_list_is_the_value_of_the_single_slot() -> None:
    process = yielding([1, 2], (3,), [], input_types=[integer_value_sequence(5)])
    assert list(process.samples("x")) == [[[1, 2]], [(3,)], [[]]]
    with pytest.raises(BadSample, match=r"file x, sample 0, slot 0: expected an int in \[0, 5\), got \[3\]"):
        list(yielding([3], input_types=[integer_value(5)]).samples("x"))


def test_pd_14_a_single_slot_with_dict_types_takes_a_bare_value_and_a_dict() -> None:
    process = yielding(1, {"label": 2}, {"label": 3, "more": None}, input_types={"label": integer_value(5)})
    assert list(process.samples("x")) == [[1], [2], [3]]


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_pd_15_dict_samples_are_put_into_input_order(order: list[str]) -> None:
    process = yielding({"a": 1, "b": 2}, {"b": 4, "a": 3}, input_types=AB)
    expected = [[1, 2], [3, 4]] if order == ["a", "b"] else [[2, 1], [4, 3]]
    assert list(process.samples("x", input_order=order)) == expected


def test_pd_16_tuples_are_taken_in_input_order_also_where_types_are_a_dict() -> None:
    process = yielding((50, 1), [60, 2], input_types=AB)
    assert list(process.samples("x", input_order=["b", "a"])) == [[50, 1], [60, 2]]
    with pytest.raises(BadSample, match=r"slot a: expected an int in \[0, 10\), got 50"):
        list(process.samples("x"))


@pytest.mark.parametrize("options", [{}, {"check": True}, {"check": True, "check_fail_continue": True}])
@pytest.mark.parametrize("types", [[integer_value(5)], [integer_value(5), integer_value(5)]])
def test_pd_17_a_dict_sample_with_list_types_raises(types: list[Any], options: dict[str, bool]) -> None:
    process = yielding({"a": 1, "b": 2}, input_types=types, **options)
    with pytest.raises(ProviderError, match=r"^file x, sample 0: .*input_types is not a dict") as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, TypeError)


def test_pd_18_a_dict_sample_that_lacks_a_name_is_bad() -> None:
    samples = ({"a": 1, "b": 2}, {"a": 3}, {"a": 4, "b": 5})
    with pytest.raises(BadSample, match=r"^file x, sample 1, slot b: expected a value for 'b', got a dict with 'a'$"):
        list(yielding(*samples, input_types=AB).samples("x"))
    dropping = yielding(*samples, input_types=AB, check=True, check_fail_continue=True)
    assert list(dropping.samples("x")) == [[1, 2], [4, 5]]


def test_pd_19_unknown_keys_of_a_dict_sample_are_ignored() -> None:
    process = yielding({"z": object(), "a": 1, 5: None, "b": 2}, input_types=AB)
    assert list(process.samples("x")) == [[1, 2]]


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3), [], 5, "ab", None])
def test_pd_21_a_wrong_number_of_values_is_a_bad_sample(wrong: Any) -> None:
    types = [integer_value(5), integer_value(5)]
    with pytest.raises(BadSample, match=r"^file x, sample 1, all slots: expected .*2 values, got "):
        list(yielding((1, 2), wrong, (3, 4), input_types=types).samples("x"))
    dropping = yielding((1, 2), wrong, (3, 4), input_types=types, check=True, check_fail_continue=True)
    assert list(dropping.samples("x")) == [[1, 2], [3, 4]]


def test_pd_37_the_weigher_gets_the_list_of_slots() -> None:
    seen: list[Any] = []

    def weigh(sample: Any) -> int:
        seen.append(sample)
        return len(sample[0])

    process = yielding(
        [1, 2, 3], {"words": [4]}, input_types={"words": integer_value_sequence(9)}, calc_batch_size=weigh
    )
    running = process.start()
    opened = running.open_file("x", file_index=0, seed=0, pass_id=0)
    assert [running.weight_of(running.arrange(sample)) for sample in opened] == [3, 1]
    assert seen == [[[1, 2, 3]], [[4]]]


@pytest.mark.parametrize("check", [False, True])
def test_pd_50_check_fail_continue_needs_check(check: bool, caplog: pytest.LogCaptureFixture) -> None:
    process = yielding(1, 99, 2, input_types=[integer_value(5)], check=check, check_fail_continue=True)
    assert process.start().schema.check_fail_continue is check
    if check:
        assert list(process.samples("x")) == [[1], [2]]
        assert "dropped: file x, sample 1, slot 0: expected an int in [0, 5), got 99 (int)" in caplog.text
    else:
        with pytest.raises(BadSample, match=r"file x, sample 1, slot 0: expected an int in \[0, 5\), got 99"):
            list(process.samples("x"))


def test_many_dropped_samples_are_logged_by_count(caplog: pytest.LogCaptureFixture) -> None:
    process = yielding(*range(100), input_types=[integer_value(5)], check=True, check_fail_continue=True)
    with caplog.at_level(logging.WARNING, "pydp2.provider"):
        assert len(list(process.samples("x"))) == 5
    assert len(caplog.records) == 11
    assert caplog.messages[-1] == "dropped 95 of 100 samples of file x"


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (integer_value(5), -1, r"slot s: expected an int in \[0, 5\), got -1"),
        (integer_value(5), 3.7, r"slot s: expected .*, got 3\.7"),
        (integer_value(5), None, r"slot s: expected .*, got None"),
        (dense_vector(2), [1.0], r"slot s: expected .*2 .*, got "),
        (dense_vector(2), [1.0, "1.5"], r"slot s: expected .*, got '1\.5'"),
        (dense_vector(1), [1e39], r"slot s: expected .*float32, got 1e\+39"),
        (sparse_binary_vector(5), [1, 3, 1], r"slot s: expected each index once.*, got 1"),
    ],
)
def test_a_bad_value_is_told_with_file_sample_slot_expected_and_got(declared: Any, value: Any, message: str) -> None:
    process = yielding({"s": value}, input_types={"s": declared})
    with pytest.raises(BadSample, match=r"^file data/x\.txt, sample 0, " + message) as caught:
        list(process.samples("data/x.txt"))
    error = caught.value
    assert error.slot == "s"
    assert error.expected
    assert error.got
    assert isinstance(error, AssertionError)
    assert isinstance(error, ValueError)


def test_strict_types_are_asked_for_with_check() -> None:
    assert list(yielding([1, 2.0], input_types=[dense_vector(2)]).samples("x")) == [[[1, 2.0]]]
    with pytest.raises(BadSample, match=r"sample 0, slot 0: .*float\(x\)"):
        list(yielding([1, 2.0], input_types=[dense_vector(2)], check=True).samples("x"))


def test_each_bad_sample_is_found_before_the_next_is_drawn() -> None:
    drawn: list[int] = []

    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        for i in (1, 2, 77, 3):
            drawn.append(i)
            yield i

    samples = process.samples("x")
    assert [next(samples), next(samples)] == [[1], [2]]
    with pytest.raises(BadSample):
        next(samples)
    assert drawn == [1, 2, 77]


def test_values_are_given_as_they_were_yielded() -> None:
    value = np.arange(4, dtype=np.float64)
    (sample,) = yielding(value, input_types=[dense_vector(4)]).samples("x")
    assert sample[0] is value


def test_more_samples_than_are_packed_at_once_are_checked_and_given() -> None:
    process = yielding(*(np.full(1000, i) for i in range(600)), input_types=[dense_vector(1000)])
    assert sum(1 for _ in process.samples("x")) == 600


def test_paths_are_taken_as_filenames(tmp_path: Path) -> None:
    @provider(input_types=[integer_value_sequence(1000)])
    def process(settings: Any, filename: str) -> Any:
        assert settings.file_list == [filename]
        with open(filename) as lines:
            yield from ([int(word) for word in line.split()] for line in lines)

    (tmp_path / "x").write_text("1 2\n3\n")
    assert list(process.samples(tmp_path / "x")) == [[[1, 2]], [[3]]]


def test_an_exception_of_the_user_arrives_with_its_class_place_and_traceback() -> None:
    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        yield 1
        Path("/nowhere/at/all").read_text()

    samples = process.samples("x")
    assert next(samples) == [1]
    with pytest.raises(
        ProviderError, match=r"^file x, sample 1: process raised FileNotFoundError\n\nTraceback \("
    ) as caught:
        next(samples)
    assert isinstance(caught.value, FileNotFoundError)
    text = str(caught.value)
    assert 'Path("/nowhere/at/all").read_text()' in text
    assert "pydp2/providers" not in text
    assert text.count("Traceback") == 1
    assert caught.value.__suppress_context__


class Fatal(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "base"), [(SystemExit(3), ProviderError), (Fatal("x"), ProviderError), (StopIteration(), RuntimeError)]
)
def test_other_ways_to_raise_arrive_as_well(error: BaseException, base: type[Exception]) -> None:
    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        raise error
        yield 1

    with pytest.raises(ProviderError, match=r"^file x, sample 0: process raised") as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, base)


def test_a_keyboard_interrupt_is_nobodys_mistake() -> None:
    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        raise KeyboardInterrupt
        yield 1

    with pytest.raises(KeyboardInterrupt):
        list(process.samples("x"))


def test_leaving_early_closes_the_generator() -> None:
    ended: list[str] = []

    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        try:
            yield 1
            yield 2
        finally:
            ended.append(settings.filename)

    samples: Any = process.samples("x")
    next(samples)
    samples.close()
    assert ended == ["x"]


def plain_function(samples: Any) -> Callable[..., Any]:
    def process(settings: Any, filename: str) -> Any:
        return samples

    return process


@pytest.mark.parametrize("given", [[1, 2], (1, 2), iter([1, 2]), (i for i in (1, 2))])
def test_a_function_that_returns_an_iterable_will_do(given: Iterable[int]) -> None:
    process = provider(input_types=[integer_value(5)])(plain_function(given))
    assert list(process.samples("x")) == [[1], [2]]


def test_a_function_that_forgot_to_yield_is_told() -> None:
    process = provider(input_types=[integer_value(5)])(plain_function(None))
    with pytest.raises(TypeError, match=r"^file x, sample 0: process must yield samples, it returned None") as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, ProviderError)


@pytest.mark.parametrize(
    "sample", [{"review": "long text"}, UserDict(review="long text"), "hello", b"hello", bytearray(b"hello")]
)
@pytest.mark.parametrize("types", [[text()], {"review": text()}])
def test_a_function_that_returned_a_sample_is_told(sample: Any, types: Any) -> None:
    process = provider(input_types=types)(plain_function(sample))
    with pytest.raises(TypeError, match=r"^file x, sample 0: process returned a sample: yield it; got ") as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, ProviderError)
    assert type(sample).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (-1, ValueError, "file x, sample 0: calc_batch_size must return a weight from 0 to .*, got -1"),
        (1.0, TypeError, r"calc_batch_size must return a whole number, got 1\.0 \(float\)"),
        (None, TypeError, "must return a whole number, got None"),
        ("3", TypeError, "must return a whole number, got '3'"),
        (1 << 60, ValueError, "must return a weight from 0 to"),
    ],
)
def test_a_weight_that_cannot_be_is_told(result: Any, kind: type[Exception], message: str) -> None:
    process = yielding(1, input_types=[integer_value(5)], calc_batch_size=lambda sample: result)
    with pytest.raises(kind, match=message) as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, ProviderError)


def test_a_weigher_that_raises_is_told_with_its_place() -> None:
    process = yielding(1, input_types=[integer_value(5)], calc_batch_size=lambda sample: sample[7])
    with pytest.raises(
        IndexError, match=r"^file x, sample 0: calc_batch_size raised IndexError\n\nTraceback"
    ) as caught:
        list(process.samples("x"))
    assert isinstance(caught.value, ProviderError)

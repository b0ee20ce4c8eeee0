"""Arguments of ``@provider``: what is taken, what warns, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pydp2.data.schema.input_types import dense_vector, integer_value
from pydp2.errors import OptionError, OptionTypeError
from pydp2.providers import CacheType, ProviderOptions, provider
from pydp2.providers.options import normalise_shuffle

TYPES = [integer_value(10)]


def options(**given: Any) -> ProviderOptions:
    @provider(**given)
    def process(settings: Any, filename: str) -> Any:
        yield 1

    return process.options


def test_defaults_are_those_of_the_original() -> None:
    assert options() == ProviderOptions(
        input_types=None,
        should_shuffle=None,
        pool_size=-1,
        min_pool_size=-1,
        can_over_batch_size=True,
        calc_batch_size=None,
        cache=CacheType.NO_CACHE,
        check=False,
        check_fail_continue=False,
        init_hook=None,
    )
    assert (CacheType.NO_CACHE, CacheType.CACHE_PASS_IN_MEM) == (0, 1)


@pytest.mark.parametrize(
    "word", ["t", "true", "on", "T", "True", "TRUE", "On", "tRuE", 1, 1.0, True, np.True_, np.int32(1)]
)
def test_pd_28_words_and_numbers_that_turn_shuffling_on(word: Any) -> None:
    assert options(should_shuffle=word).should_shuffle is True


@pytest.mark.parametrize("word", ["f", "false", "off", "F", "False", "OFF", 0, 0.0, False, np.False_])
def test_pd_28_words_and_numbers_that_turn_shuffling_off(word: Any) -> None:
    assert options(should_shuffle=word).should_shuffle is False


@pytest.mark.parametrize("word", ["123", "1", "0", "yes", "", " true", 2, -1, 0.5, float("nan"), [], object])
def test_pd_28_anything_else_warns_and_counts_as_unsaid(word: Any) -> None:
    with pytest.warns(
        UserWarning, match="should_shuffle=.* t, true, on, f, false, off .*shuffled in training only"
    ) as got:
        assert options(should_shuffle=word).should_shuffle is None
    assert repr(word)[:20] in str(got[0].message)


def test_the_warning_points_at_the_user() -> None:
    with pytest.warns(UserWarning, match="should_shuffle") as got:
        provider(should_shuffle="123")
    assert got[0].filename == __file__


def test_pd_28_unsaid_is_left_to_training_or_testing() -> None:
    assert normalise_shuffle(None) is None


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"pool_size": 0}, OptionError, "pool_size must be at least 1, or -1 for no bound, got 0"),
        ({"pool_size": -2}, OptionError, "pool_size must be at least 1, or -1 for no bound, got -2"),
        ({"pool_size": 1 << 62}, OptionError, "pool_size must be at most 4611686018427387903, or -1 for no bound, got"),
        ({"min_pool_size": 1 << 70}, OptionError, "min_pool_size must be at most 4611686018427387903, or -1"),
        ({"pool_size": 10.0}, OptionTypeError, r"pool_size must be a whole number, got 10\.0 \(float\)"),
        ({"pool_size": None}, OptionTypeError, "pool_size must be a whole number, got None"),
        ({"pool_size": True}, OptionTypeError, "pool_size must be a whole number"),
        ({"min_pool_size": -2}, OptionError, "min_pool_size must be at least 0, or -1"),
        ({"min_pool_size": "5"}, OptionTypeError, "min_pool_size must be a whole number"),
        ({"cache": 4}, OptionError, r"cache must be one of CacheType\.NO_CACHE, CacheType\.CACHE_PASS_IN_MEM, .*got 4"),
        ({"cache": None}, OptionError, "cache must be one of"),
        ({"check": 1}, OptionTypeError, r"check must be True or False, got 1 \(int\)"),
        ({"check_fail_continue": "no"}, OptionTypeError, "check_fail_continue must be True or False"),
        ({"can_over_batch_size": None}, OptionTypeError, "can_over_batch_size must be True or False"),
        ({"init_hook": "hook"}, OptionTypeError, "init_hook must be a function or None"),
        (
            {"input_types": integer_value(3)},
            OptionTypeError,
            r"list, tuple or dict of input types, got one; write input_types=\[",
        ),
        ({"input_types": []}, OptionError, "must declare at least one slot"),
        ({"input_types": {}}, OptionError, "must declare at least one slot"),
        ({"input_types": "dense"}, OptionTypeError, "must be a list, tuple or dict of input types, got 'dense'"),
        ({"input_types": [10]}, OptionTypeError, r"must hold input types, got 10 \(int\) for position 0"),
        ({"input_types": {"a": dense_vector}}, OptionTypeError, r"for a; call it, as in dense_vector\(64\)"),
        ({"input_types": {1: integer_value(3)}}, OptionTypeError, "must have names as keys, got the key 1"),
        (
            {"input_types": {"a": integer_value(3), "b\ud800": integer_value(3)}},
            OptionError,
            r"input_types must have names without lone surrogates, which UTF-8 cannot write, got 'b\\ud800'; rename it",
        ),
        ({"slots": [3]}, OptionTypeError, "slots must hold input types"),
    ],
)
@pytest.mark.filterwarnings("ignore:slots is an old name")
def test_what_cannot_be_is_refused_when_decorating(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options(**given)


def test_values_are_held_in_one_form() -> None:
    held = options(pool_size=np.int64(5), min_pool_size=0, cache=1)
    assert (type(held.pool_size), held.min_pool_size) == (int, 0)
    assert held.cache is CacheType.CACHE_PASS_IN_MEM
    assert options(pool_size=5, min_pool_size=9).min_pool_size == 9  # capped where it is used


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        options().pool_size = 3  # type: ignore[misc]


def test_a_weigher_that_is_no_function_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"calc_batch_size must be a function, got 3 \(int\): ignored"):
        assert options(calc_batch_size=3).calc_batch_size is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("input_type", "has no argument 'input_type', did you mean 'input_types'"),
        ("shuffle", "has no argument 'shuffle', did you mean 'should_shuffle'"),
        ("use_seq", "has no argument 'use_seq'; it takes input_types, should_shuffle, pool_size"),
    ],
)
def test_unknown_arguments_are_told_the_nearest_right_one(name: str, message: str) -> None:
    with pytest.raises(OptionTypeError, match=message) as caught:
        options(**{name: 1})
    assert isinstance(caught.value, TypeError)


def test_pd_27_legacy_slots_work_and_warn() -> None:
    with pytest.warns(UserWarning, match="slots is an old name: write input_types") as got:

        @provider(slots=TYPES)
        def process(settings: Any, filename: str) -> Any:
            yield 3

    assert got[0].filename == __file__
    assert list(process.samples("x")) == [[3]]
    assert process.start().schema.slots.types == tuple(TYPES)

"""Providers of several sources: each file has that of its source, and all declare the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2.errors
from pydp2 import CacheType, dense_vector, integer_value, provider
from pydp2.errors import BadSample, OptionError, ProviderError
from pydp2.providers.source_providers import SourceProviders, naming_source
from pydp2.providers.started_provider import StartedProvider


def started(*, is_train: bool = True, **options: Any) -> StartedProvider:
    def process(settings: Any, filename: str) -> Any:
        yield 1

    options = {"input_types": {"n": integer_value(10)}} | options
    return provider(**options)(process).start(is_train=is_train)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_a_file_has_the_provider_of_the_source_whose_list_has_it(counts: list[int]) -> None:
    every = [started() for _ in counts]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    providers = SourceProviders(every, starts, [str(i) for i in range(len(counts))])
    expected = [source for source, count in zip(every, counts, strict=True) for _ in range(count)]
    assert [providers.of_file(file) for file in range(sum(counts))] == expected


def test_one_provider_has_all_files() -> None:
    alone = started()
    assert {SourceProviders([alone]).of_file(file) for file in (0, 1, 1 << 40)} == {alone}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            {}, {"input_types": {"n": integer_value(11)}},
            r"the same slots, and source 'wiki' has n: .*dim=10.*, source 'code' has n: .*dim=11.*; declare the same "
            "input_types in both, or start a service for each",
        ),
        ({}, {"input_types": {"m": integer_value(10)}}, "source 'wiki' has n: .*, source 'code' has m: "),
        ({}, {"input_types": [integer_value(10)]}, "source 'wiki' has n: .*, source 'code' has slot 0: "),
        (
            {}, {"input_types": {"n": integer_value(10), "x": dense_vector(2)}},
            "source 'wiki' has 1 slot, source 'code' has 2 slots",
        ),
        (
            {"pool_size": 7}, {},
            "the same pool_size, and source 'wiki' has 7, source 'code' has -1; set pool_size for both in @provider",
        ),
        ({}, {"is_train": False}, "the same should_shuffle, and source 'wiki' has True, source 'code' has False"),
        ({}, {"calc_batch_size": len}, "the same calc_batch_size, and source 'wiki' has none, source 'code' has one"),
        (
            {"cache": CacheType.CACHE_PASS_IN_MEM}, {},
            "the same cache, and source 'wiki' has CACHE_PASS_IN_MEM, source 'code' has NO_CACHE",
        ),
        ({"min_pool_size": 3}, {}, "the same min_pool_size"),
        ({"can_over_batch_size": False}, {}, "the same can_over_batch_size"),
        ({"check": True}, {}, "the same check, "),
        ({"check": True, "check_fail_continue": True}, {"check": True}, "the same check_fail_continue"),
    ],
)  # fmt: skip
def test_sources_that_declare_something_else_are_refused_by_name(
    first: dict[str, Any], second: dict[str, Any], says: str
) -> None:
    with pytest.raises(ProviderError, match=says) as caught:
        SourceProviders([started(**first), started(**first), started(**second)], (0, 1, 2), ("wiki", "more", "code"))
    assert isinstance(caught.value, ValueError)


def test_what_concerns_the_reading_of_files_alone_may_differ() -> None:
    @provider(input_types={"n": integer_value(10)})
    def from_any_sample(settings: Any, filename: str, start: int) -> Any:
        yield 1

    @provider(input_types={"n": integer_value(10), "other": integer_value(3)})
    def with_more_names(settings: Any, filename: str) -> Any:
        yield {"n": 1}

    providers = SourceProviders([started(), from_any_sample.start()], (0, 3), ("a", "b"))
    assert providers.can_start
    assert [providers.of_file(file).can_start for file in (2, 3)] == [False, True]
    providers = SourceProviders([started(), with_more_names.start(input_order=["n"])], (0, 1), ("a", "b"))
    assert providers.other_names == {"other"}
    reports: list[str] = []
    providers.report_unknown_to(reports.append)
    providers.of_file(1).arrange({"n": 1, "what": 2})
    assert "what" in reports[0]


def test_an_error_names_its_source_and_keeps_its_class() -> None:
    for error in (OptionError("text"), ProviderError("text")):
        with pytest.raises(type(error), match="source 'wiki': text"), naming_source("wiki"):
            raise error
    with pytest.raises(KeyError), naming_source("wiki"):
        raise pydp2.errors.provider_error("text", "KeyError")
    alone = BadSample("text", slot="s", expected="e", got="g")
    with pytest.raises(BadSample) as caught, naming_source(""):
        raise alone
    assert caught.value is alone

"""What a state must agree with: the sources of the service, and what bucket_by means for a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import simulated_spec
from pydp2 import (
    dense_vector,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
)
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError, StateMismatch
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, SourceTerms
from pydp2.options.tables import job_options
from pydp2.order.plan import BucketPlan
from pydp2.server.gateway.resources import cache_source
from pydp2.server.jobs.plan import (
    begin_buckets,
    bucket_identity,
    parse_bucket_options,
    small_pool_warning,
    source_identity,
)

NAMED = Slots((integer_value_sequence(9), integer_value(5), integer_value_sub_sequence(9)), ("words", "label", "text"))
BARE = Slots((integer_value(5), integer_value_sequence(9)))


def options(**given: Any) -> Any:
    return job_options(batch_size=4, **given)


def test_a_slot_goes_by_its_name_or_its_number() -> None:
    assert parse_bucket_options(options(), NAMED) is None
    assert parse_bucket_options(options(bucket_by="words"), NAMED) == BucketPlan(0, None, True, 8)
    assert parse_bucket_options(options(bucket_by="text", num_buckets=3), NAMED) == BucketPlan(2, None, True, 3)
    assert parse_bucket_options(options(bucket_by=1, bucket_bounds=[8, 16]), BARE) == BucketPlan(1, (8, 16), False, 3)


@pytest.mark.parametrize(
    ("by", "slots", "says"),
    [
        (
            "label",
            NAMED,
            "bucket_by='label' must be a slot of sequences, text or bytes, but this.* such slots here: words, text",
        ),
        (
            "word",
            NAMED,
            "bucket_by='word' must be the name or number of a slot of.* but there is no such slot.*here: words, text",
        ),
        (3, NAMED, "bucket_by=3 must be the name or number of a slot"),
        ("words", BARE, "must be the name or number of a slot.*such slots here: slot 1"),
        (0, BARE, "bucket_by=0 must be a slot of sequences.*such slots here: slot 1"),
        (0, Slots((dense_vector(3),)), "no slot here is one"),
    ],
)
def test_a_slot_that_is_not_there_or_has_no_lengths_is_refused(by: str | int, slots: Slots, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_bucket_options(options(bucket_by=by), slots)


def test_a_state_holds_the_options_of_buckets_only_where_there_are_some() -> None:
    assert bucket_identity(None, NAMED) == {}
    assert bucket_identity(BucketPlan(0, (8, 16), False, 3), NAMED) == {
        "bucket_by": "words", "bucket_bounds": [8, 16], "num_buckets": None,
    }  # fmt: skip
    assert bucket_identity(BucketPlan(1, None, True, 8), BARE) == {
        "bucket_by": 1,
        "bucket_bounds": None,
        "num_buckets": 8,
    }


def test_a_pass_begins_with_what_is_known_of_the_one_before_and_goes_on_with_its_group() -> None:
    automatic, given = BucketPlan(0, None, True, 8), BucketPlan(0, (8, 16), False, 3)
    assert begin_buckets(None, {}, 2) is None
    assert begin_buckets(automatic, {}, 2) == BucketPlan(0, None, True, 8, 2)
    assert begin_buckets(automatic, {"bounds": [3, 9]}, 4) == BucketPlan(0, (3, 9), True, 8, 4)
    assert begin_buckets(automatic, {"bounds": []}, 1) == BucketPlan(0, (), True, 8, 1)
    assert begin_buckets(given, {"bounds": [8, 16], "group": 6}, 3) == BucketPlan(0, (8, 16), False, 3, 6)


@pytest.mark.parametrize(
    ("buckets", "told", "ranks", "says"),
    [
        (BucketPlan(0, (8,), False, 2), {"bounds": [9]}, 1, "damaged"),
        (BucketPlan(0, None, True, 3), {"bounds": [1, 2, 3]}, 1, "damaged"),
        (BucketPlan(0, None, True, 8), {"bounds": [3, 3]}, 1, "damaged"),
        (BucketPlan(0, None, True, 8), {"bounds": 3}, 1, "damaged"),
        (BucketPlan(0, None, True, 8), {"bounds": [3], "group": 0}, 1, "damaged"),
        (BucketPlan(0, None, True, 8), {"bounds": [3], "group": "2"}, 1, "damaged"),
        (
            BucketPlan(0, None, True, 8),
            {"bounds": [3], "group": 4},
            3,
            "gives 4 batches in a row .* has 3 ranks; .*divides",
        ),
    ],
)
def test_buckets_of_a_state_that_cannot_be_are_refused(
    buckets: BucketPlan, told: dict[str, Any], ranks: int, says: str
) -> None:
    with pytest.raises(StateMismatch, match=says):
        begin_buckets(buckets, told, ranks)


def test_a_pool_that_may_have_to_grow_for_its_buckets_is_spoken_of() -> None:
    buckets = BucketPlan(0, None, True, 8)
    assert (
        small_pool_warning(None, 1, 100)
        == small_pool_warning(buckets, -1, 100)
        == small_pool_warning(buckets, 800, 100)
        == ""
    )
    assert "pool_size=700 may be too small for 8 buckets with batches of 100" in small_pool_warning(buckets, 700, 100)


# -- the sources -------------------------------------------------------------------------------------------------------
ALONE = SourceTerms(provider="p.process", args=b"\x80", is_train=True)
FILES = FileList.of(["a", "b"])
SCHEMA = Schema(
    slots=BARE, shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=False, cache=0,
    check=False, check_fail_continue=False,
)  # fmt: skip


def spec_of(*sources: SourceTerms) -> ServiceSpec:
    return replace(simulated_spec(2, Path("/r")), sources=sources)


def test_a_state_of_a_service_with_one_source_stays_valid() -> None:
    """Change these values together with the version of the order only."""
    assert source_identity(spec_of(ALONE), FILES, "code") == {
        "list": "b8ba2e393f66adb56aab3062e89205cc",
        "provider_source": "code",
        "args": "2543263f89cfbb88",
        "is_train": True,
    }


def test_a_state_of_several_sources_has_what_belongs_to_each_and_their_order() -> None:
    wiki, more = replace(ALONE, name="wiki"), replace(ALONE, name="more", first_file=1, is_train=False)
    assert source_identity(spec_of(wiki, more), FILES, "code,other") == {
        "sources": ["wiki", "more"],
        "list": {"wiki": FILES.part(0, 1).fingerprint(), "more": FILES.part(1, 2).fingerprint()},
        "provider_source": {"wiki": "code", "more": "other"},
        "args": {"wiki": "2543263f89cfbb88", "more": "2543263f89cfbb88"},
        "is_train": {"wiki": True, "more": False},
    }


def test_a_state_of_many_sources_has_digests() -> None:
    many = [replace(ALONE, name=f"s{i}", first_file=i) for i in range(17)]
    files, code = FileList.of(map(str, range(17))), ",".join(["code"] * 17)
    found = source_identity(spec_of(*many), files, code)
    assert [*found] == ["sources", "list", "provider_source", "args", "is_train"]
    assert all(type(value) is str and len(value) == 16 for value in found.values())
    changed = source_identity(spec_of(*many[:16], replace(many[16], args=b"?")), files, code)
    assert [name for name in found if found[name] != changed[name]] == ["args"]


def test_files_are_cached_under_the_terms_of_their_source() -> None:
    def key(*sources: SourceTerms, code: str = "code", files: FileList = FILES) -> str:
        return cache_source(SCHEMA, spec_of(*sources), files, code).key

    first, second = replace(ALONE, name="a"), replace(ALONE, name="b", first_file=1)
    other = replace(second, provider="q.process")
    assert key(first, second, code="code,code") == key(ALONE), "which source has a file makes no difference"
    assert key(first, other, code="code,code") != key(ALONE)
    assert key(first, other, code="code,code") != key(first, other, code="code,code", files=FileList.of(["b", "a"]))
    assert key(first, second, code="code,more") != key(first, second, code="more,code")
    assert cache_source(SCHEMA, spec_of(first, other), FILES, "code,code").provider == "p.process and 1 more"

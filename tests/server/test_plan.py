"""What bucket_by means for a job: which slot, which bounds, and what a state may say."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2 import (
    dense_vector,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
)
from pydp2.data.schema.input_types import Slots
from pydp2.errors import OptionError, StateMismatch
from pydp2.options.tables import job_options
from pydp2.order.plan import BucketPlan
from pydp2.server.jobs.plan import begin_buckets, bucket_identity, parse_bucket_options, small_pool_warning

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

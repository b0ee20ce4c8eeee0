"""What ``process`` yields, brought into slot order."""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest

from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.errors import BadSample, ProviderError

ONE = Slots((integer_value(9),))
ONE_NAMED = Slots((integer_value(9),), ("a",))
TWO = Slots((integer_value(9), integer_value(9)))
TWO_NAMED = Slots((integer_value(9), integer_value(9)), ("b", "a"))


@pytest.mark.parametrize("value", [1, [1], (1, 2), None, "x", [[1], [2]]])
def test_the_value_of_a_single_slot_is_taken_as_it_is(value):
    assert SlotOrder(ONE).arrange(value) == [value]
    assert SlotOrder(ONE_NAMED).arrange(value) == [value]


def test_any_mapping_counts_as_a_dict():
    for sample in ({"a": 1, "b": 2}, collections.OrderedDict(a=1, b=2), types.MappingProxyType({"a": 1, "b": 2})):
        assert SlotOrder(TWO_NAMED).arrange(sample) == [2, 1]
        with pytest.raises(TypeError):
            SlotOrder(TWO).arrange(sample)


@pytest.mark.parametrize("slots", [TWO, TWO_NAMED])
@pytest.mark.parametrize(
    "sample", [3, "ab", None, np.array([1, 2]), {1, 2}, iter([1, 2])], ids=lambda sample: type(sample).__name__
)
def test_several_slots_need_a_list_or_tuple(slots, sample):
    with pytest.raises(BadSample) as caught:
        SlotOrder(slots).arrange(sample)
    assert "list or tuple with 2 values" in str(caught.value)


def test_what_is_wrapped_is_a_list_of_its_own():
    sample = [1, 2]
    wrapped = SlotOrder(TWO).arrange(sample)
    assert wrapped == sample
    assert wrapped is not sample
    assert SlotOrder(TWO).arrange(collections.namedtuple("s", "x y")(1, 2)) == [1, 2]


def test_an_absent_name_is_told_together_with_the_names_that_are_there():
    with pytest.raises(BadSample) as caught:
        SlotOrder(TWO_NAMED).arrange({"b": 1, "c": 2})
    assert str(caught.value) == "a: expected a value for 'a', got a dict with 'b', 'c'"
    assert caught.value.slot == "a"
    with pytest.raises(BadSample, match="got a dict with nothing"):
        SlotOrder(ONE_NAMED).arrange({})


class Sevens(dict):
    def __missing__(self, key):
        return 7


@pytest.mark.parametrize(
    "sample",
    [
        collections.defaultdict(int, b=1), Sevens(b=1), collections.Counter(b=1),
        collections.ChainMap({"b": 1}, collections.defaultdict(int)),
    ],
    ids=lambda sample: type(sample).__name__,
)  # fmt: skip
def test_a_mapping_makes_up_no_value_for_a_name_that_it_lacks(sample):
    with pytest.raises(BadSample, match="a: expected a value for 'a', got a dict with 'b'"):
        SlotOrder(TWO_NAMED).arrange(sample)
    assert set(sample) == {"b"}, "the sample is as it was"


def test_the_first_keys_that_no_slot_has_are_told_once_and_ignored():
    said = []
    wrapper = SlotOrder(TWO_NAMED, other_names=("c",))
    wrapper.on_unknown = said.append
    assert wrapper.arrange({"a": 1, "b": 2, "c": 3}) == [2, 1]
    assert said == [], "it was declared, and input_order leaves it out"
    for _ in range(3):
        assert wrapper.arrange({"a": 1, "b": 2, "weight": 0.5, 9: None}) == [2, 1]
    assert len(said) == 1
    assert said[0].startswith("process yielded 'weight', 9, which no slot is called: ignored")
    assert "the slots are b, a; declare it in input_types" in said[0]


def test_the_error_about_a_dict_says_what_to_declare():
    with pytest.raises(ProviderError, match="declare input_types as a dict") as caught:
        SlotOrder(ONE).arrange({"a": 1})
    assert isinstance(caught.value, TypeError)
    assert not isinstance(caught.value, BadSample), "it is an error of the program, which is never dropped"


@pytest.mark.parametrize("slots", [ONE, ONE_NAMED, TWO])
def test_a_bad_sample_that_is_yielded_is_raised(slots: Slots) -> None:
    error = BadSample("cannot be read", slot="a")
    with pytest.raises(BadSample) as caught:
        SlotOrder(slots).arrange(error)
    assert caught.value is error

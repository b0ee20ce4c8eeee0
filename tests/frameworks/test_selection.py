"""Which slots a framework gets, and in which structure."""

from __future__ import annotations

import pytest

from pydp2 import dense_vector, integer_value
from pydp2.data.schema.input_types import Slots
from pydp2.errors import OptionError
from pydp2.frameworks.selection import Selected, Selection

NAMED = Slots((dense_vector(2), dense_vector(3), integer_value(4)), ("a", "b", "label"))
UNNAMED = Slots(NAMED.types)


@pytest.mark.parametrize(
    ("slots", "x", "y", "expected"),
    [
        (NAMED, None, None, {"a": 0, "b": 1, "label": 2}),
        (UNNAMED, None, None, (0, 1, 2)),
        (NAMED, "b", "label", (1, 2)),
        (NAMED, "b", None, (1,)),
        (NAMED, ["b", "a"], "label", ((1, 0), 2)),
        (NAMED, "a", ["label"], (0, (2,))),
        (UNNAMED, [0, 1], -1, ((0, 1), 2)),
    ],
)
def test_values_get_the_structure_that_was_asked_for(
    slots: Slots, x: Selected | None, y: Selected | None, expected: object
) -> None:
    selection = Selection(slots, x, y)
    assert selection.arrange(selection.order) == expected


def test_a_slot_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(OptionError, match=r"'c'.*a, b, label"):
        Selection(NAMED, "c")
    with pytest.raises(OptionError, match="0 to 2"):
        Selection(UNNAMED, 0, 3)
    with pytest.raises(OptionError, match="y needs x"):
        Selection(NAMED, None, "label")

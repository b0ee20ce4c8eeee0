"""A cursor goes back over what it has fetched without a question to its stream, as far as its history reaches."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.streams.cursor import Cursor, Place
from tests.list_stream import ListStream

ROWS = 10
SIZE = 3  # of a batch: four of them in a pass


def opened() -> tuple[Cursor, ListStream]:
    stream = ListStream([[i] for i in range(ROWS)], SIZE)
    cursor = Cursor(stream)
    cursor.begin(cursor.place.position)
    return cursor, stream


def rows(cursor: Cursor, count: int) -> list[int]:
    """The next rows, of this pass and the one after it."""
    found: list[int] = []
    while len(found) < count:
        if not cursor.rows_left:
            if not cursor.fetch():
                cursor.begin(cursor.place.position)
            continue
        values: Any = cursor.take(1).arrays[0][1]
        found.append(int(values[0]))
    return found


@pytest.mark.parametrize("taken", range(ROWS + SIZE))
def test_what_was_fetched_is_given_again_from_any_place_on(taken: int) -> None:
    cursor, stream = opened()
    places, uninterrupted = [cursor.place], []
    for _ in range(taken):
        uninterrupted += rows(cursor, 1)
        places.append(cursor.place)
    calls = stream.calls
    for number, place in enumerate(places):
        if place.position.pass_id < cursor.place.position.pass_id:
            continue  # the pass was left
        assert cursor.rewind_to(place)
        assert rows(cursor, taken - number) == uninterrupted[number:]
    assert (stream.calls, stream.loads) == (calls, 0)


def test_behind_a_commit_nothing_goes_back() -> None:
    cursor, _ = opened()
    first = cursor.place
    rows(cursor, SIZE)
    in_hand = cursor.place
    cursor.fetch()
    cursor.history.commit()
    assert not cursor.rewind_to(first._replace(offset=1))
    assert cursor.rewind_to(in_hand)
    assert rows(cursor, 2) == [SIZE, SIZE + 1]


@pytest.mark.parametrize("how", ["invalidated", "moved by others", "left by others"])
def test_a_history_is_worth_nothing_once_the_stream_was_moved(how: str) -> None:
    cursor, stream = opened()
    first = cursor.place
    rows(cursor, 1)
    state = stream.state_dict()
    if how == "invalidated":
        cursor.history.invalidate()
    elif how == "moved by others":
        next(cursor.history._passes[0])
    else:
        cursor.history._passes[0].close()
    assert not cursor.rewind_to(first)
    cursor.go_to(first)
    assert rows(cursor, 1) == [0]
    assert cursor.rewind_to(Place(first.position, 1)), "it is known again"
    assert rows(cursor, 1) == [1]
    assert state["batch"] == 1


def test_the_start_of_a_pass_that_is_not_begun_is_a_place_to_go_back_to() -> None:
    cursor, stream = opened()
    while cursor.fetch():
        pass
    start = cursor.place
    assert cursor.rewind_to(Place(start.position.next_pass()) if start.position.batch else start)
    assert rows(cursor, 2) == [1, 2], "the second pass is rotated by one"
    assert stream.loads == 0

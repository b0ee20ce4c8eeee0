"""Peers that were not let in: counted by address and reason, within limits."""

from __future__ import annotations

from typing import Any

from pydp2.transport.refusals import OTHERS, Refusals

WHY = "without a key that is allowed"


def row(address: str, count: int, seconds_ago: float, reason: str = WHY) -> dict[str, Any]:
    return {"address": address, "reason": reason, "count": count, "seconds_ago": seconds_ago}


def test_each_address_and_reason_has_a_count_the_latest_first() -> None:
    refusals = Refusals()
    for now, address, reason in ((1.0, "a", WHY), (2.0, "b", WHY), (3.0, "a", WHY), (4.0, "a", "another")):
        refusals.add(address, reason, now)
    assert refusals.to_plain(5.0) == [row("a", 1, 1.0, "another"), row("a", 2, 2.0), row("b", 1, 3.0)]


def test_the_log_says_it_at_first_and_then_once_a_minute() -> None:
    refusals = Refusals()
    told = [count for second in range(200) if (count := refusals.add("a", WHY, float(second)))]
    assert told == [1, 62, 123, 184]


def test_the_log_says_a_few_a_minute_however_many_addresses_come() -> None:
    refusals = Refusals()
    told = [second for second in range(120) for each in range(50) if refusals.add(f"{second}.{each}", WHY, second)]
    assert told == [0] * 10 + [61] * 10


def test_of_too_many_addresses_the_oldest_become_others_and_none_is_lost() -> None:
    refusals = Refusals()
    for number in range(1000):
        refusals.add(str(number), WHY, float(number))
    rows = refusals.to_plain(1000.0)
    assert len(rows) == 257
    assert rows[0] == row("999", 1, 1.0)
    assert [each["count"] for each in rows if each["address"] == OTHERS] == [1000 - 256]
    assert sum(each["count"] for each in rows) == 1000


def test_an_address_is_frequent_for_a_minute() -> None:
    refusals = Refusals()
    for _ in range(20):
        assert not refusals.is_frequent("a", WHY, 1.0)
        refusals.add("a", WHY, 1.0)
    assert refusals.is_frequent("a", WHY, 2.0)
    assert not refusals.is_frequent("a", "another", 2.0)
    assert not refusals.is_frequent("b", WHY, 2.0)
    assert not refusals.is_frequent("a", WHY, 62.0)


def test_while_more_addresses_come_than_have_room_each_new_one_is_frequent() -> None:
    refusals = Refusals()
    for number in range(300):
        refusals.add(str(number), WHY, 1.0)
    assert refusals.is_frequent("new", WHY, 2.0)
    assert not refusals.is_frequent("new", WHY, 62.0)

"""Ranks that come one after another: each has its part of a short pass, and its end, whoever is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import pydp2
from pydp2.errors import OptionError
from tests.provider_code import numbers
from tests.runs import Numbered, numbered, wait_until

pytestmark = pytest.mark.usefixtures("no_hang")

CODE = numbers(20, "pool_size=40", first="100 * int(filename)")
FILES = [str(n) for n in range(6)]
JOB = {"batch_size": 8, "seed": 3}  # 15 batches


@pytest.fixture
def service(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider_file(CODE), workers=1) as service:
        yield service


@pytest.fixture
def alone(service: pydp2.Service) -> list[Numbered]:
    with service.connect(**JOB) as data:
        found = [numbered(batch) for batch in data]
    assert len(found) == 15
    return found


def part(service: pydp2.Service, rank: int, world: int, **options: object) -> list[Numbered]:
    """What ``rank`` gets of a pass, from the time that it connects to the end."""
    with service.connect(rank=rank, world_size=world, **JOB | options) as data:
        return [numbered(batch) for batch in data]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_ranks_that_connect_when_the_one_before_has_closed_share_one_pass(
    service: pydp2.Service, alone: list[Numbered], order: tuple[int, ...]
) -> None:
    for rank in order:
        assert part(service, rank, len(order)) == alone[rank :: len(order)]
    assert wait_until(lambda: service.stats()["jobs"] == {}), "all had the pass: the job is over"
    for rank in order:
        assert part(service, rank, len(order)) == alone[rank :: len(order)]


def test_a_job_that_one_rank_has_not_had_is_there_for_that_rank_alone(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    assert part(service, 0, 2, lease=60.0) == alone[0::2]
    with pytest.raises(
        OptionError, match=r"seed is 3 there, 4 here; .* no rank is connected to it now, and .* within \d\d s"
    ):
        part(service, 1, 2, seed=4)
    with pytest.raises(
        OptionError, match=r"has world_size=2, this trainer says 3; .* it ends if none comes back within"
    ):
        part(service, 1, 3)
    assert part(service, 1, 2) == alone[1::2]


def test_a_job_that_one_rank_has_not_had_ends_when_nobody_came_for_a_lease(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    assert part(service, 0, 2, lease=1.0) == alone[0::2]
    assert wait_until(lambda: service.stats()["jobs"] == {})
    assert part(service, 1, 3) == alone[1::3]


def test_one_rank_alone_begins_anew_each_time(service: pydp2.Service, alone: list[Numbered]) -> None:
    with service.connect(**JOB) as data:
        assert numbered(next(iter(data))) == alone[0]
    assert wait_until(lambda: service.stats()["jobs"] == {})
    with service.connect(**JOB) as data:
        assert [numbered(batch) for batch in data] == alone


def test_a_service_that_is_started_again_knows_which_rank_has_not_had_the_pass(
    provider_file: Callable[[str], str], alone: list[Numbered], tmp_path: object
) -> None:
    address = provider_file(CODE)
    how = {"workers": 1, "state_dir": f"{tmp_path}/state"}
    with pydp2.launch(FILES, address, **how) as first:
        assert part(first, 1, 2) == alone[1::2]
    with pydp2.launch(FILES, address, **how) as second:
        assert part(second, 0, 2) == alone[0::2]
        assert wait_until(lambda: second.stats()["jobs"] == {})

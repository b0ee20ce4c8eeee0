"""Several processes of one training: each has its part of one service, or is told how; none reads all by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pydp2
from pydp2.api.distributed import distributed_environment
from pydp2.errors import JobTaken, OptionError

from ..provider_code import numbers

FILES = [f"{n}" for n in range(4)]
CODE = numbers(10, "should_shuffle=False", first="10 * int(filename)")
VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
    "SLURM_PROCID", "SLURM_NTASKS",
)  # fmt: skip
Env = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Env:
    """``environment(RANK=1, …)``: these variables, and no others of launchers."""

    def one(**values: object) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    one()
    return one


@pytest.fixture
def service(environment: Env, provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider_file(CODE), workers=1) as made:
        yield made


SEVERAL = [
    {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1},
    {"RANK": 0, "WORLD_SIZE": 2},
    {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2},
    {"PMI_RANK": 1, "PMI_SIZE": 2},
]
ALONE: list[dict[str, object]] = [
    {},
    {"RANK": 3},
    {"WORLD_SIZE": 3},
    {"RANK": 0, "WORLD_SIZE": 1},
    {"RANK": 2, "WORLD_SIZE": 2},
    {"RANK": "", "WORLD_SIZE": "two"},
    {"LOCAL_RANK": 1},
    {"SLURM_PROCID": 0, "SLURM_NTASKS": 8},  # as in the shell of a batch script
]


@pytest.mark.parametrize("values", SEVERAL)
def test_load_in_one_of_several_processes_is_an_error_that_shows_the_right_call(
    values: dict[str, object], environment: Env, provider_file: Callable[[str], str]
) -> None:
    environment(**values)
    rank, size, *_ = values.values()
    names = " and ".join(list(values)[:2])
    with pytest.raises(OptionError, match=r"^load\(\) needs a process that reads for itself, and this") as caught:
        pydp2.load(FILES, provider_file(CODE), batch_size=4)
    assert f"this process is rank {rank} of {size} ({names})" in str(caught.value)
    assert f"pydp2.connect(address, rank={rank}, world_size={size}, …)" in str(caught.value)
    assert "`pydp2 serve LIST --provider ADDRESS`" in str(caught.value)
    assert "pass world_size=1 where each is to see all" in str(caught.value)


@pytest.mark.parametrize("values", ALONE)
def test_what_is_not_certain_is_no_error(
    values: dict[str, object], environment: Env, provider_file: Callable[[str], str]
) -> None:
    environment(**values)
    assert distributed_environment() is None
    with pydp2.load(FILES, provider_file(CODE), batch_size=4, workers=1) as data:
        assert sum(map(len, data)) == 40


@pytest.mark.parametrize("explicit", [{"world_size": 1}, {"rank": 0, "world_size": 1}, {"rank": 0}])
def test_who_says_so_reads_all_of_it_in_each_process(
    explicit: dict[str, int], environment: Env, provider_file: Callable[[str], str]
) -> None:
    environment(RANK=1, WORLD_SIZE=2)
    with pydp2.load(FILES, provider_file(CODE), batch_size=4, workers=1, **explicit) as data:
        assert sum(map(len, data)) == 40


@pytest.mark.parametrize("values", [{}, {"RANK": 1, "WORLD_SIZE": 2}])
def test_load_for_ranks_that_cannot_come_is_an_error_at_once(
    values: dict[str, object], environment: Env, provider_file: Callable[[str], str]
) -> None:
    environment(**values)
    with pytest.raises(OptionError, match="so world_size must be 1, got rank=1, world_size=2") as caught:
        pydp2.load(FILES, provider_file(CODE), batch_size=4, rank=1, world_size=2)
    assert "pydp2.connect(address, rank=1, world_size=2, …)" in str(caught.value)


def test_a_second_rank_that_does_not_say_so_is_refused_with_the_call_that_would_do(
    service: pydp2.Service, environment: Env
) -> None:
    environment(RANK=1, WORLD_SIZE=2)
    with pydp2.connect(service.address, batch_size=4):
        with pytest.raises(JobTaken, match=r"pass rank=1, world_size=2 in each$") as caught:
            pydp2.connect(service.address, batch_size=4)
        assert "another trainer reads this job" in str(caught.value)
        assert "this process is rank 1 of 2 (RANK and WORLD_SIZE)" in str(caught.value)
        with pytest.raises(JobTaken) as caught:
            pydp2.connect(service.address, batch_size=4, world_size=1)
        assert "in each" not in str(caught.value)
    environment()
    with pydp2.connect(service.address, batch_size=4):
        with pytest.raises(JobTaken) as caught:
            pydp2.connect(service.address, batch_size=4)
        assert "in each" not in str(caught.value)


def test_a_service_of_ones_own_that_is_read_alone_by_one_of_several_warns(
    service: pydp2.Service, environment: Env
) -> None:
    environment(RANK=1, WORLD_SIZE=2)
    with (
        pytest.warns(UserWarning, match=r"^this process is rank 1 of 2 .* reads all samples of its service") as seen,
        service.connect(batch_size=4),
    ):
        pass
    assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for job, options in (("a", {"world_size": 1}), ("b", {"share": "dynamic"})):
            service.connect(batch_size=4, job=job, **options).close()
        environment()
        service.connect(batch_size=4).close()


TRAINER = """
import json, os, sys
import pydp2

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with pydp2.connect(sys.argv[1], rank=rank, world_size=world_size, batch_size=4) as data:
    print(json.dumps([sample for batch in data for sample in batch[0].tolist()]))
"""


def test_processes_with_ranks_from_their_environment_share_the_samples(service: pydp2.Service, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", service.address], cwd=tmp_path, stdout=subprocess.PIPE,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]  # fmt: skip
    seen = [json.loads(rank.communicate(timeout=30)[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert sorted(seen[0] + seen[1]) == [*range(40)]
    assert seen[0]
    assert seen[1]

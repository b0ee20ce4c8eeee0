"""The replay: a whole server gives simulated trainers every sample of a pass."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from benchmarks import replay
from benchmarks.replay import Case


def test_a_pass_that_the_server_serves_in_one_go_is_measured_behind_its_warm_start() -> None:
    assert replay.seconds_per_sample(Case(kind="dense", samples=100_000)) > 0
    gc.collect()  # its memory has a descriptor


@pytest.mark.parametrize(
    ("kind", "workers", "ranks", "jobs"),
    [
        *((kind, 3, 1, 1) for kind in (*replay.KINDS, "rows")),
        ("dense", 1, 1, 1),
        *((kind, 2, 3, 1) for kind in ("dense", "rows")),
        ("dense", 2, 1, 2),
    ],
)
def test_trainers_get_all_samples(
    kind: str, workers: int, ranks: int, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_stay = kind == "rows"
    case = Case(
        kind=kind, workers=workers, ranks=ranks, jobs=jobs, files=20, length=300, samples=1 << 40, rows_stay=rows_stay
    )
    services: list[Any] = []
    make = replay._Service

    def kept(*args: Any) -> Any:
        services.append(make(*args))
        return services[-1]

    monkeypatch.setattr(replay, "_Service", kept)
    assert replay.seconds_per_sample(case) > 0
    (service,) = services
    assert service.samples == 20 * 300 * jobs
    assert all(trainer.over for trainer in service._trainers)
    del service
    services.clear()
    gc.collect()  # its memory has a descriptor

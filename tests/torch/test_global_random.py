"""torch's global generator belongs to the file that is read, as those of random and numpy do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import pydp2  # noqa: E402
from pydp2.providers import resolve  # noqa: E402

CODE = """
import random, time
import numpy as np
from pydp2 import scalar
{import_at_top}

@provider(input_types=[integer_value(100), scalar("float64"), scalar("float64")], should_shuffle=False)
def process(settings, filename):
    {import_late}
    for _ in range(20):
        time.sleep(0.002)
        yield int(filename), torch.rand((), dtype=torch.float64).item(), torch.randn(()).item() + random.random()
"""
AT_TOP = CODE.format(import_at_top="import torch", import_late="pass")
LATE = CODE.format(import_at_top="", import_late="import torch")
FILES = [str(number) for number in range(12)]


def rows_of(data: pydp2.Client) -> list[list[float]]:
    return sorted(list(row) for batch in data for row in zip(*(batch[slot].tolist() for slot in range(3)), strict=True))


@pytest.mark.parametrize("code", [AT_TOP, LATE], ids=["at the top", "in process"])
def test_any_number_of_workers_draws_the_same(code: str, provider_file: Callable[[str], str]) -> None:
    address = provider_file(code)
    found = []
    for workers, start in ((1, "auto"), (3, "auto"), (2, "spawn")):
        with pydp2.load(FILES, address, workers=workers, batch_size=50, seed=5, start=start) as data:  # type: ignore[arg-type]
            found.append(rows_of(data))
    assert found[0] == found[1] == found[2]
    assert len({row[1] for row in found[0]}) == len(found[0]) == 240

    before = torch.get_rng_state()
    samples = list(resolve(address).reader(FILES, seed=5)())
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted([float(value) for value in sample] for sample in samples) == found[0]


def test_a_program_without_torch_gets_its_own_numbers_from_it(provider_file: Callable[[str], str]) -> None:
    """Also where process() imports it: what is seeded then is the file's state."""
    late, at_top = provider_file(LATE, "late"), provider_file(AT_TOP, "at_top")
    code = f"""
import sys
from pydp2.providers import resolve
def read(address):
    return [sample[1:] for sample in resolve(address).samples("3", seed=5)]
samples = read({late!r})
import torch
state = torch.get_rng_state()
print(samples == read({late!r}) == read({at_top!r}), torch.equal(torch.get_rng_state(), state))
print(torch.rand((), dtype=torch.float64).item() in [sample[0] for sample in samples])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["True", "True", "False"]

"""What tests with jax share: the strategies of samples, and programs in processes of their own, because the number of
devices and of processes is fixed when jax starts.

A program waits for each of its steps. If several are under way on devices that jax makes of one CPU, the collectives of
one can wait for those of another for ever (seen in jax 0.10.2, with arrays of numpy alone too).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..faults.relay import free_port as free_port
from ..sample_cases import some as some

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120.0
PROGRAM = """
import json, sys
import numpy as np
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import pydp2, pydp2.jax
from pydp2.errors import OptionError
from pydp2_samples import path

RANK, WORLD, PORT = map(int, sys.argv[1:4])
DIGITS = {"root": path("digits"), "seed": 7, "workers": 1}


def digits(**options):
    return pydp2.jax.loader("train.list", "digits_provider.process", **DIGITS | {"batch_size": 32} | options)


def main():
    if WORLD > 1:
        jax.distributed.initialize(f"127.0.0.1:{PORT}", WORLD, RANK)
    print(json.dumps(run()))


"""


@pytest.fixture
def jax_program(tmp_path: Path) -> Callable[..., list[Any]]:
    """``jax_program(code, processes=1, devices=4)`` runs a program in processes with so many devices each; what its
    function ``run`` returned in each."""

    def run(code: str, *, processes: int = 1, devices: int = 4) -> list[Any]:
        script = tmp_path / "program.py"
        script.write_text(f'{PROGRAM}{code}\n\nif __name__ == "__main__":\n    main()\n')
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
        port = str(free_port())
        running = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(processes), port],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            ended = [process.communicate(timeout=DEADLINE) for process in running]
        finally:
            for process in running:
                process.kill()
                process.communicate()
        for process, (out, errors) in zip(running, ended, strict=True):
            assert process.returncode == 0, out + errors
        return [json.loads(out.splitlines()[-1]) for out, _ in ended]

    return run

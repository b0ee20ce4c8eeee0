"""The example that trains with JAX and Orbax is killed and goes on, with another number of processes too."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import free_port

jax: Any = pytest.importorskip("jax")
ocp: Any = pytest.importorskip("orbax.checkpoint")

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/train_digits_jax.py"
DEADLINE = 120.0

# Runs the example, which kills itself, as `kill -9` would, before its n-th checkpoint, as soon as the files of that are
# being written, or after it is complete.
KILLED = """
import os, runpy, signal, sys
import orbax.checkpoint as ocp
example, number, where, *words = sys.argv[1:]
saves = 0
save = ocp.CheckpointManager.save

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def saved(manager, step, **options):
    global saves
    due = saves == int(number)
    saves += 1
    if due and where == "before":
        die()
    result = save(manager, step, **options)
    if due and where == "after":
        manager.wait_until_finished()
    if due and where in ("within", "after"):
        die()
    return result

ocp.CheckpointManager.save = saved
sys.argv = [example, *words]
runpy.run_path(example, run_name="__main__")
"""


def started(folder: Path, *words: str, kill: tuple[int, str] = (-1, "never")) -> subprocess.Popen[str]:
    number, where = kill
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(EXAMPLE), str(number), where, str(folder), "--every", "9", *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(*processes: subprocess.Popen[str]) -> list[int]:
    """Their exit statuses, and all of their output if one was an error."""
    try:
        printed = [process.communicate(timeout=DEADLINE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert all(process.returncode in (0, -signal.SIGKILL) for process in processes), "\n".join(printed)
    return [process.returncode for process in processes]


def last_checkpoint(folder: Path) -> tuple[int, list[bytes], Any]:
    """Step, weights and momentum, and place in the data of the last checkpoint."""
    weights = runpy.run_path(str(EXAMPLE))["first_weights"]()
    with ocp.CheckpointManager(folder) as manager:
        step = manager.latest_step()
        like = ocp.args.StandardRestore({"weights": weights, "momentum": weights})
        restored = manager.restore(step, args=ocp.args.Composite(train=like, data=ocp.args.JsonRestore()))
    return step, [leaf.tobytes() for leaf in jax.tree.leaves(jax.device_get(restored.train))], restored.data


@pytest.mark.filterwarnings("ignore")  # Orbax says that this process has other devices
def test_the_example_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    assert ended(started(uninterrupted, "--passes", "2")) == [0]
    for kill, workers in (((2, "within"), "1"), ((1, "after"), "2"), ((3, "before"), "1")):
        assert ended(started(killed, "--passes", "2", "--workers", workers, kill=kill)) == [-signal.SIGKILL]
    assert ended(started(killed, "--passes", "2")) == [0]
    step, weights, place = last_checkpoint(killed)
    assert (step, place) == (88, last_checkpoint(uninterrupted)[2])
    assert weights == last_checkpoint(uninterrupted)[1]


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_two_processes_is_taken_up_by_one(tmp_path: Path) -> None:
    together = ("--passes", "1", "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2")
    both = [started(tmp_path / "run", *together, "--process", str(process)) for process in range(2)]
    assert ended(*both) == [0, 0]
    assert last_checkpoint(tmp_path / "run")[0] == 22  # steps of 64 rows
    assert ended(started(tmp_path / "run", "--passes", "2")) == [0]
    step, _, place = last_checkpoint(tmp_path / "run")
    assert (step, place["pass"], place["batch"]) == (22 + 44, 2, 0)

"""The example that trains with JAX and Orbax is killed, goes on, and ends with the weights of a run that was not."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def run(folder: Path, *words: str, kill: tuple[int, str] | None = None) -> int:
    """How the example ended: its exit status, and all of its output if it was an error."""
    number, where = kill or (-1, "never")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(EXAMPLE), str(number), where, str(folder), "--passes", "2", *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


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
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, "--every", "9") == 0
    for number, where, workers in ((2, "within", "1"), (1, "after", "2"), (3, "before", "1")):
        assert run(killed, "--every", "9", "--workers", workers, kill=(number, where)) == -signal.SIGKILL
    assert run(killed, "--every", "9") == 0
    step, weights, place = last_checkpoint(killed)
    assert (step, place) == (88, last_checkpoint(whole)[2])
    assert weights == last_checkpoint(whole)[1]

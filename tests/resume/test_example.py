"""The examples that train, are killed, and go on: they end with the weights of those that were never killed."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from ..warm_starts import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
DEADLINE = 60.0

# Runs an example that kills itself, as `kill -9` would, before its n-th save, in the middle of it, or after it. That is
# done from inside because there it happens at the step that was drawn, and not at one that the machine's load chooses.
KILLED = """
import os, pathlib, signal, stat, sys
example, number, where, *words = sys.argv[1:]
saves = 0
rename, fsync = pathlib.Path.replace, os.fsync

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half_a_file(descriptor):
    about = os.fstat(descriptor)
    if saves == int(number) and where == "within" and stat.S_ISREG(about.st_mode):
        os.ftruncate(descriptor, about.st_size // 2)
        die()
    fsync(descriptor)

def renamed(path, target):
    global saves
    if saves == int(number) and where == "before":
        die()
    rename(path, target)
    if saves == int(number) and where == "after":
        die()
    saves += 1

pathlib.Path.replace, os.fsync = renamed, half_a_file
sys.argv = [example, *words]
code = pathlib.Path(example).read_text()
exec(compile(code, example, "exec"), {"__name__": "__main__", "__file__": example})
"""


def run(example: str, folder: Path, *words: str, kill: tuple[int, str] | None = None) -> int:
    """How an example ended, with its file in ``folder``: its exit status, and all of its output if it was an error."""
    file, (number, where) = EXAMPLES / example, kill or (-1, "never")
    words = ("-c", KILLED, str(file), str(number), where, str(folder / "run"), *words)
    done = run_program(words, folder, DEADLINE)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def killed_again_and_again(example: str, folder: Path, seed: int, words: tuple[str, ...]) -> int:
    """Run it until it has run through, killed at drawn saves; how often it was killed."""
    random = Random(seed)
    for kills in range(20):
        kill = (random.randint(0, 5), random.choice(["before", "within", "after"]))
        if run(example, folder, *words, "--workers", str(random.choice([1, 2, 3])), kill=kill) == 0:
            return kills
    raise AssertionError("twenty kills, and it has not come to its end")


def whole_and_killed(example: str, tmp_path: Path, *, seed: int, every: int) -> tuple[Path, Path, int]:
    """The last checkpoints of an example that was never killed, and of one that was, and how often it was."""
    words = ("--passes", "2", "--every", str(every))
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted.mkdir()
    killed.mkdir()
    assert run(example, uninterrupted, *words) == 0
    return uninterrupted / "run", killed / "run", killed_again_and_again(example, killed, seed, words)


def arrays_of(file: Path) -> dict[str, Any]:
    """What is in a file of numpy; of the state of the data, the place."""
    with np.load(file) as arrays:
        found: dict[str, Any] = {name: arrays[name].tobytes() for name in arrays}
    place = "data" if "data" in found else "place"
    return found | {place: without_checksums(json.loads(found[place]))}


def without_checksums(state: Any) -> Any:
    """A state without what depends on how the samples were cut into chunks."""
    if isinstance(state, list):
        return [without_checksums(each) for each in state]
    if isinstance(state, dict):
        return {key: without_checksums(value) for key, value in state.items() if key not in ("checksums", "digest")}
    return state


def test_the_example_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    """Bit by bit, and the momentum and the place in the data too."""
    uninterrupted, killed, kills = whole_and_killed("train_and_resume.py", tmp_path, seed=1, every=7)
    assert kills >= 3
    assert arrays_of(killed) == arrays_of(uninterrupted)


def test_the_language_model_that_is_killed_ends_with_the_loss_of_one_that_never_was(tmp_path: Path) -> None:
    words = ("--steps", "20", "--every", "4")
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted.mkdir()
    killed.mkdir()
    assert run("train_language_model.py", uninterrupted, *words) == 0
    assert run("train_language_model.py", killed, *words, kill=(2, "within")) != 0
    assert run("train_language_model.py", killed, *words, "--workers", "2") == 0
    assert arrays_of(killed / "run") == arrays_of(uninterrupted / "run")
    with np.load(killed / "run") as ended:
        assert np.mean(ended["losses"][-5:]) < 0.8 * np.mean(ended["losses"][:5])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_example_in_torch_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    """With an optimizer and with dropout, whose random numbers go on too."""
    import torch

    uninterrupted, killed, kills = whole_and_killed("train_digits_torch.py", tmp_path, seed=3, every=12)
    assert kills >= 2
    ended, expected = (torch.load(file, weights_only=True) for file in (killed, uninterrupted))
    assert ended["data"] == expected["data"]
    assert torch.equal(ended["random"], expected["random"])
    assert all(torch.equal(ended["model"][name], value) for name, value in expected["model"].items())

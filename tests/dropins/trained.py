"""Train with a package to the end, and again with a kill in the middle and a resume, and compare the losses."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/drop-ins.md"
DEADLINE = 300.0
VOCABULARY = 256
RECORD = """
import os, signal

FOLDER, STOP = os.environ["TRAINED_FOLDER"], int(os.environ["TRAINED_STOP"])

def record(step, loss):
    "Write down the loss of a step, all its bits; after step STOP the process is killed."
    with open(f"{FOLDER}/losses.{os.environ.get('RANK', 0)}", "a") as file:
        print(int(step), float(loss).hex(), file=file)
    if step == STOP:
        os.kill(os.getpid(), signal.SIGKILL)
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
FEW_THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def skip_without(*packages: str) -> None:
    """Skip the file of tests that calls this, unless all packages are installed. They are not imported here."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def glue() -> dict[str, str]:
    """The files that the page gives, by name."""
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return {name: code for code, name in blocks}


class Training:
    """Runs of one program in ``folder``, with ``ranks`` ranks of torchrun, or 0 for a process without it.

    The program finds the files of the page, ``train.bin`` with random tokens below VOCABULARY, and in ``record`` the
    folder for its checkpoints, the step after which it is killed, or -1, and ``record()`` for its losses.
    """

    def __init__(self, folder: Path, program: str, *, ranks: int = 0, **environment: str) -> None:
        self.folder, self.ranks = folder, ranks
        self.environment = os.environ | OFFLINE | FEW_THREADS | environment | {"PYTHONPATH": str(folder)}
        for name, code in glue().items() | {"record.py": RECORD, "program.py": program}.items():
            (folder / name).write_text(code, "utf-8")
        tokens = np.random.default_rng(0).integers(1, VOCABULARY, 32 * 80 + 1, dtype=np.uint16)
        tokens.tofile(folder / "train.bin")

    def run(self, name: str, stop: int = -1, *, restarts: bool = False) -> list[list[str]]:
        """The losses of each rank in one run, whose checkpoints are those of ``name``. ``restarts``: the package starts
        ranks again that were killed."""
        checkpoints = self.folder / name
        checkpoints.mkdir(exist_ok=True)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *(launcher if self.ranks else []), "program.py"],
            cwd=self.folder,
            env=self.environment | {"TRAINED_FOLDER": str(checkpoints), "TRAINED_STOP": str(stop)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert (done.returncode == 0) == (stop < 0 or restarts), done.stdout + done.stderr
        written = sorted(checkpoints.glob("losses.*"))
        losses = [file.read_text().splitlines() for file in written]
        for file in written:
            file.unlink()
        return losses


def check_killed_and_resumed(training: Training, steps: int, kills: list[tuple[int, int]]) -> list[list[str]]:
    """A run of ``steps`` steps that is killed again and again goes on with the losses of a run that never was. A kill
    is the step of the last checkpoint, and the step after which the process is killed. Returns the losses by rank."""
    uninterrupted = training.run("uninterrupted")
    assert uninterrupted
    for losses in uninterrupted:
        assert [int(line.split()[0]) for line in losses] == list(range(1, steps + 1))
        assert len({line.split()[1] for line in losses}) == steps, "equal losses would show nothing"
    begin = 0
    for saved, stop in kills:
        assert training.run("killed", stop) == [losses[begin:stop] for losses in uninterrupted], (begin, stop)
        begin = saved
    assert training.run("killed") == [losses[begin:] for losses in uninterrupted], begin
    return uninterrupted

"""The script of docs/large-models.md: a packed mixture that is killed and resumed, in one process and in ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.faults.relay import free_port  # noqa: E402
from tests.resume.test_example import EXAMPLES, KILLED  # noqa: E402

from .test_torchrun import DEADLINE, ROOT, torchrun  # noqa: E402
from .test_torchrun_nodes import ENVIRONMENT, ended, machines_or_skip  # noqa: E402
from .test_torchrun_nodes import torchrun as torchrun_on  # noqa: E402

SCRIPT = str(EXAMPLES / "train_gpt.py")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, count in (("code", 90), ("text", 40)):
        files = []
        for number in range(3):
            files.append(folder / f"{name}-{number}.jsonl")
            texts = [f"{name} {number} {i} " * (i * 7 % 11 + 1) for i in range(count)]
            files[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (folder / f"{name}.list").write_text("".join(f"{file}\n" for file in files))
    return folder


def losses_in(text: str) -> dict[int, str]:
    """Losses as they were printed, by step."""
    return {int(step): loss for step, loss in re.findall(r"^(\d+) (\d+\.\d+)$", text, re.MULTILINE)}


def losses(done: subprocess.CompletedProcess[str]) -> dict[int, str]:
    """Losses that a program has printed."""
    return losses_in(done.stdout)


def train(*words: str, killed_at: int = -1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, SCRIPT, str(killed_at), "after", *words]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    return subprocess.run(command, cwd=EXAMPLES, env=environ, capture_output=True, text=True, timeout=DEADLINE)


def test_a_run_that_is_killed_prints_the_losses_of_one_that_was_not(corpus: Path, tmp_path: Path) -> None:
    whole = train(str(corpus), "23", str(tmp_path / "whole.pt"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    killed = train(str(corpus), "23", str(tmp_path / "run.pt"), killed_at=0)
    assert killed.returncode != 0
    rest = train(str(corpus), "23", str(tmp_path / "run.pt"))
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert [*losses(rest)] == [*range(11, 24)]
    assert losses(killed) | losses(rest) == losses(whole)


@pytest.mark.slow
def test_ranks_share_one_packed_mixture_and_go_on_from_one_state(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)  # the workers look for the provider there
    whole = torchrun(SCRIPT, str(corpus), "15", str(tmp_path / "whole.pt"))
    first = torchrun(SCRIPT, str(corpus), "10", str(tmp_path / "run.pt"))
    rest = torchrun(SCRIPT, str(corpus), "15", str(tmp_path / "run.pt"))
    for done in (whole, first, rest):
        assert done.returncode == 0, done.stdout + done.stderr
    assert losses(first) | losses(rest) == losses(whole)
    alone = train(str(corpus), "15", str(tmp_path / "run.pt"))  # one rank goes on with the state of two
    assert [*losses(alone)] == [*range(11, 16)], alone.stdout + alone.stderr


@pytest.mark.slow
def test_two_machines_share_one_packed_mixture_and_one_machine_goes_on(corpus: Path, tmp_path: Path) -> None:
    environ = ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{EXAMPLES}"}

    def on_two(steps: int, checkpoint: str) -> dict[int, str]:
        with machines_or_skip() as machines:
            address = f"node-a:{free_port()}"
            words = [SCRIPT, str(corpus), str(steps), str(tmp_path / checkpoint)]
            processes = [
                machines.start(name, torchrun_on(node, address, *words), environ) for node, name in enumerate("ab")
            ]
            return losses_in(ended(processes))

    whole = on_two(15, "whole.pt")
    assert [*whole] == [*range(1, 16)]
    first = on_two(10, "run.pt")
    assert first | on_two(15, "run.pt") == whole
    alone = train(str(corpus), "15", str(tmp_path / "run.pt"))
    assert [*losses(alone)] == [*range(11, 16)], alone.stdout + alone.stderr

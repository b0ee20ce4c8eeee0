"""Two ranks that torchrun starts: one service, equally many steps, and a checkpoint of all that they go on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.resume.test_example import EXAMPLES, KILLED  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120.0
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pathlib import Path
import pydp2.torch
from tests.torch.conftest import DIGITS, TRAIN, digest

kind, folder, stop = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.Linear(64, 10)
if kind == "fsdp":
    torch.distributed.fsdp.fully_shard(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
seen = []
with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
    if (folder / "dcp").exists():
        states = {"model": model.state_dict(), "data": data}
        dcp.load(states, checkpoint_id=folder / "dcp")
        model.load_state_dict(states["model"])
    for _ in range(data.pass_id, 2):
        for step in data:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(step["pixel"] / 16), step["label"]).backward()
            optimizer.step()
            seen.append([data.batch.index, data.batch.padding, digest(step)])
            if len(seen) == stop:
                dcp.save({"model": model.state_dict(), "data": data}, checkpoint_id=folder / "dcp")
                break
        if len(seen) == stop:
            break
weights = [each.full_tensor() if kind == "fsdp" else each for each in model.parameters()]
(folder / f"seen.{dist.get_rank()}").write_text(json.dumps([seen, [each.tolist() for each in weights]]))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch 2.13 sometimes aborts while the interpreter ends, if gloo has carried the tensors of FSDP
"""


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """A program in two ranks, run to its end."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def run_ranks(kind: str, folder: Path, stop: int = -1) -> list[Any]:
    """What both ranks have seen, and their weights."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    done = torchrun(str(folder / "program.py"), kind, str(folder), str(stop))
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("kind", "stop"), [("ddp", 7), ("fsdp", 8)])
def test_two_ranks_share_each_pass_and_go_on_from_a_distributed_checkpoint(
    passes: list[list[str]], tmp_path: Path, kind: str, stop: int
) -> None:
    uninterrupted = run_ranks(kind, tmp_path / "all")
    full = sorted(step[2] for seen, _ in uninterrupted for step in seen if not step[1])
    assert full == sorted(passes[0][:-1] + passes[1][:-1]), "each batch once; the last of a pass is padded here"
    assert len(uninterrupted[0][0]) == len(uninterrupted[1][0]) == 2 * -(-len(passes[0]) // 2), (
        "equally many, the last ones padded"
    )
    assert uninterrupted[0][1] == uninterrupted[1][1]
    run_ranks(kind, tmp_path / "rest", stop)
    rest = run_ranks(kind, tmp_path / "rest")
    assert [each[0] for each in rest] == [each[0][stop:] for each in uninterrupted]
    assert [each[1] for each in rest] == [each[1] for each in uninterrupted]


@pytest.mark.slow
def test_the_example_in_two_ranks_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    ends = []
    for folder, kills in (("whole", [(-1, "never")]), ("rest", [(1, "within"), (0, "after"), (-1, "never")])):
        (tmp_path / folder).mkdir()
        for number, where in kills:
            words = (str(EXAMPLES / "train_digits_torch.py"), str(number), where, str(tmp_path / folder / "run"))
            done = torchrun(str(tmp_path / "killed.py"), *words, "--passes", "2", "--every", "7")
            assert (done.returncode == 0) == (where == "never"), done.stdout + done.stderr
        ends.append(torch.load(tmp_path / folder / "run", weights_only=True))
    uninterrupted, rest = ends
    assert rest["data"] == uninterrupted["data"]
    assert all(torch.equal(rest["model"][name], value) for name, value in uninterrupted["model"].items())

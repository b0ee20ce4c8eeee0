"""Processes that torchrun starts, as ranks or at places of a mesh: one service, equally many steps, and a checkpoint of
all that they go on from."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.resume.test_example import EXAMPLES, KILLED  # noqa: E402
from tests.torch.conftest import DIGITS  # noqa: E402

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


def torchrun(*words: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """A program in several processes, run to its end."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", str(processes), *words],
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


MESH = """
import json, os, signal, sys
import torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
import pydp2.torch
from tests.torch.conftest import DIGITS, TRAIN, digest

folder, shape, stop, dies = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
place = f"{dist.get_rank()}"
mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=("dp", "tp")[:len(shape)])
is_last = dist.get_rank() == dist.get_world_size() - 1
seen = []
with pydp2.torch.loader(*TRAIN, **DIGITS, mesh=mesh) as data:
    if (state := folder / "state").exists():
        data.load_state_dict(json.loads(state.read_text()))
    for _ in range(data.pass_id, 2):
        for step in data:
            if len(seen) == dies and is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append([data.batch.pass_id, data.batch.index, data.batch.padding, digest(step)])
            if len(seen) == stop:
                (folder / f"state.{place}").write_text(json.dumps(data.state_dict()))
                dist.barrier()
                if dist.get_rank() == 0:
                    (folder / "state.0").rename(folder / "state")
            if len(seen) == stop and dies < 0:
                break
        if len(seen) == stop and dies < 0:
            break
(folder / f"seen.{place}").write_text(json.dumps([mesh["dp"].get_local_rank(), seen]))
dist.destroy_process_group()
"""


Step = list[Any]
"""Pass, number and padding of a batch, and what it holds, in short."""


def run_mesh(folder: Path, shape: list[int], stop: int = -1, dies: int = -1) -> list[tuple[int, list[Step]]]:
    """Of each process of a mesh, its rank along the data dimension and what it has seen; [] if one dies."""
    folder.mkdir(exist_ok=True)
    (folder / "mesh.py").write_text(MESH)
    processes = math.prod(shape)
    words = (str(folder / "mesh.py"), str(folder), json.dumps(shape), str(stop), str(dies))
    done = torchrun(*words, processes=processes)
    assert (done.returncode == 0) == (dies < 0), done.stdout + done.stderr
    if dies >= 0:
        return []
    return [tuple(json.loads((folder / f"seen.{rank}").read_text())) for rank in range(processes)]


def in_order(found: list[tuple[int, list[Step]]]) -> list[Step]:
    """The batches of all ranks in the order of the pass; those of one rank are the same in all its peers."""
    by_rank: dict[int, list[Step]] = {}
    for rank, seen in found:
        assert by_rank.setdefault(rank, seen) == seen, "peers have seen the same"
    assert len({len(seen) for seen in by_rank.values()}) == 1, "equally many steps"
    return sorted(step for seen in by_rank.values() for step in seen)


def without_padding(steps: list[Step]) -> list[Step]:
    """The steps, without those that are padding alone: of these, each number of ranks has others."""
    return [step for step in steps if step[2] < DIGITS["batch_size"]]


@pytest.fixture(scope="module")
def whole(_warm_starts: object, tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Both passes as a mesh of two ranks with two peers sees them."""
    return in_order(run_mesh(tmp_path_factory.mktemp("whole"), [2, 2]))


@pytest.fixture(scope="module")
def begun(whole: list[Step], tmp_path_factory: pytest.TempPathFactory) -> str:
    """State of such a mesh after three steps."""
    folder = tmp_path_factory.mktemp("begun")
    assert in_order(run_mesh(folder, [2, 2], stop=3)) == whole[:6]
    return (folder / "state").read_text()


def test_peers_of_a_mesh_get_the_same_batches(whole: list[Step], passes: list[list[str]]) -> None:
    first = [step for step in whole if step[0] == 0]
    assert [step[3] for step in first if not step[2]] == passes[0][:-1], "each batch once, in the order of one trainer"


@pytest.mark.parametrize("shape", [[4], [1]])
def test_a_state_of_a_mesh_goes_on_with_the_same_batches_on_another_one(
    whole: list[Step], begun: str, tmp_path: Path, shape: list[int]
) -> None:
    (tmp_path / "state").write_text(begun)
    assert without_padding(in_order(run_mesh(tmp_path, shape))) == without_padding(whole[6:])


def test_a_mesh_of_which_one_process_dies_goes_on_from_its_checkpoint(whole: list[Step], tmp_path: Path) -> None:
    run_mesh(tmp_path / "killed", [2, 2], stop=2, dies=5)
    assert in_order(run_mesh(tmp_path / "killed", [2, 2])) == whole[4:]


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

"""Ranks that torchrun starts on two machines: no command beside it, one service, workers on both, and what a machine
that dies changes, which is nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.faults.relay import free_port  # noqa: E402
from tests.machines import Machines, NoMachines, two_machines  # noqa: E402
from tests.runs import wait_until  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 150.0
BATCH = 10
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
Start = Callable[[str, Sequence[str]], "subprocess.Popen[str]"]

SHARE = """
import contextlib, json, os, sys
from pathlib import Path
import torch.distributed as dist
import pydp2.torch
from pydp2.errors import Error
from tests.torch.conftest import DIGITS, TRAIN, digest

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
error = None
if "LOCAL_WORLD_SIZE" not in os.environ:
    dist.init_process_group("gloo")
try:
    pydp2.torch.loader("missing.list", TRAIN[1], **DIGITS)
except Error as raised:
    error = [type(raised).__name__, str(raised)]
with pydp2.torch.loader(*TRAIN, **DIGITS | {"workers": 0}, workers_per_node=1) as data:
    seen = [[data.batch.index, data.batch.padding, digest(step)] for step in data]
    hosts, secrets = [], []
    if rank == 0:
        service = data.client.owner.service
        hosts = [host["places"] for host in service.stats()["hosts"]]
        secrets = [service._target.key_pair.secret]
        for name in ("cmdline", "environ"):
            for path in Path("/proc").glob(f"[0-9]*/{name}"):
                with contextlib.suppress(OSError):  # it has ended
                    assert secrets[0].encode() not in path.read_bytes()
(folder / f"rank.{rank}").write_text(json.dumps([seen, error, hosts, secrets]))
"""
MIXED = """
import json, os, sys
from pathlib import Path
import pydp2, pydp2.torch
from tests.torch.conftest import DIGITS, TRAIN, digest

sources = [("train.list", 0.7), ("test.list", 0.3)]
options = DIGITS | ({"workers": 0, "workers_per_node": 1} if "RANK" in os.environ else {})
with pydp2.torch.loader(pydp2.mix(sources, TRAIN[1], **options)) as data:
    seen = [[data.batch.index, digest(step)] for step in data if not data.batch.padding and len(step["label"]) == 100]
(Path(sys.argv[1]) / f"mixed.{os.environ.get('RANK', 'alone')}").write_text(json.dumps(seen))
"""
TRAINING = """
import json, os, socket, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import pydp2.torch
from tests.torch.conftest import DIGITS, TRAIN, digest

folder, batch, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), 0
log = open(folder / f"log.{time.time_ns()}.{rank}", "a", buffering=1)
with pydp2.torch.loader(*TRAIN, **DIGITS | {"batch_size": batch}, workers_per_node=1) as data:
    if (folder / "state").exists():
        data.load_state_dict(torch.load(folder / "state"))
    print(f"rank {rank} has begun on {socket.gethostname()}", flush=True)
    while data.pass_id < 2 and steps != last:
        for step in data:
            dist.all_reduce(torch.ones(1))  # as a step of DDP does, so a rank that dies ends all
            log.write(json.dumps([data.batch.pass_id, data.batch.index, data.batch.padding, digest(step)]) + "\\n")
            steps += 1
            if steps % 3 == 0 and rank == 0:
                torch.save(data.state_dict(), folder / "new")
                (folder / "new").rename(folder / "state")
            if steps == last:
                break
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
dist.destroy_process_group()
os._exit(0)
"""


def ended(processes: Sequence[subprocess.Popen[str]]) -> str:
    """What the processes have written, once all have ended well."""
    try:
        texts = [process.communicate(timeout=DEADLINE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return "\n".join(texts)


def torchrun(node: int, address: str, *words: str, ranks: int = 1) -> list[str]:
    """The command of node ``node`` of two, the first of which has ``address``."""
    host, port = address.split(":")
    where = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", host, "--master-port", port]
    return [*TORCHRUN, *where, "--nproc-per-node", str(ranks), *words]


@contextmanager
def machines_or_skip() -> Iterator[Machines]:
    try:
        with two_machines() as machines:
            yield machines
    except NoMachines as why:
        pytest.skip(f"no namespaces for users: {why}")


@contextmanager
def two_nodes() -> Iterator[tuple[str, Start]]:
    """The name of the first of two machines, and ``start(machine, command)``; where users may not make namespaces, both
    are this machine."""
    try:
        with two_machines() as machines:
            yield "node-a", lambda name, command: machines.start(name, command, ENVIRONMENT)
    except NoMachines:
        pipe = subprocess.PIPE
        yield (
            "127.0.0.1",
            lambda name, command: subprocess.Popen(
                command, env=os.environ | ENVIRONMENT, stdout=pipe, stderr=subprocess.STDOUT, text=True
            ),
        )


def written(folder: Path, program: str) -> str:
    (folder / "program.py").write_text(program)
    return str(folder / "program.py")


def check_shared(folder: Path, passes: list[list[str]]) -> str:
    """Both ranks have shared the first of ``passes``; the secret key of their service."""
    (first, error, hosts, secrets), (second, error_there, _, _) = [
        json.loads((folder / f"rank.{rank}").read_text()) for rank in range(2)
    ]
    assert sorted(step[0] for step in first + second) == [*range(len(first) * 2)], "each batch once"
    assert len(first) == len(second)
    assert [step[2] for step in sorted(first + second) if not step[1]] == passes[0][:-1]
    assert error == error_there == ["ListError", error[1]]
    assert "missing.list" in error[1]
    assert hosts == [1]
    (secret,) = secrets
    return str(secret)


def test_two_machines_share_one_service_and_workers_of_the_second_read_for_both(
    passes: list[list[str]], tmp_path: Path
) -> None:
    """All samples are read on the second machine; an error of rank 0 is raised there too, and no secret is shown."""
    program = written(tmp_path, SHARE)
    with two_nodes() as (host, start):
        address = f"{host}:{free_port()}"
        running = [start(name, torchrun(n, address, program, str(tmp_path))) for n, name in enumerate("ab")]
        text = ended(running)
    assert check_shared(tmp_path, passes) not in text


def logged(folder: Path) -> dict[tuple[int, int], str]:
    """The batches without padding that ranks have trained with, by pass and number. A batch that was trained with more
    than once was always the same."""
    found: dict[tuple[int, int], str] = {}
    for path in folder.glob("log.*"):
        for line in path.read_text().splitlines():
            pass_id, index, padding, content = json.loads(line)
            if not padding:
                assert found.setdefault((pass_id, index), content) == content
    return found


def whole(batch: int) -> dict[tuple[int, int], str]:
    """The full batches of two passes, as one process reads them."""
    import pydp2.torch

    with pydp2.torch.loader(*TRAIN, **DIGITS | {"batch_size": batch}) as data:
        steps = [(data.pass_id, step) for _ in range(2) for step in data]
        assert data.pass_id == 2
    full = [[digest(step) for pass_id, step in steps if pass_id == n and len(step["label"]) == batch] for n in (0, 1)]
    return {(n, index): content for n in (0, 1) for index, content in enumerate(full[n])}


@pytest.mark.slow
def test_ranks_of_another_launcher_share_a_service_through_their_process_group(
    passes: list[list[str]], tmp_path: Path
) -> None:
    """Their environment says nothing of machines, as that of Slurm or MPI."""
    program = written(tmp_path, SHARE)
    with machines_or_skip() as machines:
        known = {"WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"} | ENVIRONMENT
        command = [sys.executable, "-W", "ignore", program, str(tmp_path)]
        ended([machines.start(name, command, known | {"RANK": str(n)}) for n, name in enumerate("ab")])
    check_shared(tmp_path, passes)


@pytest.mark.slow
def test_two_machines_share_a_mixture(tmp_path: Path) -> None:
    program = written(tmp_path, MIXED)
    with machines_or_skip() as machines:
        words = [program, str(tmp_path)]
        ended([machines.start(name, torchrun(n, "node-a:29500", *words), ENVIRONMENT) for n, name in enumerate("ab")])
    subprocess.run([sys.executable, program, str(tmp_path)], check=True, env=os.environ | ENVIRONMENT, timeout=DEADLINE)
    first, second, alone = [json.loads((tmp_path / f"mixed.{rank}").read_text()) for rank in ("0", "1", "alone")]
    assert sorted(first + second) == alone


@pytest.mark.slow
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_a_machine_that_dies_and_comes_back_changes_no_batch(tmp_path: Path, rendezvous: str) -> None:
    """With the static rendezvous the store of the first attempt is that of the second too. With c10d rank 0 is on the
    machine that dies, and with it the service; afterwards it is on the other one."""
    program = written(tmp_path, TRAINING)
    environment = ENVIRONMENT | {"STEP_SECONDS": "0.1"}
    # torch 2.13.0 lets no agent that is started anew into the rendezvous while it shares that store
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if rendezvous == "c10d" else {}
    words = ["--max-restarts", "3", program, str(tmp_path), str(BATCH), "-1"]
    with machines_or_skip() as machines:

        def start(node: int, *own_address: str) -> subprocess.Popen[str]:
            command = torchrun(node, "node-a:29500", *words)
            if rendezvous == "c10d":  # ranks are in the order of these addresses
                where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a:29500", "--rdzv-id", "run", *own_address]
                command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *where, *words]
            return machines.start("ab"[node], command, environment)

        first, second = start(0), start(1, "--local-addr", "10.77.0.2")
        assert wait_until((tmp_path / "state").exists, DEADLINE)
        machines.kill(second)
        lost = second.communicate()[0]
        begun = len(logged(tmp_path))
        text = ended([first, start(1)])
    moved = rendezvous == "c10d"
    assert f"rank {0 if moved else 1} has begun on node-b" in lost
    assert text.count("has begun on node-a") == 2
    assert text.count("rank 0 has begun on node-a") == (1 if moved else 2)
    assert text.count("rank 1 has begun on node-b") == 1
    expected = whole(BATCH)
    assert 0 < begun < len(expected) / 2
    assert logged(tmp_path) == expected


@pytest.mark.slow
def test_what_two_machines_have_begun_three_ranks_of_one_machine_end(tmp_path: Path) -> None:
    program = written(tmp_path, TRAINING)
    with machines_or_skip() as machines:
        words = [program, str(tmp_path), str(BATCH), "9"]
        ended(
            [
                machines.start(name, torchrun(n, "node-a:29500", *words, ranks=2), ENVIRONMENT)
                for n, name in enumerate("ab")
            ]
        )
    before = logged(tmp_path)
    assert sorted(before) == [(0, index) for index in range(9 * 4)]
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "3", program, str(tmp_path), str(BATCH), "-1"]
    pipe = subprocess.PIPE
    alone = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    ended([alone])
    assert logged(tmp_path) == whole(BATCH)
    rest = [path for path in tmp_path.glob("log.*") if path.stat().st_size]
    firsts = sorted(json.loads(path.read_text().splitlines()[0])[:2] for path in rest)
    assert firsts == [[0, index] for index in [*range(4), 36, 37, 38]], "nothing was read again"

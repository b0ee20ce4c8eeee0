"""Training under Ray Train, in which a trainer may be killed at any moment.

    pip install 'ray[train]>=2.51'
    python docs/examples/train_digits_ray.py FOLDER --passes 3 --every 10

Two Ray Train workers learn the digits of the sample data, each as one rank of a pydp2 service whose workers run on the
same cluster. Model and place in the data go into the checkpoints of Ray Train. When a trainer dies, Ray Train starts
both again from the last checkpoint; they end with the same weights, bit by bit, as if nothing had happened.
`--kill-after 12` has the second trainer kill itself after its twelfth step, once.

Two cores are enough. FOLDER must be one that all nodes of the cluster see, as Ray Train's storage_path.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
from pydp2_samples import path
from pydp2_samples.softmax import Softmax
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # what TorchTrainer is made of, without torch

import pydp2
import pydp2.ray

PARTS = ("weights", "bias", "_pace_weights", "_pace_bias")  # all that a step changes
SERVICE, MODEL = "digits", "model.npz"
RANKS = 2
STREAM: dict[str, Any] = {"batch_size": 32, "seed": 7, "last_batch": "drop"}


@ray.remote(num_cpus=0)
class Mean:
    """Gives the mean of what the ranks send in a step. With torch, DistributedDataParallel does this."""

    def __init__(self, ranks: int) -> None:
        import asyncio

        self.complete = asyncio.Condition()
        self.ranks, self.step = ranks, 0
        self.sent: dict[int, list[Any]] = {}
        self.mean: list[Any] = []

    async def of_step(self, rank: int, arrays: list[Any]) -> list[Any]:
        """Return the mean, array by array, once all ranks have sent theirs."""
        async with self.complete:
            step = self.step
            self.sent[rank] = arrays
            if len(self.sent) == self.ranks:
                in_order = [self.sent[each] for each in range(self.ranks)]  # a sum of floats depends on its order
                self.mean = [sum(parts) / np.float32(self.ranks) for parts in zip(*in_order, strict=True)]
                self.step, self.sent = step + 1, {}
                self.complete.notify_all()
            await self.complete.wait_for(lambda: self.step > step)
            return self.mean


def save(folder: str, model: Softmax, data: pydp2.Client) -> None:
    """Write model and place in the data."""
    place = json.dumps(data.state_dict()).encode()
    arrays: dict[str, Any] = {name: getattr(model, name) for name in PARTS}
    np.savez(Path(folder) / MODEL, data=np.frombuffer(place, np.uint8), **arrays)


def restore(folder: str, model: Softmax, data: pydp2.Client) -> None:
    """Bring back what :func:`save` wrote. Each rank loads the same state."""
    with np.load(Path(folder) / MODEL) as saved:
        for name in PARTS:
            setattr(model, name, saved[name])
        data.load_state_dict(json.loads(saved["data"].tobytes()))


def report(rank: int, model: Softmax, data: pydp2.Client, loss: float) -> None:
    """Give Ray Train a checkpoint: all ranks have the same weights and the same place, so one of them writes it."""
    if rank:
        ray.train.report({"loss": loss})
        return
    with tempfile.TemporaryDirectory() as folder:
        save(folder, model, data)
        ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def train(options: dict[str, Any]) -> None:
    """Train one rank, from the last checkpoint on where there is one."""
    rank = ray.train.get_context().get_world_rank()
    mean = broadcast_from_rank_zero(Mean.remote(RANKS) if rank == 0 else None)
    model, step = Softmax(), 0
    with pydp2.ray.connect(SERVICE, **STREAM) as data:
        if (checkpoint := ray.train.get_checkpoint()) is None:
            data.load_state_dict(options["start"])  # the service would go on where trainers that died were
        else:
            with checkpoint.as_directory() as folder:
                restore(folder, model, data)
        place = data.state_dict()
        print(f"rank {rank} begins in pass {place['pass']} at batch {place['batch']}")
        # In the middle of a pass the loop below goes on there; the passes before it are over.
        for _ in range(place["pass"], options["passes"]):
            for batch in data:
                loss = model.step(batch)
                arrays = [getattr(model, name) for name in PARTS]
                for name, array in zip(PARTS, ray.get(mean.of_step.remote(rank, arrays)), strict=True):
                    setattr(model, name, array.copy())  # what Ray gives can only be read
                step += 1
                if step == options["kill_after"] and rank == 1:
                    die_once(Path(options["folder"]) / "killed")
                if step % options["every"] == 0:
                    report(rank, model, data, loss)
        report(rank, model, data, loss)


def die_once(marker: Path) -> None:
    """Kill this process, as `kill -9` would, unless ``marker`` says that this was done before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, and say how well the model knows digits that it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where checkpoints and the model are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--kill-after", type=int, default=0, metavar="STEPS", help="kill a trainer there, once")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    with pydp2.ray.launch("train.list", "digits_provider.process", name=SERVICE, root=path("digits")) as service:
        with service.connect(job="start", **STREAM) as data:
            start = data.state_dict()
        result = fit(vars(options) | {"folder": str(options.folder), "start": start})
    model = Softmax()
    with result.checkpoint.as_directory() as folder:
        shutil.copy(Path(folder) / MODEL, options.folder / MODEL)
    with np.load(options.folder / MODEL) as saved:
        model.weights, model.bias = saved["weights"], saved["bias"]
    held_out = {"is_train": False, "workers": 1, "batch_size": 64}
    with pydp2.load("test.list", "digits_provider.process", root=path("digits"), **held_out) as unseen:
        print(f"accuracy on digits that were held out: {model.accuracy(unseen):.4f}")


def fit(options: dict[str, Any]) -> Any:
    """Have Ray Train run :func:`train` in each rank, and again from the last checkpoint if one of them dies."""
    return DataParallelTrainer(
        train,
        train_loop_config=options,
        scaling_config=ray.train.ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(
            name="digits",
            storage_path=options["folder"],
            failure_config=ray.train.FailureConfig(max_failures=1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main()

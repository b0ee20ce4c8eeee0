"""Train on the digits with JAX and Orbax: a run that may be killed at any moment, and goes on.

    python docs/examples/train_digits_jax.py run --passes 3 --every 10

A checkpoint holds the weights, the momentum, and the place in the data; Orbax writes all of it, or nothing. The rows of
a batch are divided among all devices. For two processes on this machine, start it twice, with `--coordinator
127.0.0.1:4321 --processes 2` and `--process 0` or `--process 1`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from pydp2_samples import path

import pydp2.jax

RATE, MOMENTUM = 0.05, 0.9


def first_weights() -> dict[str, Any]:
    """Return the weights of a network with one hidden layer."""
    one, two = jax.random.split(jax.random.key(7))
    return {
        "hidden": {"w": jax.random.normal(one, (64, 32)) / 8, "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(two, (32, 10)) / 6, "b": jnp.zeros(10)},
    }


def mean_loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Return the mean cross entropy over the rows of a batch."""
    hidden = jax.nn.relu(batch["pixel"] / 16 @ weights["hidden"]["w"] + weights["hidden"]["b"])
    scores = jax.nn.log_softmax(hidden @ weights["out"]["w"] + weights["out"]["b"])
    return -(scores * jax.nn.one_hot(batch["label"], 10)).sum(axis=1).mean()


@jax.jit
def step(train: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return weights and momentum after one step, and the loss before it."""
    loss, gradients = jax.value_and_grad(mean_loss)(train["weights"], batch)
    momentum = jax.tree.map(lambda old, new: MOMENTUM * old + new, train["momentum"], gradients)
    weights = jax.tree.map(lambda old, new: old - RATE * new, train["weights"], momentum)
    return {"weights": weights, "momentum": momentum}, loss


def run(folder: Path, passes: int, every: int, workers: int) -> None:
    """Train to the end of the last pass, from the last checkpoint in ``folder`` on where there is one."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights = jax.device_put(first_weights(), everywhere)
    train = {"weights": weights, "momentum": jax.tree.map(jnp.zeros_like, weights)}
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        ocp.CheckpointManager(folder.absolute(), options=options) as manager,
        pydp2.jax.loader(
            "train.list", "digits_provider.process", root=path("digits"), workers=workers, batch_size=32, seed=7,
            sharding=NamedSharding(mesh, PartitionSpec("data")),
        ) as data,
    ):  # fmt: skip
        steps = manager.latest_step() or 0
        if steps:
            kept = ocp.args.Composite(train=ocp.args.StandardRestore(train), data=ocp.args.JsonRestore())
            restored = manager.restore(steps, args=kept)
            train = restored.train
            data.load_state_dict(restored.data)
        for _ in range(data.pass_id, passes):
            for batch in data:
                train, loss = step(train, batch)
                steps += 1
                if steps % every == 0:
                    save(manager, steps, train, data)
                    print(f"step {steps}: loss {float(loss):.3f}", flush=True)
        if manager.latest_step() != steps:
            save(manager, steps, train, data)


def save(manager: ocp.CheckpointManager, steps: int, train: dict[str, Any], data: pydp2.jax.JaxLoader) -> None:
    """Begin to write a checkpoint. The place in the data is that of the batch in hand, now."""
    state = ocp.args.JsonSave(data.state_dict())
    manager.save(steps, args=ocp.args.Composite(train=ocp.args.StandardSave(train), data=state))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where checkpoints are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--coordinator", help="HOST:PORT of the first of several processes")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    options = parser.parse_args()
    if options.coordinator is not None:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    run(options.folder, options.passes, options.every, options.workers)


if __name__ == "__main__":
    main()

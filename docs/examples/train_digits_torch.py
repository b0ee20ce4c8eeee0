"""The same as train_and_resume.py with torch: training that may be killed at any moment, and goes on.

    python docs/examples/train_digits_torch.py run.pt --passes 3 --every 10
    torchrun --nproc-per-node 2 docs/examples/train_digits_torch.py run.pt

Beside the weights, the checkpoint holds all else that decides about the next step: the optimizer, the generators of
random numbers (this model has dropout), and the place in the data. It is read with ``weights_only=True``, which builds
tensors and plain values and executes nothing.
"""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path

import torch
import torch.distributed as dist
from pydp2_samples import path

import pydp2.torch


def save(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: pydp2.torch.Loader) -> None:
    """Write model, optimizer, random numbers and place in the data as one file: all of it, or nothing."""
    if dist.is_initialized() and dist.get_rank() > 0:
        return  # all ranks are at the same place
    checkpoint = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(),
        "data": data.state_dict(),
    }  # fmt: skip
    packed = io.BytesIO()
    torch.save(checkpoint, packed)
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(packed.getvalue())
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def train(file: Path, passes: int, every: int, workers: int) -> None:
    """Train to the end of the last pass, from ``file`` on where it is there."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trained = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    with pydp2.torch.loader(
        "train.list", "digits_provider.process", root=path("digits"), workers=workers, batch_size=32, seed=7
    ) as data:
        if file.exists():
            checkpoint = torch.load(file, weights_only=True)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            torch.set_rng_state(checkpoint["random"])
            data.load_state_dict(checkpoint["data"])
        for _ in range(data.pass_id, passes):
            for number, step in enumerate(data):
                loss = torch.nn.functional.cross_entropy(trained(step["pixel"] / 16), step["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % every == every - 1:
                    save(file, model, optimizer, data)
        save(file, model, optimizer, data)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    train(options.file, options.passes, options.every, options.workers)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

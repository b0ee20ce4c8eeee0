"""The same as train_and_resume.py with torch: training that may be killed at any moment, and goes on.

    python docs/examples/train_and_resume_torch.py run.pt --passes 3 --every 10

Beside the weights, the checkpoint holds all else that decides about the next step: the optimizer, the generators of
random numbers (this model has dropout), and the place in the data. It is read with ``weights_only=True``, which builds
tensors and plain values and executes nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path

import torch
from pydp2_samples import path

import pydp2


def save(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: pydp2.Client) -> None:
    """Write model, optimizer, random numbers and place in the data as one file: all of it, or nothing."""
    checkpoint = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(),
        "data": json.dumps(data.state_dict()),
    }  # fmt: skip
    packed = io.BytesIO()
    torch.save(checkpoint, packed)
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(packed.getvalue())
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def train(file: Path, passes: int, every: int, workers: int) -> torch.nn.Module:
    """Train to the end of the last pass, from ``file`` on where it is there."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with pydp2.load(
        "train.list", "digits_provider.process", root=path("digits"), workers=workers, batch_size=32, seed=7
    ) as data:
        if file.exists():
            checkpoint = torch.load(file, weights_only=True)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            torch.set_rng_state(checkpoint["random"])
            data.load_state_dict(json.loads(checkpoint["data"]))
        for _ in range(data.state_dict()["pass"], passes):
            for batch in data:
                pixels, labels = torch.from_numpy(batch["pixel"]), torch.from_numpy(batch["label"])
                loss = torch.nn.functional.cross_entropy(model(pixels / 16), labels.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if batch.index % every == every - 1:
                    save(file, model, optimizer, data)
        save(file, model, optimizer, data)
    return model


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    train(options.file, options.passes, options.every, options.workers)


if __name__ == "__main__":
    main()

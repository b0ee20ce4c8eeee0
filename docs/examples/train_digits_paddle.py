"""Training with Paddle 3 that may be killed at any moment, and goes on.

    pip install 'paddlepaddle>=3.0'
    python docs/examples/train_digits_paddle.py run --passes 3 --every 10

Model, optimizer and the place in the data go into one file. After a kill, start the same command again: it ends with
the weights, bit by bit, of a run that was never killed. With dropout, add Paddle's random numbers to the file
(`paddle.get_rng_state()`).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from pydp2_samples import path

import pydp2.paddle


def arrays(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a ``state_dict()`` of Paddle holds, as plain data that JSON can write exactly."""
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, paddle.Tensor):
            array = value.numpy()
            plain[name] = {"dtype": str(array.dtype), "shape": array.shape, "bytes": array.tobytes().hex()}
        elif isinstance(value, dict):
            plain[name] = arrays(value)
        else:
            plain[name] = value
    return plain


def tensors(plain: dict[str, Any]) -> dict[str, Any]:
    """Return what :func:`arrays` was given."""
    state: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and "bytes" in value:
            array = np.frombuffer(bytes.fromhex(value["bytes"]), value["dtype"]).reshape(value["shape"])
            state[name] = paddle.to_tensor(array)
        else:
            state[name] = tensors(value) if isinstance(value, dict) else value
    return state


def save(file: Path, network: Any, optimizer: Any, data: Any) -> None:
    """Write model, optimizer and place in the data as one file: all of it, or nothing."""
    saved = {
        "network": arrays(network.state_dict()), "optimizer": arrays(optimizer.state_dict()), "data": data.state_dict(),
    }  # fmt: skip
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "w") as out:
        out.write(json.dumps(saved))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def train(file: Path, passes: int, every: int, workers: int) -> Any:
    """Train to the end of the last pass, from ``file`` on where it is there."""
    paddle.seed(7)
    network = paddle.nn.Sequential(paddle.nn.Linear(64, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 10))
    optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters())
    with pydp2.paddle.loader(
        "train.list", "digits_provider.process", root=path("digits"), workers=workers, batch_size=32, seed=7
    ) as data:
        if file.exists():
            saved = json.loads(file.read_text())
            network.set_state_dict(tensors(saved["network"]))
            optimizer.set_state_dict(tensors(saved["optimizer"]))
            data.load_state_dict(saved["data"])
        for _ in range(data.pass_id, passes):
            for step, batch in enumerate(data):
                loss = paddle.nn.functional.cross_entropy(network(batch["pixel"] / 16), batch["label"])
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                if step % every == every - 1:
                    save(file, network, optimizer, data)
        save(file, network, optimizer, data)
    return network


def accuracy(network: Any) -> float:
    """Return the share of the digits that were held out which ``network`` tells."""
    held_out = {"is_train": False, "workers": 1, "batch_size": 64}
    with pydp2.paddle.loader("test.list", "digits_provider.process", root=path("digits"), **held_out) as unseen:
        right = [(network(batch["pixel"] / 16).argmax(1) == batch["label"]).numpy() for batch in unseen]
    return float(np.concatenate(right).mean())


def main() -> None:
    """Train, and say how well the model knows digits that it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    network = train(options.file, options.passes, options.every, options.workers)
    print(f"accuracy on digits that were held out: {accuracy(network):.4f}")


if __name__ == "__main__":
    main()

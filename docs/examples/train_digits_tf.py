"""Training with Keras 3 that may be killed at any moment, and goes on.

    pip install 'tensorflow-cpu>=2.16' 'keras>=3.5'
    python docs/examples/train_digits_tf.py run.npz --passes 3 --every 10

Model, optimizer and the place in the data go into one file. After a kill, start the same command again: it ends with
the weights, bit by bit, of a run that was never killed. It uses TensorFlow; `KERAS_BACKEND=torch` or `jax` do as well.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
from pydp2_samples import path

import pydp2.keras


def variables(model: Any) -> list[Any]:
    """Return all that a step changes, in the same order in each run."""
    return [*model.variables, *model.optimizer.variables]


def save(file: Path, model: Any, place: dict[str, Any]) -> None:
    """Write model, optimizer and place in the data as one file: all of it, or nothing."""
    arrays = {f"v{i}": keras.ops.convert_to_numpy(each) for i, each in enumerate(variables(model))}
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        np.savez(out, place=np.frombuffer(json.dumps(place).encode(), np.uint8), **arrays)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def restore(file: Path, model: Any) -> dict[str, Any]:
    """Bring back what :func:`save` wrote, and return the place in the data."""
    with np.load(file) as saved:
        for i, each in enumerate(variables(model)):
            each.assign(saved[f"v{i}"])
        place: dict[str, Any] = json.loads(saved["place"].tobytes())
    return place


class Checkpoint(keras.callbacks.Callback):
    """Saves after every so many steps, and after each pass."""

    def __init__(self, file: Path, data: Any, every: int) -> None:
        super().__init__()
        self.file, self.data, self.every = file, data, every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        taken = batch + 1  # Keras may have read ahead, so it says how many batches it has used
        if taken % self.every == 0:
            save(self.file, self.model, self.data.state_dict(taken=taken))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        save(self.file, self.model, self.data.state_dict())


def train(file: Path, passes: int, every: int, workers: int) -> Any:
    """Train to the end of the last pass, from ``file`` on where it is there."""
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Rescaling(1 / 16), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input([64]), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    with pydp2.keras.loader(
        "train.list", "digits_provider.process", x="pixel", y="label", root=path("digits"), workers=workers,
        batch_size=32, seed=7,
    ) as data:  # fmt: skip
        begin = 0
        if file.exists():
            data.load_state_dict(restore(file, model))
            begin = data.pass_id  # the first epoch is the rest of this pass
        model.fit(data, initial_epoch=begin, epochs=passes, callbacks=[Checkpoint(file, data, every)], verbose=0)
    return model


def main() -> None:
    """Train, and say how well the model knows digits that it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    model = train(options.file, options.passes, options.every, options.workers)
    held_out = {"is_train": False, "workers": 1, "batch_size": 64}
    with pydp2.keras.loader(
        "test.list", "digits_provider.process", x="pixel", y="label", root=path("digits"), **held_out
    ) as unseen:
        print(f"accuracy on digits that were held out: {model.evaluate(unseen, verbose=0)[1]:.4f}")


if __name__ == "__main__":
    main()

"""A small language model in numpy, trained on packed text: kill it at any moment and run it again with the same words.

    python docs/examples/train_language_model.py run.npz --steps 200 --every 20

The text is on every machine: the docstrings and the code of Python's own library, mixed 70 to 30. Each is a *document*
of bytes; documents are packed into rows of 256 tokens, and the model never looks across the border between two of them.
However often it was killed, it ends with the same weights and the same loss, bit by bit, as one that ran through.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pydp2
from pydp2 import integer_value_sequence, provider

HERE = Path(__file__).resolve()
END = 256  # the token behind each document; the others are bytes
CONTEXT, WIDTH, HIDDEN = 4, 16, 64  # tokens that the model sees, numbers per token, hidden units
INPUT_TYPES = {"tokens": integer_value_sequence(END + 1)}


@provider(input_types=INPUT_TYPES, pool_size=200)
def docstrings(settings: Any, filename: str) -> Iterator[dict[str, Any]]:
    """Yield the docstrings of a module of Python, of its classes and of its functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(Path(filename).read_bytes())):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield {"tokens": [*text.encode(), END]}


@provider(input_types=INPUT_TYPES, pool_size=200)
def code(settings: Any, filename: str) -> Iterator[dict[str, Any]]:
    """Yield the source of the functions and classes at the top of a module."""
    source = Path(filename).read_bytes()
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield {"tokens": [*b"".join(lines[node.lineno - 1 : node.end_lineno]), END]}


class Model:
    """Predicts a byte from the bytes before it: an embedding, a hidden layer, a softmax; with plain SGD."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.embedding = rng.normal(0, 0.3, (END + 1, WIDTH)).astype(np.float32)
        self.inner = rng.normal(0, (CONTEXT * WIDTH) ** -0.5, (CONTEXT * WIDTH, HIDDEN)).astype(np.float32)
        self.outer = rng.normal(0, HIDDEN**-0.5, (HIDDEN, END + 1)).astype(np.float32)

    def step(self, tokens: np.ndarray, positions: np.ndarray, segments: np.ndarray, rate: float = 0.5) -> float:
        """Learn from rows of tokens. Return the mean loss of a token, in bits."""
        before = np.full((*tokens.shape, CONTEXT), END)
        for back in range(1, CONTEXT + 1):
            inside = positions >= back  # what stands before the document is another document
            before[..., back - 1][inside] = np.roll(tokens, back, axis=1)[inside]
        real = segments > 0
        seen, wanted = before[real], tokens[real]
        vectors = self.embedding[seen].reshape(len(seen), -1)
        hidden = np.tanh(vectors @ self.inner)
        scores = hidden @ self.outer
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(wanted))
        loss = -np.log2(chances[rows, wanted]).mean()
        chances[rows, wanted] -= 1
        chances /= len(wanted)
        back_hidden = chances @ self.outer.T * (1 - hidden**2)
        back_vectors = (back_hidden @ self.inner.T).reshape(len(seen), CONTEXT, WIDTH)
        self.outer -= rate * hidden.T @ chances
        self.inner -= rate * vectors.T @ back_hidden
        np.add.at(self.embedding, seen, -rate * back_vectors)
        return float(loss)


def save(file: Path, model: Model, losses: list[float], data: pydp2.Client) -> None:
    """Write the model, the losses and the place in the data as one file: all of it, or nothing."""
    packed = io.BytesIO()
    place = np.frombuffer(json.dumps(data.state_dict()).encode(), np.uint8)
    np.savez(packed, data=place, losses=losses, **vars(model))
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(packed.getvalue())
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def train(file: Path, steps: int, every: int, workers: int) -> list[float]:
    """Train for ``steps`` steps, from ``file`` on where it is there. Return the loss of each step."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(str(each) for each in library.glob("[a-d]*.py"))
    model, losses = Model(), []
    sources = [(pydp2.Source(files, f"{HERE}:docstrings"), 0.7), (pydp2.Source(files, f"{HERE}:code"), 0.3)]
    mixed = pydp2.mix(sources, batch_size=16, seed=7, workers=workers, stopping_strategy="cycle_forever")
    with pydp2.pack_sequences(mixed, slot="tokens", length=256, batch_size=4) as data:
        if file.exists():
            with np.load(file) as saved:
                losses = saved["losses"].tolist()
                for name in vars(model):
                    setattr(model, name, saved[name])
                data.load_state_dict(json.loads(saved["data"].tobytes()))
        batches = iter(data)  # the mixture never ends: the steps are counted here
        while len(losses) < steps:
            batch = next(batches)
            losses.append(model.step(batch["tokens"], batch["position_ids"], batch["segment_ids"]))
            if len(losses) % every == 0:
                save(file, model, losses, data)
    return losses


def main() -> None:
    """Train, and print how the loss went down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    options = parser.parse_args()
    losses = train(options.file, options.steps, options.every, options.workers)
    for first in range(0, len(losses), max(options.every, 1)):
        part = losses[first : first + options.every]
        print(f"steps {first} to {first + len(part)}: {sum(part) / len(part):.3f} bits per byte")


if __name__ == "__main__":
    main()

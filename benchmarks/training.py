"""Measure how much of a real training step the trainer waits for data: the exposed time.

A small ResNet trains on pictures, a small GPT on the ids of words. The step has the copy to the device, forward,
backward and the optimizer, and ends when the loss is a number, so no work of a GPU is left under way. Beside the
loaders there is the same step on batches that are in memory already: no loader can be faster.

The models are small because the figure is about the loader: a step that takes a second hides every loader. On a CPU
they are as small as 2 cores need, of which the workers have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import processes
from benchmarks.job import Batch, Job
from benchmarks.latency import exposed

STEPS = {"jpeg": 100, "words": 600}
"""Steps that are measured, by workload."""
SKIPPED = 20
"""Steps before them, in which loaders fill their buffers and the device warms up."""
_VOCABULARY = 512  # the ids of words are taken modulo this: a large one would only make the last layer slow


class ResNet(nn.Module):
    """Residual network for pictures of 256 x 256, of which it sees every ``stride``-th pixel."""

    def __init__(self, channels: int, blocks: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        layers: list[nn.Module] = []
        for stage in range(3):
            width = channels << stage
            layers += [_Residual(max(channels, width >> 1), width, 2 if stage else 1)]
            layers += [_Residual(width, width, 1) for _ in range(blocks - 1)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels << 2, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        seen = pictures[:, :: self.stride, :: self.stride].permute(0, 3, 1, 2).float() / 255
        return self.head(self.layers(self.stem(seen)).mean((2, 3)))


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.beside = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        return functional.relu(inner + self.beside(x))


class GPT(nn.Module):
    """Transformer that predicts the next id, over the first ``length`` ids of each text."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.words = nn.Embedding(_VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, _VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Training:
    """A model in training on ``device``: "cpu", or "cuda" with a larger model."""

    def __init__(self, workload: str, device: str) -> None:
        torch.manual_seed(1)
        self.device, large = torch.device(device), device != "cpu"
        if workload == "jpeg":
            self.model: Any = ResNet(64, 2, 1) if large else ResNet(8, 1, 4)
            self._loss = self._loss_of_pictures
        else:
            self.model = GPT(768, 8, 12, 64) if large else GPT(16, 1, 2, 16)
            self._loss = self._loss_of_ids
        self.model = self.model.to(self.device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self._context = torch.autocast(device, torch.bfloat16, enabled=large)

    def step(self, batch: Batch) -> float:
        """Train with a batch, and return its loss once it is known."""
        with self._context:
            loss = self._loss(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _loss_of_pictures(self, batch: Batch) -> Tensor:
        labels = self._to_device(batch["label"]).long()
        return functional.cross_entropy(self.model(self._to_device(batch["picture"])), labels)

    def _loss_of_ids(self, batch: Batch) -> Tensor:
        ids, starts = self._to_device(batch["ids"]).long(), self._to_device(batch["starts"]).long()
        places = starts[:-1, None] + torch.arange(self.model.length, device=self.device)
        inside = places < starts[1:, None]
        rows = ids[places.clamp(max=len(ids) - 1)] % _VOCABULARY
        wanted = torch.where(inside, rows, -100)[:, 1:]
        found = self.model(rows[:, :-1])
        return functional.cross_entropy(found.reshape(-1, _VOCABULARY), wanted.reshape(-1), ignore_index=-100)


def endless(batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the batches of one pass after another."""
    while True:
        yield from batches()


def passes(job: Job, batches: Callable[[], Iterable[Any]], convert: Any = None) -> list[dict]:
    """Train, and return what :func:`benchmarks.consumer.passes` does, as one pass, with the waits as ``felt``."""
    stream = endless(batches)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = next(stream)  # before the model is there: some loaders fork now
    torch.set_num_threads(job.option("threads", 1))
    training = Training(job.workload, device)
    steps = job.option("steps", STEPS[job.workload])
    waits, works, samples = list[float](), list[float](), 0
    meter, began = processes.Meter(), 0.0
    for number in range(SKIPPED + steps):
        if number == SKIPPED:
            meter, began = processes.Meter(), time.perf_counter()
        asked = time.perf_counter()
        if number:
            batch = next(stream)
        arrays = batch if convert is None else convert(batch)
        came = time.perf_counter()
        training.step(arrays)
        if number >= SKIPPED:
            waits.append(came - asked)
            works.append(time.perf_counter() - came)
            samples += len(arrays["label"])
    seconds = time.perf_counter() - began
    figures = {"began": began, "samples": samples, "seconds": seconds, "first": waits[0], "steady": samples / seconds}
    return [figures | meter.stop() | {"felt": exposed(waits, works)}]

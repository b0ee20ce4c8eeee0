"""A softmax classifier in plain numpy: the smallest model that learns the digits.

It knows nothing of where batches come from: whatever iterates over mappings with an array of features and one of
labels will do, a client of pydp2 just as a list of dicts. It reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Batch(Protocol):
    """What is needed of a batch: its arrays by name."""

    def __getitem__(self, name: str, /) -> Any: ...


class Softmax:
    """Multinomial logistic regression over ``dim`` features and ``classes`` labels.

    A batch gives ``batch[features]``, float (rows, dim), and ``batch[labels]``, int (rows,). ``mean`` is taken from the
    features and they are divided by ``spread`` first; as given, roughly the mean and the standard deviation of the
    digits' pixels (0 to 16). ``rate`` and ``momentum`` are the best of a small grid for five passes in
    batches of 32 and 64 rows, by cross-validation on the training files. ``seed`` draws the starting weights.
    """

    def __init__(
        self,
        dim: int = 64,
        classes: int = 10,
        *,
        rate: float = 0.15,
        momentum: float = 0.8,
        mean: float = 5.0,
        spread: float = 6.0,
        seed: int = 0,
        features: str = "pixel",
        labels: str = "label",
    ) -> None:
        self.rate, self.momentum = rate, momentum
        self.mean, self.spread = np.float32(mean), np.float32(spread)
        self.features, self.labels = features, labels
        drawn = np.random.default_rng(seed).normal(0.0, 0.01, size=(dim, classes))
        self.weights: NDArray[np.float32] = drawn.astype(np.float32)
        self.bias: NDArray[np.float32] = np.zeros(classes, np.float32)
        self._pace_weights, self._pace_bias = np.zeros_like(self.weights), np.zeros_like(self.bias)

    def probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """The probability of each class, float32 (rows, classes), for features of shape (rows, dim)."""
        scores = self._scaled(features) @ self.weights + self.bias
        scores -= scores.max(axis=1, keepdims=True)  # the largest exponent is then 0: nothing overflows
        powers: NDArray[np.float32] = np.exp(scores)
        powers /= powers.sum(axis=1, keepdims=True)
        return powers

    def predict(self, features: NDArray[Any]) -> NDArray[np.intp]:
        """The most probable class of each row, int (rows,)."""
        best: NDArray[np.intp] = self.probabilities(features).argmax(axis=1)
        return best

    def step(self, batch: Batch) -> float:
        """Take one step of gradient descent on ``batch``; gives the mean cross-entropy before it. No rows: 0.0."""
        features, labels = batch[self.features], batch[self.labels]
        rows = len(labels)
        if rows == 0:
            return 0.0
        error = self.probabilities(features)
        right = error[np.arange(rows), labels]
        loss = float(-np.log(np.maximum(right, np.float32(1e-12))).mean())
        error[np.arange(rows), labels] -= 1  # d loss / d scores, of each row
        error /= rows
        self._pace_weights = self.momentum * self._pace_weights + self._scaled(features).T @ error
        self._pace_bias = self.momentum * self._pace_bias + error.sum(axis=0)
        self.weights -= self.rate * self._pace_weights
        self.bias -= self.rate * self._pace_bias
        return loss

    def _scaled(self, features: NDArray[Any]) -> NDArray[np.float32]:
        return (np.asarray(features, np.float32) - self.mean) / self.spread

    def accuracy(self, batches: Iterable[Batch]) -> float:
        """The share of rows whose most probable class is their label. Raises ValueError when there are no rows."""
        right = rows = 0
        for batch in batches:
            labels = np.asarray(batch[self.labels])
            rows += len(labels)
            right += int((self.predict(batch[self.features]) == labels).sum())
        if rows == 0:
            raise ValueError("need at least one row to measure the accuracy on, have none")
        return right / rows

"""A softmax classifier in plain numpy learns the digits of the sample data, from readers and with Paddle V2's events.

python docs/examples/train_from_readers.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from pydp2_samples import files

from pydp2 import dense_vector, integer_value, reader

TYPES = {"pixel": dense_vector(64), "label": integer_value(10)}
MAPPING = {"pixel": 0, "label": 1}


def digits(file: str) -> Callable[[], Iterator[tuple[list[float], int]]]:
    """A reader creator: the pixels, 0 to 16, and the label of each line of a file."""

    def read() -> Iterator[tuple[list[float], int]]:
        for line in reader.text_file(file)():
            label, pixels = line.split(";")
            yield [float(p) for p in pixels.split()], int(label)

    return read


class Softmax:
    """Multinomial logistic regression; gradients and weights change at different times, as the events say."""

    def __init__(self, rate: float = 0.15, momentum: float = 0.8) -> None:
        self.rate, self.momentum = rate, momentum
        self.weights = np.zeros((65, 10), np.float32)  # the last row is the bias
        self.pace = np.zeros_like(self.weights)
        self.gradient = np.zeros_like(self.weights)

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """The probability of each digit, (rows, 10), for pixels of shape (rows, 64)."""
        scores = self._features(pixels) @ self.weights
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def forward_backward(self, batch: reader.FedBatch) -> float:
        """The mean cross-entropy of a batch; its gradient is kept for :meth:`update`."""
        pixels, labels = batch["pixel"], batch["label"]
        error = self.probabilities(pixels)
        rows = np.arange(len(labels))
        cost = float(-np.log(error[rows, labels] + 1e-12).mean())
        error[rows, labels] -= 1
        self.gradient = self._features(pixels).T @ error / len(labels)
        return cost

    def update(self) -> None:
        """Change the weights by the gradient of the last batch."""
        self.pace = self.momentum * self.pace + self.gradient
        self.weights -= self.rate * self.pace

    def _features(self, pixels: np.ndarray) -> np.ndarray:
        scaled = (pixels - 5) / 6
        return np.hstack([scaled, np.ones((len(scaled), 1), np.float32)])


def main(passes: int = 5) -> float:
    """Train, print how it goes, and give the accuracy on digits that the model has not seen."""
    model = Softmax()
    costs: list[float] = []

    def tell(event: object) -> None:
        match event:
            case reader.BeginPass():
                costs.clear()
            case reader.EndIteration(cost=cost):
                costs.append(cost)
            case reader.EndPass(pass_id=number):
                print(f"pass {number}: mean cost {np.mean(costs):.3f} over {len(costs)} batches")

    training = reader.chain(*map(digits, files("digits")))
    shuffled = reader.shuffle(reader.buffered(training, 256), 2048, seed=7)
    train = {"input_types": TYPES, "step": model.forward_backward, "update": model.update}
    reader.train(shuffled, MAPPING, 32, passes, tell, **train)

    unseen = reader.chain(*map(digits, files("digits", "test")))
    right = rows = 0
    for entries in reader.batch(unseen, 64)():
        batch = reader.DataFeeder(TYPES, MAPPING)(entries)
        right += int((model.probabilities(batch["pixel"]).argmax(axis=1) == batch["label"]).sum())
        rows += len(batch)
    print(f"accuracy on digits that were held out: {right / rows:.4f}")
    return right / rows


if __name__ == "__main__":
    main()

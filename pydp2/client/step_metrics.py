"""Measure the steps of a training loop, for the scalars that the user writes to TensorBoard, W&B or MLflow."""

from __future__ import annotations

from pydp2.system.step_times import StepTimes, share_of

_MOST = 4096  # steps between two calls of take() of which quantiles are made


class StepMetrics:
    """Steps since the last :meth:`take`, which any thread may call. All times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self._times = StepTimes(_MOST)
        self._rows = self._steps = 0
        self._since: float | None = None
        self._waited = 0.0  # before the step under way
        self._left: float | None = None  # when that began; None: none is under way
        self.last_worked = 0.0
        """Seconds that the trainer worked in the last step that is over."""

    def begin_step(self, began: float, now: float, rows: int) -> None:
        """Note that the trainer gets a batch of ``rows`` rows, for which it has waited since ``began``."""
        if self._since is None:
            self._since = began
        self._waited, self._left = now - began, now
        self._rows += rows
        self._steps += 1

    def end_step(self, now: float) -> float:
        """Note that the trainer asks for the next batch. Return how many seconds it worked with the last one, 0.0 if it
        got none."""
        if self._left is None:
            return 0.0
        self.last_worked = worked = now - self._left
        self._left = None
        self._times.add(self._waited, worked)
        return worked

    def end_pass(self, began: float, now: float) -> None:
        """Note that the trainer has waited since ``began`` and got no batch, because the pass is over."""
        self._times.add(now - began, 0.0, 0)

    def take(self, now: float) -> dict[str, float]:
        """Return the scalars, and begin anew."""
        times, self._times = self._times, StepTimes(_MOST)
        last, seconds = times.summary(), now - (now if self._since is None else self._since)
        steps = max(1, times.steps)
        found = {
            "data/exposed": share_of(times.waited, times.worked),
            "data/exposed_p50": last["exposed_p50"],
            "data/exposed_p99": last["exposed_p99"],
            "data/step_ms": 1000 * (times.waited + times.worked) / steps,
            "data/wait_ms": 1000 * times.waited / steps,
            "data/samples_per_second": self._rows / seconds if seconds > 0 else 0.0,
            "data/steps": float(self._steps),
        }
        self._rows, self._steps, self._since = 0, 0, now
        return found

"""Look at a service once a second, whoever looks at the page, and keep what was seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydp2.data.columns.batch import Batch
from pydp2.diagnostics.live import Stats, explain
from pydp2.errors import Error
from pydp2.page.history import History
from pydp2.page.samples import Picture, show_samples
from pydp2.page.view import Looks, point_of, view_of

_LOOK_SECONDS = 1.0
_SAVE_SECONDS = 10.0
_SAMPLES_SECONDS = 5.0  # seconds between two looks at samples
_SAMPLES, _JOBS = 3, 4  # samples of a job, and jobs, that are shown
LookAtSamples = Callable[[str, int], Batch | None]
"""Function that returns so many rows of a batch of a job, None if there are none."""


class Watch:
    """Thread that looks at a service with ``look``, which raises Error while there is none. ``file``: where the points
    are kept, None: nowhere. ``patience``: seconds without a service after which :attr:`ended` is set.
    ``look_at_samples``: None to show no samples."""

    def __init__(
        self,
        look: Callable[[], Stats],
        file: Path | None = None,
        patience: float = 60.0,
        look_at_samples: LookAtSamples | None = None,
    ) -> None:
        self._look, self._file, self._patience, self._look_at_samples = look, file, patience, look_at_samples
        self._samples: list[dict[str, Any]] = []
        self.pictures: dict[str, Picture] = {}
        """Pictures among the samples that are shown now, by the names that the page has for them."""
        self._picture_number = 0
        self._samples_at = 0.0
        self.history = History()
        if file is not None:
            self.history.load(file)
        # a clock that nobody sets back, so that points stay in order; also behind those of a file from the future
        self._clock_start = max(time.time(), self.history.latest + _LOOK_SECONDS) - time.monotonic()
        self.ended = threading.Event()
        """Set when nobody looks any more: after :meth:`close`, or when the service is gone."""
        self._seen: tuple[float, Mapping[str, Any] | None, str] = (0.0, None, "")
        self._looks = Looks()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pydp2-watch", daemon=True)
        self._thread.start()

    def snapshot(self, after: float = 0.0, *, whole: bool = False) -> dict[str, Any]:
        """Return what the page shows now, with the points by the second that are later than ``after``; and with the
        coarse ones if ``whole`` is true."""
        seen, view, error = self._seen
        if view is not None and error:
            error = f"the service does not answer, last seen {self._ago(seen)}"
        found: dict[str, Any] = {
            "view": view,
            "error": error,
            "samples": self._samples if self._look_at_samples is not None else None,
            "points": self.history.recent(after),
        }
        return found | ({"whole": self.history.whole()} if whole else {})

    def _ago(self, seen: float) -> str:
        silent = self._now() - seen
        return f"{silent:.0f} s ago" if silent < 90 else f"{silent / 60:.0f} min ago"

    def close(self) -> None:
        """End the thread, and save the points."""
        self._stop.set()
        self._thread.join()

    def _now(self) -> float:
        return self._clock_start + time.monotonic()

    def _run(self) -> None:
        try:
            self._look_until_end()
        finally:
            self._save()
            self.ended.set()

    def _look_until_end(self) -> None:
        gone_since, saved = time.monotonic(), time.monotonic()
        while True:
            began = time.monotonic()
            try:
                self._add(stats := self._look())
                gone_since = began
                self._show_samples(stats, began)
            except Error as error:
                self._seen = (*self._seen[:2], str(error))
                self._looks.clear()
            if began - gone_since > self._patience:
                break
            if began - saved > _SAVE_SECONDS:
                saved = began
                self._save()
            if self._stop.wait(max(0.0, began + _LOOK_SECONDS - time.monotonic())):
                break

    def _show_samples(self, stats: Stats, now: float) -> None:
        """Look at samples of each job, every few seconds. What cannot be shown is left out."""
        if self._look_at_samples is None or now - self._samples_at < _SAMPLES_SECONDS:
            return
        self._samples_at = now
        shown, pictures = list[dict[str, Any]](), dict[str, Picture]()
        for job in [*stats["jobs"]][:_JOBS]:
            with contextlib.suppress(Error):
                if (batch := self._look_at_samples(job, _SAMPLES)) is not None:
                    shown.append(self._shown(job, batch, pictures))
        self._samples, self.pictures = shown, pictures

    def _shown(self, job: str, batch: Batch, pictures: dict[str, Picture]) -> dict[str, Any]:
        """Return the samples of ``batch`` as plain data, and put their pictures into ``pictures``."""
        labels, rows = show_samples(batch)
        cells = list[list[dict[str, str]]]()
        for row in rows:
            cells.append([])
            for value in row:
                if isinstance(value, Picture):
                    self._picture_number += 1
                    name = str(self._picture_number)
                    pictures[name] = value
                    cells[-1].append({"picture": name})
                else:
                    cells[-1].append({"text": value})
        return {"job": job, "pass": batch.pass_id, "batch": batch.index, "slots": labels, "rows": cells}

    def _add(self, stats: Stats) -> None:
        before = self._looks.add(stats)
        now = self._now()
        self.history.add(point_of(stats, explain(before, stats), now))
        self._seen = (now, view_of(before, stats), "")

    def _save(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a page without history is better than none
                self.history.save(self._file)

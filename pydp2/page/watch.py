"""Look at a service once a second, whoever looks at the page, and keep what was seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydp2.diagnostics.live import Stats, explain
from pydp2.errors import Error
from pydp2.page.history import History
from pydp2.page.view import point_of, view_of

_LOOK_SECONDS = 1.0
_WINDOW = 10  # looks over which the answer is made
_SAVE_SECONDS = 10.0


class Watch:
    """Thread that looks at a service with ``look``, which raises Error while there is none. ``file``: where the points
    are kept, None: nowhere. ``patience``: seconds without a service after which :attr:`ended` is set."""

    def __init__(self, look: Callable[[], Stats], file: Path | None = None, patience: float = 60.0) -> None:
        self._look, self._file, self._patience = look, file, patience
        self.history = History()
        if file is not None:
            self.history.load(file)
        self.ended = threading.Event()
        """Set when nobody looks any more: after :meth:`close`, or when the service is gone."""
        self._seen: tuple[float, Mapping[str, Any] | None, str] = (0.0, None, "")
        self._looks: deque[Stats] = deque(maxlen=_WINDOW)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pydp2-watch", daemon=True)
        self._thread.start()

    def snapshot(self, after: float | None) -> dict[str, Any]:
        """Return what the page shows now, with the points by the second that are later than ``after`` (None: all, and
        the coarse ones)."""
        seen, view, error = self._seen
        found: dict[str, Any] = {
            "time": seen,
            "now": time.time(),
            "view": view,
            "error": error,
            "points": self.history.recent(after or 0.0),
        }
        return found | ({"whole": self.history.whole()} if after is None else {})

    def close(self) -> None:
        """End the thread, and save the points."""
        self._stop.set()
        self._thread.join()

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
                self._add(self._look())
                gone_since = began
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

    def _add(self, stats: Stats) -> None:
        if self._looks and stats["uptime_seconds"] < self._looks[-1]["uptime_seconds"]:
            self._looks.clear()  # the service was started again
        before = self._looks[0] if self._looks else stats
        self._looks.append(stats)
        now = time.time()
        self.history.add(point_of(stats, explain(before, stats), now))
        self._seen = (now, view_of(before, stats), "")

    def _save(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a page without history is better than none
                self.history.save(self._file)

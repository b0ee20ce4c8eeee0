"""Watch over the files by which a service, or the agent of a host, is found: its run directory and its sockets.

They lie in a folder for temporary files, and programs that remove old files from there know nothing of services. So
the files are touched from time to time, and it is noticed when one of them is gone or another one has its place. The
lock of the run directory is on the directory itself, which such programs skip when it is locked, and which they cannot
take from a process that has it open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from pydp2.transport.descriptors import file_identity, unlink_own
from pydp2.transport.service_address import INNER_SUFFIX, ipc_path

_TOUCH_SECONDS = 3600.0  # seconds between two times at which they are touched: programs that clean up spare days
_BESIDE = ("", INNER_SUFFIX, ".fd", ".lock")  # what stands at the path of a socket and beside it
REMEDY = "start it again, with its sockets in a folder that is not cleaned up (TMPDIR, or bind='ipc://…')"


class OwnFiles:
    """Files of a process that has just made them: of the directory ``run_dir`` ("": there is none), and of the socket
    at ``address`` if that is an ipc path elsewhere. They are looked at every ``seconds``. Files in ``state_dir`` are
    touched, too."""

    def __init__(self, seconds: float, run_dir: str, address: str = "", state_dir: str | None = None) -> None:
        self._seconds = seconds
        self._folder = Path(run_dir)
        beside = [] if (path := ipc_path(address)) is None else [Path(f"{path}{end}") for end in _BESIDE]
        self._bound = [each for each in beside if each.is_socket() or each.suffix == ".lock"]
        paths = [*self._bound, *([self._folder, *self._folder.iterdir()] if run_dir else [])]
        self._known = {path: known for path in paths if (known := file_identity(path)) is not None}
        self._watched = [path for path in self._known if path == self._folder or path.is_socket()]
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._touched_at = self._looked_at = float("-inf")
        self.missing: list[str] = []
        """Paths of files that are gone, as far as was noticed."""

    def look(self, now: float) -> str | None:
        """Touch the files if it is time, and look whether they are there. Return what to tell the user when one is
        missed for the first time."""
        self._looked_at = now
        if now - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = now
            self._touch()
        was_complete = not self.missing
        self.missing = [str(path) for path in self._watched if file_identity(path) != self._known[path]]
        if not self.missing or not was_complete:
            return None
        more = len(self.missing) - 1
        also = f" and {more} more" if more else ""
        return f"files of it were removed ({self.missing[0]}{also}), as programs do that clean up old files"

    def _touch(self) -> None:
        with contextlib.suppress(OSError):
            kept = [] if self._state_dir is None else [self._state_dir, *self._state_dir.iterdir()]
            for path in (*self._known, *kept):
                with contextlib.suppress(OSError):  # it is gone, or on a disk that is only read now
                    os.utime(path, follow_symlinks=False)

    def is_look_due(self, now: float) -> bool:
        """Return True if it is time for :meth:`look`."""
        return now - self._looked_at > self._seconds

    def is_at_place(self, address: str) -> bool:
        """Return True if the socket at the ipc ``address``, and the one behind it, were not missed."""
        path = ipc_path(address) or ""
        return not {path, f"{path}{INNER_SUFFIX}"}.intersection(self.missing)

    def remove(self) -> None:
        """Remove the files, as far as they are the same: another service may have their places by now."""
        if self._folder in self._known and file_identity(self._folder) == self._known[self._folder]:
            shutil.rmtree(self._folder, ignore_errors=True)
        for path in self._bound:
            unlink_own(path, self._known.get(path))

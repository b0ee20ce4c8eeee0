"""Watch the files through which others find a service, or the agent of a host: its run directory and its sockets.

They are in a folder for temporary files, where programs remove old files without knowing of services. So the files are
touched from time to time, and it is noticed when one of them was removed or replaced. The lock of the run directory is
on the directory itself: such programs skip a locked directory, and a process that has it open keeps it anyway.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from pydp2.transport.descriptors import file_identity, unlink_own
from pydp2.transport.service_address import INNER_SUFFIX, ipc_path

_TOUCH_SECONDS = 3600.0  # seconds between two touches: programs that clean up remove files that are days old
_BESIDE = ("", INNER_SUFFIX, ".fd", ".lock")  # suffixes of the files at the path of a socket
REMEDY = "start it again, with its sockets in a folder that is not cleaned up (TMPDIR, or bind='ipc://…')"


class OwnFiles:
    """Files that this process has just made: those in the directory ``run_dir`` ("": there is none), and those of the
    socket at ``address`` if that is an ipc path elsewhere. They are checked every ``seconds``. Files in ``state_dir``
    are touched, too."""

    def __init__(self, seconds: float, run_dir: str, address: str = "", state_dir: str | None = None) -> None:
        self._seconds = seconds
        self._folder = Path(run_dir)
        beside = [] if (path := ipc_path(address)) is None else [Path(f"{path}{end}") for end in _BESIDE]
        self._bound = [path for path in beside if path.is_socket() or path.suffix == ".lock"]
        paths = [*self._bound, *([self._folder, *self._folder.iterdir()] if run_dir else [])]
        self._known = {path: known for path in paths if (known := file_identity(path)) is not None}
        self._watched = [path for path in self._known if path == self._folder or path.is_socket()]
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._touched_at = self._looked_at = float("-inf")
        self.missing: list[str] = []
        """Paths of files that were removed or replaced, at the last check."""

    def look(self, now: float) -> str | None:
        """Touch the files if it is time, and check whether they are there. Return a text for the user when one is
        missing for the first time, otherwise None."""
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
            state_files = [] if self._state_dir is None else [self._state_dir, *self._state_dir.iterdir()]
            for path in (*self._known, *state_files):
                with contextlib.suppress(OSError):  # it was removed, or the disk is read-only now
                    os.utime(path, follow_symlinks=False)

    def is_look_due(self, now: float) -> bool:
        """Return True if it is time for :meth:`look`."""
        return now - self._looked_at > self._seconds

    def is_at_place(self, address: str) -> bool:
        """Return True if the files of the socket at the ipc ``address`` were there at the last check."""
        path = ipc_path(address) or ""
        return not {path, f"{path}{INNER_SUFFIX}"}.intersection(self.missing)

    def remove(self) -> None:
        """Remove the files, but not those that another service has put in their places."""
        if self._folder in self._known and file_identity(self._folder) == self._known[self._folder]:
            shutil.rmtree(self._folder, ignore_errors=True)
        for path in self._bound:
            unlink_own(path, self._known.get(path))

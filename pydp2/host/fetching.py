"""Own the fetch process of a machine on which workers read remote files, in the server of a service or in the agent of
a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydp2.options.file_list import FileList
from pydp2.remote import has_remote
from pydp2.remote.owner import FetchOptions, FetchOwner
from pydp2.system.log_events import LogEvent, WriteLog


def fetch_address(files: FileList, run_dir: str) -> str:
    """Return the path of the socket for the fetch process, "" if no entry of ``files`` is a remote file."""
    return str(Path(run_dir) / "fetch") if has_remote(files, files.blob) else ""


class Fetching:
    """Fetch process at ``address``, or none for "". ``log``: writes a line for the user."""

    def __init__(self, address: str, options: FetchOptions) -> None:
        self._owner = FetchOwner(options, address) if address else None

    def look(self, log: WriteLog) -> None:
        """Start the process again if it has ended."""
        if self._owner is not None and (code := self._owner.ensure_running()) is not None:
            text = f"the process that fetches remote files ended (exit status {code}); another one is started"
            log(text, LogEvent.FETCH_PROCESS_LOST)

    def stats(self) -> dict[str, Any] | None:
        """Return statistics as plain data, None if there is no process."""
        return None if self._owner is None else self._owner.stats()

    def close(self) -> None:
        """End the process."""
        if self._owner is not None:
            self._owner.close()

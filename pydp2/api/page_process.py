"""Own the process that shows a service in a browser (:mod:`pydp2.page.process`)."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from pydp2.api.interpreter import start_interpreter
from pydp2.client import Target
from pydp2.errors import ServiceLost, from_wire
from pydp2.options.service_spec import receive_plain, send_plain

_START_SECONDS = 30.0
_END_SECONDS = 5.0
_HISTORY = "page-history.json"


class PageProcess:
    """Process that shows the service ``target`` at ``listen`` (HOST:PORT), with samples of its batches if ``samples``.
    It goes on with what it saw before if there is a ``state_dir``. ``url``: the URL of the page, with its token.

    Raises OptionError if packages are not installed, ServiceUnreachable if the address cannot be bound."""

    def __init__(self, target: Target, listen: str, state_dir: str | None, *, samples: bool = False) -> None:
        self._process, self._channel = start_interpreter("pydp2.page.process", "main")
        try:
            self.url = self._begun(target, listen, state_dir, samples)
        except BaseException:
            self.close()
            raise

    def _begun(self, target: Target, listen: str, state_dir: str | None, samples: bool) -> str:
        keys = target.key_pair
        given = {
            "address": target.address,
            "local_address": target.local_address,
            "keys": None if keys is None else [keys.public, keys.secret],
            "listen": listen,
            "samples": samples,
            "history": None if state_dir is None else str(Path(state_dir) / _HISTORY),
        }
        self._channel.settimeout(_START_SECONDS)
        try:
            with contextlib.suppress(ConnectionError):  # it says why it ended
                send_plain(self._channel, given)
            answer = receive_plain(self._channel)
        except (EOFError, OSError):
            raise ServiceLost(
                f"the process of the page did not start within {_START_SECONDS:g} s; look at its output, or leave out "
                "page"
            ) from None
        if "error" in answer:
            raise from_wire(answer["error"])
        return str(answer["url"])

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

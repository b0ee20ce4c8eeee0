"""Own the process that shows a service in a browser (:mod:`pydp2.page.process`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

from pydp2.client import Target
from pydp2.errors import ServiceLost, from_wire

_START_SECONDS = 30.0
_END_SECONDS = 5.0
_HISTORY = "page-history.json"


class PageProcess:
    """Process that shows the service ``target`` at ``listen`` (HOST:PORT). It goes on with what it saw before if there
    is a ``state_dir``. ``url``: the URL of the page, with its token.

    Raises OptionError if packages are not installed, ServiceUnreachable if the address cannot be bound."""

    def __init__(self, target: Target, listen: str, state_dir: str | None) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pydp2.page.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        try:
            self.url = self._begun(target, listen, state_dir)
        except BaseException:
            self.close()
            raise

    def _begun(self, target: Target, listen: str, state_dir: str | None) -> str:
        keys = target.key_pair
        given = {
            "address": target.address,
            "local_address": target.local_address,
            "keys": None if keys is None else [keys.public, keys.secret],
            "listen": listen,
            "history": None if state_dir is None else str(Path(state_dir) / _HISTORY),
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it says why it ended
            stdin.write(json.dumps(given).encode() + b"\n")
            stdin.flush()
        ready, _, _ = select.select([stdout], [], [], _START_SECONDS)
        line = stdout.readline() if ready else b""
        if not line:
            raise ServiceLost(f"the process of the page did not start within {_START_SECONDS:g} s; look at its output")
        answer = json.loads(line)
        if "error" in answer:
            raise from_wire(answer["error"])
        return str(answer["url"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

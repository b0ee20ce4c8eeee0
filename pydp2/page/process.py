"""Run the page of a service in a process of its own, started as ``python -m pydp2.page.process`` by the program that
started the service. It ends when its standard input is closed, by that program or by its end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from pydp2.client import Target, ask_stats
from pydp2.errors import Error, to_wire
from pydp2.page.serving import PageServer
from pydp2.transport.keys import KeyPair

_LOOK_TIMEOUT = 5.0
_PATIENCE = 60.0  # seconds without a service


def main() -> int:
    """Serve the page of the service that the first line of the standard input names. The first line of the output has
    the URL, or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with it
    given = json.loads(sys.stdin.readline())
    keys = given["keys"]
    target = Target(given["address"], None if keys is None else KeyPair(*keys), given["local_address"])
    stop = threading.Event()
    try:
        server = PageServer(given["listen"])
    except Error as error:
        _say({"error": to_wire(error)})
        return 1
    _say({"url": server.url})
    threading.Thread(target=_await_end_of_input, args=(stop,), daemon=True).start()
    history = given["history"]
    server.run(partial(ask_stats, target, _LOOK_TIMEOUT), history and Path(history), _PATIENCE, stop)
    return 0


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  # to the program


def _await_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    sys.exit(main())

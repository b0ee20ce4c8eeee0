"""Run the agent of a host, from the first import to the fork of the supervisor; started as the server is
(:mod:`pydp2.server.main`), and for the same reasons in this order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

from pydp2.engine.local import LocalEngine
from pydp2.engine.output import OutputPump
from pydp2.engine.process_control import set_name
from pydp2.errors import GuardError, to_wire
from pydp2.host.output_labels import OutputLabels
from pydp2.host.setup import receive_setup
from pydp2.host.worker_setup import worker_spec
from pydp2.log_writer import write_stderr
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.server.spec import send_plain, status_rows
from pydp2.worker.gil import require_gil
from pydp2.worker.main import prepare


def main(descriptor: int) -> int:
    """Run workers for a service until it ends, or until told to stop. ``descriptor``: a socket to the program that
    started this process."""
    for given in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(given, given < 3)
    channel = socket.socket(fileno=descriptor)
    set_name("pydp2-host")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup, terms, files = receive_setup(channel)
    try:
        require_gil()
    except GuardError as error:
        send_plain(channel, {"end": "refused", "error": to_wire(error)})
        return 1

    def on_output(worker: int, status_row: int | None, output: int) -> None:
        pump.add(
            output, OutputLabels(worker, None if status_row is None else WorkerStatus(engine.row(status_row)), files)
        )

    workers = worker_spec(
        terms, files, workers=setup.places, address=setup.worker_address, root=setup.root, path=setup.path
    )
    engine = LocalEngine(partial(prepare, workers), status_rows(setup.places), on_output, once=terms.start == "auto")
    pump = OutputPump(partial(write_stderr, end=""))
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    from pydp2.host.running import run_agent  # while the zygote prepares the user's code

    return run_agent(setup, terms, files, engine, pump, channel, wakeup_read)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

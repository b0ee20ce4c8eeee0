"""Run the server process, from the first import to the fork of the supervisor. It is started as ``python -m
pydp2.server.main FD``.

Order matters here. The supervisor is forked while this process is single-threaded, and has imported what workers need
but nothing else; only then is the rest imported, and ZeroMQ and the output thread come to life (:mod:`.serving`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

from pydp2.engine import Engine, NoEngine
from pydp2.engine.local import LocalEngine
from pydp2.engine.output import OutputPump
from pydp2.engine.process_control import set_name
from pydp2.errors import GuardError, to_wire
from pydp2.host.output_labels import OutputLabels
from pydp2.host.worker_setup import worker_spec
from pydp2.log_writer import write_stderr
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.server.spec import receive_spec, send_plain, status_rows
from pydp2.worker.gil import require_gil
from pydp2.worker.main import prepare


def main(descriptor: int) -> int:
    """Serve until told to stop. ``descriptor``: a socket to the program that started this process."""
    for given in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(given, given < 3)  # what we were given is not for programs that workers start
    channel = socket.socket(fileno=descriptor)
    set_name("pydp2-server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole terminal; the program decides what follows
    spec, files = receive_spec(channel)
    try:
        require_gil()  # our program may have been given its lock by an option that we do not see
    except GuardError as error:
        send_plain(channel, {"error": to_wire(error)})
        return 1

    def on_output(worker: int, status_row: int | None, output: int) -> None:
        pump.add(
            output, OutputLabels(worker, None if status_row is None else WorkerStatus(engine.row(status_row)), files)
        )

    engine: Engine = NoEngine()
    if spec.workers:
        workers = worker_spec(
            spec, files, workers=spec.workers, address=spec.worker_address, root=spec.root, path=spec.path
        )
        ready = partial(prepare, workers)
        engine = LocalEngine(ready, status_rows(spec.workers), on_output, once=spec.start == "auto")
    pump = OutputPump(partial(write_stderr, end=""))
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    from pydp2.server.serving import serve  # while the zygote prepares the user's code, which takes a core of its own

    return serve(spec, files, engine, pump, channel, wakeup_read)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

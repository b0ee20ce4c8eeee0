"""The server process: from the first import to the fork of the nursery. Started as ``python -m pydp2.server.main FD``.

Order matters here. The nursery is forked while this process is single-threaded, and has imported what workers need but
nothing else; only then is the rest imported, and ZeroMQ and the output thread come to life (:mod:`.serving`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

from pydp2.engine.local import DUMP_SIGNAL, LocalEngine
from pydp2.engine.names import set_name
from pydp2.engine.output import OutputPump
from pydp2.errors import GuardError, to_wire
from pydp2.files import FileList
from pydp2.logwriter import say
from pydp2.protocol import plain
from pydp2.protocol.seat import Seat
from pydp2.server.shown import Shown
from pydp2.server.spec import ServiceSpec, receive_spec, seats, send_plain
from pydp2.worker.gil import require_gil
from pydp2.worker.main import WorkerSpec, prepare


def _worker_spec(spec: ServiceSpec, files: FileList, args: object) -> WorkerSpec:
    assert isinstance(args, dict)
    few = max(spec.workers, 4)
    return WorkerSpec(
        address=spec.worker_address,
        provider=spec.provider,
        args=args,
        is_train=spec.is_train,
        input_order=spec.input_order,
        files=files,
        root=spec.root,
        path=spec.path,
        ahead=max(1, few // spec.workers),
        timed=spec.sample_timeout is not None,
        lenient=spec.warn_changed,
        dump_signal=DUMP_SIGNAL,
    )


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
    args = plain.decode(spec.args)

    def on_output(worker: int, seat: int | None, output: int) -> None:
        pump.add(output, Shown(worker, None if seat is None else Seat(engine.row(seat)), files))

    ready = partial(prepare, _worker_spec(spec, files, args))
    engine = LocalEngine(ready, seats(spec.workers), on_output, once=spec.start == "auto")
    pump = OutputPump(partial(say, end=""))
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    from pydp2.server.serving import serve  # while the template prepares the user's code, which takes a core of its own

    return serve(spec, files, engine, pump, channel, wakeup_read)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

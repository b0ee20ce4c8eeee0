"""Run the server process, from the first import to the fork of the supervisor. It is started as ``python -m
pydp2.server.main FD``.

Order matters here. The supervisor is forked while this process is single-threaded, and has imported what workers need
but nothing else; only then is the rest imported, and ZeroMQ and the output thread come to life (:mod:`.serving`).
"""

from __future__ import annotations

import sys

from pydp2.errors import GuardError, to_wire
from pydp2.host.engine import Engine, NoEngine
from pydp2.host.worker.gil import require_gil
from pydp2.host.worker_setup import (
    adopt_supervisor,
    new_pump,
    service_worker_spec,
    set_up_process,
    start_engine,
    watch_signals,
)
from pydp2.options.service_spec import receive_spec, send_plain


def main(descriptor: int) -> int:
    """Serve until told to stop. ``descriptor``: a socket to the program that started this process."""
    channel = set_up_process(descriptor, "pydp2-server")
    spec, files = receive_spec(channel)
    try:
        require_gil()  # an option that this process did not inherit may have given the program its lock
    except GuardError as error:
        send_plain(channel, {"error": to_wire(error)})
        return 1
    engine: Engine
    if spec.workers:
        workers = service_worker_spec(spec, files)
        adopted = None if spec.supervisor < 0 else adopt_supervisor(spec.supervisor, spec, files)
        engine, pump = start_engine(spec, files, workers, spec.workers, first=spec.prepared, adopted=adopted)
    else:
        engine, pump = NoEngine(), new_pump()
    wakeup = watch_signals()
    from pydp2.server.serving import serve  # imported late, while the zygote prepares the user's code on another core

    return serve(spec, files, engine, pump, channel, wakeup)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""Run workers on a machine of a run for the service that rank 0 has started on another one: ``workers_per_node``.

A thread of the rank waits for the agent, which is a process of its own (:class:`pydp2.WorkerHost`) and ends when its
socket to this process closes, however this process ends.
"""

from __future__ import annotations

import atexit
import os
from threading import Thread

from pydp2.api.worker_host import WorkerHost
from pydp2.client.wait_notice import write_notice
from pydp2.errors import Error
from pydp2.transport.key_files import ConnectionFile

_END_SECONDS = 2.0  # seconds in which the service usually ends when its ranks do, and then the agent


def start_workers(
    connection: ConnectionFile, workers: int, root: str | os.PathLike[str] | None, patience: float
) -> None:
    """Start ``workers`` workers for the service of ``connection``, and return at once. They end with the service, with
    this process, or after ``patience`` seconds without the service. An error is written to stderr, because rank 0 has
    workers too. ``root``: their working directory, default the present one."""
    host = WorkerHost(connection, workers=workers, root=root, patience=patience)
    owner = os.getpid()

    def run() -> None:
        try:
            host.run()
        except Error as error:
            write_notice(f"this machine has no workers for {connection.address.partition('?')[0]}: {error}")
        atexit.unregister(end)

    def end() -> None:
        if os.getpid() == owner:
            thread.join(_END_SECONDS)
            host.close()
            thread.join(_END_SECONDS)

    thread = Thread(target=run, name="pydp2-node-workers", daemon=True)
    atexit.register(end)
    thread.start()

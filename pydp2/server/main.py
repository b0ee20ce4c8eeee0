"""The server process: from the first import to the last descriptor. Started as ``python -m pydp2.server.main FD``.

Order matters here. The nursery is forked while this process is single-threaded; only then do ZeroMQ and the output
thread come to life.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pydp2.addresses import ipc_path
from pydp2.engine.local import DUMP_SIGNAL, LocalEngine
from pydp2.engine.names import set_name
from pydp2.engine.output import OutputPump
from pydp2.errors import Error, GuardError, sendable, shorten, to_wire
from pydp2.logwriter import say, unfailing_stderr
from pydp2.protocol.messages import HEADER_LIMIT
from pydp2.protocol.seat import Seat
from pydp2.server.available import exhausted
from pydp2.server.coordinator import seats
from pydp2.server.loop import Server, Stop
from pydp2.server.shown import Shown
from pydp2.server.spec import ServiceSpec, receive_spec, send_plain
from pydp2.transport import Hub
from pydp2.transport.descriptors import raise_limit
from pydp2.transport.sockets import context, start_sending
from pydp2.worker.gil import require_gil
from pydp2.worker.main import WorkerSpec, prepare

_FAREWELL_MS = 300
_COLLECT = 10_000  # lists and the like that are made and kept before one looks for rings of them; we make none
_KEPT = 3  # descriptors that workers leave to others: theirs come out of what trainers leave
_WAITING = 64  # messages of one client: more than one that waits for batches ever has under way


def _worker_spec(spec: ServiceSpec, files: object, args: object) -> WorkerSpec:
    from pydp2.files import FileList

    assert isinstance(files, FileList)
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
    from pydp2.protocol import plain

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
    pump: list[OutputPump] = []

    def on_output(worker: int, seat: int | None, output: int) -> None:
        pump[0].add(output, Shown(worker, None if seat is None else Seat(engine.row(seat)), files))

    ready = partial(prepare, _worker_spec(spec, files, args))
    engine = LocalEngine(ready, seats(spec.workers), on_output, once=spec.start == "auto")
    pump.append(OutputPump(partial(say, end="")))
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    zmq = context()
    hubs: list[Hub] = []
    server: Server | None = None
    serving = False  # before that, the program hears of errors and tells of them
    reason = "of an error inside it; look at what it wrote"
    status = 0
    failed: Error | None = None
    asked = False
    log = contextlib.ExitStack()
    try:
        log.enter_context(unfailing_stderr())  # only now: the nursery has no such thread
        with _short_of_memory():
            raise_limit()  # what workers were forked from has the limits that the user gave
            start_sending()
            workers = Hub(zmq, spec.worker_address, -1, reserve=_KEPT)
            hubs.append(workers)
            clients = Hub(zmq, spec.client_address, HEADER_LIMIT, max_waiting=_WAITING)
            hubs.append(clients)
            server = Server(spec, files, engine, workers, clients, channel.fileno(), wakeup_read)
            server.started()
            gc.freeze()  # modules and code stay: no collection has to look at them again
            gc.set_threshold(_COLLECT)
            send_plain(channel, {"address": clients.address, "pid": os.getpid()})
            serving = True
            server.run()
    except Stop as stop:
        reason, asked = str(stop), stop.asked
        if not asked:
            _tell(reason)
    except Error as error:
        reason = sendable(shorten(str(error), 2000))
        status = 1
        if serving:
            _tell(reason)
        failed = error
        with contextlib.suppress(OSError):
            send_plain(channel, {"error": to_wire(error)})
    except BrokenPipeError:
        reason = "its program is gone"
    except Exception:
        sys.excepthook(*sys.exc_info())  # here, where nobody has to read it for us to end
        status = 1
    finally:
        if server is not None:
            server.close(reason, failed, asked=asked)
        else:
            engine.close()
        for hub in hubs:
            hub.close(_FAREWELL_MS)
        zmq.term()
        pump[0].close()
        _clean_up(spec)
        channel.close()
        log.close()
    return status


@contextlib.contextmanager
def _short_of_memory() -> Iterator[None]:
    """Raise what says that there is no memory as an OutOfMemory, which trainers are told."""
    try:
        yield
    except Exception as error:
        if (lack := exhausted(error)) is None:
            raise
        raise lack from error


def _tell(reason: str) -> None:
    say(f"pydp2: the service ends: {reason.splitlines()[0]}")


def _clean_up(spec: ServiceSpec) -> None:
    """Remove what stands in the file system; the locks on it are ours as long as we live."""
    shutil.rmtree(spec.run_dir, ignore_errors=True)
    if (path := ipc_path(spec.client_address)) is not None:
        for name in (path, f"{path}.lock"):
            with contextlib.suppress(OSError):
                Path(name).unlink()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""Run the server process from the fork of the supervisor on: sockets, the loop, the end in order.

It is imported while the supervisor prepares the user's code, because workers do not need its imports.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pydp2.errors import Error, sendable, shorten, to_wire
from pydp2.host.engine import Engine
from pydp2.host.engine.output import OutputPump
from pydp2.host.fetching import Fetching
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, send_plain
from pydp2.protocol.messages import HEADER_LIMIT
from pydp2.remote.owner import FetchOptions
from pydp2.server.available_memory import describe_exhaustion
from pydp2.server.hosts.host_gateway import HostGateway
from pydp2.server.loop import Server, ServiceStop
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import unfailing_stderr, write_event
from pydp2.transport import Hub
from pydp2.transport.descriptors import raise_descriptor_limit
from pydp2.transport.key_files import AllowedKeys, remove_connection
from pydp2.transport.keys import KeyPair, advertised_address
from pydp2.transport.sockets import new_context, prepare_zero_copy

_FAREWELL_MS = 1_000  # milliseconds that the last messages have to leave, if a peer is slow to read them
_SPARE_BYTES = 4 << 20  # reserved addresses, without memory, for the last messages of a server that is out of memory
_LAST_SECONDS = 20  # that a server without memory has for its end
_COLLECT = 10_000  # threshold of the garbage collector; it is high, because the server makes no reference cycles
_KEPT = 3  # descriptors that the connections of workers must leave free
_HOST_BACKLOG = 256  # messages of one host that wait here: as many as the loop takes in a turn; more wait at the host
_HOST_IO_THREADS = 4  # threads that decrypt the data of hosts; ZeroMQ gives a connection to the one with the fewest
_BACKLOG = 64  # messages of one client that wait here: more than a client ever sends before it waits


def serve(
    spec: ServiceSpec, files: FileList, engine: Engine, pump: OutputPump, channel: socket.socket, wakeup: int
) -> int:
    """Serve until told to stop; return the exit status. ``channel`` leads to the program that started this process;
    ``wakeup`` is readable when a signal has come."""
    zmq = new_context(1 if spec.server_key is None else 2)  # the thread that sends also encrypts
    host_zmq = new_context(_HOST_IO_THREADS)  # a second context: each has one ZAP handler, which belongs to one hub
    hubs: list[Hub] = []
    server: Server | None = None
    fetch_options = FetchOptions(spec.remote_cache, spec.remote_cache_size, spec.remote_timeout)
    fetching = Fetching(spec.fetch_address, fetch_options)
    serving = False  # while it is False, errors go to the program, which shows them
    reason = "of an error inside it; look at what it wrote"
    status = 0
    address = ""
    failed: Error | None = None
    asked = False
    log = contextlib.ExitStack()
    spare = mmap.mmap(-1, _SPARE_BYTES)
    try:
        log.enter_context(unfailing_stderr())  # it starts a thread, so it must come after the fork of the supervisor
        with _short_of_memory(spare):
            raise_descriptor_limit()  # only here: workers keep the limit that the user gave
            prepare_zero_copy()
            workers = Hub(zmq, spec.worker_address, -1, reserve=_KEPT)
            hubs.append(workers)
            access = _access(spec, "trainer", "observer")
            clients = Hub(
                zmq, spec.client_address, HEADER_LIMIT, max_waiting=_BACKLOG, access=access, local=spec.local_address
            )
            hubs.append(clients)
            address = advertised_address(clients.address, spec.advertise)
            hosts: HostGateway | None = None
            host_address = ""
            if spec.host_address is not None:
                far = Hub(
                    host_zmq,
                    spec.host_address,
                    spec.memory_limit,
                    max_waiting=_HOST_BACKLOG,
                    access=_access(spec, "worker"),
                )
                hubs.append(far)
                host_address = advertised_address(far.address, spec.advertise)
                hosts = HostGateway(spec, files, far)
            server = Server(spec, files, engine, workers, clients, channel.fileno(), wakeup, hosts)
            server.fetching = fetching
            server.started(_progress_sender(channel))
            gc.freeze()  # modules and code stay, so no collection has to look at them
            gc.set_threshold(_COLLECT)
            send_plain(
                channel, {"address": address, "host_address": host_address, "pid": os.getpid(), "once": engine.once}
            )
            serving = True
            server.run()
    except ServiceStop as stop:
        reason, asked = str(stop), stop.requested
        if not asked:
            _report(reason)
    except Error as error:
        reason = sendable(shorten(str(error), 2000))
        status = 1
        if serving:
            _report(reason)
        failed = error
        with contextlib.suppress(OSError):
            send_plain(channel, {"error": to_wire(error)})
    except BrokenPipeError:
        reason = "its program is gone"
    except Exception:
        sys.excepthook(*sys.exc_info())  # here, so that the process ends even if nobody reads its log
        status = 1
    finally:
        if server is not None:
            server.close(reason, failed, asked=asked)
        else:
            engine.close()
        fetching.close()
        for hub in hubs:
            hub.close(_FAREWELL_MS)
        zmq.term()
        host_zmq.term()
        pump.close()
        if server is None:
            shutil.rmtree(spec.run_dir, ignore_errors=True)
        else:
            server.own_files.remove()
        if spec.connection is not None and address:
            remove_connection(Path(spec.connection), address)
        channel.close()
        log.close()
    return status


def _progress_sender(channel: socket.socket) -> Callable[[str], None]:
    """Return a function that sends its text, which says what the user's code is doing, to the program if it is a new
    one."""
    last = ""

    def send(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            send_plain(channel, {"progress": text})

    return send


@contextlib.contextmanager
def _short_of_memory(spare: mmap.mmap) -> Iterator[None]:
    """Turn errors that come from a lack of memory into OutOfMemory, which is sent to trainers. Unmap ``spare`` for
    that."""
    try:
        yield
    except Exception as error:
        if (lack := describe_exhaustion(error)) is None:
            raise
        spare.close()
        # libraries may wait for ever at the end for what they had no memory to make; this signal ends the process then
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LAST_SECONDS)
        raise lack from error


def _report(reason: str) -> None:
    write_event(f"the service ends: {reason.splitlines()[0]}", LogEvent.SERVICE_ENDS)


def _access(spec: ServiceSpec, *roles: str) -> AllowedKeys | None:
    """Return the keys of the service, if it has any, and of peers with one of ``roles``."""
    if spec.server_key is None:
        return None
    folder = None if spec.key_folder is None else Path(spec.key_folder)
    return AllowedKeys(KeyPair(*spec.server_key), spec.allowed, folder, roles)

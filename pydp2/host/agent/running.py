"""Run the agent from the fork of the supervisor on: its sockets, its loop, and what it tells the program that started
it at its end. Workers do not need what is imported here."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys

from pydp2.errors import Error, to_wire
from pydp2.host.agent.agent import Agent
from pydp2.host.agent.row_server import RowServer, start_row_server
from pydp2.host.agent.setup import AgentSetup
from pydp2.host.engine.local import LocalEngine
from pydp2.host.engine.output import OutputPump
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms, send_plain
from pydp2.system.log_writer import unfailing_stderr
from pydp2.transport import Hub
from pydp2.transport.descriptors import raise_descriptor_limit
from pydp2.transport.sockets import new_context, prepare_zero_copy


def run_agent(
    setup: AgentSetup,
    terms: WorkerTerms,
    files: FileList,
    engine: LocalEngine,
    pump: OutputPump,
    channel: socket.socket,
    wakeup: int,
) -> int:
    """Run workers until the service ends, or until told to stop; the exit status. ``channel`` leads to the program
    that started this process, ``wakeup`` is readable when a signal has come."""
    zmq = new_context()
    hub: Hub | None = None
    rows: RowServer | None = None
    agent: Agent | None = None
    said: dict[str, object] = {"end": "failed"}
    with contextlib.ExitStack() as log:
        try:
            log.enter_context(unfailing_stderr())
            raise_descriptor_limit()
            prepare_zero_copy()
            hub = Hub(zmq, setup.worker_address, -1, reserve=3)
            rows = start_row_server(zmq, setup.row_server) if setup.row_server else None
            agent = Agent(setup, terms, files, engine, hub, channel.fileno(), wakeup, rows)
            gc.freeze()
            end = agent.run()
            said = {"end": end.kind, "text": end.text}
        except Error as error:
            said = {"end": "refused", "error": to_wire(error)}
        except Exception:
            sys.excepthook(*sys.exc_info())  # here: the process ends even if its log is not read
        finally:
            if agent is not None:
                agent.close()
            engine.close()
            if hub is not None:
                hub.close()
            if rows is not None:
                rows.hub.close()
            zmq.term()
            pump.close()
            with contextlib.suppress(OSError):  # the program is gone
                send_plain(channel, said)
            channel.close()
    return 0 if said["end"] in ("closed", "left", "again") else 1

"""Run the agent of a host, from the first import to the fork of the supervisor; started as the server is
(:mod:`pydp2.server.main`), and for the same reasons in this order."""

from __future__ import annotations

import sys

from pydp2.errors import GuardError, to_wire
from pydp2.host.agent.setup import receive_setup
from pydp2.host.worker.gil import require_gil
from pydp2.host.worker_setup import set_up_process, start_engine, watch_signals, worker_spec
from pydp2.options.service_spec import send_plain


def main(descriptor: int) -> int:
    """Run workers for a service until it ends, or until told to stop. ``descriptor``: a socket to the program that
    started this process."""
    channel = set_up_process(descriptor, "pydp2-host")
    try:
        setup, terms, files = receive_setup(channel)
    except EOFError:  # the program that started it is gone, and has nobody left to tell
        return 1
    try:
        require_gil()
    except GuardError as error:
        send_plain(channel, {"end": "refused", "error": to_wire(error)})
        return 1
    spec = worker_spec(
        terms,
        files,
        workers=setup.worker_slots,
        address=setup.worker_address,
        root=setup.root,
        path=setup.path,
        fetch_address=setup.fetch_address,
    )
    engine, pump = start_engine(terms, files, spec, setup.worker_slots)
    wakeup = watch_signals()
    from pydp2.host.agent.agent import run_agent  # while the zygote prepares the user's code

    return run_agent(setup, terms, files, engine, pump, channel, wakeup)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

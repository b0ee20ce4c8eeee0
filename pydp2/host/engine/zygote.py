"""Fork workers from a process in which the user's code is imported and prepared once, for all of them.

Its memory is shared with the workers, page by page until one of them writes there. The supervisor forks it, and gets
status messages over a socket of packets. For every packet (worker, status row) with a descriptor for its output, the
zygote forks one worker:

    ready         workers can be forked
    alone REASON  workers cannot be forked: with the next packet, the zygote itself becomes that worker
    forked PID    a worker was forked; its parent is the supervisor

A worker is forked twice, and the process in between ends at once, so that the supervisor becomes the worker's parent:
killing or stopping the zygote has no effect on workers. A worker waits in the zygote's process group until the
supervisor knows its pid, so that no worker survives that the supervisor does not know.
"""

from __future__ import annotations

import contextlib

from pydp2.host.engine.base import PrepareWorker, StatusPage, WorkerMain
from pydp2.host.engine.fork_setup import flush_output, fork_obstacle, open_standard_streams, redirect_output, run_child
from pydp2.host.engine.open_files import open_descriptors
from pydp2.host.engine.process_control import die_with_parent, flush_c_output, set_name
from pydp2.system.stdlib import gc, os, socket

READY, ALONE, FORKED = "ready", "alone", "forked"
PACKET = 4096


def run_zygote(channel: socket.socket, supervisor: int, page: StatusPage, prepare: PrepareWorker) -> None:
    """Run the zygote; ``channel`` leads to the supervisor, which is process ``supervisor``."""
    before = open_descriptors()
    prepared = prepare(None, page.show_progress)
    gc.collect()
    open_standard_streams()
    alone = not prepared.is_usable
    word = ALONE
    if not alone:
        reason = fork_obstacle(before)
        alone = bool(reason)
        word = f"{ALONE} {reason}" if alone else READY
    gc.freeze()  # no collection in a worker writes to the objects made so far, so their pages stay shared
    if not _tell(channel, " ".join(word.split())):
        return
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, PACKET, 1)
        except ConnectionResetError:  # the supervisor has ended with unread packets
            return
        if not data:
            return
        worker, status_row = map(int, data.split())
        (output,) = descriptors
        os.set_inheritable(output, False)
        if alone:
            channel.close()
            redirect_output(output)
            set_name(f"pydp2-worker-{worker}")
            prepared.main(worker, page.row(status_row), output)
            return
        if not _fork(channel, supervisor, prepared.main, worker, page.row(status_row), output):
            return
        os.close(output)


def _tell(channel: socket.socket, text: str) -> bool:
    """Send ``text`` to the supervisor. Return False if it has ended: then this process must end too."""
    try:
        channel.send(text.encode(errors="replace")[:PACKET])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _fork(channel: socket.socket, supervisor: int, main: WorkerMain, worker: int, row: memoryview, output: int) -> bool:
    """Fork a worker and report it to the supervisor. Return False if the supervisor has ended: then the worker ends
    too."""
    flush_output()
    flush_c_output()
    pid_reader, pid_writer = os.pipe()
    begun, begin = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid:
                os.write(pid_writer, str(pid).encode())
        except BaseException:
            os._exit(1)
        if pid:
            os._exit(0)

        def life() -> None:
            channel.close()
            for end in (pid_reader, pid_writer, begin):
                os.close(end)
            if not os.read(begun, 1):
                return  # the zygote ended before it could report this worker to the supervisor
            os.close(begun)
            os.setpgid(0, 0)
            die_with_parent(supervisor)
            redirect_output(output)
            set_name(f"pydp2-worker-{worker}")
            main(worker, row, output)

        run_child(life)
    os.close(pid_writer)
    os.close(begun)
    with contextlib.suppress(ChildProcessError):  # the user's code may ignore SIGCHLD, and children need no wait then
        os.waitpid(between, 0)
    number = os.read(pid_reader, 32).decode()
    os.close(pid_reader)
    if not number:
        raise OSError("no worker could be forked")
    known = _tell(channel, f"{FORKED} {number}")
    if known:
        with contextlib.suppress(BrokenPipeError):  # the worker was killed meanwhile
            os.write(begin, b"+")
    os.close(begin)  # a worker that reads nothing before the end of the pipe exits
    return known

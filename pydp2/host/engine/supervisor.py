"""Start, watch and end workers, in a process in which the user's code never runs.

Theory of operation
-------------------
Three kinds of process share the work, because one alone cannot do it. The *server* has threads and sockets, and a fork
of it could inherit a lock that nobody will ever release. The *supervisor* is forked before there is a second thread,
and never gets one; it only forks, waits and kills. The *zygote* (:mod:`pydp2.host.engine.zygote`) has imported the
user's code and run its hook, once for all workers, which are forked from it in milliseconds and share its memory. That
cannot be done in the supervisor: the user's code may crash, hang, or start threads, and then nobody could end the
workers.

The supervisor is the parent of all workers, also of those that the zygote forks. The simple way, a plain fork by the
zygote, makes the zygote their parent: its death would hide how they end, and while it is stopped by a signal they would
stay as zombies. So the zygote forks twice, the process between ends, and the kernel hands the worker to the supervisor,
which has asked for orphans (``adopt_orphans``).

The supervisor learns about a process in two ways without a common order, from a packet of the zygote and from its exit:

* A worker may end before its pid is known: its exit waits in ``_unclaimed_exits`` until the packet comes. One worker is
  *under way* at a time, so it is clear to which worker the exit belongs; a worker runs no code of the user until its
  pid is known.
* A worker may be killed before it exists: ``_to_kill`` has it until then.
* A zygote may end with an unread packet: packets are read first, and only then its exit is handled.

When the zygote ends, the pool must learn of it. Otherwise, if the user's code ends every zygote, the service would make
new ones for ever. If a worker was waiting for the zygote, or under way, that worker is reported as started and ended,
with the zygote's status: the pool counts it like any death at the start. If no worker was waiting, the next worker that
is requested fails in this way (``_unclaimed_failure``). A zygote that was ready did nothing wrong: it is reported as
lost, and replaced at once if workers had come from it, otherwise when the next worker is requested.

If there can be no zygote (it has threads after the import, the system cannot adopt orphans, ``start="spawn"``), workers
are forked from the supervisor, and each prepares the user's code itself. A zygote that turns out to be unfit becomes
the first of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass

from pydp2.host.engine.base import FIRST_WORKER, ZYGOTE, PrepareWorker, StatusPage
from pydp2.host.engine.fork_setup import SPAWN, leave_supervisor, run_child, watch_lifeline
from pydp2.host.engine.process_control import adopt_orphans, set_name
from pydp2.host.engine.zygote import ALONE, FORKED, PACKET, READY, run_zygote


@dataclass(slots=True)
class _Zygote:
    """Record of a zygote. ``status``: its last status message; '' while it is being prepared."""

    pid: int
    channel: socket.socket
    worker: int  # number under which its output is shown
    status: str = ""
    served: bool = False


class Supervisor:
    """Process that starts and ends workers. It starts no thread and opens no ZeroMQ context.

    ``once``: prepare the user's code once for all workers, if that is possible. ``first``: a descriptor that only the
    first zygote gets, or -1.
    """

    def __init__(
        self, commands: socket.socket, page: StatusPage, prepare: PrepareWorker, *, once: bool, first: int = -1
    ) -> None:
        self._commands = commands
        self._page = page
        self._prepare = prepare
        self._use_zygote = once
        self._first = first
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # (worker, status row) to be started
        self._under_way: tuple[int, int, int] | None = None  # (worker, status row, output) that the zygote is forking
        self._to_kill: set[int] = set()  # workers to be killed as soon as they exist
        self._unclaimed_exits: dict[int, int] = {}  # pid -> status of processes that ended while a worker is under way
        self._zygote: _Zygote | None = None
        # (pid, status) of a zygote that ended before a worker was requested
        self._unclaimed_failure: tuple[int, int] | None = None
        self._lifeline = os.pipe()  # workers have the read end, which closes when the supervisor ends
        self._wakeup = os.pipe()
        self._poll = select.poll()

    def run(self) -> None:
        """Carry out the engine's commands until the engine has ended."""
        # No parent-death signal here: it would leave no time to end the processes that workers have started.
        set_name("pydp2-supervise")
        for end in self._wakeup:
            os.set_blocking(end, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        if not self._use_zygote:
            self._fork_each(SPAWN)
        elif not adopt_orphans():
            self._fork_each("this system has no other way")
        self._poll.register(self._commands, select.POLLIN)
        self._poll.register(self._wakeup[0], select.POLLIN)
        if self._use_zygote:
            self._make_zygote(FIRST_WORKER)  # before a worker is requested: the engine's process prepares other things
        text = b""
        while True:
            ready = dict(self._poll.poll())
            if self._wakeup[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup[0], 4096)
                self._reap()
            if self._zygote is not None and self._zygote.channel.fileno() in ready:
                self._read_zygote()
            if self._commands.fileno() in ready:
                try:
                    data = self._commands.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    break
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    self._handle_command(line.decode().split())
            self._start_waiting()
        self._end_all()

    # -- commands --------------------------------------------------------------------------------------------------
    def _handle_command(self, words: list[str]) -> None:
        worker, number = int(words[1]), int(words[2])
        if words[0] == "start":
            self._waiting.append((worker, number))
        elif (pid := self._pid_of(worker)) is not None:
            if number == signal.SIGKILL:
                _kill_group(pid)
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        elif number == signal.SIGKILL and worker in self._expected():
            self._to_kill.add(worker)

    def _pid_of(self, worker: int) -> int | None:
        if worker == ZYGOTE and self._zygote is not None:
            return self._zygote.pid
        return self._pids.get(worker)

    def _expected(self) -> list[int]:
        """Return the workers that were requested and do not exist yet."""
        return [worker for worker, *_ in (*self._waiting, *([self._under_way] if self._under_way else []))]

    def _start_waiting(self) -> None:
        """Start waiting workers, as far as possible now."""
        while self._waiting and self._under_way is None:
            if self._unclaimed_failure is not None:
                (pid, status), self._unclaimed_failure = self._unclaimed_failure, None
                self._worker_ended_in_zygote(self._waiting.popleft()[0], pid, status)
            elif self._zygote is None:
                if self._use_zygote:
                    self._make_zygote(self._waiting[0][0])
                else:
                    self._fork(*self._waiting.popleft())
            elif not self._zygote.status or not self._hand_over(self._zygote):
                return

    # -- the zygote ----------------------------------------------------------------------------------------------
    def _make_zygote(self, worker: int) -> None:
        output, their_output = os.pipe()
        own_end, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:

            def life() -> None:
                own_end.close()
                os.close(output)
                leave_supervisor(self._pid, "pydp2-zygote", their_output)
                os.close(their_output)
                self._close_ends()
                with zygote_end:
                    run_zygote(zygote_end, self._pid, self._page, self._prepare)

            run_child(life)
        zygote_end.close()
        os.close(their_output)
        if self._first >= 0:
            os.close(self._first)
            self._first = -1
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # both processes set it, because either may be first
        own_end.setblocking(False)
        self._zygote = _Zygote(pid, own_end, worker)
        self._poll.register(own_end, select.POLLIN)
        self._tell(f"zygote {worker} {pid}", [output])
        os.close(output)

    def _hand_over(self, zygote: _Zygote) -> bool:
        """Let the zygote fork the next waiting worker, or become it. Return False if the zygote has ended."""
        worker, status_row = self._waiting[0]
        output, zygote_end = os.pipe()
        try:
            socket.send_fds(zygote.channel, [f"{worker} {status_row}".encode()], [zygote_end])
        except OSError:  # its exit will be reported
            os.close(output)
            return False
        finally:
            os.close(zygote_end)
        self._waiting.popleft()
        zygote.served = True
        self._under_way = (worker, status_row, output)
        if zygote.status == ALONE:
            self._forget_zygote(zygote)
            self._worker_started(zygote.pid)
        return True

    def _read_zygote(self) -> None:
        """Read the status messages of the zygote."""
        while (zygote := self._zygote) is not None:
            try:
                data = zygote.channel.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # the zygote closed the channel: it is ending, or must end
                with contextlib.suppress(KeyError):
                    self._poll.unregister(zygote.channel)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote.pid, signal.SIGKILL)
                return
            word, _, rest = data.decode(errors="replace").partition(" ")
            if word == FORKED:
                self._worker_started(int(rest))
            else:
                zygote.status = word
            if word == ALONE and rest:
                self._fork_each(rest)

    def _forget_zygote(self, zygote: _Zygote) -> None:
        """Forget the zygote, whose process has ended or has become a worker."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(zygote.channel)
        zygote.channel.close()
        self._zygote = None

    def _zygote_ended(self, zygote: _Zygote, status: int) -> None:
        """Handle the end of the zygote: report the worker that waited for it as ended. If none waited, the user's code
        did not cause the end, so make another zygote."""
        self._forget_zygote(zygote)
        victim = None
        if self._under_way is not None:
            worker, _, output = self._under_way
            os.close(output)
            self._under_way, victim = None, worker
        elif not zygote.status and self._waiting:
            victim, _ = self._waiting.popleft()
        if victim is not None:
            self._worker_ended_in_zygote(victim, zygote.pid, status)
        elif not zygote.status and not zygote.served:
            self._unclaimed_failure = zygote.pid, status
        elif zygote.status == READY:
            self._tell(f"lost {zygote.worker} {zygote.pid} {status}", [])
            if zygote.served:
                self._make_zygote(zygote.worker)

    def _worker_ended_in_zygote(self, worker: int, pid: int, status: int) -> None:
        """Report that ``worker`` has ended, which waited for the zygote, process ``pid``."""
        self._to_kill.discard(worker)
        self._tell(f"started {worker} {pid}", [])
        self._tell(f"exited {worker} {pid} {status}", [])

    def _fork_each(self, reason: str) -> None:
        self._use_zygote = False
        self._tell(f"each {reason}", [])

    # -- workers ---------------------------------------------------------------------------------------------------
    def _fork(self, worker: int, status_row: int) -> None:
        output, their_output = os.pipe()
        pid = os.fork()
        if pid == 0:

            def life() -> None:
                os.close(output)
                leave_supervisor(self._pid, f"pydp2-worker-{worker}", their_output)
                self._close_ends()
                if sys.platform != "linux":
                    watch_lifeline(self._lifeline[0])
                self._prepare(worker, self._page.show_progress).main(worker, self._page.row(status_row), their_output)

            run_child(life)
        os.close(their_output)
        self._under_way = (worker, status_row, output)
        self._worker_started(pid)

    def _worker_started(self, pid: int) -> None:
        """Report that the worker under way is process ``pid``."""
        assert self._under_way is not None
        worker, _, output = self._under_way
        self._under_way = None
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # both processes set it, because either may be first
        self._pids[worker] = pid
        self._tell(f"output {worker}", [output])
        self._tell(f"started {worker} {pid}", [])
        os.close(output)
        unknown, self._unclaimed_exits = self._unclaimed_exits, {}
        doomed = worker in self._to_kill
        self._to_kill.discard(worker)
        if pid in unknown:
            self._worker_ended(worker, unknown[pid])
        elif doomed:
            _kill_group(pid)

    def _worker_ended(self, worker: int, status: int) -> None:
        self._tell(f"exited {worker} {self._pids.pop(worker)} {status}", [])

    def _close_ends(self) -> None:
        """Close the descriptors that only the supervisor may have, in a process just forked."""
        self._commands.close()
        for end in (*self._wakeup, self._lifeline[1]):
            os.close(end)
        if self._zygote is not None:
            self._zygote.channel.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._read_zygote()  # also if the zygote has ended: its last message, and its orphans
            worker = next((w for w, p in self._pids.items() if p == pid), None)
            zygote = self._zygote
            if worker is None and (zygote is None or zygote.pid != pid):
                if self._under_way is not None:
                    self._unclaimed_exits[pid] = status
                continue  # an orphan of the user's code, or the worker under way
            _kill_group(pid)  # processes that the user's code started end with its worker
            if worker is not None:
                self._worker_ended(worker, status)
            elif zygote is not None:
                self._zygote_ended(zygote, status)

    def _tell(self, text: str, descriptors: list[int]) -> None:
        with contextlib.suppress(OSError):  # the engine has ended: the next read of commands ends this process
            socket.send_fds(self._commands, [text.encode() + b"\n"], descriptors)

    def _end_all(self) -> None:
        if self._zygote is not None:
            self._pids[ZYGOTE] = self._zygote.pid
            self._zygote.channel.close()
        for pid in self._pids.values():
            _kill_group(pid)
        for pid in self._pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    """Kill the process group that process ``pid`` leads, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

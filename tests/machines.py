"""Two machines on this one: namespaces of their own for network, mounts, names and processes, with a link between them.

Machine ``a`` is ``node-a`` (10.77.0.1), machine ``b`` is ``node-b`` (10.77.0.2). Each has its own folder for temporary
files, and ``b`` does not see that of ``a``, so a Unix socket there leads nowhere. No rights are needed where users may
make namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_HOSTS = "127.0.0.1 localhost\n10.77.0.1 node-a\n10.77.0.2 node-b\n::ffff:10.77.0.1 node-a\n::ffff:10.77.0.2 node-b\n"
_DEADLINE = 30.0
_OF_COMMAND = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
_SET_UP = """
set -e
ip link set lo up
mount --bind $FOLDER/hosts /etc/hosts
mount --bind $FOLDER/nothing /etc/resolv.conf
hostname node-$NAME
"""
_SECOND = """
mount -t tmpfs none $FOLDER/a
echo up >&2
read linked
ip addr add 10.77.0.2/24 dev wire
ip link set wire up
exec "$@" 2>&1 </dev/null
"""


class NoMachines(Exception):
    """This machine has no namespaces for its users, or not the programs that make them."""


class Machines:
    """The two machines. ``a`` is there as long as this; ``b`` is there as long as its command, and then a new one."""

    def __init__(self, folder: Path) -> None:
        if not all(map(shutil.which, ("unshare", "nsenter", "ip", "hostname"))):
            raise NoMachines("no unshare, nsenter, ip or hostname")
        self.folder = folder
        for name in ("a", "b"):
            (folder / name).mkdir()
        (folder / "hosts").write_text(_HOSTS)
        (folder / "nothing").touch()
        self._running: list[subprocess.Popen[str]] = []
        words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "sh", "-c"]
        self._first = self._popen([*words, f"{_SET_UP} echo up >&2; exec cat"], "a", {})
        self._await_up(self._first)
        self._inside = ["nsenter", f"--target={self._first.pid}", "--user", "--net", "--mount", "--uts"]
        self._inside.append("--preserve-credentials")

    def _popen(self, words: Sequence[str], name: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        own = {"FOLDER": str(self.folder), "NAME": name, "TMPDIR": str(self.folder / name)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, env={**os.environ, **environment, **own}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self._running.append(process)
        return process

    def _await_up(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        line = process.stderr.readline()
        if line != "up\n":
            raise NoMachines((line + process.stderr.read()).strip())

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """``command`` on machine ``name``, whose stdout has its stderr too."""
        if name == "a":
            return self._popen(
                [*self._inside, *_OF_COMMAND, "sh", "-c", 'exec "$@" 2>&1', "sh", *command], "a", environment
            )
        words = [*_OF_COMMAND, "--net", "--mount", "--uts", "sh", "-c", _SET_UP + _SECOND, "sh"]
        process = self._popen([*self._inside, *words, *command], "b", environment)
        self._await_up(process)
        subprocess.run([*self._inside, "ip", "link", "del", "wire"], capture_output=True)  # to a machine that ended
        far = ["peer", "name", "wire", "netns", str(_child(process.pid))]
        for link in (
            ["link", "add", "wire", "type", "veth", *far],
            ["addr", "add", "10.77.0.1/24", "dev", "wire"],
            ["link", "set", "wire", "up"],
        ):
            subprocess.run([*self._inside, "ip", *link], check=True, capture_output=True)
        assert process.stdin is not None
        process.stdin.write("linked\n")
        process.stdin.flush()
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """All processes of the command at once (SIGKILL), with what they have started."""
        os.kill(_child(process.pid), signal.SIGKILL)

    def close(self) -> None:
        """End all that runs there."""
        for process in reversed(self._running):
            with suppress(ProcessLookupError, FileNotFoundError):
                for child in _children(process.pid):
                    os.kill(child, signal.SIGKILL)
            process.kill()
            process.communicate()


def _child(pid: int) -> int:
    """The only child of process ``pid``."""
    deadline = time.monotonic() + _DEADLINE
    while time.monotonic() < deadline:
        if children := _children(pid):
            return children[0]
        time.sleep(0.01)
    raise AssertionError(f"process {pid} has no child")


def _children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@contextmanager
def two_machines() -> Iterator[Machines]:
    """The two machines. Raises NoMachines."""
    with tempfile.TemporaryDirectory(prefix="pm", dir="/tmp") as folder:  # short: the paths of sockets are
        machines = Machines(Path(folder))
        try:
            yield machines
        finally:
            machines.close()

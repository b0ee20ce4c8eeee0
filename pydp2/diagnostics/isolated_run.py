"""Run a file that killed its workers, or hung, in a child process, so that the calling process survives."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import time
import warnings
from dataclasses import astuple

from pydp2.diagnostics.check import FileRun, Finding
from pydp2.host.engine.fork_setup import flush_output
from pydp2.host.engine.open_files import kept_positions

_LOOK = 0.05  # seconds between two checks of its progress


def run_isolated(run: FileRun, limit: int | None, sample_timeout: float) -> tuple[int, list[Finding]]:
    """Carry out ``run`` in a child process; return the number of samples and the findings. The death of the child is a
    finding, and so is a sample that takes longer than ``sample_timeout`` seconds."""
    at = memoryview(mmap.mmap(-1, 8)).cast("q")  # index of the sample that is being drawn, shared with the child
    read, write = os.pipe()
    flush_output()
    with kept_positions():  # the child shares the positions in files that the hook has opened
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads; those of numpy sleep between calls
            child = os.fork()
        if not child:
            _child(run, limit, at, write)
        os.close(write)
        try:
            output, slow = _watched(read, at, sample_timeout)
        finally:
            os.close(read)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
    if output.endswith(b"\n"):
        length, findings = json.loads(output)
        return length, [Finding(*finding) for finding in findings]
    y = at[0]
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if slow:
        how = f"was killed because one sample took longer than sample_timeout={sample_timeout:g} s"
    elif code < 0:
        with contextlib.suppress(ValueError):  # real-time signals have no names
            how = f"was killed by {signal.Signals(-code).name}"
    text = f"file {run.name}, sample {y}: the process that ran process() {how}"
    return y, [Finding(run.name, y, True, "", "", "", text)]


def _child(run: FileRun, limit: int | None, at: memoryview, write: int) -> None:
    """Run the file in the child process; do not return."""
    status = 1
    try:
        run.run(limit, at)
        data = json.dumps([run.length, [astuple(finding) for finding in run.findings]]).encode() + b"\n"
        with open(write, "wb") as pipe:
            pipe.write(data)
        flush_output()
        status = 0
    finally:
        os._exit(status)


def _watched(read: int, at: memoryview, patience: float) -> tuple[bytes, bool]:
    """Return the output of the child until its end, and True if one sample took longer than ``patience`` seconds."""
    output, seen, since = b"", at[0], time.monotonic()
    while True:
        if select.select([read], [], [], _LOOK)[0]:
            data = os.read(read, 1 << 16)
            if not data:
                return output, False
            output += data
        now = time.monotonic()
        if at[0] != seen:
            seen, since = at[0], now
        elif not output and now - since > patience:
            return output, True

"""``python -m benchmarks.link [--rounds 5]``: the throughput of ZeroMQ alone between two processes over TCP, with keys
and without, and its processor time. No loader over this transport is faster.

One process pushes rows of 4 KB from memory, many in a message; the other one pulls them and does nothing else.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import zmq
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
ROW = 4096
ROWS = (16, 64, 256)  # rows of a message
TOTAL = 200_000  # rows of a run
_KEPT = 8  # messages that may wait at either end


def _seconds() -> float:
    """Return user and system time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pull(messages: int, public: str = "", secret: str = "") -> None:
    """Receive an empty message, then ``messages`` more. Print the port first; at the end the seconds from the first
    message to the last, and the seconds of processor time."""
    context = zmq.Context()
    with context.socket(zmq.PULL) as socket:
        socket.rcvhwm = _KEPT
        if public:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()
        print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        socket.recv()
        used, began = _seconds(), time.perf_counter()
        for _ in range(messages):
            socket.recv(copy=False)
        print(time.perf_counter() - began, _seconds() - used)
    context.term()


def push(messages: int, size: int, port: int, public: str = "") -> None:
    """Send an empty message, then ``messages`` of ``size`` bytes; print the seconds of processor time."""
    context = zmq.Context()
    with context.socket(zmq.PUSH) as socket:
        socket.sndhwm = _KEPT
        if public:
            socket.curve_serverkey = public.encode()
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.connect(f"tcp://127.0.0.1:{port}")
        content = bytes(size)
        socket.send(b"")
        used = _seconds()
        for _ in range(messages):
            socket.send(content, copy=False)
    context.term()  # waits until all messages have left
    print(_seconds() - used)


def _start(call: str) -> subprocess.Popen[str]:
    code = f"from benchmarks import link; link.{call}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def carry(rows: int, *, keys: bool, total: int = TOTAL) -> tuple[float, float, float]:
    """Return rows per second, and the microseconds of processor time of sender and receiver for a row. A message has
    ``rows`` rows."""
    public, secret = (key.decode() for key in zmq.curve_keypair()) if keys else ("", "")
    messages = total // rows
    carried = messages * rows
    with _start(f"pull({messages}, {public!r}, {secret!r})") as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        with _start(f"push({messages}, {rows * ROW}, {port}, {public!r})") as sender:
            sent = float(sender.communicate()[0])
        seconds, received = map(float, receiver.communicate()[0].split())
    return carried / seconds, sent / carried * 1e6, received / carried * 1e6


def main() -> None:
    """Print medians of several rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[tuple[bool, int], list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for keys in (True, False):
            for rows in ROWS:
                found.setdefault((keys, rows), []).append(carry(rows, keys=keys))
    table = Table("keys", "rows of a message", "rows/s", "sender us", "receiver us", title="Rows of 4 KB over TCP")
    for (keys, rows), some in found.items():
        rate, sent, received = (statistics.median(column) for column in zip(*some, strict=True))
        table.add_row("yes" if keys else "no", str(rows), f"{rate:,.0f}", f"{sent:.2f}", f"{received:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()

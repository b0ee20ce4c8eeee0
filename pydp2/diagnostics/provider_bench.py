"""Measure a provider alone: loop its generators in child processes, bare and with checks and packing.

The program starts a supervisor, a fresh interpreter with one thread that never runs the user's code. The supervisor
forks a unit, which imports the provider and runs the hook. If the unit has one thread, it forks the other units;
otherwise the supervisor forks them, and each imports the provider itself. A unit counts in shared memory, so the counts
survive a unit that hangs or dies. All processes are in one process group, which :func:`measure_alone` kills at the end.

A unit alternates between both ways of drawing, a few milliseconds each, within the same files, so other activity of the
machine affects both alike.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydp2.diagnostics.local_provider import load_provider, provider_process, receive_task
from pydp2.diagnostics.provider_bench_loop import AREA, BARE, FIRST, PACKED, LoopCounts, ProviderLoop, ResultPage
from pydp2.diagnostics.slot_costs import SlotCost
from pydp2.errors import Error, ServiceLost, from_user, from_wire, provider_error, to_wire
from pydp2.host.engine.fork_setup import fork_obstacle
from pydp2.host.engine.open_files import open_descriptors
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import receive_plain, send_plain
from pydp2.providers.error_location import count_own_frames

_GRACE = 0.5  # seconds for a unit to end by itself
_FIELDS = ("samples", "wall", "cpu", "queued")


@dataclass(frozen=True)
class ProviderRates:
    """Rates of a provider alone. ``bare``, ``packed``: counts of all ``units`` together; ``first``: counts of the first
    samples, used only if there were no others; ``nbytes``: bytes of the packed columns; ``slots``: cost of packing the
    first samples, by slot; ``caches``: True if later passes come from a cache."""

    units: int
    bare: LoopCounts
    packed: LoopCounts
    first: LoopCounts
    nbytes: int
    slots: list[SlotCost]
    caches: bool

    def __add__(self, other: ProviderRates) -> ProviderRates:
        return replace(
            self,
            bare=self.bare + other.bare,
            packed=self.packed + other.packed,
            first=self.first + other.first,
            nbytes=self.nbytes + other.nbytes,
        )

    @property
    def is_crowded(self) -> float:
        """Share of the time in which units could have run but other processes had their core."""
        total = self.first + self.bare + self.packed
        return total.queued / total.wall if total.wall > 0 else 0.0


# -- in the program ----------------------------------------------------------------------------------------------------
def measure_alone(spec: Mapping[str, Any], files: FileList, *, units: int, seconds: float) -> ProviderRates:
    """Loop the provider of ``spec`` over ``files``, divided among ``units`` processes, for ``seconds``.

    Raises the errors of the provider: ProviderError, BadSample, with file and sample.
    """
    task = {**spec, "units": units, "seconds": seconds}
    with provider_process(__name__, "supervise", task, files, purpose="bench", prints=True) as channel:
        try:
            result = receive_plain(channel)
        except (EOFError, OSError):
            raise ServiceLost("the process that measured the provider alone ended without a result") from None
    if "error" in result:
        raise from_wire(result["error"])
    return ProviderRates(
        units=units,
        bare=LoopCounts(*result["bare"]),
        packed=LoopCounts(*result["packed"]),
        first=LoopCounts(*result["first"]),
        nbytes=result["nbytes"],
        slots=[SlotCost(**cost) for cost in result["slots"]],
        caches=result["caches"],
    )


# -- the supervisor ----------------------------------------------------------------------------------------------------
_READY, _ALONE, _DONE = b".", b"a", b"d"


def supervise(descriptor: int) -> None:
    """Run the supervisor. It does not return: the program kills it, or it ends with the program."""
    channel, spec, files = receive_task(descriptor)
    units = spec["units"]
    memory = mmap.mmap(-1, units * AREA)
    areas = [ResultPage(memory, unit) for unit in range(units)]
    read_end, tell = os.pipe()
    gate, go = os.pipe()

    def fork(unit: int) -> None:
        if not os.fork():
            _unit(unit, areas, spec, files, tell, gate, (channel.fileno(), read_end, go))

    fork(0)
    signs, over, statuses = b"", time.monotonic() + 1e9, list[int]()
    while signs.count(_DONE) < units and time.monotonic() < over:
        patience = max(0.0, min(over - time.monotonic(), 0.5))
        ready = select.select([channel.fileno(), read_end], [], [], patience)[0]
        if channel.fileno() in ready:  # the program sends nothing more, so it has ended
            os.killpg(0, signal.SIGKILL)
        if read_end in ready:
            more = os.read(read_end, 4096)
            if _ALONE in more:
                for unit in range(1, units):
                    fork(unit)
            signs += more
        if go >= 0 and signs.count(_READY) + signs.count(_DONE) >= units:
            os.close(go)
            go, over = -1, time.monotonic() + spec["seconds"] + _GRACE
        if not _children(statuses) or any(statuses) or any("error" in area.read_report() for area in areas):
            break
    report = _together(areas)
    if any(statuses) and "error" not in report:
        how = os.waitstatus_to_exitcode(max(statuses))
        how_text = f"was killed by signal {-how}" if how < 0 else f"ended with exit code {how}"
        report = {"error": to_wire(provider_error(f"the process that ran process() {how_text}", "RuntimeError"))}
    send_plain(channel, report)
    channel.recv(1)
    os.killpg(0, signal.SIGKILL)


def _children(statuses: list[int]) -> bool:
    """Reap the children that ended; return True if any is left."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses.append(ended[1])
        return True
    return False


def _together(areas: Sequence[ResultPage]) -> dict[str, Any]:
    result: dict[str, Any] = {"slots": [], "caches": False}
    for area in areas:
        report = area.read_report()
        if "error" in report:
            return report
        if report and not result["slots"]:
            result |= report
    for way, name in ((BARE, "bare"), (PACKED, "packed"), (FIRST, "first")):
        total = sum((area.counted(way) for area in areas), LoopCounts())
        result[name] = [getattr(total, field) for field in _FIELDS]
    return result | {"nbytes": sum(area.nbytes for area in areas)}


# -- a unit ------------------------------------------------------------------------------------------------------------
def _unit(
    unit: int,
    areas: Sequence[ResultPage],
    spec: dict[str, Any],
    files: FileList,
    tell: int,
    gate: int,
    others: Sequence[int],
) -> None:
    """Run a unit; do not return."""
    try:
        for descriptor in others:
            os.close(descriptor)
        before = open_descriptors()
        running = load_provider(spec, files)
        if unit == 0 and len(areas) > 1:
            if not fork_obstacle(before):
                for other in range(1, len(areas)):
                    if not os.fork():
                        unit = other
                        break
            else:
                os.write(tell, _ALONE)
        os.write(tell, _READY)
        os.read(gate, 1)  # returns when all units are ready
        own = list(range(unit, len(files), len(areas)))
        ProviderLoop(running, files, own, areas[unit]).run(time.perf_counter() + spec["seconds"])
    except Error as error:
        areas[unit].write_report({"error": to_wire(error)})
    except BaseException as error:
        areas[unit].write_report(
            {"error": to_wire(from_user("the provider cannot be measured", error, count_own_frames(error)))}
        )
    finally:
        os.write(tell, _DONE)
        if unit == 0:
            with contextlib.suppress(ChildProcessError):
                while True:  # the supervisor only knows its own children, so wait for these here
                    os.wait()
        os._exit(0)

"""``python -m benchmarks run | table | plot | figures | many``: see docs/benchmarks.md, and ``--help`` of each."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import figures, many, rounds, show
from benchmarks.job import WORKLOADS
from benchmarks.results import tables


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for peer, path in pairs.items():
        if peer not in rounds.PEERS or not path:
            raise SystemExit(f"--python takes PEER=PATH with one of {', '.join(rounds.PEERS)}; got {peer}={path}")
    return pairs


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _machine() -> dict[str, Any]:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=rounds.ROOT, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "processor": model,
        "system": platform.platform(),
        "load": os.getloadavg()[0],
        "commit": commit.stdout.strip(),
    }


def _run(given: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what is running is ended first
        signal.signal(number, lambda *_: sys.exit(143))
    plan = rounds.Plan(
        workloads=tuple(given.workload), peers=tuple(given.peer), workers=given.workers, rounds=given.rounds,
        scale=given.scale, folder=given.data, pythons=_pairs(given.python), memory=not given.no_memory,
        deadline=given.deadline, others=given.others,
    )  # fmt: skip
    machine = _machine()
    result = {"machine": machine, "scale": plan.scale} | rounds.rounds(plan, lambda line: print(line, file=sys.stderr))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    _show(result)
    return 1 if any("failed" in run for run in result["runs"]) else 0


def _show(result: dict[str, Any], markdown: bool = False) -> None:
    of = tables(result["runs"])
    if markdown:
        print(show.markdown(of))
    else:
        show.on_terminal(of)
    machine = result["machine"]
    print(f"{machine['date']}, {machine['cores']} cores, {machine['processor']}, commit {machine['commit']}, ", end="")
    print(f"load before {machine['load']:.1f}, data at scale {result['scale']:g}")
    print("\n".join(show.versions(result)))
    for name, reason in result["absent"].items():
        print(f"left out: {name}: {reason}")


def _table(given: argparse.Namespace) -> int:
    _show(json.loads(given.result.read_text()), given.markdown)
    return 0


def _plot(given: argparse.Namespace) -> int:
    from benchmarks import plot

    plot.draw(tables(json.loads(given.result.read_text())["runs"]), given.picture)
    return 0


def _figures(given: argparse.Namespace) -> int:
    figures.show(given.names, given.data, given.rounds, given.json)
    return 0


def _many(given: argparse.Namespace) -> int:
    many.show()
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="pydp2 beside its peers")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    base = rounds.Plan()

    run = commands.add_parser("run", help="pydp2, the bare generator and every installed peer, in alternating rounds")
    run.add_argument("--workload", nargs="+", choices=tuple(WORKLOADS), default=list(WORKLOADS), help="default: all")
    run.add_argument("--peer", nargs="*", choices=rounds.PEERS, default=list(rounds.PEERS), help="default: all")
    run.add_argument("--rounds", type=int, default=base.rounds, help="default: %(default)s")
    run.add_argument("--workers", type=_numbers, default=base.workers, help="as 2, or 1,2,4; default: 2")
    run.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="another interpreter for a peer"
    )
    run.add_argument("--data", type=Path, default=base.folder, metavar="FOLDER", help="default: %(default)s")
    run.add_argument("--scale", type=float, default=base.scale, help="how much data; default: %(default)s")
    run.add_argument("--deadline", type=float, default=base.deadline, help="seconds for one run; default: %(default)s")
    text = "try a run again, twice at most, if others took more than this share of the cores, as 0.1; default: never"
    run.add_argument("--others", type=float, default=base.others, metavar="SHARE", help=text)
    run.add_argument("--no-memory", action="store_true", help="leave out the round that looks at memory")
    run.add_argument("--json", type=Path, metavar="PATH", help="write every run there")
    run.set_defaults(do=_run)

    table = commands.add_parser("table", help="the tables of a result once more")
    table.add_argument("result", type=Path)
    table.add_argument("--markdown", action="store_true")
    table.set_defaults(do=_table)

    plot = commands.add_parser("plot", help="a picture of a result; needs matplotlib (the extra plot)")
    plot.add_argument("result", type=Path)
    plot.add_argument("picture", type=Path)
    plot.set_defaults(do=_plot)

    own = commands.add_parser("figures", help="figures of pydp2 alone: start, kills, long lists, many files")
    own.add_argument("names", nargs="*", choices=[*figures.FIGURES, []], help="default: all")
    own.add_argument("--rounds", type=int, default=5)
    own.add_argument("--data", type=Path, default=base.folder)
    own.add_argument("--json", action="store_true")
    own.set_defaults(do=_figures)

    crowd = commands.add_parser("many", help="a simulation of services of many workers: their use, the server's time")
    crowd.set_defaults(do=_many)
    return top


if __name__ == "__main__":
    given = parser().parse_args()
    raise SystemExit(given.do(given))

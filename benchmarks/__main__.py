"""``python -m benchmarks COMMAND``, such as ``run`` or ``table``: see docs/benchmarks.md, and ``COMMAND --help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import figures, forks, latency, many, packing, prepared, remote, replay, resume, rounds, show, tensors
from benchmarks.fork_provider import PLACES, USES
from benchmarks.formats import comparison
from benchmarks.formats.single_run import LOADERS
from benchmarks.job import PREPARED, WORKLOADS
from benchmarks.results import tables

_ALL = rounds.PEERS + rounds.NATIVE_PEERS
_APART = ("ragged_blocks", "rows_f32_blocks", "words")  # small and large samples that cost nothing, and others
_TRAINED, _TRAINERS = ("jpeg", "words"), ("torch", "spdl", "grain")
_SHARED_TENSORS = ("jpeg",)  # workloads whose batches torch hands over faster as tensors in shared memory
_PLAIN = ("spdl", "torch")  # peers for the comparison of the fastest ways to pass batches


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for peer, path in pairs.items():
        if peer not in _ALL or not path:
            raise SystemExit(f"--python takes PEER=PATH with one of {', '.join(_ALL)}; got {peer}={path}")
    return pairs


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _step(text: str) -> float:
    if not 0 < (step := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"a step takes more than 0 ms, got {text}")
    return step


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


def _plan(given: argparse.Namespace, *, memory: bool = False, **own: Any) -> rounds.Plan:
    """Return the plan of a command: what :func:`_add_plan` asks for, and what is its own."""
    return rounds.Plan(
        workers=given.workers,
        rounds=given.rounds,
        scale=given.scale,
        folder=given.data,
        pythons=_pairs(given.python),
        deadline=given.deadline,
        others=given.others,
        memory=memory,
        **own,
    )


def _run(given: argparse.Namespace) -> int:
    plan = _plan(
        given,
        workloads=tuple(given.workload),
        peers=tuple(given.peer),
        memory=not given.no_memory,
    )
    return _measure("run", plan, given)


def _native(given: argparse.Namespace) -> int:
    plan = _plan(
        given,
        workloads=tuple(given.workload),
        peers=tuple(given.peer),
        native=True,
    )
    return _measure("native", plan, given)


def _ceiling(given: argparse.Namespace) -> int:
    plan = _plan(
        given,
        workloads=tuple(prepared.named(kind, form) for form in given.form for kind in given.kind),
        peers=tuple(given.peer),
        plain=True,
    )
    return _measure("ceiling", plan, given)


def _hosts(given: argparse.Namespace) -> int:
    plan = _plan(
        given,
        workloads=tuple(given.workload),
        hosts=True,
    )
    return _measure("hosts", plan, given)


def _latency(given: argparse.Namespace) -> int:
    steps = {name: given.step or latency.STEPS[name] for name in given.workload}
    plan = _plan(
        given,
        workloads=tuple(given.workload),
        peers=tuple(given.peer),
        plain=True,
        passes=1,
        options={name: (("step", step), ("times", latency.TIMES.get(name, 1))) for name, step in steps.items()},
    )
    return _measure("latency", plan, given, steps=steps)


def _measure(command: str, plan: rounds.Plan, given: argparse.Namespace, **more: Any) -> int:
    """Carry out a plan, save and show its results; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that the running processes are ended first
        signal.signal(number, lambda *_: sys.exit(143))
    about = {"command": command, "machine": _machine(), "scale": plan.scale, **more}
    result = about | rounds.rounds(plan, lambda line: print(line, file=sys.stderr))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    _show(result)
    return 1 if any("failed" in run for run in result["runs"]) else 0


def _show(result: dict[str, Any], markdown: bool = False) -> None:
    view = show.VIEWS[result.get("command", "run")]
    of = tables(result["runs"], view.passes)
    if markdown:
        print(show.markdown(of, view))
    else:
        show.on_terminal(of, view)
    for workload, step in result.get("steps", {}).items():
        print(f"{workload}: a step of {step:g} ms")
    machine = result["machine"]
    print(f"{machine['date']}, {machine['cores']} cores, {machine['processor']}, commit {machine['commit']}, ", end="")
    print(f"load before {machine['load']:.1f}, data at scale {result['scale']:g}")
    print("\n".join(show.versions(result)))
    for name, reason in result["absent"].items():
        print(f"left out: {name}: {reason}")


def _training(given: argparse.Namespace) -> int:
    options: dict[str, Any] = {"train": True, "threads": given.threads}
    if given.steps:
        options["steps"] = given.steps
    plan = _plan(
        given,
        workloads=tuple(given.workload),
        peers=tuple(given.peer),
        training=True,
        passes=1,
        options={
            name: (*options.items(), ("times", latency.TIMES.get(name, 1)), ("tensors", name in _SHARED_TENSORS))
            for name in given.workload
        },
    )
    return _measure("training", plan, given)


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


def _replay(given: argparse.Namespace) -> int:
    replay.show(given.rounds)
    return 0


def _resume(given: argparse.Namespace) -> int:
    resume.show(given.provider, given.pool, given.at, given.rounds, given.scale)
    return 0


def _forks(given: argparse.Namespace) -> int:
    return forks.show(given.library, given.place, given.starts, given.deadline)


def _formats(given: argparse.Namespace) -> int:
    comparison.show(
        comparison.Plan(
            given.workload,
            given.loader,
            given.rounds,
            given.workers,
            given.data,
            given.python,
            given.scale,
            given.deadline,
        )
    )
    return 0


def _tensors(given: argparse.Namespace) -> int:
    tensors.show(
        given.step, given.rounds, framework=given.framework, cached=not given.no_cache, milliseconds=given.compute
    )
    return 0


def _add_plan(command: argparse.ArgumentParser, base: rounds.Plan) -> None:
    """Add the options of all commands that carry out a plan."""
    command.add_argument("--rounds", type=int, default=base.rounds, help="default: %(default)s")
    workers = ",".join(map(str, base.workers))
    command.add_argument("--workers", type=_numbers, default=base.workers, help=f"as 2, or 1,2,4; default: {workers}")
    command.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="another interpreter for a peer"
    )
    command.add_argument("--data", type=Path, default=base.folder, metavar="FOLDER", help="default: %(default)s")
    command.add_argument("--scale", type=float, default=base.scale, help="how much data; default: %(default)s")
    text = "seconds for one run; default: %(default)s"
    command.add_argument("--deadline", type=float, default=base.deadline, help=text)
    text = "try a run again, twice at most, if others took more than this share of the cores, as 0.1; default: never"
    command.add_argument("--others", type=float, default=base.others, metavar="SHARE", help=text)
    command.add_argument("--json", type=Path, metavar="PATH", help="write every run there")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="pydp2 beside its peers")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    base = rounds.Plan()

    run = commands.add_parser("run", help="pydp2, the bare generator and every installed peer, in alternating rounds")
    run.add_argument("--workload", nargs="+", choices=tuple(WORKLOADS), default=list(WORKLOADS), help="default: all")
    run.add_argument("--peer", nargs="*", choices=rounds.PEERS, default=list(rounds.PEERS), help="default: all")
    run.add_argument("--no-memory", action="store_true", help="leave out the round that looks at memory")
    _add_plan(run, base)
    run.set_defaults(do=_run)

    own = commands.add_parser(
        "native", help="pydp2 beside peers that read formats of their own, or work in their own way"
    )
    own.add_argument(
        "--workload", nargs="+", choices=tuple(rounds.NATIVE), default=list(rounds.NATIVE), help="default: all"
    )
    own.add_argument("--peer", nargs="*", choices=rounds.NATIVE_PEERS, default=rounds.NATIVE_PEERS, help="default: all")
    _add_plan(own, base)
    own.set_defaults(do=_native)

    ceiling = commands.add_parser(
        "ceiling", help="what the loaders themselves carry: samples that cost nothing to make"
    )
    ceiling.add_argument("--kind", nargs="+", choices=prepared.KINDS, default=prepared.KINDS, help="default: all")
    ceiling.add_argument("--form", nargs="+", choices=prepared.FORMS, default=prepared.FORMS, help="default: both")
    ceiling.add_argument("--peer", nargs="*", choices=_PLAIN, default=_PLAIN, help="default: both")
    _add_plan(ceiling, replace(base, workers=(1, 2)))
    ceiling.set_defaults(do=_ceiling)

    apart = commands.add_parser(
        "hosts", help="what workers on another host cost, against workers on that of the service"
    )
    apart.add_argument(
        "--workload", nargs="+", choices=(*WORKLOADS, *PREPARED), default=_APART, help=f"default: {', '.join(_APART)}"
    )
    _add_plan(apart, base)
    apart.set_defaults(do=_hosts)

    felt = commands.add_parser("latency", help="how long next() takes for a trainer that is slower than the loader")
    felt.add_argument(
        "--workload",
        nargs="+",
        choices=tuple(WORKLOADS),
        default=latency.WORKLOADS,
        help=f"default: {', '.join(latency.WORKLOADS)}",
    )
    felt.add_argument("--step", type=_step, metavar="MS", help="milliseconds of a step; default: one for each workload")
    felt.add_argument("--peer", nargs="*", choices=_PLAIN, default=_PLAIN, help="default: both")
    _add_plan(felt, base)
    felt.set_defaults(do=_latency)

    trained = commands.add_parser("training", help="how long a real training waits for data; on a GPU if there is one")
    trained.add_argument("--workload", nargs="+", choices=_TRAINED, default=_TRAINED, help="default: both")
    trained.add_argument("--peer", nargs="*", choices=_TRAINERS, default=_TRAINERS, help="default: all")
    trained.add_argument("--steps", type=int, default=0, help="of each run; default: 100 of jpeg, 600 of words")
    trained.add_argument("--threads", type=int, default=1, help="of torch in the trainer; default: %(default)s")
    _add_plan(trained, replace(base, workers=(1,)))
    trained.set_defaults(do=_training)

    table = commands.add_parser("table", help="the tables of a result once more")
    table.add_argument("result", type=Path)
    table.add_argument("--markdown", action="store_true")
    table.set_defaults(do=_table)

    plot = commands.add_parser("plot", help="a picture of a result; needs matplotlib (the extra plot)")
    plot.add_argument("result", type=Path)
    plot.add_argument("picture", type=Path)
    plot.set_defaults(do=_plot)

    alone = commands.add_parser("figures", help="figures of pydp2 alone: start, kills, long lists, many files")
    alone.add_argument("names", nargs="*", choices=[*figures.FIGURES, []], help="default: all")
    alone.add_argument("--rounds", type=int, default=5)
    alone.add_argument("--data", type=Path, default=base.folder)
    alone.add_argument("--json", action="store_true")
    alone.set_defaults(do=_figures)

    again = commands.add_parser("replay", help="what a sample costs the server: many workers, ranks, jobs and files")
    again.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    again.set_defaults(do=_replay)

    taken = commands.add_parser("resume", help="how long a resume takes, and how much is read again")
    taken.add_argument("--provider", nargs="+", choices=resume.WAYS, default=resume.WAYS, help="default: all")
    taken.add_argument(
        "--pool", nargs="+", choices=tuple(resume.POOLS), default=tuple(resume.POOLS), help="default: all"
    )
    taken.add_argument("--at", nargs="+", type=int, default=resume.SHARES, help="percent of a pass; default: 1 50 99")
    taken.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    taken.add_argument("--scale", type=float, default=1.0, help="share of the 1,000 files; default: %(default)s")
    taken.set_defaults(do=_resume)

    forked = commands.add_parser("forks", help="starts of workers that hang or fail, by the libraries that they use")
    forked.add_argument("--library", nargs="+", choices=tuple(USES), default=tuple(USES), help="default: all")
    forked.add_argument("--place", nargs="+", choices=PLACES, default=PLACES, help="default: all")
    forked.add_argument("--starts", type=int, default=200, help="of workers; default: %(default)s")
    text = "seconds until a service has read its pass; default: %(default)s"
    forked.add_argument("--deadline", type=float, default=120.0, help=text)
    forked.set_defaults(do=_forks)

    ready = commands.add_parser("formats", help="ready-made providers beside the libraries that read the same files")
    names = comparison.WORKLOADS
    ready.add_argument("--workload", nargs="+", choices=names, default=names, help="default: all")
    ready.add_argument("--loader", nargs="*", choices=(*LOADERS, []), default=tuple(LOADERS), help="default: all")
    ready.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    ready.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    ready.add_argument("--python", default=sys.executable, help="the interpreter that has the libraries and peers")
    ready.add_argument("--data", type=Path, default=base.folder, metavar="FOLDER", help="default: %(default)s")
    ready.add_argument("--scale", type=float, default=1.0, help="share of the samples; default: %(default)s")
    ready.add_argument(
        "--deadline", type=float, default=base.deadline, help="seconds for one run; default: %(default)s"
    )
    ready.set_defaults(do=_formats)

    packing.add_to(commands)
    remote.add_to(commands)
    steps = commands.add_parser("tensors", help="what tensors of a framework cost over arrays, from step to step")
    steps.add_argument("--framework", choices=tensors.FRAMEWORKS, default="torch", help="default: %(default)s")
    steps.add_argument("--step", nargs="+", choices=tensors.STEPS, default=tensors.STEPS, help="default: all")
    steps.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    steps.add_argument("--no-cache", action="store_true", help="samples come from the provider in each pass")
    steps.add_argument(
        "--compute",
        type=float,
        default=0.0,
        metavar="MS",
        help="compute for so many milliseconds after each next(), and measure that call alone; default: the loop does "
        "nothing else, and the time from step to step is measured",
    )
    steps.set_defaults(do=_tensors)

    crowd = commands.add_parser("many", help="a simulation of services of many workers: their use, the server's time")
    crowd.set_defaults(do=_many)
    return top


if __name__ == "__main__":
    given = parser().parse_args()
    raise SystemExit(given.do(given))

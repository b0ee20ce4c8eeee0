"""``python -m tests.faults``: the whole battery, round after round, with a table of what was found.

python -m tests.faults --minutes 30
python -m tests.faults --only F1,F4 --rounds 3
python -m tests.faults --only F1 --seed 123        # the round that failed
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from .battery import Account, one_round, surroundings
from .case import SIZES, Schedule
from .catalog import ABSENT, FAULTS, number


def main() -> int:
    """Play, tell, and end with 1 if a round failed, or if none was played."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="play rounds of all faults for so long")
    parser.add_argument("--rounds", type=int, default=1, help="without --minutes: so many rounds of each; default 1")
    parser.add_argument("--only", default="", help="names of faults, as F1,F4")
    parser.add_argument("--seed", type=int, help="the seed of the first round; default: drawn")
    parser.add_argument("--size", choices=SIZES, default="full", help="quick: as the tests do it; default full")
    parser.add_argument("--slow-seconds", type=float, default=60.0, help="how long the slow trainer of F9 trains")
    parser.add_argument("--schedule", help="one round, as a failure printed it")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a smaller schedule that fails")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout instead of a table")
    options = parser.parse_args()
    os.environ["PYDP2_SLOW_SECONDS"] = str(options.slow_seconds)
    chosen = options.only.split(",") if options.only else list(FAULTS)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        parser.error(f"{unknown[0]}: {ABSENT.get(unknown[0], 'there are ' + ', '.join(FAULTS))}")
    console = Console(stderr=options.json)
    if options.schedule:
        schedules = [Schedule.from_json(options.schedule)]
        accounts = {schedules[0].fault: Account(FAULTS[schedules[0].fault])}
        with surroundings():
            _play(accounts, schedules, console, options)
    else:
        accounts = {name: Account(FAULTS[name]) for name in chosen}
        with surroundings():
            _rounds(accounts, console, options)
    if options.json:
        sys.stdout.write(json.dumps({"faults": [a.plain() for a in accounts.values()], "absent": ABSENT}) + "\n")
    else:
        console.print(_table(accounts, whole=not options.only and not options.schedule))
        for account in accounts.values():
            for seed, course in account.courses.items():
                console.print(shown_course(f"{account.fault.name} seed {seed}, as it went", course))
    for account in accounts.values():
        for failure in account.failures:
            console.print(failure.told(), style="red", markup=False, highlight=False)
    return exit_status(accounts.values())


def exit_status(accounts: Iterable[Account]) -> int:
    """0 if a round held and none failed. Rounds that were skipped, or that the time was too short for, show nothing."""
    accounts = list(accounts)
    return 0 if any(a.passed for a in accounts) and not any(a.failures for a in accounts) else 1


def _rounds(accounts: dict[str, Account], console: Console, options: argparse.Namespace) -> None:
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    console.print(f"seed {seed}")
    began, done = time.monotonic(), 0
    while True:
        schedules = [account.fault.schedule(seed + done, options.size) for account in accounts.values()]
        for schedule in schedules:
            if options.minutes and time.monotonic() - began > 60 * options.minutes:
                return
            _play(accounts, [schedule], console, options)
        done += 1
        if not options.minutes and done >= options.rounds:
            return


def _play(
    accounts: dict[str, Account], schedules: list[Schedule], console: Console, options: argparse.Namespace
) -> None:
    for schedule in schedules:
        account = accounts[schedule.fault]
        failed, passed, began = len(account.failures), account.passed, time.monotonic()
        one_round(account, schedule, shrink=not options.no_shrink)
        word = "[red]failed[/]" if len(account.failures) > failed else "held" if account.passed > passed else "skipped"
        console.print(f"{schedule.fault} seed {schedule.seed}: {word} after {time.monotonic() - began:.1f} s")
        for failure in account.failures[failed:]:  # a long run is looked at while it runs
            console.print(failure.told().splitlines()[0], style="red", markup=False, highlight=False)


def _table(accounts: dict[str, Account], whole: bool) -> Table:
    table = Table(title="The fault battery", show_lines=True)
    for name in ("fault", "what", "held", "failed", "kills", "s"):
        table.add_column(name, justify="left" if name in {"fault", "what"} else "right", no_wrap=name != "what")
    table.add_column("found (least, mean, most)")
    rows: dict[str, tuple[str, ...]] = {}
    for account in accounts.values():
        found = [_figure(name, some) for name, some in account.figures.items()]
        found += [f"skipped {count}: {why}" for why, count in account.skipped.items()]
        found += [f"({note})" for note in account.notes]
        style = "[red]" if account.failures else ""
        rows[account.fault.name] = (
            account.fault.name, f"{account.fault.title}\n[dim]{account.fault.goal}[/]", str(account.passed),
            f"{style}{len(account.failures)}", str(account.kills), f"{account.seconds:.0f}", "\n".join(found),
        )  # fmt: skip
    if whole:
        rows |= {name: (name, f"[dim]{why}[/]", "", "", "", "", "not here") for name, why in ABSENT.items()}
    for name in sorted(rows, key=number):
        table.add_row(*rows[name])
    return table


def shown_course(title: str, course: list[dict[str, float]]) -> Table:
    """Figures of a round as they went."""
    table = Table(title=title)
    for name in course[0]:
        table.add_column(name, justify="right")
    for row in course:
        table.add_row(*(f"{value:,.1f}" if value % 1 else f"{value:,.0f}" for value in row.values()))
    return table


def _figure(name: str, some: list[float]) -> str:
    least, mean, most = min(some), sum(some) / len(some), max(some)
    return f"{name}: {mean:,.4g}" if least == most else f"{name}: {least:,.4g}, {mean:,.4g}, {most:,.4g}"


if __name__ == "__main__":
    sys.exit(main())

"""The battery itself: schedules are plain, seeds repeat, and what does not hold is found out and made smaller."""

from __future__ import annotations

import io
import json
import re
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from .__main__ import exit_status, shown_course
from .battery import Account, one_round
from .bench import Bench, remains, shared_memory
from .case import Event, Fault, Report, Schedule, Skip, shrunk
from .catalog import ABSENT, FAULTS
from .data import Dataset, expected, nothing_but, sign_expected, words_of
from .job_trainers import JobTrainers
from .workers_die import read


def scripted(play: Any, events: int = 5) -> Fault:
    def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
        return {"size": size}, [Event("strike", random.randrange(100), random.random()) for _ in range(events)]

    return Fault("F0", "a fault of a test", "holds", draw, play, 20.0)


def hold(bench: Bench, schedule: Schedule) -> Report:
    return Report(2, {"speed": 3.0}, ["a note"])


def fall(bench: Bench, schedule: Schedule) -> Report:
    raise AssertionError("a sample is missing")


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("size", ["quick", "full"])
def test_a_seed_stands_for_one_schedule_which_is_plain_data(name: str, size: str) -> None:
    fault = FAULTS[name]
    schedules = [fault.schedule(seed, size) for seed in range(20)]
    assert [fault.schedule(seed, size) for seed in range(20)] == schedules
    assert [Schedule.from_json(schedule.to_json()) for schedule in schedules] == schedules


def test_every_fault_is_held_or_said_to_be_absent() -> None:
    assert {f"F{n}" for n in (*range(1, 32), 35, 36, 37)} == {
        name for name in FAULTS.keys() | ABSENT.keys() if name.startswith("F")
    }


def test_rounds_that_hold_are_counted_with_what_they_report() -> None:
    account = Account(scripted(hold))
    for seed in range(3):
        one_round(account, account.fault.schedule(seed, "quick"))
    assert (account.passed, account.kills, account.figures, account.notes) == (
        3,
        6,
        {"speed": [3.0] * 3},
        {"a note": 3},
    )


def test_the_course_of_a_round_is_kept_and_shown_row_by_row() -> None:
    course = [{"seconds": 0.0, "MB": 60.5}, {"seconds": 30.0, "MB": 60.75}]
    account = Account(scripted(lambda bench, schedule: Report(course=course)))
    one_round(account, account.fault.schedule(7, "quick"))
    assert account.courses == {7: course}
    assert json.loads(json.dumps(account.plain()))["courses"] == {"7": course}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown_course("F0", course))
    shown = console.export_text()
    assert [[cell.strip() for cell in line.split("│")[1:3]] for line in shown.splitlines() if line.startswith("│")] == [
        ["0", "60.5"],
        ["30", "60.8"],
    ]


def test_what_is_left_of_a_service_is_named() -> None:
    before = shared_memory()
    assert remains(before) == []
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{folder}/s")
        assert remains(before) == [f"socket {folder}/s"]
    assert remains(before) == []


def test_a_round_that_fails_is_told_with_seed_schedule_and_the_command_that_plays_it_again() -> None:
    account = Account(scripted(fall))
    schedule = account.fault.schedule(123, "quick")
    one_round(account, schedule)
    (failure,) = account.failures
    told = failure.told()
    assert told.startswith("F0 failed with seed 123: AssertionError: a sample is missing\n")
    assert "python -m tests.faults --only F0 --seed 123 --size quick" in told
    assert schedule.to_json() in told
    assert failure.smallest.events == ()  # it fails without any event, so none of them is to blame


def test_what_the_machine_cannot_do_is_counted_as_skipped() -> None:
    def cannot(bench: Bench, schedule: Schedule) -> Report:
        raise Skip("no such device")

    account = Account(scripted(cannot))
    one_round(account, account.fault.schedule(1, "quick"))
    one_round(account, account.fault.schedule(2, "quick"))
    assert (account.passed, account.failures, account.skipped) == (0, [], {"no such device": 2})


def test_a_run_in_which_no_round_was_played_is_no_success() -> None:
    skipped = Account(scripted(hold), skipped={"no such device": 3})
    held = Account(scripted(hold), passed=1)
    failed = Account(scripted(fall))
    one_round(failed, failed.fault.schedule(1, "quick"), shrink=False)
    assert [exit_status(some) for some in ([], [skipped], [skipped, held], [held, failed])] == [1, 1, 0, 1]


def test_every_fault_has_a_quick_round_among_the_tests() -> None:
    text = Path(__file__).with_name("test_battery.py").read_text("utf-8")
    assert set(re.findall(r'\bhold\("(\w+)"', text)) == FAULTS.keys()


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_shrinking_keeps_exactly_the_events_that_it_takes(case: tuple[int, set[int]]) -> None:
    count, guilty = case
    schedule = Schedule("F0", 1, "quick", {}, tuple(Event("strike", n) for n in range(count)))

    def fails(smaller: Schedule) -> bool:
        return guilty <= {int(event.at) for event in smaller.events}

    smallest = shrunk(schedule, fails, lambda: True)
    assert {int(event.at) for event in smallest.events} == guilty
    assert shrunk(schedule, fails, lambda: False) == schedule


def test_a_process_that_a_round_leaves_behind_fails_it() -> None:
    def leave(bench: Bench, schedule: Schedule) -> Report:
        bench.program("import time\ntime.sleep(1000)\n")
        return Report()

    account = Account(scripted(leave))
    one_round(account, account.fault.schedule(1, "quick"), shrink=False)
    assert "a program of the round still runs" in account.failures[0].error


def test_a_round_that_hangs_fails() -> None:
    def wait(bench: Bench, schedule: Schedule) -> Report:
        import threading

        threading.Event().wait()
        return Report()

    fault = scripted(wait)
    account = Account(Fault(fault.name, fault.title, fault.goal, fault.draw, wait, 0.2))
    one_round(account, account.fault.schedule(1, "quick"), shrink=False)
    assert "the round did not end within 0.2 s" in account.failures[0].error


@pytest.mark.parametrize("instead", ["pass", "yield {'name': 7, 'words': []}"], ids=["lost", "another"])
def test_one_sample_among_thousands_that_is_lost_or_another_is_noticed(instead: str) -> None:
    """The judge itself: a pass whose generator does something else at one sample is not the one of the oracle."""

    def falsify(bench: Bench, schedule: Schedule) -> Report:
        data: Dataset = nothing_but((500,) * 8, 3, 77, instead)
        read(bench, schedule, data)
        return Report()

    account = Account(scripted(falsify, events=0))
    schedule = Schedule("F0", 5, "quick", {"workers": 2, "by_clock": False})
    one_round(account, schedule, shrink=False)
    assert "AssertionError: batch " in account.failures[0].error


_QUICK = {("one", "lost"), ("ranks", "exchanged"), ("dynamic", "twice"), ("ranks", "another fact")}


@pytest.mark.parametrize(
    ("share", "how"),
    [
        pytest.param(share, how, marks=() if (share, how) in _QUICK else pytest.mark.slow)
        for share in ["one", "ranks", "dynamic"]
        for how in ["lost", "twice", "exchanged", "another fact"]
    ],
)
def test_one_batch_that_is_lost_twice_or_another_is_noticed_whoever_had_it(
    share: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge of trainers whose service is killed: what they say of one batch is made false after they have ended."""
    judge = JobTrainers.judge

    def falsified(self: JobTrainers, *given: Any) -> int:
        assert judge(self, *given) > 100
        kept = self.kept._given[-1]
        *place, one = kept[7]
        instead = {
            "lost": [],
            "twice": [one, one],
            "exchanged": [replace(one, line=kept[8][-1].line)],
            "another fact": [replace(one, early_ends=((0, 1),))],
        }[how]
        kept[7:8] = [(*place, each) for each in instead]
        return judge(self, *given)

    monkeypatch.setattr(JobTrainers, "judge", falsified)
    setup = {
        "counts": [200] * 8, "pool_size": 300, "share": share, "trainers": 1 if share == "one" else 2,
        "last_batch": "keep", "shuffle": True, "cached": False, "buckets": 0, "raising": [], "workers": 1, "every": 5,
        "prefetch": 2, "pause": 0.0,
    }  # fmt: skip
    account = Account(FAULTS["F3"])
    one_round(account, Schedule("F3", 5, "quick", setup, (Event("kill", 20, 0.5),)), shrink=False)
    assert "AssertionError: pass 0" in account.failures[0].error
    assert "in falsified" in account.failures[0].error.rpartition("judge(self, *given)")[0]


def test_the_checksum_of_a_batch_depends_on_order_and_content() -> None:
    names = expected((30, 30), -1, 8, 1).names
    assert sorted(names.tolist()) == [file << 32 | y for file in range(2) for y in range(30)]
    assert sign_expected(names) != sign_expected(names[::-1])
    words, starts = words_of(np.array([1 << 32 | 3]))
    assert (words.tolist(), starts.tolist()) == ([22, 35, 48, 61], [0, 4])

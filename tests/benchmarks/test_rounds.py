"""Runs in processes of their own, their rounds, and the whole program on very little data."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import data, latency, prepared, rounds, single_run
from benchmarks.__main__ import parser
from benchmarks.job import BATCH, PREPARED, WORKLOADS, Job

from .conftest import ROOT

SCALE = 0.001
LIBRARIES = {"torch": "torch", "spdl": "spdl", "grain": "grain", "tf": "tensorflow", "paddle": "paddle", "ray": "ray"}
ABSENT = [peer for peer, library in LIBRARIES.items() if importlib.util.find_spec(library) is None]


@given(
    st.builds(
        Job, st.sampled_from(sorted(single_run.PEERS)), st.sampled_from(sorted(WORKLOADS)), st.text(),
        st.integers(1, 64), st.integers(0, 9),
        st.lists(st.tuples(st.text(), st.one_of(st.booleans(), st.text())), unique_by=lambda o: o[0]).map(tuple),
    )
)  # fmt: skip
def test_a_job_is_read_from_its_argument(job: Job) -> None:
    assert single_run.from_argument(single_run.to_argument(job)) == job


@given(st.integers(1, 12))
def test_within_as_many_rounds_as_contestants_each_stands_at_each_place_once(many: int) -> None:
    contestants = [rounds.Contestant(str(n), "bare") for n in range(many)]
    orders = [rounds.alternating(contestants, number) for number in range(many)]
    for place in zip(*orders, strict=True):
        assert Counter(place) == Counter(contestants)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1))
def test_a_run_is_tried_until_it_was_undisturbed_three_times_at_most(shares: list[float], others: float) -> None:
    results = [{"passes": [{"others": 0.0}, {"others": share}]} for share in shares]
    tried = iter(results)
    kept = rounds.disturbed(rounds.least_disturbed(lambda: next(tried), others))
    first = next((number for number, share in enumerate(shares) if share <= others), 2)
    assert kept == min(shares[: first + 1])
    assert list(tried) == results[first + 1 :]


def test_a_run_that_failed_is_not_tried_again() -> None:
    tried = iter([{"failed": "it fell over"}, {"passes": []}])
    assert rounds.least_disturbed(lambda: next(tried), 0.0) == {"failed": "it fell over"}


def test_every_peer_has_a_module_that_measures_and_names_its_versions() -> None:
    groups = (rounds.CONTESTANTS, rounds.TRAINING, *rounds.NATIVE.values())
    assert {contestant.peer for group in groups for contestant in group} == set(single_run.PEERS)
    for module in single_run.PEERS.values():
        text = (ROOT / f"benchmarks/peers/{module}.py").read_text("utf-8")
        assert "def measure(job: Job) -> list[dict]:" in text
        assert "def versions() -> dict[str, str]:" in text


def test_what_other_interpreters_import_does_not_import_pydp2(data_folder: Path) -> None:
    job = Job("bare", "words", str(data.make("words", data_folder, SCALE)), passes=1)
    run = "single_run.do(single_run.from_argument(sys.argv[1]))"
    code = f"import sys, json; from benchmarks import single_run; {run}; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code, single_run.to_argument(job)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "benchmarks.peers.bare" in said
    assert [name for name in said if name.partition(".")[0] in ("pydp2", "zmq", "msgpack", "rich")] == []


@pytest.mark.parametrize("peer", ABSENT[:1])
def test_a_peer_that_is_not_installed_is_said_to_be_absent(peer: str, data_folder: Path) -> None:
    job = Job(peer, "words", str(data.make("words", data_folder, SCALE)))
    assert rounds.run(job, sys.executable) == {"absent": f"{LIBRARIES[peer]} is not installed"}


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    result = rounds.run(Job("bare", "rows", str(tmp_path / "nowhere")), sys.executable)
    assert result["failed"].startswith("FileNotFoundError")
    assert "Traceback" in result["complained"]


def test_a_run_that_takes_too_long_is_ended(data_folder: Path) -> None:
    job = Job("pydp2", "words", str(data.make("words", data_folder, SCALE)), passes=100_000)
    result = rounds.run(job, sys.executable, deadline=1.0)  # the fixture of all tests sees that nothing is left
    assert result["failed"].startswith("killed by signal 9")


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        pytest.param("mnist_text", (), marks=pytest.mark.slow),
        ("words", (("order", "relaxed"),)),
        ("ctr", (("cache", True),)),
        pytest.param("rows", (), marks=pytest.mark.slow),
    ],
)
def test_pydp2_does_every_workload(workload: str, options: Any, data_folder: Path) -> None:
    job = Job("pydp2", workload, str(data.make(workload, data_folder, SCALE)), options=options)
    result = rounds.run(job, sys.executable, watch=True)
    assert [p["samples"] for p in result["passes"]] == [job.total().samples] * 2
    assert result["peak"] > 30 << 20
    assert result["start"] > 0
    assert all(p["cpu"] >= 0 for p in result["passes"])  # ticks of 10 ms, which so small a pass need not fill


def test_the_program_measures_shows_and_draws(tmp_path: Path) -> None:
    def program(*arguments: str) -> str:
        command = [sys.executable, "-m", "benchmarks", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    file = tmp_path / "result.json"
    given = ["--workload", "rows", "--peer", *ABSENT[:1], "--rounds", "1", "--scale", str(SCALE)]
    shown = program("run", *given, "--data", str(tmp_path), "--json", str(file))
    result = json.loads(file.read_text())
    ran = [run["contestant"] for run in result["runs"]]
    assert Counter(ran) == dict.fromkeys(("bare", "pydp2", "pydp2 relaxed", "pydp2 cached"), 2)
    assert ran[0] != ran[4]
    assert all("passes" in run for run in result["runs"])
    assert "rows, 2 workers (medians of 1 alternating rounds)" in shown
    assert "strict order has" in shown
    assert all(f"left out: {name}, rows" in shown for name in (c.name for c in rounds.CONTESTANTS if c.peer in given))
    assert program("table", str(file)) == shown
    assert "| pydp2 |" in program("table", str(file), "--markdown")
    if importlib.util.find_spec("matplotlib"):
        program("plot", str(file), str(tmp_path / "picture.png"))
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def measured(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The result of a command that measures, and what it printed; ``table`` prints the same."""
    file = tmp_path / "result.json"
    program = [sys.executable, "-m", "benchmarks"]
    shown = ""
    for command in ([*arguments, "--data", str(tmp_path), "--json", str(file)], ["table", str(file)]):
        done = subprocess.run([*program, *command], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert shown in ("", done.stdout)
        shown = done.stdout
    return json.loads(file.read_text()), shown


@pytest.mark.slow
def test_a_peer_with_a_format_of_its_own_writes_it_once(tmp_path: Path) -> None:
    given = ["--workload", "rows", "--peer", "memmap", "--rounds", "1", "--scale", str(SCALE)]
    result, shown = measured(tmp_path, "native", *given)
    assert [run["contestant"] for run in result["runs"]] == ["memmap", "pydp2"]
    assert all("passes" in run for run in result["runs"]), result["runs"]
    assert "best peer: memmap" in shown
    (written,) = tmp_path.glob("rows-*/memmap-*/rows.npy")
    before = written.stat().st_mtime_ns
    job = Job("memmap", "rows", str(data.make("rows", tmp_path, SCALE)))
    assert "passes" in rounds.run(job, sys.executable)
    assert written.stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_ceiling_is_measured_with_pydp2_alone(tmp_path: Path) -> None:
    given = ["--kind", "dense", "--form", "blocks", "single", "--peer", "--workers", "1", "--rounds", "1"]
    result, shown = measured(tmp_path, "ceiling", *given, "--scale", str(SCALE))
    assert [run["workload"] for run in result["runs"]] == [
        "dense_blocks", "dense_single",
    ]  # fmt: skip
    for run in result["runs"]:
        assert run["contestant"] == "pydp2"
        assert len(run["passes"]) == 2
        assert all(p["server_cpu"] is not None and p["trainer_cpu"] > 0 for p in run["passes"])
    assert "dense_single, 1 workers (medians of 1 alternating rounds)" in shown
    assert "carries" in shown


def test_latency_is_measured_with_pydp2_alone(tmp_path: Path) -> None:
    given = ["--workload", "words", "--peer", "--rounds", "1", "--step", "5"]
    result, shown = measured(tmp_path, "latency", *given, "--scale", "0.01")
    (run,) = result["runs"]
    (only,) = run["passes"]
    assert only["felt"]["steps"] == -(-only["samples"] // BATCH) - latency.SKIPPED
    assert 0 < only["felt"]["p50"] <= only["felt"]["p99"] <= only["felt"]["max"]
    assert only["seconds"] >= 0.005 * (only["felt"]["steps"] + latency.SKIPPED - 1)
    assert "not ready" in shown
    assert "words: a step of 5 ms" in shown


def test_workers_of_another_host_are_measured_beside_those_of_this_one(tmp_path: Path) -> None:
    given = ["--workload", "ragged_blocks", "--rounds", "1", "--workers", "1", "--scale", "0.05"]
    result, shown = measured(tmp_path, "hosts", *given)
    elsewhere = {"pydp2 workers", "pydp2 hosts", "pydp2 row server"}
    assert {run["contestant"] for run in result["runs"]} == {"pydp2", "pydp2 keys"} | elsewhere
    for run in result["runs"]:
        assert "passes" in run, run
        one = run["passes"][-1]
        assert 0 < one["server_thread_cpu"] <= one["server_cpu"] + 0.1
        assert (one["agent_cpu"] is not None) == (run["contestant"] in elsewhere)
    assert "ragged_blocks, 1 workers (medians of 1 alternating rounds)" in shown
    assert "thread us" in shown


def test_two_hosts_take_part_where_each_has_as_many_workers() -> None:
    def names(*workers: int) -> list[str]:
        return [one.name for one in rounds.Plan(hosts=True, workers=workers).contestants("words")]

    assert "pydp2 2 row servers" in names(2, 4)
    assert "pydp2 2 row servers" not in names(2, 3)


def test_a_pass_that_is_too_short_for_its_latency_fails(data_folder: Path) -> None:
    job = Job("pydp2", "words", str(data.make("words", data_folder, SCALE)), options=(("step", 1.0),))
    result = rounds.run(job, sys.executable)
    assert "the first 20 batches of a pass are left out, and it had 4" in result["failed"]


def test_a_program_that_is_ended_ends_what_it_runs(data_folder: Path) -> None:
    given = ["--workload", "words", "--peer", "--rounds", "1000", "--scale", str(SCALE), "--data", str(data_folder)]
    command = [sys.executable, "-m", "benchmarks", "run", *given]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
        assert program.stderr is not None
        assert b"words" in program.stderr.readline()  # one run is through, and the next one is under way
        program.terminate()
        program.stderr.read()  # the fixture of all tests sees that nothing is left
        assert program.wait(30) == 143


def test_the_command_line_takes_several_numbers_of_workers_and_interpreters() -> None:
    given = parser().parse_args(["run", "--workers", "1,2,4", "--python", "tf=/a/b", "--python", "ray=/c"])
    assert given.workers == (1, 2, 4)
    assert given.python == ["tf=/a/b", "ray=/c"]
    assert given.workload == list(WORKLOADS)


def test_the_plans_of_ceiling_and_latency_have_each_loader_in_one_way() -> None:
    plan = rounds.Plan(peers=("spdl", "torch"), plain=True, passes=1, options={"rows": (("step", 3.0),)})
    assert [one.name for one in plan.contestants("rows")] == ["pydp2", "torch", "spdl"]
    assert plan.job(plan.contestants("rows")[0], "rows", Path("x"), 1) == Job(
        "pydp2", "rows", "x", 1, 1, (("step", 3.0),)
    )
    assert plan.job(plan.contestants("rows")[0], "words", Path("x"), 1).options == ()
    given = parser().parse_args(["ceiling"])
    assert {prepared.named(kind, form) for kind in given.kind for form in given.form} == set(PREPARED)
    assert given.workers == (1, 2)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "long"])
def test_a_step_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["latency", "--step", text])

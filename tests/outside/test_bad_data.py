"""Data of which some is bad: where the pass ends, what is written down, what a file that changed does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import BadSample, BudgetExceeded, FileCondemned, NotRepeatable, OptionError
from pydp2.page.view import view_of

from ..provider_code import lines as lines_of_file
from ..provider_code import yields
from ..runs import Seen, consume, one_pass

BAD = """
@provider(input_types=[integer_value(1000)], pool_size=60, check=True, check_fail_continue=True)
def process(settings, filename):
    number = int(filename[1:])
    for i in range(100):
        if number % 4 == 3 and i == 70:
            raise LookupError("no more of this one")
        yield number * 100 % 1000 + i if i % 10 != number else -1
"""
FILES = [f"f{i}" for i in range(12)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 3, "on_error": "skip"}


def text(error: Exception | None) -> str:
    return str(error).splitlines()[0]


def shuffled(address: str, **options: Any) -> Seen:
    with pydp2.load(FILES, address, **OPTIONS | options) as data:
        return consume(data)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("budget", [0, 5, pytest.param(30, marks=pytest.mark.slow), 0.06])
def test_an_exceeded_budget_ends_the_pass_at_the_same_place_on_any_number_of_workers(
    budget: float, provider_file: Callable[..., str], tmp_path: Path
) -> None:
    address = provider_file(BAD)
    found = []
    for workers in (1, 2, 4):
        path = tmp_path / f"bad-{workers}.jsonl"
        seen = shuffled(address, workers=workers, error_budget=budget, quarantine=path)
        assert isinstance(seen.error, BudgetExceeded)
        assert f"error_budget={budget} allows" in seen.text
        assert "The last one: file f" in seen.text
        found.append((seen.batches, seen.text, path.read_text()))
    assert found[0] == found[1] == found[2]
    if budget == 5:
        assert len(lines(tmp_path / "bad-1.jsonl")) == 6
    whole = shuffled(address, workers=2)
    assert whole.error is None
    assert whole.batches[: len(found[0][0])] == found[0][0]  # every full batch before it, and the same ones
    assert bool(found[0][0]) == (budget not in (0, 5))  # these fall into the first fill of the pool


def test_a_budget_that_holds_changes_nothing_and_counts_each_pass_by_itself(
    provider_file: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.load(FILES, provider_file(BAD), **OPTIONS, error_budget=97) as data:
        assert [consume(data).error for _ in range(3)] == [None] * 3
    assert "pass 2: 94 bad samples were dropped" in capfd.readouterr().err


def test_the_count_survives_a_restore_into_another_service(provider_file: Callable[..., str]) -> None:
    address = provider_file(BAD)
    for budget in (40, 0.08):
        whole, states = Seen(), []
        with pydp2.load(FILES, address, **OPTIONS, error_budget=budget) as data:
            whole = consume(data, lambda _, data=data, states=states: states.append(json.dumps(data.state_dict())))
        assert isinstance(whole.error, BudgetExceeded)
        for k in (1, len(states) // 2, len(states) - 1):
            with pydp2.load(FILES, address, **OPTIONS, error_budget=budget, workers=1) as data:
                data.load_state_dict(json.loads(states[k]))
                rest = consume(data)
            assert (rest.batches, text(rest.error)) == (whole.batches[k + 1 :], text(whole.error))


def test_a_loss_is_written_down_when_the_trainer_hears_of_the_end_of_its_pass(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    code = yields("integer_value(9)", "[-1]", "check=True, check_fail_continue=True")
    path = tmp_path / "bad.jsonl"
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=1, quarantine=path) as data:
        for number in range(300):
            assert [*data] == []
            assert lines(path)[-1]["pass"] == number


def test_every_loss_is_a_line_of_the_quarantine_and_never_two(
    provider_file: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not after a rewind, not with another service, and in a later pass it is a line of its own."""
    address, path = provider_file(BAD), tmp_path / "bad.jsonl"
    with pydp2.load(FILES, address, **OPTIONS, quarantine=path) as data:
        state = None
        for batch in data:
            if batch.index == 30:
                state = data.state_dict()
        once = lines(path)
        assert state is not None
        data.load_state_dict(state)
        list(data)
        assert lines(path) == once
    with pydp2.load(FILES, address, **OPTIONS, quarantine=str(path)) as data:
        data.load_state_dict(state)
        list(data)
        assert lines(path) == once
        list(data)
    assert len(lines(path)) == 2 * len(once)
    assert {line["pass"] for line in lines(path)} == {0, 1}
    dropped = [line for line in once if line["kind"] == "dropped"]
    raised = [line for line in once if line["kind"] == "raised"]
    assert (len(dropped), len(raised)) == (94, 3)
    assert {(line["file"], line["y"]) for line in raised} == {("f3", 70), ("f7", 70), ("f11", 70)}
    assert dropped[0]["slot"] == "slot 0"
    assert dropped[0]["reason"] == "expected a value from 0 to 999, got -1" or "got -1" in dropped[0]["reason"]
    assert "no more of this one" in raised[0]["reason"]
    assert "dropped: file f" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("item", "error", "slot"),
    [("-1", BadSample, {"slot": "slot 0"}), ("os.kill(os.getpid(), 9)", FileCondemned, {})],
    ids=["bad sample", "killed worker"],
)
def test_the_service_logs_once_that_a_pass_ended_with_an_error(
    item: str, error: type[Exception], slot: dict[str, str], provider_file: Callable[..., str]
) -> None:
    code = f"""
    import os

    @provider(input_types=[integer_value(9)])
    def process(settings, filename):
        for i in range(9):
            yield {item} if (filename, i) == ("b", 5) else i
    """
    with pydp2.launch(["a", "b"], provider_file(code), workers=1) as service:
        ranks = [service.connect(rank=rank, world_size=2, batch_size=4, job="train") for rank in range(2)]
        for data in ranks:
            assert isinstance(consume(data).error, error)
        (failed,) = [event for event in service.stats()["events"] if event["event"] == "pass_failed"]
        for data in ranks:
            data.close()
    assert failed["level"] == "error"
    assert failed["about"] == {"job": "train", "file": "b", "sample": "5", **slot}
    assert failed["text"].startswith("job 'train': pass 0 ends with an error: file b, sample 5")


@pytest.mark.parametrize(
    ("item", "packed", "slot"),
    [("[-1], [1]", [], "slot 0"), ("[-1], [1]", [0, 1], "slot 0"), ("[1], [1, 2]", [0, 1], "slot 1")],
    ids=["mixed", "mixed and packed", "packed, of unequal length"],
)
def test_the_log_names_the_sample_that_ends_a_pass_of_a_mixture(
    item: str, packed: list[int], slot: str, provider_file: Callable[..., str]
) -> None:
    code = f"""
    @provider(input_types=[integer_value_sequence(9), integer_value_sequence(9)])
    def process(settings, filename):
        for i in range(9):
            yield ({item}) if (filename, i) == ("b", 5) else ([i], [i])
    """
    with pydp2.launch(["a", "b"], provider_file(code), workers=1) as service:
        data = pydp2.mix({"all": 1}, address=service.address, batch_size=4, job="train")
        with pydp2.pack_sequences(data, slot=packed, length=4, batch_size=2) if packed else data as stream:
            assert isinstance(consume(stream).error, BadSample)
        (failed,) = [event for event in service.stats()["events"] if event["event"] == "pass_failed"]
    job = "train.packed" if packed else "train"
    assert failed["about"] == {"job": job, "file": "b", "sample": "5", "slot": slot}


def test_who_does_not_get_the_exception_finds_the_error_in_the_log(
    provider_file: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = "import sys, pydp2\nwith pydp2.connect(sys.argv[1], batch_size=4) as data: list(data)"
    with pydp2.launch(["a"], provider_file(yields("integer_value(9)", "[1, 2, -1]")), workers=1) as service:
        with service.connect(batch_size=4) as data:
            assert isinstance(consume(data).error, BadSample)
        assert capfd.readouterr().err == "", "the exception says it"
        assert subprocess.run([sys.executable, "-c", trainer, service.address], check=False, timeout=60).returncode == 1
    assert "pydp2: failed: pass 0 ends with an error: file a, sample 2" in capfd.readouterr().err


def test_figures_tell_how_many_were_dropped_of_the_pass_that_is_over(provider_file: Callable[..., str]) -> None:
    code = yields("integer_value(100)", "range(150)", "check=True, check_fail_continue=True")
    with pydp2.load(["a"], provider_file(code), batch_size=20, workers=1) as data:
        for number in range(2):
            assert sum(len(batch) for batch in data) == 100
            figures = data.stats()
            assert [figures[name] for name in ("pass", "samples_in_pass", "dropped")] == [number, 100, 50]


def test_figures_tell_how_many_files_were_cut_short(
    provider_file: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    job = {name: value for name, value in OPTIONS.items() if name != "on_error"}
    with (
        pydp2.launch(FILES, provider_file(BAD), on_error="skip", workers=1) as service,
        service.connect(**job) as data,
    ):
        assert service.stats()["ended_early"] == 0
        assert consume(data).error is None
        found = service.stats()
    assert found["ended_early"] == found["jobs"]["default"]["ended_early"] == 3
    assert ["files cut short in a pass", 3] in view_of(found, found)["losses"]
    assert "pass 0: 94 bad samples were dropped and 3 files were cut short\n" in capfd.readouterr().err


def test_files_that_kill_or_hang_are_in_the_quarantine_too(provider_file: Callable[..., str], tmp_path: Path) -> None:
    code = """
    import os, time

    @provider(input_types=[integer_value(100)])
    def process(settings, filename):
        for i in range(10):
            if i == 4 and filename == "kills":
                os._exit(3)
            if i == 6 and filename == "hangs":
                time.sleep(1000)
            yield i
    """
    path = tmp_path / "bad.jsonl"
    seen = one_pass(
        ["fine", "kills", "hangs"], provider_file(code), on_error="skip", sample_timeout=1.0, quarantine=path,
        error_budget=2,
    )  # fmt: skip
    assert (len(seen.samples), seen.error) == (20, None)
    assert [(line["file"], line["y"], line["kind"]) for line in lines(path)] == [
        ("kills", 4, "condemned"), ("hangs", 6, "timed out"),
    ]  # fmt: skip
    assert "three workers died" in lines(path)[0]["reason"]
    assert [line.get("sample_timeout") for line in lines(path)] == [None, 1.0]


def test_many_files_may_end_early_also_before_the_first_batch_and_in_a_state(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    """More than the header of a message could tell of."""
    code = """
    @provider(input_types=[integer_value(10)])
    def process(settings, filename):
        yield 1
        raise LookupError("gone, for a reason that takes many words to tell " * 5)
    """
    address, files = provider_file(code), [f"{n:0100}" for n in range(1000)]
    with pydp2.load(files, address, batch_size=64, on_error="skip", quarantine=tmp_path / "bad.jsonl") as data:
        states: list[str] = []
        whole = consume(data, lambda _: states.append(json.dumps(data.state_dict())))
        assert (whole.error, len(whole.samples)) == (None, 1000)
        assert len(json.loads(states[0])["early_ends"]) == 1000
        data.load_state_dict(json.loads(states[3]))
        assert consume(data).batches == whole.batches[4:]
    assert len(lines(tmp_path / "bad.jsonl")) == 1000


def test_names_that_are_no_plain_text_are_written_and_read_back(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    code = yields("integer_value(10)", "[-1]", "check=True, check_fail_continue=True")
    names, path = ["a\u2028b", 'q"uote', "日本", " blank ", "tab\tbed"], tmp_path / "schlecht ä.jsonl"
    assert one_pass(names, provider_file(code), quarantine=path).error is None
    assert [json.loads(line)["file"] for line in path.read_bytes().decode("utf-8").split("\n")[:-1]] == names


def test_a_quarantine_that_cannot_be_written_is_an_error_at_start(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(
        OptionError, match=r"quarantine='.*nowhere/bad.jsonl' must be a file that can be written: No su"
    ):
        pydp2.launch(["f"], provider_file(BAD), quarantine=tmp_path / "nowhere/bad.jsonl")


# -- files that change -------------------------------------------------------------------------------------------------
CHANGING = """
import os, time

@provider(input_types=[integer_value(100_000)])
def process(settings, filename):
    run = 0
    if filename == "odd":
        run = len(os.listdir("runs"))
        open(f"runs/{run}", "w").close()
    for i in range(%s):
        if filename == "odd" and run == 0 and i == 30:
            while not os.path.exists("seen"):
                time.sleep(0.001)
            os._exit(1)
        yield run * 1000 + i
"""


@pytest.fixture
def changing(provider_file: Callable[..., str], tmp_path: Path) -> Callable[..., Seen]:
    """``changing(code, **options)``: a pass over two files; "odd" dies at its sample 30, once 16 were delivered."""
    (tmp_path / "runs").mkdir()

    def one(code: str, **options: Any) -> Seen:
        options = {"root": tmp_path, "workers": 2, "batch_size": 4, "shuffle": False} | options
        with pydp2.load(["odd", "b"], provider_file(code), **options) as data:
            return consume(data, lambda batch: batch.index == 3 and (tmp_path / "seen").touch())

    return one


def test_a_file_that_changed_ends_the_pass_by_default_and_the_log_says_nothing_else(
    changing: Callable[..., Seen], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = changing(CHANGING % "50")
    assert isinstance(seen.error, NotRepeatable)
    assert "file odd" in seen.text
    said = capfd.readouterr().err
    assert "goes on" not in said
    assert "on_changed" not in said


def test_a_file_that_changed_and_is_left_out_is_not_said_to_go_on(
    changing: Callable[..., Seen], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = changing(CHANGING % "50", on_error="skip")
    assert seen.error is None
    assert seen.samples[-50:] == [*range(50)]
    said = capfd.readouterr().err
    assert said.count("the rest of a file is left out: file odd: process() did not repeat itself") == 1
    assert "goes on with" not in said


def test_a_file_that_changed_is_named_once_and_goes_on_with_what_it_gives_now(
    changing: Callable[..., Seen], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = changing(CHANGING % "50", on_changed="warn")
    assert seen.error is None
    odd = seen.samples[:50]
    cut = next(i for i, value in enumerate(odd) if value >= 1000)  # what was committed when the first run died
    assert odd == [*range(cut), *range(1000 + cut, 1050)]
    assert 16 <= cut <= 30
    assert seen.samples[50:] == [*range(50)]
    said = capfd.readouterr().err
    assert said.count("file odd: process() did not repeat itself when it was run again; the pass goes on") == 1


def test_a_file_that_became_shorter_than_what_was_delivered_ends_there(
    changing: Callable[..., Seen], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = changing(CHANGING % "(50 if run == 0 else 3)", on_changed="warn")
    assert seen.error is None
    odd = seen.samples[:-50]
    assert odd == [*range(len(odd))]
    assert 16 <= len(odd) <= 30
    assert capfd.readouterr().err.count("changed: file odd") == 1


def test_a_file_that_raises_where_it_gave_samples_before_raises(changing: Callable[..., Seen]) -> None:
    code = CHANGING.replace("yield run", "if run and filename == 'odd': raise LookupError('gone')\n        yield run")
    seen = changing(code % "50", on_changed="warn")
    assert isinstance(seen.error, LookupError)
    assert "file odd, sample 0: process raised LookupError" in seen.text


@pytest.mark.parametrize("lines", [["1"], ["-1"] * 300], ids=["it has nearly none", "all of them are bad"])
def test_a_state_whose_samples_a_file_does_not_have_any_more_is_refused_although_changes_are_borne_with(
    lines: list[str], provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    code = lines_of_file("pool_size=200, check=True, check_fail_continue=True", slot="integer_value(100_000)")
    files = text_files([[f * 1000 + i for i in range(300)] for f in range(4)])
    job: dict[str, Any] = {"batch_size": 16, "seed": 5, "on_changed": "warn"}
    with pydp2.load(files, provider_file(code), **job) as data:
        stream = iter(data)
        for _ in range(70):
            next(stream)
        state = data.state_dict()
        Path(files[2]).write_text("".join(f"{7000 + i}\n" for i in range(300)))  # other samples
        data.load_state_dict(state)
        assert consume(data).error is None
        Path(files[2]).write_text("".join(f"{line}\n" for line in lines))
        data.load_state_dict(state)
        seen = consume(data)
    assert isinstance(seen.error, NotRepeatable)
    assert f"file {files[2]}: process() did not repeat itself" in seen.text


def test_a_worker_that_is_killed_changes_no_count(provider_file: Callable[..., str], tmp_path: Path) -> None:
    """Where the budget ends the pass is not where a worker was."""
    address = provider_file(BAD)
    expected = shuffled(address, error_budget=60)
    killed: list[int] = []
    with (
        pydp2.launch(FILES, address, workers=2, on_error="skip", error_budget=60) as service,
        service.connect(batch_size=16, seed=3) as data,
    ):

        def kill(batch: pydp2.Batch) -> None:
            if batch.index % 10 == 3:
                # those that follow may still be starting: what is read ahead outlasts that
                for victim in [w for w in service.stats()["workers"] if w["active"]][:1]:
                    with contextlib.suppress(ProcessLookupError):  # killed before, and only now cleared away
                        os.kill(victim["pid"], signal.SIGKILL)
                        killed.append(victim["pid"])

        seen = consume(data, kill)
    assert killed
    assert (seen.batches, text(seen.error)) == (expected.batches, text(expected.error))


SAYS_SO = """
from pydp2.errors import BadSample

@provider(input_types={"x": integer_value(1000), "y": dense_vector(1)}, pool_size=20, min_pool_size=0{more})
def process(settings, filename):
    number = int(filename[1:])
    for i in range(30):
        if i % 7 == number:
            yield BadSample("damaged", slot="x", expected="a record", got=f"damage {i}")
        else:
            yield {"x": number * 30 + i, "y": [float(i)]}
"""
YIELDED = ["f0", "f3", "f5"]


def said(address: str, path: Path, **options: Any) -> tuple[Seen, list[dict[str, Any]]]:
    with pydp2.load(YIELDED, address, batch_size=7, seed=1, quarantine=path, **options) as data:
        seen = consume(data)
    return seen, lines(path) if path.exists() else []


@pytest.mark.parametrize("more", ["", ", calc_batch_size=lambda sample: 2"], ids=["plain", "weighted"])
def test_a_bad_sample_that_the_provider_yields_is_dropped_alone(
    more: str, provider_file: Callable[..., str], tmp_path: Path
) -> None:
    address = provider_file(SAYS_SO.replace("{more}", more))
    bad = [(file, i) for file in YIELDED for i in range(30) if i % 7 == int(file[1:])]
    found = [said(address, tmp_path / f"{n}.jsonl", on_error="skip", workers=n) for n in (1, 3)]
    assert [found[0][0].batches, found[0][1]] == [found[1][0].batches, found[1][1]]
    assert found[0][0].error is None
    assert sorted((line["file"], line["y"]) for line in found[0][1]) == bad
    assert {line["reason"] for line in found[0][1] if line["y"] == 7} == {"expected a record, got damage 7"}
    assert sorted(found[0][0].samples) == [
        int(file[1:]) * 30 + i for file in YIELDED for i in range(30) if (file, i) not in bad
    ]


def test_a_bad_sample_that_the_provider_yields_ends_the_pass_unless_errors_are_skipped(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    seen, _ = said(provider_file(SAYS_SO.replace("{more}", "")), tmp_path / "q", workers=2)
    assert re.search(r"sample (\d), slot x: expected a record, got damage \1$", text(seen.error))
    dropping = provider_file(SAYS_SO.replace("{more}", ", check=True, check_fail_continue=True"))
    seen, losses = said(dropping, tmp_path / "q", workers=2)
    assert (seen.error, len(losses)) == (None, 13)

"""``replay``: what becomes of each line of a quarantine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.diagnostics.replay import BAD, DAMAGED, GONE, GOOD, NO_FILE, Replay
from pydp2.errors import OptionError
from pydp2.server.actions import TIMED_OUT, Loss
from pydp2.server.quarantine import _KINDS, _line, read

READS = """
import os, time

@provider(input_types={{"n": integer_value(100)}}{more})
def process(settings, filename):
    with open("opened", "a") as log:
        log.write(filename + " ")
    with open(filename) as lines:
        for line in lines:
            word = line.strip()
            if word == "dies":
                os._exit(3)
            if word == "crashes":
                os.kill(os.getpid(), 9)
            if word == "hangs":
                time.sleep(1000)
            yield {{"n": Odd() if word == "odd" else int(word)}}

class Odd:
    def __index__(self):
        return 1 // 0
"""
DROPS = ", check=True, check_fail_continue=True"
Run = Callable[..., Replay]


def line(file: str, y: int, kind: str = "dropped", reason: str = "", pass_id: int = 0, **more: Any) -> str:
    return json.dumps({"pass": pass_id, "file": file, "y": y, "slot": "n", "reason": reason, "kind": kind} | more)


@pytest.fixture
def run(tmp_path: Path, provider_file: Callable[[str], str]) -> Run:
    """``run(files, lines, more)``: what replay says of these lines, with files of these words."""

    def one(files: dict[str, str], lines: list[str], more: str = DROPS) -> Replay:
        for name, words in files.items():
            (tmp_path / name).write_text("".join(f"{word}\n" for word in words.split()))
        (tmp_path / "bad.jsonl").write_text("".join(f"{each}\n" for each in lines), "utf-8")
        return pydp2.replay(tmp_path / "bad.jsonl", provider_file(READS.format(more=more)), root=tmp_path)

    return one


def verdicts(report: Replay) -> list[str]:
    return [each.verdict for each in report.verdicts]


def test_each_dropped_sample_is_bad_good_or_gone(run: Run, tmp_path: Path) -> None:
    files = {"a": "1 200 3", "b": "1 2", "c": "x"}
    report = run(files, [line("a", 1), line("a", 2), line("b", 5), line("a", 1, pass_id=3)])
    assert verdicts(report) == [BAD, GOOD, GONE, BAD]
    assert report.counts == {BAD: 2, NO_FILE: 0, GOOD: 1, GONE: 1, DAMAGED: 0}
    assert not report.ok
    bad = report.verdicts[0]
    assert (bad.line, bad.file, bad.sample, bad.kind, bad.slot) == (1, "a", 1, "dropped", "n")
    assert (bad.expected, bad.got) == ("an int in [0, 100)", "200 (int)")
    assert bad.text == "file a, sample 1, slot n: expected an int in [0, 100), got 200 (int)"
    assert (tmp_path / "opened").read_text().split() == ["a", "b"]  # once each, and no others


def test_a_sample_with_a_number_that_no_file_reaches_is_gone(run: Run) -> None:
    assert verdicts(run({"a": "1 200 3"}, [line("a", 10**20), line("a", 1)])) == [GONE, BAD]


def test_a_file_that_raised_has_to_come_to_its_end_now(run: Run) -> None:
    files = {"still": "1 2 x", "mended": "1 2 3", "later": "1 2 3 x", "shorter": "1", "same": "1 2"}
    report = run(files, [line(file, 2, "raised") for file in files])
    assert verdicts(report) == [BAD, GOOD, BAD, GONE, GOOD]
    assert report.verdicts[0].text.startswith("file still, sample 2: process raised ValueError")
    assert "in process\n" in report.verdicts[0].text
    assert "sample 3: process raised" in report.verdicts[2].text


@pytest.mark.parametrize(("more", "first"), [("", BAD), (DROPS, GOOD)])
def test_a_bad_sample_ends_its_file_only_where_none_are_dropped(more: str, first: str, run: Run) -> None:
    lines = [line("a", 1, "bad sample"), line("b", 1, "bad sample")]
    assert verdicts(run({"a": "1 2 300", "b": "1 2 3"}, lines, more)) == [first, GOOD]


@pytest.mark.parametrize("more", ["", DROPS])
@pytest.mark.parametrize("words", ["1 2 odd 3", "200 1 odd odd"])
def test_a_value_that_raises_ends_its_file_as_process_does(more: str, words: str, run: Run) -> None:
    """Samples behind it are looked at too, which a service does not do."""
    report = run({"a": words}, [line("a", 1, "raised"), line("a", 3)], more)
    assert verdicts(report) == [BAD, BAD]
    assert "file a, sample 2: process raised ZeroDivisionError" in report.verdicts[0].text


def test_a_dropped_sample_behind_a_place_where_the_file_raises_now_is_bad(run: Run) -> None:
    report = run({"a": "1 x 3"}, [line("a", 0), line("a", 2)])
    assert verdicts(report) == [GOOD, BAD]
    assert "file a, sample 1: process raised ValueError" in report.verdicts[1].text


def test_a_file_that_is_not_there_is_missing_and_still_bad_if_that_was_what_was_wrong(run: Run, tmp_path: Path) -> None:
    lines = [
        line("a", 1), line("b", 0, "raised", exception="FileNotFoundError"),
        line("c", 0, "raised", exception="KeyError"), line("d", 0, "ended early"),
    ]  # fmt: skip
    report = run({}, lines)
    assert verdicts(report) == [NO_FILE, BAD, NO_FILE, BAD]
    assert report.verdicts[0].text == (
        f"file a must be there to be read again, and is not; relative paths start at {tmp_path}: run this where the "
        "service ran, or name that folder as root; if it is gone for good, remove its lines"
    )
    absolute = tmp_path / "a"
    report = run({}, [line(str(absolute), 1)])
    assert (verdicts(report), report.ok) == ([NO_FILE], False)
    assert "is not; put it back; if it" in report.verdicts[0].text


def test_what_the_text_of_an_error_says_decides_nothing(run: Run) -> None:
    """Texts have names of files and words of the user's in them."""
    name = "FileNotFoundError"
    reason = f"file {name}, sample 0: process raised KeyError; one sample took longer than sample_timeout=0.001 s"
    report = run(
        {"slow": "1 2"}, [line(name, 0, "raised", reason, exception="KeyError"), line("slow", 1, "condemned", reason)]
    )
    assert verdicts(report) == [NO_FILE, GOOD]


@pytest.mark.parametrize(
    ("word", "how"), [("dies", "ended with exit code 3"), ("crashes", "was killed by SIGKILL")], ids=["exit", "kill"]
)
def test_a_file_that_kills_its_process_is_bad_and_the_others_are_looked_at(run: Run, word: str, how: str) -> None:
    files = {"kills": f"1 2 {word}", "mended": "1 2 3", "c": "500"}
    report = run(files, [line("kills", 2, "condemned"), line("mended", 2, "condemned"), line("c", 0)])
    assert verdicts(report) == [BAD, GOOD, BAD]
    assert report.verdicts[0].text == f"file kills, sample 2: the process that ran process() {how}"


def test_a_file_that_hangs_has_the_time_that_it_had(run: Run) -> None:
    files = {"hangs": "1 hangs", "mended": "1 2 500"}
    slow = {"kind": "timed out", "sample_timeout": 2.0}
    report = run(files, [line("hangs", 1, **slow), line("mended", 1, **slow), line("mended", 2)])
    assert verdicts(report) == [BAD, GOOD, BAD]
    assert report.verdicts[0].text == (
        "file hangs, sample 1: the process that ran process() was killed because one sample took longer than "
        "sample_timeout=2 s"
    )


def test_a_file_that_is_no_quarantine_is_refused(run: Run) -> None:
    with pytest.raises(OptionError, match=r"must be a file that a service wrote .* none of its 2 lines .*: it is no J"):
        run({"a": "500"}, ["0 1", "2 3"])


def test_damaged_lines_are_named_and_stop_nothing(run: Run, tmp_path: Path) -> None:
    damaged = [
        "not json", "[]", "3", '{"pass": 0}', line("a", -1), line("a", 0).replace('"a"', "7"), "",
        line("a", 0).replace('"a"', '"\\udcff"'), '{"pass": tru', "[" * 100_000, line("a", 0, "timed out"),
        line("a", 0, "timed out", sample_timeout=0), line("a", 0, "timed out", sample_timeout=float("nan")),
        line("a", 0, "timed out", sample_timeout=True), line("a", 0, "raised", exception=3), line("a", 0, "lost"),
    ]  # fmt: skip
    report = run({"a": "500"}, [*damaged, line("a", 0)])
    assert [each.line for each in report.verdicts] == [1, 2, 3, 4, 5, 6, *range(8, 18)]
    assert verdicts(report) == [DAMAGED] * 15 + [BAD]
    assert [each.text for each in report.verdicts[:6]] == [
        "it is no JSON", "it is no JSON object", "it is no JSON object", "'file' is missing",
        "'y' must be a whole number from 0, got -1", "'file' must be a text, got 7",
    ]  # fmt: skip
    assert [each.text for each in report.verdicts[9:15]] == [
        "'sample_timeout' is missing", "'sample_timeout' must be a number of seconds above 0, got 0",
        "'sample_timeout' must be a number of seconds above 0, got nan",
        "'sample_timeout' must be a number of seconds above 0, got True", "'exception' must be a text, got 3",
        "'kind' must be one of dropped, raised, condemned, timed out, bad sample, not repeated, ended early, got "
        "'lost'",
    ]  # fmt: skip
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\n")
    assert [text for _, text in read(tmp_path / "bad.jsonl")] == ["it is not UTF-8"]


def test_an_empty_quarantine_is_fine_and_one_that_is_not_there_an_error(run: Run, tmp_path: Path) -> None:
    report = run({}, [])
    assert (report.ok, report.verdicts) == (True, [])
    with pytest.raises(OptionError, match=r"the quarantine .*nowhere cannot be read: No such file"):
        pydp2.replay(tmp_path / "nowhere", "x.y")


def test_the_report_is_plain_data(run: Run) -> None:
    plain = json.loads(json.dumps(run({"a": "500"}, [line("a", 0)]).plain()))
    assert (plain["ok"], plain["counts"][BAD]) == (False, 1)
    assert plain["provider"].endswith(".process")
    assert plain["lines"][0]["file"] == "a"


def test_what_a_service_wrote_is_replayed(tmp_path: Path, provider_file: Callable[[str], str]) -> None:
    """From the drop in a worker to the verdict, and after the data were mended to another one."""
    address = provider_file(READS.format(more=DROPS))
    (tmp_path / "a").write_text("1\n200\n3\n")
    (tmp_path / "b").write_text("1\ndies\n3\n")
    path = tmp_path / "bad.jsonl"
    with pydp2.load(["a", "b"], address, root=tmp_path, batch_size=2, on_error="skip", quarantine=path) as data:
        assert sum(len(batch) for batch in data) == 3
    report = pydp2.replay(path, address, root=tmp_path)
    assert sorted((each.file, each.sample, each.verdict) for each in report.verdicts) == [("a", 1, BAD), ("b", 1, BAD)]
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n2\n3\n")
    assert verdicts(pydp2.replay(path, address, root=tmp_path)) == [GOOD, GOOD]


_texts = st.text(max_size=8)


_values = (st.integers(0, 9), _texts, st.integers(0, 1 << 40), _texts, _texts, st.sampled_from(_KINDS), _texts)
_losses = st.builds(Loss, *_values, st.none() | st.floats(0, exclude_min=True, allow_infinity=False))


@given(st.lists(_losses.filter(lambda loss: loss.kind != TIMED_OUT or loss.sample_timeout is not None)))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, losses: list[Any]) -> None:
    path = tmp_path_factory.mktemp("q") / "bad.jsonl"
    path.write_bytes(b"".join(map(_line, losses)))
    assert list(read(path)) == list(enumerate(losses, 1))


SHARES = """
import os

def hook(settings, **kwargs):
    settings.lines = open("numbers", "rb")
    settings.lines.readline()

@provider(input_types={"n": integer_value(100)}, init_hook=hook, check=True, check_fail_continue=True)
def process(settings, filename):
    settings.lines.seek(0)
    for number, line in enumerate(settings.lines):
        yield {"n": int(line)}
    if filename == "crashes":
        os._exit(3)
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes what the hook opened
def test_a_child_moves_no_position_in_a_file_that_the_hook_has_opened(
    tmp_path: Path, provider_file: Callable[[str], str]
) -> None:
    (tmp_path / "numbers").write_text("7\n" * 20_000)
    lines = [line("crashes", 20_000, "condemned"), line("other", 19_999)]
    (tmp_path / "bad.jsonl").write_text("".join(f"{each}\n" for each in lines), "utf-8")
    report = pydp2.replay(tmp_path / "bad.jsonl", provider_file(SHARES), root=tmp_path)
    assert [each.verdict for each in report.verdicts] == [BAD, GOOD]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes what the hook opened
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_without_an_output_stream_can_replay_a_file_that_crashed(
    tmp_path: Path, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    (tmp_path / "numbers").write_text("7\n" * 3)
    (tmp_path / "bad.jsonl").write_text(f"{line('whole', 2, 'condemned')}\n", "utf-8")
    provider = provider_file(SHARES)
    monkeypatch.setattr(sys, stream, None)
    assert [each.verdict for each in pydp2.replay(tmp_path / "bad.jsonl", provider, root=tmp_path).verdicts] == [GOOD]

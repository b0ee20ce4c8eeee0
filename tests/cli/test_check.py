"""``pydp2 check`` on the command line: the report, the exit code, and what goes where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydp2_samples
import pytest
from click.testing import Result
from pydp2_cli import main

CHECK = ("check", "train.list", "--provider", "numbers_provider.process")


def test_what_is_in_the_files_is_told_file_by_file_and_together(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli(*CHECK)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows == [
        ["file", "samples", "bad", "slot", "yielded", "as", "values", "lengths"],
        ["a.txt", "3", "-", "n", "int", "1", "…", "3", "-"],
        ["b.txt", "3", "-", "n", "int", "4", "…", "6", "-"],
        ["all", "files", "6", "-", "n", "int", "1", "…", "6", "-"],
        ["3", "samples", "of", "a.txt:", "the", "same", "in", "two", "processes"],
        ["ok:", "6", "good", "samples", "in", "2", "files,", "24", "bytes", "as", "columns"],
    ]


def test_slots_of_data_files_are_shown_as_a_declaration_that_can_be_pasted(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "a.jsonl").write_text('{"count": 1, "word": "a"}\n{"count": 2, "word": "b"}\n')
    result = cli("check", "a.jsonl")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[lines.index("") + 1 :][:7] == [
        "from pydp2 import scalar, text",
        "",
        "input_types = {",
        '    "count": scalar("int64"),',
        '    "word": text(),',
        "}",
        "",
    ]
    assert json.loads(cli("check", "a.jsonl", "--json").stdout)["input_types"] == "\n".join(
        lines[lines.index("") + 1 :][:6]
    )


def test_a_bad_sample_is_named_and_makes_the_exit_code_1(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("1\n2000\n3\n")
    result = cli(*CHECK)
    assert result.exit_code == 1
    assert "✗ file a.txt, sample 1, slot n: expected an int in [0, 1000), got 2000 (int)\n" in result.stdout
    assert result.stdout.endswith("1 found, beside 5 good samples in 2 files\n")


def test_a_generator_that_raises_is_told_with_its_traceback_and_the_next_file_is_read(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "a.txt").write_text("1\ntwo\n3\n")
    result = cli(*CHECK)
    assert result.exit_code == 1
    assert "✗ file a.txt, sample 1: process raised ValueError\n" in result.stdout
    assert 'numbers_provider.py", line 8, in process' in result.stdout
    assert "invalid literal for int()" in result.stdout
    assert result.stdout.splitlines()[1].split()[:4] == ["a.txt", "1", "raised", "n"]
    assert result.stdout.endswith("1 found, beside 4 good samples in 2 files\n")


def test_findings_beyond_max_errors_are_counted_and_do_not_hide_a_traceback(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "a.txt").write_text("2000\n" * 50)
    (folder / "b.txt").write_text("1\ntwo\n")
    result = cli(*CHECK, "--max_errors", 3)
    assert result.stdout.count("slot n: expected") == 3
    assert "process raised ValueError" in result.stdout
    assert "… and 47 more\n51 found, beside 1 good sample in 2 files\n" in result.stdout


def test_json_has_everything_and_stdout_nothing_else(folder: Path, cli: Callable[..., Result]) -> None:
    code = (folder / "numbers_provider.py").read_text()
    (folder / "numbers_provider.py").write_text(code.replace("    with", "    print('reading', filename)\n    with"))
    (folder / "b.txt").write_text("1\n2000\n")
    result = cli(*CHECK, "--json")
    assert result.exit_code == 1
    assert "reading a.txt\nreading b.txt\n" in result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    assert (report["ok"], report["samples"], report["found"]) == (False, 4, 1)
    assert report["provider"] == "numbers_provider.process"
    assert report["findings"][0] | {"text": ""} == {
        "file": "b.txt", "sample": 1, "raised": False, "slot": "n", "expected": "an int in [0, 1000)",
        "got": "2000 (int)", "text": "", "exception": "",
    }  # fmt: skip
    assert [file["file"] for file in report["files"]] == ["a.txt", "b.txt"]
    assert report["slots"][0]["ids"] == {"least": 1, "most": 3, "count": 4, "not_finite": 0}
    assert report["slots"][0]["declared"] == "integer_value(1000)"


def test_what_c_code_and_children_print_is_kept_from_stdout_too(folder: Path) -> None:
    code = (folder / "numbers_provider.py").read_text()
    (folder / "numbers_provider.py").write_text(
        code.replace("    with", "    import os; os.write(1, b'raw\\n'); os.system('echo child')\n    with")
    )
    done = subprocess.run(
        [sys.executable, "-m", "pydp2", *CHECK, "--json"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)["samples"] == 6
    assert done.stderr == "raw\nchild\nraw\nchild\n"


def test_of_many_files_those_with_something_wrong_are_shown_first(folder: Path, cli: Callable[..., Result]) -> None:
    for i in range(50):
        (folder / f"{i}.txt").write_text("2000\n" if i == 45 else "1\n")
    (folder / "train.list").write_text("".join(f"{i}.txt\n" for i in range(50)))
    lines = cli(*CHECK).stdout.splitlines()
    shown = [line.split()[0] for line in lines[1:21]]
    assert shown == [*(f"{i}.txt" for i in range(19)), "45.txt"]
    assert lines[21].strip() == "… 30 more files: --json has them"


def test_limit_looks_at_the_first_samples_of_each_file_only(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("1\n2\nthree\n")
    result = cli(*CHECK, "--limit", 2)
    assert result.exit_code == 0
    assert "ok: 4 good samples in 2 files" in result.stdout


def test_a_file_without_samples_is_no_mistake(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("")
    result = cli(*CHECK)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:3] == ["a.txt", "none", "-"]
    assert "process yielded nothing for 1 of 2 files: a.txt\nok: 3 good samples in 2 files" in result.stdout
    for i in range(5):
        (folder / f"{i}.txt").write_text("")
    (folder / "train.list").write_text("".join(f"{i}.txt\n" for i in range(5)))
    assert "process yielded nothing for 5 of 5 files: 0.txt, 1.txt, 2.txt, …\nok: 0 good" in cli(*CHECK).stdout


def test_nothing_is_said_of_empty_files_where_there_are_none(folder: Path, cli: Callable[..., Result]) -> None:
    assert "yielded nothing" not in cli(*CHECK).stdout


def test_an_empty_list_gets_a_warning(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "train.list").write_text("\n")
    result = cli(*CHECK)
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: the file list train.list is empty")


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("nothing.process", "there is no module 'nothing'"),
        ("numbers_provider.proces", "did you mean 'process'?"),
        ("numbers_provider.py", "which function of it?"),
        ("broken.process", "No module named 'not_there'"),
    ],
)
def test_a_provider_that_cannot_be_had_is_a_user_error(
    provider: str, words: str, folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "broken.py").write_text("import not_there\n")
    result = cli("check", "train.list", "--provider", provider)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert result.stderr.startswith("Error: ")


def test_ctrl_c_ends_it_with_130_and_one_line(folder: Path, running: Callable[..., Any]) -> None:
    (folder / "slow.py").write_text(
        textwrap.dedent("""
            import time
            from pydp2 import *

            @provider(input_types=[integer_value(9)])
            def process(settings, filename):
                yield 1
                print("here", flush=True)
                try:
                    time.sleep(100)
                except Exception:
                    pass
        """)
    )
    check = running("check", "train.list", "--provider", "slow.process")
    check.until("stderr", "here\n")
    check.process.send_signal(signal.SIGINT)
    status, out, err = check.ended()
    assert (status, out) == (130, "")
    assert err == "here\npydp2: ended by SIGINT\n"


def test_a_debugger_works_in_process(folder: Path) -> None:
    code = (folder / "numbers_provider.py").read_text()
    (folder / "numbers_provider.py").write_text(code.replace("yield", "breakpoint(); yield", 1))
    done = subprocess.run(
        [sys.executable, "-m", "pydp2", *CHECK],
        cwd=folder, input="p 'line is ' + line.strip()\nq\n", capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONBREAKPOINT": ""},
    )  # fmt: skip
    assert "'line is 1'" in done.stderr
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["digits", "mnist", "nested", "sentiment", "sequence", "sparse"])
def test_the_configurations_that_come_with_the_project_are_fine(name: str, cli: Callable[..., Result]) -> None:
    configs = Path(__file__).resolve().parents[2] / "configs"
    assert pydp2_samples.path(name).is_dir()
    result = cli("check", "--config", configs / f"{name}.toml")
    assert result.exit_code == 0, result.output
    assert "\nok: " in result.stdout


def test_all_commands_over_a_list_take_it_alike() -> None:
    common = {"list_", "provider", "args", "args_file", "config", "side", "is_train", "root"}
    for name in ("serve", "check", "peek"):
        assert common <= {parameter.name for parameter in main.commands[name].params}


# -- a quarantine ------------------------------------------------------------------------------------------------------
REPLAY = ("check", "--replay", "bad.jsonl", "--provider", "numbers_provider.process")


@pytest.fixture
def quarantine(folder: Path) -> Path:
    """One sample that is still bad, one that was mended, one that is gone, and a line that is none."""
    (folder / "a.txt").write_text("1\n2000\n[3]\n")
    rows = [{"pass": 0, "file": "a.txt", "y": y, "slot": "n", "reason": "", "kind": "dropped"} for y in (1, 0)]
    rows.append(rows[0] | {"file": "b.txt", "y": 7})
    rows.append(rows[0] | {"y": 2, "kind": "raised"})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "bad.jsonl").write_text(text + '{"pass": 1, "file\n')
    return folder / "bad.jsonl"


def test_a_replay_tells_of_every_line_and_exits_with_1_while_any_is_bad(
    quarantine: Path, cli: Callable[..., Result]
) -> None:
    result = cli(*REPLAY)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:4] == [
        "✗ line 1: still bad: file a.txt, sample 1, slot n: expected an int in [0, 1000), got 2000 (int)",
        "✓ line 2: now good: file a.txt, sample 0",
        "· line 3: no longer there: file b.txt, sample 7",
        "✗ line 4: still bad: file a.txt, sample 2: process raised ValueError",
    ]
    assert "Traceback (most recent call last):" in result.stdout
    assert lines[-2:] == [
        "· line 5: damaged: it is no JSON",
        "2 still bad, 1 now good, 1 no longer there, 1 damaged",
    ]


def test_a_replay_after_the_data_were_mended_exits_with_0(
    quarantine: Path, folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "a.txt").write_text("1\n2\n3\n")
    result = cli(*REPLAY)
    assert result.exit_code == 0
    assert result.stdout.endswith("ok: 3 now good, 1 no longer there, 1 damaged\n")


def test_a_replay_in_a_folder_without_the_files_is_no_all_clear(
    quarantine: Path, folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "elsewhere").mkdir()
    result = cli(*REPLAY[:-1], folder / "numbers_provider.py:process", "--root", folder / "elsewhere")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "✗ line 1: file missing: file a.txt must be there to be read again, and is not; relative"
    )
    assert f"start at {folder / 'elsewhere'}: run this where the service ran" in lines[0]
    assert lines[-1] == "4 file missing, 1 damaged"


def test_a_replay_as_json(quarantine: Path, cli: Callable[..., Result]) -> None:
    result = cli(*REPLAY, "--json")
    assert result.exit_code == 1
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["counts"] == {
        "still bad": 2, "file missing": 0, "now good": 1, "no longer there": 1, "damaged": 1,
    }  # fmt: skip
    assert [line["verdict"] for line in report["lines"]][:2] == ["still bad", "now good"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.list",), "--replay runs the files that the quarantine names, and no LIST; leave one out"),
        (("--limit", 3), "--limit does not go with --replay"),
        (("--max_errors", 10), "--max_errors does not go with --replay"),
    ],
)
def test_what_does_not_go_with_a_replay_is_a_usage_error(
    words: tuple[object, ...], said: str, quarantine: Path, cli: Callable[..., Result]
) -> None:
    result = cli(*REPLAY, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_replay_needs_a_provider_and_a_quarantine_that_is_there(folder: Path, cli: Callable[..., Result]) -> None:
    assert cli("check", "--replay", "bad.jsonl").exit_code == 2
    result = cli(*REPLAY)
    assert result.exit_code == 1
    assert "the quarantine bad.jsonl cannot be read: No such file or directory" in result.stderr


def test_a_configuration_gives_a_replay_its_provider(
    quarantine: Path, folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "run.toml").write_text('provider = "numbers_provider.process"\n[train]\nlist = "train.list"\n')
    result = cli("check", "--replay", "bad.jsonl", "--config", "run.toml")
    assert "2 still bad, 1 now good" in result.stdout


def test_a_pattern_in_quotes_is_the_files_that_match_it_and_without_quotes_the_error_asks_for_them(
    folder: Path, cli: Callable[..., Result]
) -> None:
    result = cli("check", "?.txt", *CHECK[2:])
    assert result.stdout.endswith("ok: 6 good samples in 2 files, 24 bytes as columns\n")
    result = cli("check", "a.txt", "b.txt", *CHECK[2:])
    assert result.exit_code == 2
    assert "LIST is one path or one pattern, got 'b.txt' behind it; put a pattern into quotes" in result.stderr

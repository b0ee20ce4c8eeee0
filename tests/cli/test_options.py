"""Flags, configuration files and what comes of both."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

TELLING = """
    from pydp2 import *

    def hook(settings, file_list, is_train, input_order, **args):
        print("told", is_train, sorted(args.items()), list(file_list), input_order)
        settings.input_types = {"a": integer_value(9), "b": integer_value(9)}

    @provider(init_hook=hook)
    def process(settings, filename):
        yield {"a": 1, "b": 2}
"""


@pytest.fixture
def telling(tmp_path: Path) -> Path:
    """A folder whose provider prints what its hook is told, with a list of one entry and one of two."""
    (tmp_path / "telling.py").write_text(textwrap.dedent(TELLING))
    (tmp_path / "train.list").write_text("x\n")
    (tmp_path / "test.list").write_text("y\nz\n")
    (tmp_path / "c.toml").write_text(
        'provider = "telling.process"\n[args]\nn = 1\nword = "w"\n[train]\nlist = "train.list"\n'
        '[test]\nlist = "test.list"\n[job]\nbatch_size = 1\n'
    )
    return tmp_path


def told(result: Result) -> str:
    """What the provider printed; that goes to stderr."""
    assert result.exit_code == 0, result.output
    return next(line for line in result.stderr.splitlines() if line.startswith("told"))


def test_an_argument_is_read_as_json_or_toml_or_else_as_text(telling: Path, cli: Callable[..., Result]) -> None:
    values: dict[str, object] = {
        "3": 3,
        "3.5": 3.5,
        "true": True,
        "null": None,
        "'3'": "3",
        '"3"': "3",
        "x": "x",
        "": "",
        "a=b": "a=b",
        "[1, 2]": [1, 2],
        '{"k": 1}': {"k": 1},
        "{k = 1}": {"k": 1},
        "1_000": 1000,
        "2024-05-01": "2024-05-01",
        "x\nm = 2": "x\nm = 2",
        "1\nm = 2": "1\nm = 2",
        " words.txt": " words.txt",
    }
    given = [word for number, text in enumerate(values) for word in ("--args", f"n{number:02}={text}")]
    expected = [(f"n{number:02}", value) for number, value in enumerate(values.values())]
    result = cli("check", "train.list", "--provider", "telling.process", *given)
    assert told(result) == f"told True {expected} ['x'] []"


@pytest.mark.parametrize("text", ["n", "=3", " =3"])
def test_an_argument_without_a_name_or_value_is_a_usage_error(
    text: str, telling: Path, cli: Callable[..., Result]
) -> None:
    result = cli("check", "train.list", "--provider", "telling.process", "--args", text)
    assert result.exit_code == 2
    assert "need NAME=VALUE" in result.stderr


@pytest.mark.parametrize(("name", "text"), [("a.toml", 'n = 2\nwords = ["u"]'), ("a.json", '{"n": 2, "words": ["u"]}')])
def test_arguments_come_from_a_file_and_single_ones_win(
    name: str, text: str, telling: Path, cli: Callable[..., Result]
) -> None:
    (telling / name).write_text(text)
    result = cli("check", "train.list", "--provider", "telling.process", "--args", "n=5", "--args-file", name)
    assert told(result) == "told True [('n', 5), ('words', ['u'])] ['x'] []"


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("a.yaml", "n: 1", 2, "need a .toml or .json file"),
        ("a.toml", "n = ", 1, "--args-file a.toml: "),
        ("a.json", "[1]", 1, "need an object of names and values, have a list"),
        ("a.json", None, 1, "cannot be read: No such file"),
        ("a.toml", "day = 2024-05-01", 1, "day"),
    ],
)
def test_a_file_of_arguments_that_cannot_be_used_is_said_so(
    name: str, text: str | None, code: int, words: str, telling: Path, cli: Callable[..., Result]
) -> None:
    if text is not None:
        (telling / name).write_text(text)
    result = cli("check", "train.list", "--provider", "telling.process", "--args-file", name)
    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_configuration_is_enough_and_each_flag_wins_over_it(telling: Path, cli: Callable[..., Result]) -> None:
    check = ("check", "--config", "c.toml")
    assert told(cli(*check)) == "told True [('n', 1), ('word', 'w')] ['x'] []"
    assert told(cli(*check, "--args", "n=7")) == "told True [('n', 7), ('word', 'w')] ['x'] []"
    assert told(cli(*check, "test.list")).endswith("['y', 'z'] []")
    assert told(cli(*check, "--input_order", "b,a")).endswith("['b', 'a']")


def test_the_side_of_a_configuration_and_is_train_go_together_unless_both_are_given(
    telling: Path, cli: Callable[..., Result]
) -> None:
    check = ("check", "--config", "c.toml")
    for flags in (["--side", "test"], ["--test"], ["--side", "test", "--test"]):
        assert told(cli(*check, *flags)) == "told False [('n', 1), ('word', 'w')] ['y', 'z'] []"
    assert told(cli(*check, "--side", "test", "--is_train")).startswith("told True")
    assert told(cli("check", "train.list", "--provider", "telling.process", "--test")).startswith("told False")


def test_an_option_may_be_written_with_dashes(telling: Path, cli: Callable[..., Result]) -> None:
    assert told(cli("check", "--config", "c.toml", "--input-order", "b,a")).endswith("['b', 'a']")
    assert told(cli("check", "--config", "c.toml", "--is-train")).startswith("told True")


def test_root_is_where_list_entries_and_provider_are_looked_up(telling: Path, cli: Callable[..., Result]) -> None:
    inner = telling / "inner"
    inner.mkdir()
    for name in ("telling.py", "train.list"):
        (telling / name).rename(inner / name)
    assert told(cli("check", "train.list", "--provider", "telling.process", "--root", "inner")).startswith("told")
    assert cli("check", "train.list", "--provider", "telling.process").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "LIST is needed"),
        (["check", "--replay", "bad.jsonl"], "--provider is needed"),
        (["serve", "train.list", "--side", "test"], "--side chooses a side of a --config"),
        (["serve", "train.list", "--workers", "-1"], "workers must be at least 0, got -1"),
        (["serve", "train.list", "--workers", "many"], "workers must be a whole number"),
        (["serve", "train.list", "--workers", "1.5"], "workers must be a whole number"),
        (["serve", "train.list", "--sample_timeout", "soon"], "sample_timeout must be a number of seconds"),
        (["serve", "train.list", "--memory_limit", "2 apples"], "memory_limit must be a size"),
        (["serve", "train.list", "--on_error", "skipp"], "did you mean 'skip'?"),
        (["serve", "train.list", "--bind", "tcp://head:1"], "IP address of a network interface"),
        (["serve", "train.list", "--bind", "here"], "bind must be ipc://PATH or tcp://127.0.0.1:PORT"),
        (["serve", "train.list", "--input_order", "a,a"], "got 'a' twice"),
        (["peek", "train.list", "--batch_size", "0"], "batch_size must be at least 1"),
        (["serve", "train.list", "--batch_size", "3"], "it belongs to connect() or load()"),
        (["serve", "train.list", "--batch-size", "3"], "it belongs to connect() or load()"),
        (["serve", "train.list", "--pool_size", "3"], "it belongs to @provider(...)"),
        (["serve", "train.list", "--num_workers", "3"], "there is no option --num_workers: write workers=4\n"),
        (["serve", "train.list", "--drop-last"], '--drop_last: write last_batch="drop" in connect() or load()'),
        (["check", "train.list", "--workers", "3"], "it belongs to pydp2 serve, launch() or load()"),
        (["serve", "train.list", "--workes", "3"], "--workers"),
        (["check", "a", "b"], "LIST is one path or one pattern, got 'b' behind it"),
        (["chek"], "chek"),
    ],
)
def test_a_command_that_cannot_be_meant_is_a_usage_error_that_helps(
    arguments: list[str], words: str, cli: Callable[..., Result]
) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("Usage: pydp2")


def test_a_wrong_configuration_is_a_user_error_that_names_the_file(telling: Path, cli: Callable[..., Result]) -> None:
    (telling / "c.toml").write_text('provider = "telling.process"\nworkers = 2\n')
    result = cli("serve", "--config", "c.toml")
    assert result.exit_code == 1
    assert result.stderr == "Error: c.toml: workers cannot stand at the top of the file: it belongs in [service]\n"


def test_sizes_and_seconds_are_taken_as_in_a_configuration(folder: Path, running: Callable[..., object]) -> None:
    """All options of a service at once, each in the form of its flag."""
    service = running(
        "serve", "train.list", "--provider", "numbers_provider.process", "--workers", 1, "--memory_limit", "64MiB",
        "--sample_timeout", 2.5, "--on_error", "skip", "--bind", f"ipc://{folder}/s", "--input_order", "n", "--json",
    )  # fmt: skip
    first = json.loads(service.address())  # type: ignore[attr-defined]
    assert first["address"] == f"ipc://{folder}/s"
    service.process.terminate()  # type: ignore[attr-defined]
    assert service.ended()[0] == 143  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "text"), [("a.json", "[" * 100_000), ("a.toml", "a = " + "[" * 3000)])
def test_arguments_that_are_nested_thousands_deep_are_an_error_of_the_command(
    telling: Path, cli: Callable[..., Result], name: str, text: str
) -> None:
    (telling / name).write_text(text)
    result = cli("check", "train.list", "--provider", "telling.process", "--args-file", name)
    assert result.exit_code == 1
    assert "nested too deep" in result.stderr
    result = cli("check", "train.list", "--provider", "telling.process", "--args", f"n={text}")
    assert "told True [('n'," in result.stdout + result.stderr

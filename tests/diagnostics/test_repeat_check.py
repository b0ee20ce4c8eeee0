"""``pydp2.check`` runs a file twice, in two processes, and finds the first sample that differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydp2_cli import main

import pydp2
from pydp2.diagnostics.repeat_check import RepeatCheck

CODE = """
    import os, random, time
    import numpy as np
    from pydp2 import rows, text

    unseeded, seeded = np.random.default_rng(), np.random.default_rng(1)

    def hook(settings, **_):
        settings.table = [random.random() for _ in range(4)]

    @provider(input_types={{"number": integer_value(100), "x": dense_vector(4), "words": integer_value_sequence(100),
                           "text": text()}}, init_hook=hook{arguments})
    def process(settings, filename):
        for i in range(20):
            x = np.random.normal(size=4) + settings.table
            words, end = [random.randrange(100) for _ in range(random.randrange(5))], "the end"
            {change}
            yield {{"number": i, "x": x, "words": words, "text": end}}
"""


names = itertools.count()


def checked(
    provider_file: Callable[..., str],
    change: str,
    arguments: str = "",
    files: Sequence[str] = ("f", "g"),
    **options: Any,
) -> pydp2.Report:
    code = CODE.format(change=change, arguments=arguments)
    return pydp2.check(files, provider_file(code, f"repeats{next(names)}"), **options)


@pytest.mark.real_starts
def test_a_provider_that_draws_from_the_global_generators_repeats_itself(provider_file: Callable[[str], str]) -> None:
    report = checked(provider_file, "x = x + settings.rng.random()")
    assert report.ok
    assert report.repeat == RepeatCheck("f", 20)


@pytest.mark.parametrize(
    ("change", "sample", "slot", "shows"),
    [
        ("x[2] = unseeded.random() if i == 7 else 0", 7, "x", "values[2] = 0."),
        ("x[0] = seeded.random() if i == 3 else 0", 3, "x", "values[0] = 0."),
        ("end = 'x' * 100 + os.urandom(8).hex()", 0, "text", "b'xxxx"),
        ("words += [1] * (time.perf_counter_ns() % 1000)", 0, "words", " steps"),
        ("if i == 5: words.append(os.getpid() % 100)", 5, "words", "ids["),
        ("if i == 9 and seeded.random() < 0.52: return", 9, "", "the end of the file"),
        ("if i == 9 and seeded.random() < 0.52: raise OSError", 9, "", "OSError"),
        ("if i == 9 and seeded.random() < 0.52: x = [1.0]", 9, "", "[1.0] (list of length 1)"),
    ],
    ids=["unseeded", "left over", "text", "length", "id", "ends", "raises", "bad"],
)
def test_the_first_sample_and_slot_that_differ_are_found(
    change: str, sample: int, slot: str, shows: str, provider_file: Callable[[str], str]
) -> None:
    report = checked(provider_file, change)
    (finding,) = [each for each in report.findings if "must yield the same" in each.text]
    assert (finding.file, finding.sample, finding.slot, finding.raised) == ("f", sample, slot, False)
    assert shows in f"{finding.expected} {finding.got}"
    assert finding.expected != finding.got
    assert finding.expected in finding.text
    assert finding.got in finding.text
    assert "settings.rng" in finding.text
    assert not report.ok
    assert report.repeat is not None
    assert report.repeat.samples == sample
    assert report.plain()["repeat"]["difference"]["first"] == finding.expected


def test_a_weight_that_differs_is_found_too(provider_file: Callable[[str], str]) -> None:
    weigh = ", calc_batch_size=lambda sample: int(unseeded.integers(1 << 30))"
    (finding,) = checked(provider_file, "pass", weigh).findings
    assert (finding.sample, finding.slot) == (0, "calc_batch_size")
    assert finding.got.startswith("weight ")


def test_a_limit_holds_for_both_runs(provider_file: Callable[[str], str]) -> None:
    report = checked(provider_file, "x[0] = unseeded.random() if i == 7 else 0", limit=7)
    assert report.repeat == RepeatCheck("f", 7)


def test_a_file_with_good_samples_is_chosen_and_one_alone_is_enough(provider_file: Callable[[str], str]) -> None:
    report = checked(provider_file, "if filename == 'f': return")
    assert report.repeat == RepeatCheck("g", 20)
    report = checked(provider_file, "x[0] = seeded.random()", files=["f"])
    assert report.repeat is not None
    assert report.repeat.difference is not None


def test_what_cannot_run_in_another_process_is_said(provider_file: Callable[[str], str]) -> None:
    @pydp2.provider(input_types=[pydp2.integer_value(10)])
    def local(settings: Any, filename: str) -> Any:
        yield 1

    report = pydp2.check(["f"], local)
    assert report.ok
    assert report.repeat is not None
    assert "a function inside a function" in report.repeat.skipped
    ends = f"if os.environ.get('{pydp2.host.worker.IN_WORKER}'): os._exit(3)"
    report = checked(provider_file, ends)
    assert report.repeat == RepeatCheck("f", skipped="a process that ran it again ended without a result")
    report = checked(provider_file, "raise OSError")
    assert report.repeat == RepeatCheck(skipped="no file has a good sample")


@pytest.mark.real_starts
def test_no_process_is_left_and_nothing_is_printed_again(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A child that the provider starts in such a process ends with it."""
    child = f"os.system('sleep 1000 &') if '{pydp2.host.worker.IN_WORKER}' in os.environ else 0"
    report = checked(provider_file, f"if i == 0: print('here'); {child}")
    assert report.repeat == RepeatCheck("f", 20)
    assert capfd.readouterr().out == "here\n" * 2


def test_the_command_says_what_it_found(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "list").write_text("f\ng\n")

    def run(change: str, *flags: str) -> Any:
        address = provider_file(CODE.format(change=change, arguments=""), f"p{len([*tmp_path.iterdir()])}")
        return CliRunner().invoke(main, ["check", str(tmp_path / "list"), "--provider", address, *flags])

    good = run("pass")
    assert (good.exit_code, "20 samples of f: the same in two processes\n" in good.stdout) == (0, True)
    bad = run("x[0] = unseeded.random()")
    assert (bad.exit_code, "✗ file f, sample 0, slot x: process() must yield the same" in bad.stdout) == (1, True)
    alone = run("x[0] = unseeded.random()", "--no_repeat")
    assert (alone.exit_code, "processes" in alone.stdout) == (0, False)

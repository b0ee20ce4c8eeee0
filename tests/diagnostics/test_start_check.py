"""``check`` begins the files of a provider with ``start`` at a few samples, and finds the first that differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydp2_cli import main

import pydp2

CODE = """
@provider(input_types={{"value": integer_value(1 << 40), "words": integer_value_sequence(100)}})
def process(settings, filename, start):
    count = int(filename)
    for y in range(start, count):
        yield {{"value": {value}, "words": [y % 100] * {length}}}
"""


def code(value: str = "y", length: str = "(y % 3)") -> str:
    return CODE.format(value=value, length=length)


def test_a_provider_that_gives_the_same_from_any_start_passes(provider_file: Callable[[str], str]) -> None:
    report = pydp2.check(["5000", "3", "0"], provider_file(code()))
    assert report.ok
    starts = [file.starts for file in report.files]
    assert [len(of) for of in starts] == [4, 1, 0]
    assert len(set(starts[0])) == 4


@pytest.mark.parametrize(
    ("value", "length", "slot"),
    [("y - start", "1", "value"), ("y", "(start > 0)", "words"), ("y + (y == start > 0)", "1", "value")],
)
def test_the_first_sample_that_a_start_changes_is_found(
    value: str, length: str, slot: str, provider_file: Callable[[str], str]
) -> None:
    report = pydp2.check(["5000"], provider_file(code(value, length)))
    assert not report.ok
    finding = report.findings[0]
    assert finding.slot == slot
    assert finding.sample == report.files[0].starts[0]
    assert f"process() with start={finding.sample} must yield what a whole reading yields" in finding.text


def test_a_start_that_ends_too_early_is_found(provider_file: Callable[[str], str]) -> None:
    early = code().replace("range(start, count)", "range(start, min(count, start + 3) if start else count)")
    assert "the end of the file in place of a sample" in pydp2.check(["5000"], provider_file(early)).findings[0].text


def test_a_start_that_raises_is_found(provider_file: Callable[[str], str]) -> None:
    raising = code().replace("count = int(filename)", "count = int(filename) if not start else 1 // 0")
    assert "ZeroDivisionError" in pydp2.check(["5000"], provider_file(raising)).findings[0].text


def test_random_numbers_of_samples_are_the_same_from_any_start(provider_file: Callable[[str], str]) -> None:
    drawn = "import random\n" + code("int(settings.rng.integers(1 << 30)) + random.randrange(9)")
    assert pydp2.check(["2000"], provider_file(drawn)).ok


def test_no_repeat_begins_no_file_anew(provider_file: Callable[[str], str]) -> None:
    assert pydp2.check(["2000"], provider_file(code("y - start")), repeat=False).ok


def test_the_command_says_at_how_many_samples_files_were_begun(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "train.list").write_text("5000\n3\n")
    shown = CliRunner().invoke(main, ["check", str(tmp_path / "train.list"), "--provider", provider_file(code())])
    assert shown.exit_code == 0
    assert "process was begun at 5 samples, and compared with a whole reading" in shown.output

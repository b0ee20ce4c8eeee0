"""A worker that has more memory than it may is replaced, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pydp2
from pydp2.errors import FileCondemned, OptionError
from tests.runs import consume, one_pass

LIMIT = 200 << 20
LEAKS = """
import time
kept = []
@provider(input_types=[integer_value(10000)])
def process(settings, filename):
    number, samples = (int(part) for part in filename.split("x"))
    for i in range(samples):
        kept.append(b"x" * (20 << 20))
        time.sleep(0.15)  # as a decoder takes it
        yield number * 100 + i
"""

EARLY = """
import time
kept = []
@provider(input_types=[integer_value(10000)])
def process(settings, filename):
    for i in range(40):
        if i < 5:
            kept.append(b"x" * (5 << 20))
            time.sleep(0.05)
        yield int(filename) * 100 + i
"""


def test_a_provider_that_leaks_reads_all_files_in_workers_that_follow_each_other(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    files = [f"{number}x3" for number in range(12)]
    with pydp2.load(
        files, provider_file(LEAKS), batch_size=4, workers=2, shuffle=False, worker_memory=LIMIT
    ) as data:  # 720 MB in all, and each worker may have about 150 beside itself
        seen = consume(data)
        lost = data.stats()["workers_lost"]
    assert seen.error is None
    assert seen.samples == [number * 100 + i for number in range(12) for i in range(3)]
    assert lost >= 2
    assert "was replaced because it had" in capfd.readouterr().err


def test_what_several_files_need_together_condemns_none_of_them(provider_file: Callable[[str], str]) -> None:
    """At the beginning of a pass they are run by turns: 300 MB are kept before any of them has come far."""
    files = [f"{number}" for number in range(12)]
    with pydp2.load(files, provider_file(EARLY), batch_size=32, workers=1, worker_memory=LIMIT) as data:
        seen = consume(data)
        lost = data.stats()["workers_lost"]
    assert seen.error is None, seen.text
    assert sorted(seen.samples) == [number * 100 + i for number in range(12) for i in range(40)]
    assert lost


def test_a_file_that_needs_more_than_a_worker_may_have_is_condemned(provider_file: Callable[[str], str]) -> None:
    seen = one_pass(["0x3", "1x30", "2x3"], provider_file(LEAKS), worker_memory=LIMIT)
    assert isinstance(seen.error, FileCondemned)
    assert "file 1x30, sample " in seen.text
    assert "5 workers in a row had more memory than they may before process() came further" in seen.text
    assert f"worker_memory={LIMIT}); raise worker_memory, or cut the file into smaller ones" in seen.text


@pytest.mark.slow
def test_with_skip_the_pass_goes_on_without_the_rest_of_it(provider_file: Callable[[str], str]) -> None:
    seen = one_pass(["0x3", "1x30", "2x3"], provider_file(LEAKS), worker_memory=LIMIT, on_error="skip")
    assert seen.error is None
    assert seen.samples[:3] == [0, 1, 2]
    assert seen.samples[-3:] == [200, 201, 202]
    middle = seen.samples[3:-3]
    assert middle == [*range(100, 100 + len(middle))]
    assert len(middle) < 30


def test_less_than_a_worker_needs_for_itself_is_refused(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionError, match="must be above what a worker has before it reads anything, which is"):
        pydp2.launch(["0x1"], provider_file(LEAKS), worker_memory="8MB")

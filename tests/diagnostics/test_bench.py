"""What ``bench`` finds in providers whose bound is known, in real processes. Margins are wide: machines are busy."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import BadSample, Error, OptionError, ProviderError

from ..provider_code import numbers
from ..runs import wait_until

HEAD = """
    import time
    import numpy as np
    import pydp2
    from pydp2 import *
"""


def made(folder: Path, code: str, files: int = 8, first: str = "") -> None:
    """A provider p.process in ``folder``, and a list of so many files. ``first``: what the module does before."""
    (folder / "p.py").write_text(f"{textwrap.dedent(HEAD)}{first}\n{textwrap.dedent(code)}")
    for i in range(files):
        (folder / f"{i}.txt").write_text("x" * 100)
    (folder / "train.list").write_text("".join(f"{i}.txt\n" for i in range(files)))


def bench(folder: Path, **options: Any) -> Any:
    """Measured for as short as it can be, unless another time is asked for."""
    given = {"workers": 2, "seconds": 1.0, "batch_size": 16} | options
    return pydp2.bench("train.list", "p.process", root=folder, **given)


def tried(folder: Path, **options: Any) -> Any:
    """What is measured; None if the process that draws samples stood still until its time was over."""
    try:
        return bench(folder, **options)
    except Error as error:
        if "gave no sample in" not in str(error):
            raise
    return None


def found(folder: Path, cause: str, shows: Callable[[Any], bool] = bool, **options: Any) -> Any:
    """What is measured where ``cause`` is what bounds it, and ``shows`` of it is true, by the third time at the latest:
    what else runs on the machine comes and goes between two stages."""
    seen, crowded = None, [0.0]
    for _ in range(3):
        if (seen := tried(folder, **options)) is None:
            continue
        if seen.advice.cause == cause and shows(seen):
            return seen
        crowded.append(seen.crowded)
    if max(crowded) > 0.1:
        pytest.skip(f"other processes had the cores for {max(crowded):.0%} of the time, and bench says so")
    raise AssertionError(f"{cause} was to be found, and what it shows, not {seen}")


SLEEPS = numbers(400, "pool_size=64", pause=0.004)
BURNS = """
    @provider(input_types=[integer_value(10)], pool_size=64)
    def process(settings, filename):
        for i in range(400):
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                pass
            yield i % 10
"""
QUICK = """
@provider(input_types=[integer_value(10)], pool_size=64)
def process(settings, filename):
    for i in range(20_000):
        yield i % 10
"""


def test_a_generator_that_sleeps_is_found_to_wait(tmp_path: Path) -> None:
    made(tmp_path, SLEEPS)
    how = {"step_ms": 5.0, "seconds": 8.0}  # batches come in bursts in the first second
    seen = found(tmp_path, "waiting", lambda seen: seen.measured.waits > 0.7, **how)
    assert seen.advice.workers > 2
    assert "more workers help" in seen.advice.sentence


def test_a_generator_that_computes_is_found_to_compute(tmp_path: Path) -> None:
    made(tmp_path, BURNS)
    how = {"workers": 1, "step_ms": 1.0}
    seen = found(tmp_path, "process", lambda seen: seen.measured.waits < 0.4 < seen.stages[0].share, **how)
    assert "parsing in process() takes" in seen.advice.sentence


def test_a_slow_step_is_the_limit_of_a_quick_generator(tmp_path: Path) -> None:
    made(tmp_path, QUICK)
    seen = found(tmp_path, "trainer", step_ms=100.0)
    assert seen.advice.workers is None
    assert seen.advice.sentence.endswith("nothing to change")
    assert [stage.name for stage in seen.stages][-1] == "with a step of 100 ms"


def test_too_few_files_are_found(tmp_path: Path) -> None:
    made(tmp_path, BURNS, files=1)
    seen = found(tmp_path, "files")
    assert "1 file for 2 workers" in seen.advice.sentence


def test_values_that_go_the_slow_way_are_found_with_their_slot(tmp_path: Path) -> None:
    made(
        tmp_path,
        """
        ROW = [np.float32(x) for x in range(3000)]

        @provider(input_types={"row": dense_vector(3000), "label": integer_value(10)}, pool_size=64)
        def process(settings, filename):
            for i in range(500):
                yield {"row": ROW, "label": 1}
        """,
    )
    seen = found(tmp_path, "packing")
    assert seen.measured.slot.name == "slot row"
    assert seen.measured.slot.unsure == 1.0
    assert "yield lists of plain numbers, or float32 arrays" in seen.advice.sentence


def test_samples_of_one_yield_are_all_counted(tmp_path: Path) -> None:
    made(
        tmp_path,
        """
        X = np.zeros((1000, 32), np.float32)

        @provider(input_types={"x": dense_vector(32)}, pool_size=4096)
        def process(settings, filename):
            for i in range(50):
                time.sleep(0.01)
                yield pydp2.rows(x=X)
        """,
    )

    def counted() -> bool:
        seen = bench(tmp_path, batch_size=256, seconds=2.0)
        is_whole = 60 < seen.measured.sample_bytes < 140  # 128, but for what was not sent at the end
        return is_whole and all(10_000 < stage.rate < 400_000 for stage in seen.stages) and seen.measured.waits > 0.7

    assert any(counted() for _ in range(3))  # what else runs on the machine comes and goes


def test_large_samples_are_found_to_be_large_however_short_the_time(tmp_path: Path) -> None:
    made(
        tmp_path,
        """
        X = np.zeros(1_500_000, np.float32)

        @provider(input_types=[dense_vector(1_500_000)], pool_size=8)
        def process(settings, filename):
            for i in range(200):
                yield X
        """,
    )
    seen = bench(tmp_path, batch_size=4, seconds=1.5)
    assert seen.measured.sample_bytes == pytest.approx(6e6, rel=0.5)
    assert seen.measured.packed < seen.measured.bare


def test_a_small_list_is_repeated_and_a_large_one_is_not_read_to_its_end(tmp_path: Path) -> None:
    made(tmp_path, QUICK.replace("20_000", "3"), files=1)

    def is_repeated() -> bool:
        small = tried(tmp_path, workers=1, seconds=1.0)
        return small is not None and all(stage.rate > 3 for stage in small.stages)

    assert any(is_repeated() for _ in range(3))  # what else runs on the machine comes and goes
    made(tmp_path, QUICK.replace("20_000", "1 << 40"), files=1)

    def goes_on() -> bool:
        began = time.monotonic()
        large = tried(tmp_path, workers=1, seconds=1.0)
        assert time.monotonic() - began < 60
        return large is not None and all(stage.rate > 100 for stage in large.stages)

    assert any(goes_on() for _ in range(3))


def test_a_pool_that_takes_too_long_to_fill_is_told_in_time(tmp_path: Path) -> None:
    made(tmp_path, SLEEPS.replace("pool_size=64", "pool_size=-1").replace("400", "1 << 30"))

    def is_filled() -> bool:
        began = time.monotonic()
        seen = bench(tmp_path, seconds=1.0)
        assert time.monotonic() - began < 60
        assert seen.advice.cause == "filling", seen
        assert seen.first_batch is None
        return bool(seen.measured.filled > 0)

    assert any(is_filled() for _ in range(3))  # bench asks once: a server that stands still just then gives no number


def test_a_cache_is_told_apart_from_reading(tmp_path: Path) -> None:
    made(tmp_path, SLEEPS.replace("pool_size=64", "cache=CacheType.CACHE_PASS_IN_MEM").replace("400", "10"))
    seen = found(tmp_path, "waiting", lambda seen: (seen.measured.cached or 0) > 3 * seen.measured.pooled)
    assert "out of the cache" in seen.advice.sentence
    assert [stage.name for stage in seen.stages][-1] == "later passes, cached"


def test_what_the_provider_raises_names_file_and_sample(tmp_path: Path) -> None:
    made(tmp_path, QUICK.replace("yield i % 10", "yield 1 // (5 - i)"), files=1)
    with pytest.raises(ProviderError, match=r"file 0\.txt, sample 5: process raised ZeroDivisionError"):
        bench(tmp_path)
    made(tmp_path, QUICK.replace("yield i % 10", "yield 99 if i == 3000 else 1"), files=1)
    with pytest.raises(BadSample, match=r"file 0\.txt, sample \d+, .*expected an int in \[0, 10\), got 99"):
        bench(tmp_path)
    odd = "type('Odd', (), {'__index__': lambda self: 1 // 0})()"
    made(tmp_path, QUICK.replace("yield i % 10", f"yield {odd} if i == 5 else 1"), files=1)
    with pytest.raises(ProviderError, match=r"file 0\.txt, sample 5: process raised ZeroDivisionError"):
        bench(tmp_path)
    made(tmp_path, QUICK, first="raise RuntimeError('not today')")
    with pytest.raises(Error, match="not today"):
        bench(tmp_path)


def test_no_samples_are_no_figures(tmp_path: Path) -> None:
    made(tmp_path, QUICK.replace("20_000", "0"))
    with pytest.raises(Error, match=r"gave no sample in .*the files are empty"):
        bench(tmp_path)
    made(
        tmp_path,
        "@provider(input_types=[integer_value(2)])\ndef process(settings, filename):\n    time.sleep(1e6)\n    yield 1",
    )
    began = time.monotonic()
    with pytest.raises(Error, match="gave no sample in"):
        bench(tmp_path)
    assert time.monotonic() - began < 60


def test_a_process_that_dies_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    made(tmp_path, QUICK, first="import os; os._exit(3)")
    with pytest.raises(ProviderError, match=r"the process that ran process\(\) ended with exit code 3"):
        bench(tmp_path)


@pytest.mark.real_starts
def test_nothing_runs_on_afterwards(tmp_path: Path) -> None:
    made(tmp_path, QUICK, first="import os; open('pids', 'a').write(f'{os.getpid()}\\n')")
    bench(tmp_path, seconds=1.0)
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 3
    assert wait_until(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_service_for_other_hosts_is_measured_here_and_nobody_joins(tmp_path: Path) -> None:
    made(tmp_path, QUICK)
    place = {"bind": "tcp://0.0.0.0:*", "connection": str(tmp_path / "run.json"), "metrics": "127.0.0.1:1"}
    seen = bench(tmp_path, workers=0, **place)
    assert seen.measured.pooled > 0
    assert seen.workers == seen.cores
    assert not (tmp_path / "run.json").exists()


def test_what_cannot_be_asked_is_refused_before_anything_starts(tmp_path: Path) -> None:
    made(tmp_path, QUICK)
    with pytest.raises(OptionError, match=r"seconds must be a number from 1, got 0\.5"):
        bench(tmp_path, seconds=0.5)
    with pytest.raises(OptionError, match="step_ms must be a number from 0"):
        bench(tmp_path, step_ms=0)
    with pytest.raises(TypeError, match="there is no option 'stepms'"):
        bench(tmp_path, stepms=1)
    with pytest.raises(TypeError, match=r"pool_size is not an option here"):
        bench(tmp_path, pool_size=1)
    assert "PYDP2_WORKER" not in os.environ

"""Workers inside a real service, where what they say is long, odd or much, and where they do not end by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import FileCondemned, ProviderError

Provider = Callable[..., str]


def numbers(address: str, files: int = 2, **options: Any) -> list[int]:
    with pydp2.load([f"f{i}" for i in range(files)], address, **{"batch_size": 3, "workers": 1} | options) as data:
        return [int(x) for batch in data for x in batch[0]]


def test_a_pass_in_which_nearly_everything_is_dropped(provider_file: Provider) -> None:
    """Thousands of values out of range are found at once, when a chunk is cut: their reasons fill many headers."""
    address = provider_file("""
        @provider(input_types={"x": integer_value(10)}, check=True, check_fail_continue=True, should_shuffle=False)
        def process(settings, filename):
            for i in range(20_000):
                yield {"x": i}
    """)
    assert numbers(address) == [*range(10), *range(10)]


def test_an_exception_s_text_may_hold_what_utf_8_cannot(provider_file: Provider) -> None:
    address = provider_file("""
        @provider(input_types={"x": integer_value(10)}, should_shuffle=False)
        def process(settings, filename):
            yield {"x": 1}
            raise ValueError("a line of \\udcff bytes " * 5000)
    """)
    with pytest.raises(ValueError, match=r"sample 1: process raised ValueError") as caught:
        numbers(address)
    assert r"\udcff" in str(caught.value)
    assert "characters left out" in str(caught.value)


def test_a_stop_iteration_of_the_user_s_code_does_not_pass_for_the_end_of_the_pass(provider_file: Provider) -> None:
    address = provider_file("""
        def weigh(values):
            return next(iter([]))
        @provider(input_types={"x": integer_value(10)}, calc_batch_size=weigh)
        def process(settings, filename):
            yield {"x": 1}
    """)
    with pytest.raises(ProviderError, match="calc_batch_size raised StopIteration"):
        numbers(address)


def test_what_calc_batch_size_raises_ends_the_file_before_its_sample(provider_file: Provider) -> None:
    address = provider_file("""
        @provider(input_types={"x": integer_value(10)}, should_shuffle=False, calc_batch_size=lambda v: 7 // (5 - v[0]))
        def process(settings, filename):
            for i in range(8):
                yield {"x": i}
    """)
    seen: list[int] = []
    with pydp2.load(["f0"], address, batch_size=1, workers=1) as data:
        passing = iter(data)
        for _ in range(5):
            seen += next(passing)["x"].tolist()
        with pytest.raises(ZeroDivisionError, match="file f0, sample 5: calc_batch_size raised"):
            next(passing)
    assert seen == [0, 1, 2, 3, 4]


def test_a_file_that_kills_its_worker_in_calc_batch_size_is_condemned(provider_file: Provider) -> None:
    address = provider_file("""
        import os
        def weigh(values):
            if values[0] == 3:
                os._exit(7)
            return 1
        @provider(input_types={"x": integer_value(10)}, should_shuffle=False, calc_batch_size=weigh)
        def process(settings, filename):
            for i in range(5):
                yield {"x": i}
    """)
    with pytest.raises(FileCondemned, match="file f0, sample 3: three workers died"):
        numbers(address)


def test_hundreds_of_slots_work_and_too_many_are_an_error_that_says_so(provider_file: Provider) -> None:
    address = provider_file("""
        def hook(settings, count, **kwargs):
            settings.input_types = [integer_value_sub_sequence(10)] * count
            settings.count = count
        @provider(init_hook=hook, should_shuffle=False)
        def process(settings, filename):
            for i in range(40):
                yield [[[i % 10]]] * settings.count
    """)
    with pydp2.load(["a", "b"], address, args={"count": 300}, batch_size=80, workers=2) as data:
        (batch,) = data
        assert len(batch) == 80
    with pytest.raises(ValueError, match=r"types and names of 9000 slots cannot be sent .*; declare fewer"):
        pydp2.load(["a"], address, args={"count": 9000}, batch_size=1, workers=1)


def test_warnings_of_the_hook_may_be_many_long_and_odd(provider_file: Provider) -> None:
    address = provider_file("""
        import warnings
        def hook(settings, **kwargs):
            for i in range(50):
                warnings.warn(f"{i} \\udcff" + "é" * 100_000)
        @provider(input_types={"x": integer_value(10)}, init_hook=hook, should_shuffle=False)
        def process(settings, filename):
            yield {"x": 1}
    """)
    assert numbers(address) == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="closes descriptors by number")
@pytest.mark.parametrize("closed", ["0", "2", "12", "012"])
def test_a_program_without_standard_streams_can_be_a_trainer(provider_file: Provider, closed: str) -> None:
    address = provider_file("""
        @provider(input_types={"x": integer_value(10)}, should_shuffle=False)
        def process(settings, filename):
            print("hello")
            yield {"x": 1}
    """)
    code = f"""
import os, pydp2
result = os.fdopen(os.dup(1), "w")
for number in map(int, {closed!r}):
    os.close(number)
with pydp2.load(["f0", "f1"], {address!r}, batch_size=1, workers=1) as data:
    result.write(str(sum(len(batch) for batch in data)))
    result.flush()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "2", done.stderr


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_what_the_user_s_code_started_ends_when_the_server_is_killed(provider_file: Provider, tmp_path: Path) -> None:
    address = provider_file(f"""
        import subprocess, time
        @provider(input_types={{"x": integer_value(10)}}, should_shuffle=False)
        def process(settings, filename):
            started = subprocess.Popen(["sleep", "1000"])
            open({str(tmp_path / "pid")!r}, "w").write(str(started.pid))
            for i in range(3):
                yield {{"x": i}}
            time.sleep(1000)
    """)
    with pydp2.launch(["f0"], address, workers=1) as service:
        client = service.connect(batch_size=1)
        next(iter(client))
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
        os.kill(service.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(pid)
        client.close()

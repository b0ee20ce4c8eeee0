"""A trace of a service that runs: what its processes do, in the format of Perfetto."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydp2_cli.trace import shares

import pydp2
from pydp2.errors import OptionError, ServiceUnreachable
from tests.runs import wait_until

PROVIDER = """
import time

@provider(input_types=[integer_value(100000)], pool_size=8)
def process(settings, filename):
    for i in range(20000):
        time.sleep(float(filename))
        yield i
"""
STALLED = """
import os, time

@provider(input_types=[integer_value(100000)], should_shuffle=False)
def process(settings, filename):
    for i in range(20000):
        while i == 12 and not os.path.exists(filename):
            time.sleep(0.01)
        time.sleep(0.001)
        yield i
"""
SECONDS = 0.5


def spans_of(traced: dict[str, Any], begin: str) -> list[dict[str, Any]]:
    """The spans of the processes whose names begin so."""
    names = {e["pid"]: e["args"]["name"] for e in traced["traceEvents"] if e["name"] == "process_name"}
    return [e for e in traced["traceEvents"] if e["ph"] == "X" and names[e["pid"]].startswith(begin)]


def share(traced: dict[str, Any], begin: str, span: str) -> float:
    return next(parts.get(span, 0.0) for name, parts in shares(traced).items() if name.startswith(begin))


def traced_until(service: pydp2.Service, shows: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A trace in which ``shows`` is true, by the third one at the latest: what else runs on the machine comes and
    goes."""
    for _ in range(3):
        traced = pydp2.trace(service.address, seconds=SECONDS)
        if shows(traced):
            return traced
    raise AssertionError(shares(traced))


def check_no_overlap(traced: dict[str, Any], process: str) -> None:
    last = 0.0
    for span in spans_of(traced, process):
        if span["tid"] == 0 and span["name"] != "gather":  # that lies in a wait
            assert span["ts"] >= last - 1, (process, span)
            last = span["ts"] + span["dur"]


@contextmanager
def training(
    service: pydp2.Service, step: float | Callable[[list[Any]], object], **options: Any
) -> Iterator[list[Any]]:
    """A trainer in a thread, whose steps take so long, or call ``step``. Gives the numbers of its samples."""
    seen: list[Any] = []
    stop = threading.Event()
    work = step if callable(step) else lambda _: time.sleep(step)

    def train() -> None:
        with service.connect(batch_size=4, **options) as data:
            for batch in data:
                seen.extend(batch[0].tolist())
                work(seen)
                if stop.is_set():
                    return

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        while len(seen) < 8:
            time.sleep(0.005)
        yield seen
    finally:
        stop.set()
        trainer.join()


def test_a_trace_shows_that_the_trainer_waits_for_the_generator(provider_file: Callable[[str], str]) -> None:
    def shows(traced: dict[str, Any]) -> bool:
        generator = share(traced, "worker ", "generator")
        others = max(share(traced, "worker ", "idle"), share(traced, "worker ", "check and pack"))
        return generator > 2 * others and share(traced, "trainer 0", "wait") > 2 * share(traced, "trainer 0", "step")

    with pydp2.launch(["0.002"], provider_file(PROVIDER), workers=1) as service, training(service, 0.0):
        traced = traced_until(service, shows)
    assert traced["otherData"] == {"seconds": SECONDS, "lost_spans": 0}
    drawn = [span for span in spans_of(traced, "worker ") if span["name"] == "generator"]
    assert {span["args"]["file"] for span in drawn} == {"0.002"}
    samples = [span["args"]["sample"] for span in drawn]
    assert samples == sorted(samples)
    for span in spans_of(traced, ""):
        assert 0 <= span["ts"] <= 1e6 * SECONDS
        assert span["ts"] + span["dur"] <= 1e6 * SECONDS + 1


def test_a_trace_shows_that_the_workers_wait_for_the_trainer(provider_file: Callable[[str], str]) -> None:
    def batches_of(traced: dict[str, Any], name: str) -> list[int]:
        return [span["args"]["batch"] for span in spans_of(traced, "trainer") if span["name"] == name]

    def shows(traced: dict[str, Any]) -> bool:
        is_cutting = any(span["name"] == "merge and cut" for span in spans_of(traced, "server"))
        in_both = {*batches_of(traced, "wait")} & {*batches_of(traced, "step")}
        waits = share(traced, "trainer 0", "wait")
        return share(traced, "trainer 0", "step") > 2 * waits and bool(in_both) and is_cutting

    with pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service, training(service, 0.02):
        traced = traced_until(service, shows)
    batches = batches_of(traced, "step")
    assert batches == [*range(batches[0], batches[0] + len(batches))]


def test_spans_of_a_thread_do_not_overlap(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["0", "0.001"], provider_file(PROVIDER), workers=2) as service, training(service, 0.001):
        traced = pydp2.trace(service.address, seconds=SECONDS)
    for process in ("worker 0", "worker 1", "trainer", "server"):
        check_no_overlap(traced, process)


def test_a_wait_that_lasts_longer_than_the_trace_is_a_wait(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    with pydp2.launch([str(go_on)], provider_file(STALLED), workers=1) as service, training(service, 0.0) as seen:
        wait_until(lambda: len(seen) == 12)
        try:
            traced = traced_until(service, lambda traced: share(traced, "trainer 0", "wait") > 0.99)
        finally:
            go_on.touch()
    assert share(traced, "trainer 0", "no report") == 0.0
    check_no_overlap(traced, "trainer 0")
    assert [span["args"] for span in spans_of(traced, "trainer 0")] == [{"pass": 0}] * len(spans_of(traced, "trainer"))


def test_parts_of_a_wait_are_the_whole_wait_once_the_batch_has_come(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    def comes_in_the_middle(number: int) -> bool:
        """Whether the batch that the trainer waits for comes while all of them record."""
        go_on = tmp_path / f"go_on {number}"
        with (
            pydp2.launch([str(go_on)], provider_file(STALLED), workers=1) as service,
            training(service, 0.001) as seen,
            ThreadPoolExecutor(1) as threads,
        ):
            wait_until(lambda: len(seen) == 12)
            trace = threads.submit(pydp2.trace, service.address, seconds=1.0)
            release = threading.Timer(1.0 + 0.5, go_on.touch)  # a second passes until the generator has no report
            release.start()
            traced = trace.result()
            release.join()
        check_no_overlap(traced, "trainer 0")
        steps = [span["args"]["batch"] for span in spans_of(traced, "trainer 0") if span["name"] == "step"]
        assert len(steps) == len({*steps})
        waits = [span["args"] for span in spans_of(traced, "trainer 0") if span["name"] == "wait"]
        batches = [span["batch"] for span in waits if "batch" in span]
        assert batches == [*range(min(batches, default=0), min(batches, default=0) + len(batches))]
        whole = share(traced, "trainer 0", "wait") + share(traced, "trainer 0", "step")
        return whole > 0.95 and "batch" not in waits[0] and batches[:1] == [3]

    assert any(comes_in_the_middle(number) for number in range(3))  # what else runs on the machine comes and goes


def test_the_step_before_a_wait_that_lasts_longer_than_the_trace_is_in_it(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    def ends_in_the_middle(number: int) -> bool:
        """Whether the step ends while all of them record, and is in the trace."""
        go_on, step_over = tmp_path / f"go_on {number}", threading.Event()

        def work(seen: list[Any]) -> None:
            if len(seen) == 12:
                step_over.wait()

        with pydp2.launch([str(go_on)], provider_file(STALLED), workers=1) as service, training(service, work) as seen:
            wait_until(lambda: len(seen) == 12)
            release = threading.Timer(1.0 + SECONDS / 2, step_over.set)  # the trace begins a second after it is asked
            release.start()
            traced = pydp2.trace(service.address, seconds=SECONDS)
            release.join()
            go_on.touch()
        check_no_overlap(traced, "trainer 0")
        step, wait = share(traced, "trainer 0", "step"), share(traced, "trainer 0", "wait")
        return step > 0 and wait > 0 and step + wait > 0.95

    assert any(ends_in_the_middle(number) for number in range(3))  # what else runs on the machine comes and goes


def test_the_stream_is_the_same_with_a_trace(provider_file: Callable[[str], str]) -> None:
    expected = []
    with pydp2.load(["0"] * 2, provider_file(PROVIDER), batch_size=4, workers=2, seed=5) as data:
        for batch in data:
            expected.extend(batch[0].tolist())
            if len(expected) >= 4000:
                break
    with (
        pydp2.launch(["0"] * 2, provider_file(PROVIDER), workers=2) as service,
        training(service, 0.0, seed=5) as seen,
    ):
        while len(seen) < 4000:
            pydp2.trace(service.address, seconds=0.05)
    assert seen[:4000] == expected[:4000]


def test_a_process_in_a_long_call_has_no_report_and_a_killed_one_ends(provider_file: Callable[[str], str]) -> None:
    over = threading.Event()

    def work(seen: list[Any]) -> None:
        if len(seen) >= 8:
            over.wait()

    with pydp2.launch(["0.001", "0"], provider_file(PROVIDER), workers=2) as service, training(service, work):
        victim = next(worker["pid"] for worker in service.stats()["workers"] if worker["active"])
        killer = threading.Timer(1.0 + SECONDS / 2, os.kill, (victim, signal.SIGKILL))
        killer.start()
        try:
            traced = pydp2.trace(service.address, seconds=SECONDS)
        finally:
            over.set()
        killer.join()
    assert share(traced, "trainer 0", "no report") > 0.5


def test_one_trace_is_recorded_at_a_time(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service, ThreadPoolExecutor(2) as threads:
        traces = [threads.submit(pydp2.trace, service.address, seconds=2.0) for _ in range(2)]
        errors = [error for trace in traces if (error := trace.exception()) is not None]
        assert [type(error) for error in errors] == [OptionError]
        assert "ask again when it is done" in str(errors[0])
        assert pydp2.trace(service.address, seconds=0.01)["otherData"]["lost_spans"] == 0


@contextmanager
def interrupted_trace(address: str, data: pydp2.Client, number: int) -> Iterator[None]:
    """A process that asks for a long trace, and ends by the signal ``number`` once ``data`` was told to record."""
    program = f"import pydp2; pydp2.trace({address!r}, seconds=100)"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as asker:
        train_until(data, lambda: spans_on(data))
        asker.send_signal(number)
    yield


def train_until(data: pydp2.Client, what: Callable[[], bool]) -> None:
    """Take batches, of as many passes as it takes, until ``what()`` is true."""
    deadline = time.monotonic() + 30
    while not what():
        for _ in data:
            assert time.monotonic() < deadline
            time.sleep(0.001)
            if what():
                break


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_trace_ends_with_the_process_that_asked_for_it(provider_file: Callable[[str], str], number: int) -> None:
    with (
        pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=4) as data,
        interrupted_trace(service.address, data, number),
    ):
        train_until(data, lambda: not spans_on(data))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_another_trace_may_follow_at_once(provider_file: Callable[[str], str], number: int) -> None:
    with (
        pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=4) as data,
        ThreadPoolExecutor(1) as threads,
    ):
        for _ in range(2):
            with interrupted_trace(service.address, data, number):
                trace = threads.submit(pydp2.trace, service.address, seconds=0.5)
                train_until(data, trace.done)
                assert share(trace.result(), "trainer 0", "step") > 0.0


def test_a_service_without_trainers_can_be_traced(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service:
        traced_until(service, lambda traced: share(traced, "worker ", "idle") > 0.9)


def test_a_service_that_is_not_there_is_not_waited_for_as_long_as_the_trace() -> None:
    began = time.monotonic()
    with pytest.raises(ServiceUnreachable, match="no service answers"):
        pydp2.trace("ipc:///tmp/pydp2-nowhere", seconds=300)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("seconds", [0, -1, 1e-6, 301, float("nan"), "ten"])
def test_a_wrong_time_is_refused(seconds: Any) -> None:
    with pytest.raises((OptionError, TypeError), match=r"^seconds must be"):
        pydp2.trace("ipc:///nowhere", seconds=seconds)


def test_a_trainer_that_leaves_is_not_waited_for(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["0"], provider_file(PROVIDER), workers=1) as service, ThreadPoolExecutor(1) as threads:
        data = service.connect(batch_size=4)
        stream = iter(data)
        next(stream)
        trace = threads.submit(pydp2.trace, service.address, seconds=1.5)
        while not spans_on(data):
            next(stream)
        data.close()
        traced = trace.result()
    assert share(traced, "trainer 0", "no report") == 0.0


def spans_on(data: pydp2.Client) -> bool:
    """Whether the client has been told to record."""
    return data._connection.spans.is_on

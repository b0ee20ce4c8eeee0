"""An exception of a signal handler comes wherever it likes inside a client: nothing is lost, nothing comes twice."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.client import connection, look_ahead, session, wait_notice
from pydp2.protocol import spans
from pydp2.transport import line
from tests.interruptions import (
    ENTRIES,
    LEAVING,
    SPARED,
    Injector,
    Interruption,
    interrupted_pass,
    with_its_own_exception_state,
    within,
)
from tests.runs import alarm

CODE = """
import time
import numpy as np

@provider(input_types=[integer_value(100000)], pool_size=100)
def process(settings, filename):
    for i in range(60):
        yield int(filename) * 1000 + i

@provider(input_types=[integer_value(100000)], pool_size=100, cache=CacheType.CACHE_PASS_IN_MEM)
def cached(settings, filename):
    for i in range(60):
        yield int(filename) * 1000 + i

@provider(input_types=[integer_value(100000)], pool_size=8)
def slowly(settings, filename):
    for i in range(12):
        time.sleep(0.005)
        yield int(filename) * 1000 + i

@provider(input_types=[integer_value_sequence(100000)], pool_size=50)
def long(settings, filename):
    for i in range(12):
        yield [int(filename) * 1000 + i] * 20000

@provider(input_types=[dense_vector(2000)], pool_size=50)
def wide(settings, filename):
    for i in range(12):
        yield np.full(2000, int(filename) * 1000 + i, np.float32)
"""
AWAITED = "batches that are waited for"
FILES = [str(n) for n in range(8)]
AHEAD = "rows that it shows, a batch ahead in a thread"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "small batches, several in a message": ("process", {"batch_size": 8}),
    "batches in shared memory": ("long", {"batch_size": 4}),
    "rows that the service shows": ("wide", {"batch_size": 4}),
    AHEAD: ("wide", {"batch_size": 4}),
    AWAITED: ("slowly", {"batch_size": 8}),
    "a cache that it shows": ("cached", {"batch_size": 8}),
    "batches for whoever asks": ("process", {"batch_size": 8, "share": "dynamic"}),
    "one of two ranks": ("process", {"batch_size": 8, "rank": 0, "world_size": 2, "last_batch": "pad"}),
}
LIKE_OTHERS = ("rows that the service shows", "one of two ranks")  # AHEAD has all steps of the first and more
KIND = pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=pytest.mark.slow if each in LIKE_OTHERS else ()) for each in KINDS if each != AWAITED],
)
Sign = tuple[int, int, list[float]]


def sign(batch: pydp2.Batch) -> Sign:
    value = batch[0]
    return (
        batch.pass_id,
        batch.index,
        (value if isinstance(value, np.ndarray) else value.values).ravel()[::200].tolist(),
    )


def place(state: dict[str, Any]) -> tuple[int, int, list[int]]:
    return state["pass"], state["batch"], state["acknowledged_ahead"]


def comparable(kind: str, state: dict[str, Any]) -> Any:
    """Of ``state`` what is the same in every run: shared with others, its point depends on what they have used, and
    checksums are of where a chunk ended."""
    return place(state) if "share" in KINDS[kind][1] else {**state, "checksums": "", "digest": ""}


Undisturbed = tuple[list[Sign], list[dict[str, Any]]]


@contextlib.contextmanager
def connected(service: pydp2.Service, kind: str, passes: int) -> Iterator[pydp2.Client]:
    """A client of ``kind``; where that is one of two ranks, the other one trains in a thread."""
    options = {"seed": 3, **KINDS[kind][1]}

    def other() -> None:
        with service.connect(**options | {"rank": 1}) as data:
            for _ in range(passes):
                for _ in data:
                    pass

    thread = threading.Thread(target=other)
    with service.connect(**options) as data:
        if "rank" in options:
            thread.start()
        yield data
    if "rank" in options:
        thread.join()


@pytest.fixture
def served(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], pydp2.Service]]:
    """``served(kind)`` is a service of the provider of ``kind``."""
    address = provider_file(CODE).removesuffix("process")
    with contextlib.ExitStack() as stack:

        def serve(kind: str) -> pydp2.Service:
            if kind == AHEAD:  # however short a step is
                monkeypatch.setattr(look_ahead, "_LONG_STEP", 0.0)
            return stack.enter_context(pydp2.launch(FILES, address + KINDS[kind][0], workers=1))

        yield serve


def undisturbed(service: pydp2.Service, kind: str, passes: int) -> Undisturbed:
    """The batches of some passes, and the state behind each."""
    seen, states = [], []
    with connected(service, kind, passes) as data:
        for _ in range(passes):
            for batch in data:
                seen.append(sign(batch))
                states.append(data.state_dict())
        states.append({"samples": data.samples})
    return seen, states


# -- at each instruction -----------------------------------------------------------------------------------------------
@KIND
@with_its_own_exception_state
def test_interrupted_at_any_instruction_it_goes_on_behind_the_last_batch(
    served: Callable[[str], pydp2.Service], kind: str
) -> None:
    """With the same iterator, or in a new loop that takes its pass over."""
    service = served(kind)
    seen, states = undisturbed(service, kind, 3)
    samples = states.pop()["samples"]
    found: list[Sign] = []
    with alarm(240), connected(service, kind, 3) as data:
        injector = Injector()

        def check() -> None:
            state = data.state_dict()
            if found and (state["pass"], state["batch"]) != (found[-1][0] + 1, 0):
                assert place(state) == place(states[len(found) - 1])

        for _ in range(3):
            for batch in interrupted_pass(injector, data, check):
                found.append(sign(batch))
                assert comparable(kind, data.state_dict()) == comparable(kind, states[len(found) - 1])
        assert found == seen
        assert data.samples == samples
    source = Path(session.__file__).read_text("utf-8")
    assert all(line in source for line in LEAVING)
    assert {
        "Stream._deliver",
        "Client._next",
        "RunProtocol.next_action",
        "Connection._decode_one",
        "Line.receive_frames",
    } <= injector.names
    assert kind != AHEAD or "LookAhead.give" in injector.names
    assert len(injector) > 1000


@with_its_own_exception_state
def test_interrupted_while_a_trace_records_it_goes_on_behind_the_last_batch(
    served: Callable[[str], pydp2.Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_notice.WaitNotice, "_look", lambda _: None)  # it has a connection of its own
    monkeypatch.setattr(spans, "_SECONDS", 0.001)  # of this client, so that each wait has many parts
    recording, over, passes = {"Client._record_wait", "Client._record_call", "Client._send_spans"}, threading.Event(), 8
    service = served(AWAITED)
    seen, _ = undisturbed(service, AWAITED, passes)

    def record() -> None:
        while not over.is_set():
            pydp2.trace(service.address, seconds=0.5)

    recorder = threading.Thread(target=record)
    found: list[Sign] = []
    injector = Injector()
    with alarm(240), connected(service, AWAITED, passes) as data:
        recorder.start()
        try:
            while len(found) < len(seen) and not recording <= injector.names:  # most calls find a batch that waits
                found += map(sign, interrupted_pass(injector, data, lambda: None))
        finally:
            over.set()
            recorder.join()
    assert found == seen[: len(found)]
    assert recording <= injector.names


def test_an_exception_when_a_line_has_just_been_made_does_not_wait_for_its_socket(
    served: Callable[[str], pydp2.Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, lines = served(next(iter(KINDS))), list[line.Line]()

    def interrupted(*arguments: Any, **options: Any) -> line.Line:
        lines.append(line.Line(*arguments, **options))
        raise Interruption

    with monkeypatch.context() as patched:
        patched.setattr(connection, "Line", interrupted)
        with alarm(20), pytest.raises(Interruption):
            service.connect(batch_size=8)
    assert lines.pop()._socket.closed
    with service.connect(batch_size=8) as data:
        next(iter(data))


# -- real signals ------------------------------------------------------------------------------------------------------


def spared(frame: FrameType | None) -> bool:
    """Whether an exception would go nowhere, because something is being dropped, or see ``SPARED``."""
    while frame is not None:
        if frame.f_code in SPARED or frame.f_code.co_name in ("give_back", "__del__", "unraisable_hook"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def ticking(seed: int, most: float) -> Iterator[list[int]]:
    """A timer that raises inside next(), at random moments. How often it did."""
    dice, count = random.Random(seed), [0]

    def tick(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, most))
        if within(frame, ENTRIES[0]) and not spared(frame):
            count[0] += 1
            raise Interruption

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, most)
    try:
        yield count
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # first: one that has come already would arm the timer again
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the same in destructors of pyzmq
@KIND
def test_a_timer_that_raises_at_random_moments_changes_nothing(
    served: Callable[[str], pydp2.Service], kind: str
) -> None:
    service = served(kind)
    passes = 6
    seen, states = undisturbed(service, kind, passes)
    found: list[Sign] = []
    deadline = time.monotonic() + 120
    with connected(service, kind, passes) as data, ticking(len(kind), 0.002) as count:
        for number in range(passes):
            one = iter(data)
            while not stream_over(one):
                assert time.monotonic() < deadline, f"it hangs after {len(found)} batches"
                try:
                    for batch in one:
                        found.append(sign(batch))
                        assert comparable(kind, data.state_dict()) == comparable(kind, states[len(found) - 1])
                except Interruption:
                    assert place(data.state_dict()) == (place(states[len(found) - 1]) if found else (0, 0, [])) or (
                        data.state_dict()["batch"] == 0 and data.state_dict()["pass"] == number
                    )
                    if count[0] % 2:
                        one = iter(data)
    assert found == seen
    assert count[0] > 10


def stream_over(one: Any) -> bool:
    return bool(one.over)

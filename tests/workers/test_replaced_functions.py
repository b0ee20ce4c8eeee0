"""Providers and trainers whose libraries replace functions of Python: a frozen clock, other sockets, other threads."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import pydp2
from pydp2.errors import Error, FileCondemned

FUNCTIONS = {
    "_socket": "socketpair",
    "_thread": "allocate_lock start_new_thread",
    "fcntl": "fcntl ioctl",
    "gc": "collect disable enable freeze",
    "hashlib": "blake2b",
    "json": "dumps loads",
    "mmap": "mmap",
    "msgpack": "packb unpackb",
    "os": "_exit chdir close dup dup2 fork fstat ftruncate getcwd getpid getppid memfd_create pipe read "
    "setpgid sysconf urandom waitpid write",
    "signal": "pthread_sigmask set_wakeup_fd signal valid_signals",
    "socket": "recv_fds send_fds socket socketpair",
    "struct": "Struct pack unpack",
    "sys": "setswitchinterval",
    "threading": "Lock Thread active_count enumerate",
    "time": "monotonic monotonic_ns perf_counter perf_counter_ns sleep time time_ns",
}
"""Functions of each module that a provider replaces."""
REPLACED = [f"{module}.{name}" for module, names in FUNCTIONS.items() for name in names.split()]
REPLACE = """
import importlib, sys

def refuse(name):
    def replaced(*args, **kwargs):
        raise RuntimeError(f"pydp2 calls {{name}}, which was replaced")
    return replaced

for name in {names}:
    module, _, function = name.rpartition(".")
    setattr(importlib.import_module(module), function, refuse(name))

@provider(input_types=dict(number=integer_value(1000), wide=dense_vector(2000)), should_shuffle=False)
def process(settings, filename):
    for i in range(200):
        yield dict(number=i, wide=[i] * 2000)
"""
BACKWARD = """
import time

for name in ("time", "monotonic", "perf_counter"):
    setattr(time, name, lambda real=getattr(time, name): -real())
    setattr(time, name + "_ns", lambda real=getattr(time, name + "_ns"): -real())

@provider(input_types=[integer_value(1000)], should_shuffle=False)
def process(settings, filename):
    yield from range(200)
"""
BREAKS = """
import time
import pydp2.host.worker.loop as loop

@provider(input_types=[integer_value(10_000)], should_shuffle=False)
def process(settings, filename):
    kind, number = filename.split("-")
    for i in range(50):
        if kind == "bad" and i == 11:
            loop.microseconds = str
            {then}
        yield 100 * int(number) + i
"""


def numbers(address: str, **options: object) -> tuple[list[int], int]:
    """The samples of two files, and how many workers were lost."""
    with pydp2.load(["a", "b"], address, batch_size=10, workers=2, **options) as data:  # type: ignore[arg-type]  # any
        return [int(x) for batch in data for x in batch[0]], data.stats()["workers_lost"]


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_what_a_provider_replaces_in_the_standard_library_does_not_reach_the_worker(
    start: str, provider_file: Callable[[str], str]
) -> None:
    """All at once; rows are large enough for cells, slabs and the descriptors that are handed over for them."""
    assert numbers(provider_file(REPLACE.format(names=REPLACED)), start=start) == ([*range(200)] * 2, 0)


@pytest.mark.parametrize("name", ["numpy.frombuffer", "numpy.concatenate"])
def test_a_function_of_numpy_that_is_broken_ends_the_service_with_its_traceback(
    name: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Error):
        numbers(provider_file(REPLACE.format(names=[name])))
    assert f"pydp2 calls {name}, which was replaced" in capfd.readouterr().err


def test_clocks_that_go_backward_cost_no_worker(provider_file: Callable[[str], str]) -> None:
    assert numbers(provider_file(BACKWARD), sample_timeout=20.0) == ([*range(200)] * 2, 0)


@pytest.mark.parametrize("clock", [lambda: 5.0, iter(range(0, -(1 << 40), -1)).__next__], ids=["frozen", "backward"])
def test_a_trainer_whose_clock_is_replaced_has_the_whole_pass(
    clock: Callable[[], float], provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = provider_file(REPLACE.format(names=[]))
    with pydp2.load(["a", "b"], address, batch_size=10, workers=2) as data:
        for name in ("time", "monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, clock)
        found = [int(x) for batch in data for x in batch[0]]
        monkeypatch.undo()
        assert found == [*range(200)] * 2


@pytest.mark.parametrize("then", ["pass", "time.sleep(0.05)"], ids=["at once", "later"])
def test_a_file_at_which_workers_break_the_protocol_is_condemned(
    then: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    files = ["good-0", "bad-1", "good-2", "good-3"]
    address = provider_file(BREAKS.format(then=then))
    with pydp2.load(files, address, batch_size=10, workers=1, on_error="skip") as data:
        found = [int(x) for batch in data for x in batch[0]]
        lost = data.stats()["workers_lost"]
    assert [x for x in found if x // 100 != 1] == [100 * file + i for file in (0, 2, 3) for i in range(50)]
    assert [x for x in found if x // 100 == 1] == [*range(100, 100 + len(found) - 150)]
    assert lost < 12
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pydp2: skipped: ")]
    assert "file bad-1, sample " in line
    assert (
        "3 workers in a row sent what the service does not accept (the last one broke the protocol: Chunk.busy_us"
        in line
    )


def test_workers_that_break_the_protocol_with_every_message_end_the_pass(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.load(["bad-0"], provider_file(BREAKS.format(then="pass")), batch_size=5, workers=2) as data,
        pytest.raises(FileCondemned, match=r"file bad-0, sample .* look for a library that replaces"),
    ):
        list(data)

"""Few addresses (RLIMIT_AS, `ulimit -v`), for all processes or for some: the stream is the same, or an error says what
is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import OutOfMemory

from ..runs import consume, processes, wait_until
from .addresses import FILES, HOW, JOB, MB, SERVICE, lower, slabs, stream

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits are set, and looked at, in ways of Linux"),
    pytest.mark.xdist_group("address space"),  # in one process: what is to be expected is found out once
]

SLOTS = {
    "places": "dense_vector(250000), integer_value(1000)",
    "slabs": "dense_vector_sequence(50000), integer_value(1000)",
    "cache": "dense_vector_sequence(50000), integer_value(1000)",
}
ROWS = """
import numpy as np
{before}
@provider(input_types=[{slots}], pool_size=12, cache={cache})
def process(settings, filename):
    for y in range(8):
        number = 8 * int(filename) + y
        yield {value}, number
"""
LIMITED = """
import resource
def limited(settings, **_):
    resource.setrlimit(resource.RLIMIT_AS, ({limit}, -1))
"""
LOWERED = "    resource.setrlimit(resource.RLIMIT_AS, (1_000_000_000, -1))\n"


def code(kind: str, before: str = "") -> str:
    value = 'np.full(250000, number, "f")' if kind == "places" else '[np.full(50000, number, "f")] * (y % 6)'
    text = ROWS.format(slots=SLOTS[kind], cache=int(kind == "cache"), value=value, before=before)
    return text.replace("pool_size=12", "pool_size=12, init_hook=limited") if before else text


@pytest.fixture(params=["places", "slabs", pytest.param("cache", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


_streams: dict[str, list[str]] = {}  # those that have been made: they depend on nothing but the kind


@pytest.fixture
def expected(kind: str, provider_file: Callable[..., str]) -> list[str]:
    if kind not in _streams:
        with pydp2.load(FILES, provider_file(code(kind)), **HOW, **SERVICE, **JOB) as data:
            _streams[kind] = stream(data)
    return _streams[kind]


def test_a_server_that_cannot_map_what_others_offer_is_sent_frames(
    kind: str,
    expected: list[str],
    provider_file: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import resource, sys\nif 'pydp2.server' in str(sys.orig_argv):\n{LOWERED}"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    provider = provider_file(code(kind, LIMITED.format(limit=-1)))  # in its workers, which it forks, that ends again
    with pydp2.launch(FILES, provider, **SERVICE) as service, service.connect(**HOW, **JOB) as data:
        assert stream(data) == expected
        assert slabs(service.pid) == 0
        assert max(slabs(worker["pid"]) for worker in data.stats()["workers"]) == 1  # one that stands by lends nothing
        assert data.stats()["workers_lost"] == 0


def test_workers_that_cannot_map_what_they_offer_send_frames(
    kind: str, expected: list[str], provider_file: Callable[..., str]
) -> None:
    provider = provider_file(code(kind, LIMITED.format(limit=700 * MB)))
    with pydp2.load(FILES, provider, **HOW, **SERVICE, **JOB) as data:
        assert stream(data) == expected
        assert data.stats()["workers_lost"] == 0


def test_a_trainer_that_cannot_map_what_it_offers_is_sent_frames(
    kind: str, expected: list[str], provider_file: Callable[..., str], tmp_path: Path
) -> None:
    trainer = (
        "import resource, sys\n"
        "import pydp2\n"
        "from tests.memory.addresses import HOW, JOB, lower, slabs, stream\n"
        "import os\n"
        "lower(os.getpid(), 200_000_000)\n"
        "with pydp2.connect(sys.argv[1], **HOW, **JOB) as data:\n"
        "    for each in stream(data):\n"
        "        print(each)\n"
    )
    with pydp2.launch(FILES, provider_file(code(kind)), **SERVICE) as service:
        done = subprocess.run(
            [sys.executable, "-c", trainer, service.address], capture_output=True, text=True, timeout=60,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # else each thread may take 64 MiB of the addresses
        )  # fmt: skip
    assert done.stdout.split() == expected, done.stderr


UNDER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
import pydp2
from tests.memory.addresses import FILES, HOW, JOB, SERVICE, stream
try:
    with pydp2.load(FILES, sys.argv[2], **HOW, **JOB, **SERVICE) as data:
        print(*stream(data), sep="\\n")
except pydp2.errors.OptionError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    "limit", [300, 4000, *(pytest.param(each, marks=pytest.mark.slow) for each in (500, 700, 1000))]
)
def test_under_a_limit_for_all_of_them_a_pass_is_exact_or_refused_with_the_figures(
    limit: int, kind: str, expected: list[str], provider_file: Callable[..., str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNDER, str(limit * MB), provider_file(code(kind))], capture_output=True, text=True,
        timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("refused: "):
        assert limit <= 700
        assert f"of address space that are left (RLIMIT_AS is {limit * MB}," in done.stdout
        assert "raise the limit with `ulimit -v`" in done.stdout
    else:
        assert limit >= 700
        assert done.stdout.split() == expected, done.stderr
    assert processes("pydp2-") == []


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop all threads of the process meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{pid}/task")
        assert wait_until(lambda: {(task / "stat").read_text().split(") ")[-1][0] for task in tasks.iterdir()} == {"T"})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_has_no_memory_left_says_so_to_the_trainer(
    provider_file: Callable[..., str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where pools have no memory of so many addresses that they never need more."""
    provider = provider_file(code("slabs").replace("pool_size=12", "pool_size=-1"))
    (tmp_path / "sitecustomize.py").write_text(
        "import pydp2.server.gateway.resources as resources\nresources.create_shared_pool = lambda *_: None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pydp2.launch(FILES, provider, **SERVICE) as service, service.connect(**HOW, **JOB) as data:
        with stopped(service.pid):  # else it takes more while its limit is found
            lower(service.pid, 3 * MB)
        with pytest.raises(OutOfMemory) as caught:
            stream(data)
        assert isinstance(caught.value, MemoryError)
        told = str(caught.value)
        assert told.startswith("the server has no memory for its next step (Unable to allocate ")
        assert "bytes of address space (RLIMIT_AS); lower pool_bytes, memory_limit or batch_size" in told
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_has_no_memory_left_says_so_to_the_trainer(
    provider_file: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    """And its file is not condemned for that."""
    before = "import numpy\nreal = numpy.array\n"
    taking = (
        "    import resource\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + 3_000_000,) * 2)\n"
        "    for y in range(2000):\n"
        "        yield [1] * 100000, y\n"
    )
    text = "@provider(input_types=[integer_value_sequence(9), integer_value(9999)])\ndef process(settings, filename):\n"
    with pydp2.load(["a"], provider_file(before + text + taking), batch_size=4, workers=1, **JOB) as data:
        seen = consume(data)
    assert isinstance(seen.error, MemoryError), repr(seen.error)
    assert "three workers died" not in seen.text


def test_a_trainer_that_has_no_memory_for_a_batch_is_told_and_the_pass_ends(provider_file: Callable[..., str]) -> None:
    """It must not go on behind a batch that it never saw."""
    trainer = (
        "import sys, os, resource\n"
        "import pydp2\n"
        "from tests.memory.addresses import HOW, JOB, lower\n"
        "with pydp2.connect(sys.argv[1], **HOW | {'batch_size': 12}, **JOB) as data:\n"
        "    one = iter(data)\n"
        "    next(one)\n"
        "    lower(os.getpid(), 1_000_000)\n"
        "    try:\n"
        "        kept = list(one)\n"
        "    except pydp2.errors.OutOfMemory as error:\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
        "        print(error, next(one, 'over'))\n"
    )
    with pydp2.launch(FILES, provider_file(code("places")), **SERVICE) as service:
        done = subprocess.run(
            [sys.executable, "-c", trainer, service.address], capture_output=True, text=True, timeout=60,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # else each thread may take 64 MiB of the addresses
        )  # fmt: skip
    assert done.stdout.startswith("this process has no memory for the next batch (Unable to allocate"), done
    assert done.stdout.endswith("over\n")

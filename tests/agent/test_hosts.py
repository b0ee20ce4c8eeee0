"""Workers on other hosts: the stream is that of a local service, whatever becomes of them.

The hosts are agents on this machine, over TCP: they share no memory with the service, and their workers none with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import (
    Error,
    FileCondemned,
    HostRefused,
    OptionError,
    OptionTypeError,
    ProviderError,
    ServiceLost,
    ServiceUnreachable,
)
from pydp2.host.agent.service_link import ServiceLink
from pydp2.host.list_entries import sampled_entries
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.system.process_memory import resident_bytes
from pydp2.system.release import RELEASE
from pydp2.transport import Line
from pydp2.transport.compression import FrameCompressor
from pydp2.transport.key_files import ConnectionFile, new_folder, new_key_pair
from pydp2.transport.service_address import split_key, with_key
from tests.faults.relay import Relay, free_port
from tests.provider_code import numbers
from tests.runs import NUMBERS, Program, alarm, at_rest, processes, wait_until

pytestmark = pytest.mark.usefixtures("short_host_timeout")

FILES = [str(n) for n in range(24)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5}
SLOW = numbers("int(filename) * 29 % 97 + 20", "pool_size=200", first="1000 * int(filename)", pause=0.001)
DRAWS = """
import random
import numpy as np

def hook(settings, **_):
    settings.table = [random.getrandbits(20) for _ in range(4)]

@provider(input_types=[integer_value(1 << 40)], pool_size=200, init_hook=hook)
def process(settings, filename):
    for i in range(random.randrange(20, 90)):
        yield (random.getrandbits(20) + settings.table[i % 4]) << 16 | int(np.random.randint(1 << 16))
"""
KINDS = """
import numpy as np

@provider(
    input_types={
        "dense": dense_vector(5),
        "index": integer_value(1 << 20),
        "ids": integer_value_sequence(1000),
        "inner": integer_value_sub_sequence(50),
        "sparse": sparse_binary_vector(99),
        "pairs": sparse_float_vector(99),
    },
    pool_size=300,
)
def process(settings, filename):
    n = int(filename)
    random = np.random.default_rng(n)
    for i in range(60 + n):
        ids = random.integers(0, 1000, random.integers(0, 30)).tolist()
        some = sorted(set(random.integers(0, 99, 9).tolist()))
        yield {
            "dense": random.random(5).tolist(), "index": n * 1000 + i, "ids": ids,
            "inner": [[i % 50] * 3, [1, 2]], "sparse": some, "pairs": [(k, k / 2) for k in some],
        }
"""
ROWS = """
import numpy as np
from pydp2 import rows

@provider(input_types=[dense_vector(2048), integer_value(1 << 20)], pool_size=100)
def process(settings, filename):
    n = int(filename)
    values = np.arange(40 * 2048, dtype=np.float32).reshape(40, 2048) + n
    yield rows(values, np.arange(40) + 1000 * n)
"""


@pytest.fixture
def short_host_timeout(monkeypatch: pytest.MonkeyPatch, timing: Callable[..., None]) -> None:
    """A silent host is lost within seconds, not ten."""
    timing(host_beat=0.2, host_timeout=2.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


class Host:
    """An agent of this machine, whose end is waited for in a thread."""

    def __init__(self, file: Path, **options: Any) -> None:
        before = processes("pydp2-host")
        self._host = pydp2.WorkerHost(file, **{"workers": 2, "patience": 20.0} | options)
        self.end: str | None = None
        self.error: Error | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._before = before

    def _run(self) -> None:
        try:
            self.end = self._host.run()
        except Error as error:
            self.error = error

    @property
    def pid(self) -> int:
        """Its process, once there is one."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [pid for pid in processes("pydp2-host") if pid not in self._before]
            return bool(found)

        assert wait_until(there), self.error
        return found[0]

    def leave(self) -> None:
        self._host.leave()

    def ended(self, seconds: float = 30.0) -> str | None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the host does not end"
        return self.end


@pytest.fixture
def joined(file: Path) -> Iterator[Callable[..., Host]]:
    """``joined(workers=2)`` starts an agent; all have ended when the service has, at the latest."""
    started: list[Host] = []

    def join(**options: Any) -> Host:
        started.append(Host(options.pop("file", file), **options))
        return started[-1]

    yield join
    for host in started:
        host.leave()
        with contextlib.suppress(AssertionError):
            host.ended(5.0)
    for pid in processes("pydp2-host"):  # only of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(provider: str, file: Path, **options: Any) -> Iterator[pydp2.Service]:
    chosen = {"workers": 0, "bind": "tcp://127.0.0.1:*", "connection": file} | options
    with alarm(120), pydp2.launch(chosen.pop("files", FILES), provider, **chosen) as service:
        yield service


def elsewhere(file: Path) -> Path:
    """A copy of the connection file as a trainer on another host has it: nothing is at the local address there."""
    found = ConnectionFile.read(file)
    copy = file.with_name("copy.json")
    ConnectionFile(found.address, found.keys, found.host_address).write(copy)
    return copy


def digest(batch: pydp2.Batch) -> bytes:
    found = hashlib.blake2b()
    for column in batch:
        for part in [column] if hasattr(column, "tobytes") else vars_of(column):
            found.update(part.tobytes())
    return found.digest()


def vars_of(column: Any) -> list[Any]:
    names = ("values", "offsets", "inner_offsets", "indices", "data", "indptr")
    return [v for name in names if (v := getattr(column, name, None)) is not None]


def stream(data: pydp2.Client, passes: int = 1) -> list[bytes]:
    return [digest(batch) for _ in range(passes) for batch in data]


def local(provider: str, *, passes: int = 1, files: list[str] = FILES, **options: Any) -> list[bytes]:
    with pydp2.load(files, provider, workers=2, **OPTIONS | options) as data:
        return stream(data, passes)


def through(relay: Relay, file: Path) -> Path:
    """A connection file beside ``file`` with which hosts come through ``relay``."""
    found, other = ConnectionFile.read(file), file.with_name("through.json")
    ConnectionFile(found.address, found.keys, relay.address).write(other)
    return other


def hosts(service: pydp2.Service) -> list[dict[str, Any]]:
    return service.stats()["hosts"]


def active(service: pydp2.Service) -> int:
    return sum(each["active"] for each in service.stats()["workers"])


@pytest.mark.parametrize("code", [KINDS, ROWS, DRAWS], ids=["all kinds of slots", "rows", "random numbers"])
def test_the_stream_of_three_hosts_is_that_of_a_local_service(
    code: str, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(code)
    uninterrupted = local(provider, passes=2)
    with serving(provider, file) as service:
        made = [joined(workers=n) for n in (1, 2, 3)]
        assert wait_until(lambda: active(service) == 6)
        assert sorted(each["places"] for each in hosts(service)) == [1, 2, 3]
        for where in (file, elsewhere(file)):  # with shared memory, and without
            with pydp2.connect(where, job=where.name, **OPTIONS) as data:
                assert stream(data, 2) == uninterrupted
        assert all(each["received_bytes"] for each in hosts(service))
    assert [host.ended() for host in made] == ["its program closed it"] * 3


@pytest.mark.parametrize("cores", [7, 12])
def test_workers_of_a_host_with_many_cores_send_over_several_connections(
    cores: int, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("pydp2.api.machine.cores", lambda: cores)
    provider = provider_file(ROWS)
    uninterrupted = local(provider, passes=2)
    with serving(provider, file) as service:
        joined(workers=5)
        assert wait_until(lambda: active(service) == 5)
        assert [each["data_connections"] for each in hosts(service)] == [cores // 4]
        with service.connect(**OPTIONS) as data:
            assert stream(data, 2) == uninterrupted


@pytest.mark.parametrize("code", [KINDS, ROWS], ids=["all kinds of slots", "rows"])
def test_the_stream_of_hosts_that_compress_is_that_of_a_local_service(
    code: str, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    pytest.importorskip("zstandard")
    provider = provider_file(code)
    uninterrupted = local(provider, passes=2)
    with serving(provider, file) as service:
        joined(workers=2, name="packs", compress="zstd")
        joined(workers=1, name="sends all")
        assert wait_until(lambda: active(service) == 3)
        with pydp2.connect(file, **OPTIONS) as data:
            assert stream(data, 2) == uninterrupted
        found = {each["host"]: each for each in hosts(service)}
        saved = found["packs"]["inflated_bytes"] - found["packs"]["received_bytes"]
        assert saved > 0 if code is ROWS else saved >= 0, "columns of other kinds can be too small for it"
        assert found["sends all"]["inflated_bytes"] == found["sends all"]["received_bytes"] > 0


def test_workers_here_and_elsewhere_feed_one_stream(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(ROWS)
    uninterrupted = local(provider)
    with serving(provider, file, workers=1) as service:
        joined(workers=1)
        assert wait_until(lambda: active(service) == 2)
        assert {each["host"] for each in service.stats()["workers"]} == {0, 1}
        with service.connect(**OPTIONS) as data:
            assert stream(data) == uninterrupted


RANK = """
from __future__ import annotations
import hashlib, json, signal, sys
import pydp2

{digest}
rank, world_size, steps = map(int, sys.argv[2:])
with pydp2.connect(sys.argv[1], rank=rank, world_size=world_size, timeout=60.0, batch_size=16, seed=5) as data:
    batches = iter(data)
    seen = [digest(next(batches)).hex() for _ in range(steps)]
    print(json.dumps([seen, data.state_dict()]), flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("steps", [1, 7])
def test_a_job_of_four_ranks_fed_by_two_hosts_goes_on_with_two_ranks_and_workers_here(
    steps: int,
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    program: Callable[..., Program],
) -> None:
    """Trainers, hosts and service are killed in the middle of a pass; what follows is what would have followed."""
    provider = provider_file(KINDS)
    uninterrupted = local(provider)
    code = RANK.format(digest=inspect.getsource(digest) + inspect.getsource(vars_of))
    with serving(provider, file) as service:
        made = [joined(workers=2) for _ in range(2)]
        assert wait_until(lambda: active(service) == 4)
        trainers = [program(code, str(elsewhere(file)), str(rank), "4", str(steps)) for rank in range(4)]
        said = [json.loads(trainer.said("[")) for trainer in trainers]
        for pid in [*(trainer.pid for trainer in trainers), *processes("pydp2-host"), service.pid]:
            os.kill(pid, signal.SIGKILL)
        assert [trainer.ended() for trainer in trainers] == [-signal.SIGKILL] * 4
    for host in made:
        host.ended()
    assert not processes("pydp2-")
    for rank, (seen, _) in enumerate(said):
        assert seen == [each.hex() for each in uninterrupted[rank::4][:steps]]
    state = said[0][1]
    assert [each for _, each in said] == [state] * 4, "the state is the same in all ranks"
    assert (state["pass"], state["batch"]) == (0, 4 * steps)
    with alarm(120), contextlib.ExitStack() as stack:
        service = stack.enter_context(pydp2.launch(FILES, provider, workers=1))
        ranks = [stack.enter_context(service.connect(rank=n, world_size=2, **OPTIONS)) for n in range(2)]
        for rank in ranks:
            rank.load_state_dict(state)
        assert in_steps(ranks) == uninterrupted[4 * steps :]


def in_steps(ranks: list[pydp2.Client]) -> list[bytes]:
    """The rest of a pass as its ranks see it, one batch of each after the other."""
    streams, seen = [iter(rank) for rank in ranks], []
    while step := [digest(batch) for stream in streams if (batch := next(stream, None)) is not None]:
        seen += step
    return seen


def test_three_ranks_with_buckets_and_a_cache_in_memory_see_what_they_see_without_hosts(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(KINDS.replace("pool_size=300", "pool_size=300, cache=CacheType.CACHE_PASS_IN_MEM"))
    options = OPTIONS | {"bucket_by": "ids", "bucket_bounds": [8, 16, 24], "last_batch": "pad"}

    def three_passes(where: str | Path) -> list[list[bytes]]:
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(pydp2.connect(where, rank=n, world_size=3, **options)) for n in range(3)]
            return [in_steps(ranks) for _ in range(3)]

    with pydp2.launch(FILES, provider, workers=2) as service:
        uninterrupted = three_passes(service.address)
        cached = service.stats()["cache"]
    with serving(provider, file) as service:
        for _ in range(3):
            joined(workers=1)
        assert wait_until(lambda: active(service) == 3)
        assert three_passes(elsewhere(file)) == uninterrupted
        assert service.stats()["cache"] == cached
        assert all(each["received_bytes"] for each in hosts(service))
    assert len({*map(tuple, uninterrupted)}) == 3, "each pass has an order of its own"
    assert all(len(each) % 3 == 0 for each in uninterrupted)


def test_a_trainer_that_comes_before_the_first_worker_waits_for_it(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(NUMBERS)
    uninterrupted = local(provider)
    with serving(provider, file):
        found: list[list[bytes]] = []

        def train() -> None:
            with pydp2.connect(file, timeout=60.0, **OPTIONS) as data:
                found.append(stream(data))

        trainer = threading.Thread(target=train)
        trainer.start()
        joined()
        trainer.join(60)
        assert found == [uninterrupted]


def test_hosts_join_and_leave_in_the_middle_of_a_pass(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    with serving(provider, file) as service:
        first = joined(workers=1)
        with pydp2.connect(file, **OPTIONS) as data:
            seen, batches = [], iter(data)
            seen += [digest(next(batches)) for _ in range(5)]
            joined(workers=2)
            assert wait_until(lambda: active(service) == 3)
            seen += [digest(next(batches)) for _ in range(5)]
            first.leave()
            seen += [digest(batch) for batch in batches]
            assert seen == uninterrupted
        assert first.ended() == "it has left"
        assert [each["places"] for each in hosts(service)] == [2]


@pytest.mark.parametrize("lag", [0.0, 0.3])
def test_a_host_that_leaves_in_order_reads_no_sample_that_another_reads_too(
    lag: float, provider_file: Callable[[str], str], file: Path, tmp_path: Path, joined: Callable[..., Host]
) -> None:
    """Also if the service hears late of what the host has read."""
    log = tmp_path / "log"
    log.touch()
    noted = f"open({str(log)!r}, 'a').write(f'{{filename}} {{i}}\\n'); time.sleep(0.002)"
    provider = provider_file(SLOW.replace("time.sleep(0.001)", noted))
    with serving(provider, file) as service, contextlib.ExitStack() as stack:
        found = ConnectionFile.read(file)
        relay = Relay(found.host_address)
        stack.callback(relay.end)
        through = file.with_name("relayed.json")
        ConnectionFile(found.address, found.keys, relay.address).write(through)
        first = joined(workers=2, file=through)
        with pydp2.connect(file, **OPTIONS) as data:
            batches = iter(data)
            rows = len(next(batches))
            relay.delay = lag
            joined(workers=2)
            assert wait_until(lambda: active(service) == 4)
            first.leave()
            rows += sum(len(batch) for batch in batches)
            assert first.ended() == "it has left"
        assert service.stats()["workers_lost"] == 0
    read = log.read_text().splitlines()
    assert len(read) == len(set(read)) == rows


@pytest.mark.parametrize("after", [None, 0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
@pytest.mark.parametrize("end", [pydp2.WorkerHost.leave, pydp2.WorkerHost.close])
def test_a_host_that_is_told_to_leave_while_it_starts_leaves(
    end: Callable[[pydp2.WorkerHost], None], after: float | None, provider_file: Callable[[str], str], file: Path
) -> None:
    with serving(provider_file(SLOW), file):
        host = pydp2.WorkerHost(file, workers=1)
        if after is None:
            end(host)
        else:
            threading.Timer(after, end, [host]).start()
        assert host.run() in ("it has left", "it was told to leave", "its program ended it")


@pytest.mark.parametrize("listens", [True, False])
def test_a_host_that_is_told_to_leave_while_no_service_answers_leaves(file: Path, listens: bool) -> None:
    address = with_key(f"tcp://127.0.0.1:{free_port()}", new_key_pair().public)
    ConnectionFile(address, {"worker": new_key_pair()}, address).write(file)
    with contextlib.ExitStack() as stack:
        if listens:  # and says nothing
            port = int(split_key(address)[0].rpartition(":")[2])
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        host = pydp2.WorkerHost(file, workers=1, patience=60.0)
        timer = threading.Timer(0.5, host.leave)
        timer.start()
        began = time.monotonic()
        assert host.run() == "it has left"
        assert time.monotonic() - began < 20
        timer.join()


def test_hosts_connect_over_tcp(tmp_path: Path) -> None:
    new_folder(tmp_path / "mine")
    with pytest.raises(OptionError, match="hosts connect over TCP, got ipc:///tmp/s; use the connection file"):
        pydp2.WorkerHost(with_key("ipc:///tmp/s", "0" * 64), key=tmp_path / "mine")


def test_a_host_that_cannot_be_is_refused_before_anything_is_started(
    provider_file: Callable[[str], str], file: Path
) -> None:
    with serving(provider_file(SLOW), file):
        for wrong in (
            {"workers": 0}, {"workers": 2.5}, {"workers": "4"}, {"name": 5}, {"patience": "5"}, {"name": "\udc80"},
            {"maps": 5}, {"maps": "a=b"}, {"maps": {"/a": 5}}, {"maps": {5: "/a"}}, {"maps": {"": "/a"}},
        ):  # fmt: skip
            (name,) = wrong
            with pytest.raises((OptionError, OptionTypeError), match=f"{name} must be"):
                pydp2.WorkerHost(file, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_host_that_dies_or_stands_still_costs_nothing_but_time(
    how: signal.Signals,
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    capfd: pytest.CaptureFixture[str],
) -> None:
    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    with serving(provider, file) as service:
        doomed = joined(workers=2, name="doomed")
        pid = doomed.pid
        assert wait_until(lambda: active(service) == 2)
        joined(workers=1, name="other")
        assert wait_until(lambda: active(service) == 3)
        with pydp2.connect(file, **OPTIONS) as data:
            seen, batches = [], iter(data)
            seen += [digest(next(batches)) for _ in range(3)]
            os.kill(pid, how)
            assert wait_until(lambda: [each["host"] for each in hosts(service)] == ["other"])
            seen += [digest(batch) for batch in batches]
            assert seen == uninterrupted
        if how is signal.SIGKILL:
            doomed.ended()
            assert isinstance(doomed.error, ServiceLost)
        else:
            os.kill(pid, signal.SIGCONT)
            assert wait_until(lambda: len(hosts(service)) == 2), "it joins anew, with a new session"
    screen = capfd.readouterr().err
    assert "host lost: doomed is lost" in screen
    assert "condemned" not in screen


@pytest.mark.parametrize("how", ["cut", "carries nothing"])
def test_a_host_whose_path_fails_joins_again_by_itself(
    how: str, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    with serving(provider, file) as service:
        relay = Relay(service.host_address)
        try:
            host = joined(workers=2, file=through(relay, file))
            with pydp2.connect(file, **OPTIONS) as data:
                seen, batches = [], iter(data)
                seen += [digest(next(batches)) for _ in range(3)]
                before = {each["number"] for each in hosts(service)}
                if how == "cut":
                    relay.cut()
                else:
                    relay.held = True
                    assert wait_until(lambda: not hosts(service)), "it is not heard"
                    relay.cut()
                    relay.up()
                seen += [digest(batch) for batch in batches]
                assert seen == uninterrupted
                assert {each["number"] for each in hosts(service)} & before == set()
            assert host.error is None
        finally:
            relay.end()


# -- which hosts may join ----------------------------------------------------------------------------------------------
def test_a_host_with_other_code_is_turned_away_by_name_and_the_stream_goes_on(
    tmp_path: Path, file: Path, joined: Callable[..., Host]
) -> None:
    folders = [tmp_path / name for name in ("head", "same", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "mytext.py").write_text("def double(n):\n    return 2 * n\n")
        (folder / "prov.py").write_text(
            "from pydp2 import *\nfrom mytext import double\n\n"
            "@provider(input_types=[integer_value(100000)], pool_size=50)\n"
            "def process(settings, filename):\n    for i in range(40):\n        yield double(int(filename) * 40 + i)\n"
        )
    (folders[2] / "mytext.py").write_text("def double(n):\n    return 3 * n\n")
    with serving("prov.process", file, root=folders[0], workers=1) as service, service.connect(**OPTIONS) as data:
        uninterrupted = stream(data)
        wrong = joined(root=folders[2], name="node7")
        assert wrong.ended() is None
        assert isinstance(wrong.error, HostRefused)
        assert "mytext.py is another one on node7; copy the same files there" in str(wrong.error)
        joined(root=folders[1])
        assert wait_until(lambda: active(service) == 3)
        assert stream(data)[0] != uninterrupted[0]
        assert len(hosts(service)) == 1


def test_a_host_that_cannot_import_the_provider_is_turned_away_with_the_reason(
    tmp_path: Path, file: Path, joined: Callable[..., Host]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "prov.py").write_text(
        "from pydp2 import *\n\n@provider(input_types=[integer_value(9)])\n"
        "def process(settings, filename):\n    yield 1\n"
    )
    with serving("prov.process", file, root=here, workers=1) as service, service.connect(batch_size=1) as data:
        wrong = joined(root=there)
        wrong.ended()
        assert "prov" in str(wrong.error)
        assert not hosts(service)
        assert len(stream(data)) == len(FILES)


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same six files, as two hosts mount them."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        for n in range(6):
            (folder / str(n)).write_text(str(n))
    return here, there


def test_a_host_that_lacks_a_file_is_turned_away_and_a_map_helps(
    tmp_path: Path, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    here, there = two_folders(tmp_path)
    provider = provider_file("""
        @provider(input_types=[integer_value(100000)])
        def process(settings, filename):
            with open(filename) as opened:
                for i in range(30):
                    yield int(filename[-1]) * 100 + i
                opened.read()
    """)
    files = [str(here / str(n)) for n in range(6)]
    uninterrupted = local(provider, files=files)
    with serving(provider, file, files=files, workers=1) as service:
        gone = tmp_path / "gone"
        here.rename(gone)  # for a host, the files are not there
        wrong = joined(name="node7")
        wrong.ended()
        assert isinstance(wrong.error, HostRefused)
        assert f"{here}/" in str(wrong.error)
        assert "is not there on node7, but it is on the host of the service; mount it" in str(wrong.error)
        joined(maps={str(here): str(there)})
        assert wait_until(lambda: active(service) == 3)
        gone.rename(here)
        with service.connect(**OPTIONS) as data:
            assert stream(data) == uninterrupted


def test_beside_a_host_without_the_files_no_other_joins_that_has_them(
    tmp_path: Path, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    """What it cannot open would be skipped, or not, depending on where a file is read."""
    here, there = two_folders(tmp_path)
    provider = provider_file("""
        @provider(input_types=[integer_value(100000)])
        def process(settings, filename):
            with open(filename) as opened:
                for i in range(30):
                    yield int(filename[-1]) * 100 + i
    """)
    files = [str(here / str(n)) for n in range(6)]
    uninterrupted = local(provider, files=files, passes=2)
    here.rename(tmp_path / "gone")
    with serving(provider, file, files=files, on_error="skip") as service:
        first = joined(name="node7")
        assert wait_until(lambda: active(service) == 2)
        second = joined(name="node8", maps={str(here): str(there)})
        second.ended()
        assert isinstance(second.error, HostRefused)
        assert "is there on node8, but not on node7, which joined before; end node7, or" in str(second.error)
        first.leave()
        assert first.ended() == "it has left"
        joined(name="node8", maps={str(here): str(there)})
        with service.connect(**OPTIONS) as data:
            assert stream(data, 2) == uninterrupted
        assert [host["host"] for host in hosts(service)] == ["node8"]


def test_without_a_key_for_workers_no_host_joins(
    provider_file: Callable[[str], str], file: Path, tmp_path: Path
) -> None:
    with serving(provider_file(NUMBERS), file) as service:
        found = ConnectionFile.read(file)
        as_trainer = tmp_path / "trainer.json"
        ConnectionFile(found.address, {"worker": found.keys["trainer"]}, found.host_address).write(as_trainer)
        with pytest.raises(HostRefused, match="does not admit the key of this host; it needs a key with the role work"):
            pydp2.WorkerHost(as_trainer).run()
        without = tmp_path / "without.json"
        ConnectionFile(found.address, {"trainer": found.keys["trainer"]}, found.host_address).write(without)
        with pytest.raises(OptionError, match="must have keys for the role worker, it has trainer"):
            pydp2.WorkerHost(without)
        as_worker = tmp_path / "worker.json"
        ConnectionFile(found.address, {"trainer": found.keys["worker"]}, found.host_address).write(as_worker)
        with pytest.raises(ServiceUnreachable):
            pydp2.connect(as_worker, timeout=1.0, **OPTIONS)
        assert not hosts(service)


def test_no_secret_key_shows_anywhere_while_hosts_are_at_work(
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(provider_file(NUMBERS), file) as service:
        secrets = [pair.secret for pair in ConnectionFile.read(file).keys.values()]
        joined(workers=1)
        assert wait_until(lambda: active(service) == 1)
        with service.connect(**OPTIONS) as data:
            shown = [repr(stream(data)), repr(service.stats()), repr(pydp2.WorkerHost(file))]
        pids = [pid for name in ("server", "host", "supervise", "worker") for pid in processes(f"pydp2-{name}")]
        assert len(pids) >= 5
        for pid in pids:
            shown += [(Path(f"/proc/{pid}") / name).read_bytes().decode("latin-1") for name in ("cmdline", "environ")]
        for found in Path(tempfile.gettempdir()).rglob("*"):  # run directories, and what else lies there
            if found.is_file() and found != file:
                shown.append(found.read_bytes().decode("latin-1"))
    shown += [*capfd.readouterr()]
    for secret in secrets:
        assert all(secret not in text for text in shown)


def test_a_service_without_keys_has_no_workers_elsewhere(provider_file: Callable[[str], str]) -> None:
    provider = provider_file(NUMBERS)
    with pytest.raises(OptionError, match="workers=0 leaves all workers to other hosts, which need keys"):
        pydp2.launch(FILES, provider, workers=0)
    with pytest.raises(OptionError, match="worker_bind is for a service with keys"):
        pydp2.launch(FILES, provider, worker_bind="tcp://127.0.0.1:7701")
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*") as service:
        assert service.host_address == ""
        with pytest.raises(OptionError, match="workers on other hosts need a service with keys"):
            pydp2.WorkerHost(service.address)


def test_a_host_that_sends_bombs_loses_its_session_and_the_stream_goes_on(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard")
    provider = provider_file(NUMBERS)
    uninterrupted = local(provider)
    (bomb,), _ = FrameCompressor().compress([bytes(32 << 20)])
    with serving(provider, file, workers=1) as service:
        before = resident_bytes(service.pid)
        for size in (1024, 1 << 40):
            with hostile(file) as (link, data):
                data.send([m.encode(m.FromWorker(1, [size])), b"", bomb])
                assert answer(link, m.Closing).reason.startswith("it broke the protocol: ")
        assert not hosts(service)
        assert resident_bytes(service.pid) - before < 16 << 20
        joined(workers=1, compress="zstd")
        assert wait_until(lambda: active(service) == 2)
        with service.connect(**OPTIONS) as data:
            assert stream(data) == uninterrupted
    screen = capfd.readouterr().err
    assert f"a host broke the protocol: a frame of 1024 bytes that zstd takes for one of {32 << 20}" in screen
    assert f"a host broke the protocol: a frame of {1 << 40} bytes, at most" in screen


@contextlib.contextmanager
def hostile(file: Path) -> Iterator[tuple[ServiceLink, Line]]:
    """Both connections of a host that has joined, by hand."""
    found = ConnectionFile.read(file)
    link = ServiceLink(found.host_address, found.keys["worker"])
    try:
        link.send(m.Join(m.WIRE_VERSION, RELEASE, "hostile", 1, link.session, "", {}, "zstd"))
        answer(link, m.Spec)
        link.open_data()
        answer(link, m.DataOpened)
        link.send(m.Prepared([0] * len(sampled_entries(FileList.of(FILES)))))
        answer(link, m.StartWorker)
        yield link, link._data[0][0]
    finally:
        link.close()


def answer(link: ServiceLink, kind: type[Any]) -> Any:
    """The next message of ``kind`` that the service sends."""
    found: list[m.Message] = []

    def there() -> bool:
        while (received := link.receive()) is not None:
            found.append(received[0])
        return any(isinstance(each, kind) for each in found)

    assert wait_until(there), found
    return next(each for each in found if isinstance(each, kind))


def test_what_a_host_compresses_with_must_be_known_and_installed(
    provider_file: Callable[[str], str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(provider_file(NUMBERS), file):
        with pytest.raises(OptionError, match="compress must be 'zstd' or None, got 'lz77'"):
            pydp2.WorkerHost(file, compress="lz77")
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(OptionError, match=r"which is not installed: pip install 'zstandard>="):
            pydp2.WorkerHost(file, compress="zstd")


# -- what workers do there ---------------------------------------------------------------------------------------------
def test_a_file_that_kills_its_worker_elsewhere_is_condemned_as_here(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(
        numbers(30, first="100 * int(filename)", before="if filename == '7' and i == 11: os.kill(os.getpid(), 9)")
    )
    with pytest.raises(FileCondemned) as here, pydp2.load(FILES, provider, workers=2, **OPTIONS) as data:
        stream(data)
    with serving(provider, file):
        host = joined()
        with pytest.raises(FileCondemned) as there, pydp2.connect(file, **OPTIONS) as data:
            stream(data)
        assert str(there.value) == str(here.value)
        assert "file 7, sample 11" in str(there.value)
        assert host.error is None


def test_a_host_watches_time_and_memory_of_its_workers(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(
        numbers(30, first="100 * int(filename)", before="if filename == '7' and i == 11: time.sleep(60)")
    )
    with serving(provider, file, sample_timeout=0.3, on_error="skip"):
        joined()
        with pydp2.connect(file, **OPTIONS) as data:
            assert sum(batch.size for batch in data) == 24 * 30 - 19
    screen = capfd.readouterr().err
    assert "file 7, sample 11 takes longer than 0.3 s; the stack:" in screen
    assert "time.sleep(60)" in screen or "in process" in screen


def test_what_process_raises_and_prints_elsewhere_is_told(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file("""
        @provider(input_types=[integer_value(100000)])
        def process(settings, filename):
            print("reading", filename)
            if filename == "7":
                raise FileNotFoundError("no such thing")
            yield 1
    """)
    with serving(provider, file):
        joined()
        with pytest.raises(ProviderError, match="file 7") as caught, pydp2.connect(file, **OPTIONS) as data:
            stream(data)
        assert isinstance(caught.value, FileNotFoundError)
    assert "reading 3" in capfd.readouterr().err


# -- the end -----------------------------------------------------------------------------------------------------------
def test_a_host_whose_service_was_killed_gives_up_after_its_patience(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    with serving(provider_file(NUMBERS), file) as service:
        host = joined(patience=1.0)
        assert wait_until(lambda: active(service) == 2)
        os.kill(service.pid, signal.SIGKILL)
        assert host.ended() is None
        assert isinstance(host.error, ServiceLost)
        assert "no service was at tcp://127.0.0.1:" in str(host.error)


def test_a_second_signal_ends_a_host_at_once(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(numbers(1000, "pool_size=10", pause=0.01))
    with serving(provider, file) as service:
        host = joined()
        with pydp2.connect(file, **OPTIONS) as data:
            batches = iter(data)
            next(batches)
            host.leave()
            assert wait_until(lambda: [each["state"] for each in hosts(service)] == ["draining"])
            assert host.end is None, "its workers read on"
            began = time.monotonic()
            host.leave()
            assert host.ended() == "it was told to leave"
            assert time.monotonic() - began < 5
            assert wait_until(lambda: not hosts(service))


def test_a_host_waits_for_a_service_that_is_started_again(
    provider_file: Callable[[str], str], file: Path, tmp_path: Path, joined: Callable[..., Host]
) -> None:
    from tests.faults.relay import free_port

    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    options = {
        "state_dir": tmp_path / "state", "bind": f"tcp://127.0.0.1:{free_port()}",
        "worker_bind": f"tcp://127.0.0.1:{free_port()}",
    }  # fmt: skip
    seen = []
    with serving(provider, file, **options) as service:
        host = joined()
        data = pydp2.connect(file, **OPTIONS)
        batches = iter(data)
        seen += [digest(next(batches)) for _ in range(5)]
        os.kill(service.pid, signal.SIGKILL)
    with serving(provider, file, **options):
        seen += [digest(batch) for batch in batches]
        assert seen == uninterrupted
        data.close()
    host.leave()
    assert host.error is None


@pytest.mark.parametrize(
    "what",
    ["provider_source", "slots", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pool_size", "shuffle"))],
)
def test_a_host_with_another_provider_that_comes_first_does_not_end_a_service_that_was_started_again(
    what: str, tmp_path: Path, file: Path, joined: Callable[..., Host]
) -> None:
    from tests.faults.relay import free_port

    code = """
from pathlib import Path
import time
from pydp2 import *

other = Path(__file__).with_name("other").read_text()

@provider(
    input_types=[integer_value(99999 if other == "slots" else 100000)],
    pool_size=51 if other == "pool_size" else 50,
    should_shuffle=other != "shuffle",
)
def process(settings, filename):
    for i in range(40):
        time.sleep(0.002)
        yield int(filename) * 40 + i
"""
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "other").write_text(what if name == "other" else "")
        changed = name == "other" and what == "provider_source"
        (tmp_path / name / "prov.py").write_text(code + ("# changed\n" if changed else ""))
    uninterrupted = local(str(tmp_path / "same" / "prov.py") + ":process")
    options = {
        "state_dir": tmp_path / "state", "bind": f"tcp://127.0.0.1:{free_port()}", "root": tmp_path / "same",
        "worker_bind": f"tcp://127.0.0.1:{free_port()}",
    }  # fmt: skip
    seen = []
    with serving("prov.process", file, **options) as service:
        host = joined(root=tmp_path / "same")
        data = pydp2.connect(file, **OPTIONS)
        batches = iter(data)
        seen += [digest(next(batches)) for _ in range(5)]
        assert wait_until(lambda: any((tmp_path / "state").iterdir()))
        host.leave()
        assert host.ended() == "it has left"
        os.kill(service.pid, signal.SIGKILL)
    with serving("prov.process", file, **options):
        wrong = joined(root=tmp_path / "other", name="node7")
        assert wrong.ended() is None
        assert isinstance(wrong.error, HostRefused)
        assert "the state directory of the service was written" in str(wrong.error)
        assert f"and it is another one on node7: {what} was " in str(wrong.error)
        joined(root=tmp_path / "same")
        seen += [digest(batch) for batch in batches]
        assert seen == uninterrupted
        data.close()


def test_a_host_with_other_code_that_comes_before_the_first_worker_of_the_service_does_not_end_it(
    tmp_path: Path, file: Path, joined: Callable[..., Host]
) -> None:
    """It waits for a service that is started again, and its worker is ready before the one that it is compared with."""
    code = """
import time
from pathlib import Path
from pydp2 import *

here = Path(__file__).parent
(here / "imported").touch()
while not (here / "may go on").exists():
    time.sleep(0.01)

@provider(input_types=[integer_value(100000)], pool_size=50)
def process(settings, filename):
    for i in range(40):
        yield int(filename) * 40 + i
"""
    for name in ("head", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "may go on").touch()
        (tmp_path / name / "prov.py").write_text(code + ("# changed\n" if name == "other" else ""))
    uninterrupted = local(str(tmp_path / "head" / "prov.py") + ":process")
    options = {
        "state_dir": tmp_path / "state", "bind": f"tcp://127.0.0.1:{free_port()}", "root": tmp_path / "head",
        "worker_bind": f"tcp://127.0.0.1:{free_port()}", "workers": 1,
    }  # fmt: skip
    with serving("prov.process", file, **options) as service:
        os.kill(service.pid, signal.SIGKILL)
    (tmp_path / "head" / "may go on").unlink()
    wrong = joined(root=tmp_path / "other", name="node7", workers=1)

    def let_the_service_be_second() -> None:
        assert wait_until((tmp_path / "other" / "imported").exists)
        assert wait_until(lambda: at_rest(processes("pydp2-worker")))
        (tmp_path / "head" / "may go on").touch()

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(let_the_service_be_second)
        with serving("prov.process", file, **options) as service, service.connect(**OPTIONS) as data:
            assert second.result() is None
            assert wrong.ended() is None
            assert "prov.py is another one on node7; copy the same files there" in str(wrong.error)
            assert [digest(batch) for batch in data] == uninterrupted


@pytest.mark.parametrize("service_ends", [True, False], ids=["the service ends", "it goes on"])
def test_a_host_whose_data_cannot_leave_hears_what_the_service_says_last(
    service_ends: bool, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    with serving(provider_file(SLOW), file) as service:
        relay = Relay(service.host_address)
        try:
            host = joined(workers=1, file=through(relay, file))
            assert wait_until(lambda: active(service) == 1)
            (before,) = hosts(service)
            relay.delay = 0.3 if service_ends else 0.0
            relay.cut_newest()  # the end of the connection for data is seen before what comes over the other one
            if service_ends:
                service.close()
                assert host.ended(10.0) == "its program closed it"
            else:
                assert wait_until(lambda: [each["number"] for each in hosts(service)] not in ([], [before["number"]]))
                assert wait_until(lambda: active(service) == 1)
        finally:
            relay.end()


ARGUMENTS = """
import sys
N = len(sys.argv)

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield N
"""


def test_workers_have_the_arguments_of_the_program_that_serves_and_not_of_their_host(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they are: a pattern of the shell may have stood for thousands of files."""
    monkeypatch.setattr(sys, "argv", ["train.py", *["x" * 400] * 500])
    with serving(provider_file(ARGUMENTS), file) as service:
        monkeypatch.setattr(sys, "argv", ["pydp2", "worker"])
        joined()
        with service.connect(**OPTIONS) as data:
            assert {value for batch in data for value in batch[0].tolist()} == {501}


def test_workers_of_another_host_and_a_trainer_beside_it_are_in_a_trace(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    """Their clocks are compared with that of the service; on one machine they are the same."""
    with serving(provider_file(SLOW), file) as service:
        joined(workers=1, name="far")
        assert wait_until(lambda: active(service) == 1)
        with pydp2.connect(elsewhere(file), **OPTIONS) as data, ThreadPoolExecutor(1) as threads:
            batches = iter(data)
            next(batches)  # from here on the worker reads, whoever else is held up
            trace = threads.submit(pydp2.trace, file, seconds=1.5)
            while not trace.done():
                if next(batches, None) is None:
                    batches = iter(data)
    traced = trace.result()
    names = {e["pid"]: e["args"]["name"] for e in traced["traceEvents"] if e["name"] == "process_name"}
    drawn = [e for e in traced["traceEvents"] if e["name"] == "generator" and names[e["pid"]].endswith(" on far)")]
    assert drawn
    assert {span["args"]["file"] for span in drawn} <= {*FILES}
    assert max(span["ts"] for span in drawn) > 1e5, "they are not all at the begin"
    assert [e for e in traced["traceEvents"] if e["name"] == "wait" and names[e["pid"]].startswith("trainer 0 of")]


def test_the_service_knows_what_workers_of_another_host_do(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(
        """
        import time

        @provider(input_types=[integer_value(99)], pool_size=1)
        def process(settings, filename):
            yield 1
            time.sleep(30)
            yield 2
        """
    )
    with serving(provider, file, files=["slow.txt"]) as service:
        joined(workers=1)
        assert wait_until(lambda: active(service) == 1)
        with pydp2.connect(elsewhere(file), batch_size=1) as data:
            stream = iter(data)
            next(stream)

            def reading() -> dict[str, Any]:
                return next(each for each in service.stats()["workers"] if each["active"])

            assert wait_until(lambda: reading()["file"] == "slow.txt" and reading()["sample_seconds"] > 1)
            assert reading()["sample"] == 1
            assert reading()["generator_seconds"] > 0.5

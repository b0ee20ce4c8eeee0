"""Rows that stay on their host: trainers fetch them there, and the stream is that of a local service, whatever becomes
of the hosts."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.client import row_fetcher
from pydp2.client.row_fetcher import RowFetcher
from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.transport import Line
from tests.interruptions import Injector, interrupted_pass, with_its_own_exception_state
from tests.runs import alarm, wait_until

from ..agent.test_hosts import (
    FILES,
    KINDS,
    OPTIONS,
    ROWS,
    SLOW,
    Host,
    active,
    digest,
    elsewhere,
    hosts,
    local,
    serving,
    stream,
)
from ..agent.test_hosts import file as file
from ..agent.test_hosts import joined as joined
from ..agent.test_hosts import short_host_timeout as short_host_timeout

pytestmark = pytest.mark.usefixtures("short_host_timeout")

HERE = "tcp://127.0.0.1:*"
NOWHERE = "tcp://127.0.0.1:1?key=" + "ab" * 32


@pytest.mark.parametrize("code", [KINDS, ROWS], ids=["all kinds of slots", "rows"])
def test_the_stream_of_rows_that_stay_on_three_hosts_is_that_of_a_local_service(
    code: str, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(code)
    uninterrupted = local(provider, passes=2)
    with serving(provider, file) as service:
        for n in (1, 2, 3):
            joined(workers=n, row_server=HERE)
        assert wait_until(lambda: active(service) == 6)
        for where in (file, elsewhere(file)):  # with shared memory, and without
            with pydp2.connect(where, job=where.name, **OPTIONS) as data:
                assert stream(data, 2) == uninterrupted
        assert wait_until(lambda: not any(each["rows_kept"] for each in hosts(service)))


def test_workers_here_and_rows_on_a_host_feed_one_stream(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(KINDS)
    uninterrupted = local(provider)
    with serving(provider, file, workers=1) as service:
        joined(workers=1, row_server=HERE)
        joined(workers=1)
        assert wait_until(lambda: active(service) == 3)
        for where in (file, elsewhere(file)):
            with pydp2.connect(where, job=where.name, **OPTIONS) as data:
                assert stream(data) == uninterrupted


def test_rows_that_stay_on_hosts_say_where_they_are_from(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    with serving(provider_file(ROWS), file, workers=1) as service:
        joined(workers=1, row_server=HERE)
        assert wait_until(lambda: active(service) == 2)
        for where in (file, elsewhere(file)):
            with pydp2.connect(where, job=where.name, origin=True, **OPTIONS) as data:
                for batch in data:
                    origin = batch.origin
                    files = [int(data.files[n]) for n in origin.entry.tolist()]
                    assert batch[1].tolist() == [1000 * n + i for n, i in zip(files, origin.sample, strict=True)]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")  # of connections that an exception cuts off
@with_its_own_exception_state
def test_a_trainer_that_is_interrupted_at_any_instruction_gets_the_same_rows_of_hosts(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(ROWS)
    uninterrupted = local(provider, passes=2)
    injector, found = Injector(), []
    with serving(provider, file) as service:
        joined(workers=1, row_server=HERE)
        assert wait_until(lambda: active(service) == 1)
        with alarm(60), pydp2.connect(file, **OPTIONS) as data:
            for _ in range(2):
                found += [digest(batch) for batch in interrupted_pass(injector, data, lambda: None)]
    assert found == uninterrupted
    assert {"RowFetcher.begin", "RowFetcher.receive", "replace_by_batches", "Client._await_rows"} <= injector.names


def test_what_comes_through_the_service_is_a_few_bytes_of_each_row(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    with serving(provider_file(ROWS), file) as service:
        joined(workers=2, row_server=HERE)
        with pydp2.connect(file, timeout=30.0, **OPTIONS) as data:
            rows = sum(batch.size for batch in data)
        assert rows == 40 * len(FILES)
        (host,) = hosts(service)
        assert host["received_bytes"] < 64 * rows, "a row has 8 KB"


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_that_are_lost_with_their_host_are_read_again(
    how: signal.Signals,
    ranks: int,
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how is signal.SIGKILL:  # the service sees it by itself
        monkeypatch.setattr(row_fetcher, "PATIENCE_SECONDS", 600.0)
    provider = provider_file(SLOW)
    uninterrupted = local(provider, last_batch="keep")
    with serving(provider, file) as service, contextlib.ExitStack() as stack:
        doomed = joined(workers=2, name="doomed", row_server=HERE)
        pid = doomed.pid
        joined(workers=1, name="other", row_server=HERE)
        assert wait_until(lambda: active(service) == 3)
        options = OPTIONS | {"last_batch": "keep"}
        clients = [stack.enter_context(pydp2.connect(file, rank=n, world_size=ranks, **options)) for n in range(ranks)]
        streams = [iter(client) for client in clients]
        seen = [digest(next(each)) for _ in range(3) for each in streams]
        assert wait_until(lambda: any(each["rows_kept"] for each in hosts(service) if each["host"] == "doomed"))
        os.kill(pid, how)
        while step := [digest(batch) for each in streams if (batch := next(each, None)) is not None]:
            seen += step
        assert seen == uninterrupted
        os.kill(pid, signal.SIGCONT) if how is signal.SIGSTOP else doomed.ended()
    screen = capfd.readouterr().err
    assert "rows of pass 0 are lost with their host and are read again" in screen
    assert "condemned" not in screen


@pytest.mark.parametrize(("jobs", "restarts"), [(["one", "one"], 1), (["one", "another"], 2)])
def test_row_servers_that_cannot_be_reached_cost_each_pass_one_new_start(
    jobs: list[str],
    restarts: int,
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whichever rank tells which of them; but a pass of another job has rows there too."""
    provider = provider_file(SLOW)
    options = OPTIONS | {"last_batch": "keep"}
    uninterrupted = local(provider, last_batch="keep")
    ranks = jobs.count(jobs[0])
    line, both, met = row_fetcher.Line, threading.Barrier(2), threading.local()

    def nowhere(context: Any, address: str, **given: Any) -> Any:
        if not hasattr(met, "once"):
            met.once = True
            both.wait(60.0)  # each has asked for rows before one of them gives up
        return line(context, NOWHERE, **given)

    monkeypatch.setattr(row_fetcher, "Line", nowhere)
    monkeypatch.setattr(row_fetcher, "PATIENCE_SECONDS", 1.5)

    def read(rank: int, job: str) -> list[bytes]:
        with pydp2.connect(file, job=job, rank=rank, world_size=ranks, **options) as data:
            return stream(data)

    with serving(provider, file) as service, ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            joined(workers=1, row_server=HERE)
        assert wait_until(lambda: active(service) == 2)
        seen = [*threads.map(read, range(ranks) if ranks > 1 else [0, 0], jobs)]
    assert seen == [uninterrupted[rank::ranks] for rank in (range(ranks) if ranks > 1 else [0, 0])]
    screen = capfd.readouterr().err
    assert screen.count("are lost with their host and are read again") == restarts
    assert screen.count("cannot fetch rows at") == 2 * restarts


def test_a_trainer_that_waits_long_for_rows_shows_that_it_lives(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the batches that wait for it count as given to others when it goes on, and it begins anew."""
    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    arrives = time.monotonic() + 60.0

    class SlowLine(Line):
        def receive(self, timeout_ms: int = 0) -> list[memoryview] | None:
            nonlocal arrives
            arrives = min(arrives, time.monotonic() + 2.5)  # after the first look
            return super().receive(timeout_ms) if time.monotonic() > arrives else None

    monkeypatch.setattr(row_fetcher, "Line", SlowLine)
    with serving(provider, file) as service:
        joined(workers=1, row_server=HERE)
        assert wait_until(lambda: active(service) == 1)
        # so long a lease that a trainer that the machine holds up keeps it, and shorter than the wait
        with pydp2.connect(file, timeout=30.0, lease=2.0, **OPTIONS) as data:
            assert stream(data) == uninterrupted
            assert data._session.progress.run == 1


def test_a_trainer_that_stood_still_while_its_rows_came_has_no_batch_twice(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its lease it begins anew; the batch whose rows it has got in the meantime comes once more."""
    provider = provider_file(ROWS)
    uninterrupted = local(provider)
    wait = RowFetcher.wait
    stops = iter([1.3])  # seconds

    def stopped(fetcher: RowFetcher, *given: Any) -> None:
        wait(fetcher, *given)
        time.sleep(next(stops, 0.0))  # as if the process were stopped here

    monkeypatch.setattr(RowFetcher, "wait", stopped)
    with serving(provider, file) as service:
        joined(workers=2, row_server=HERE)
        assert wait_until(lambda: active(service) == 2)
        with pydp2.connect(file, lease=1.0, **OPTIONS) as data:
            assert stream(data) == uninterrupted
    assert next(stops, None) is None, "it was stopped"


def test_a_host_that_leaves_keeps_its_rows_until_trainers_have_them(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(SLOW)
    uninterrupted = local(provider)
    with serving(provider, file) as service:
        first = joined(workers=1, row_server=HERE)
        with pydp2.connect(file, timeout=30.0, **OPTIONS) as data:
            batches = iter(data)
            seen = [digest(next(batches)) for _ in range(5)]
            joined(workers=2, row_server=HERE)
            assert wait_until(lambda: active(service) == 3)
            first.leave()
            seen += [digest(batch) for batch in batches]
            assert seen == uninterrupted
        assert first.ended() == "it has left"
    assert "rows of pass 0 are lost" not in capfd.readouterr().err


def test_a_state_taken_with_rows_on_hosts_is_that_of_a_local_service(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(KINDS)
    uninterrupted = local(provider)
    with serving(provider, file) as service:
        joined(workers=2, row_server=HERE)
        with pydp2.connect(file, timeout=30.0, **OPTIONS) as data:
            batches = iter(data)
            seen = [digest(next(batches)) for _ in range(9)]
            state = data.state_dict()
        with pydp2.connect(file, job="again", **OPTIONS) as data:
            data.load_state_dict(state)
            assert seen + stream(data) == uninterrupted
        assert wait_until(lambda: service.stats()["hosts"][0]["rows_kept"] == 0)
    with pydp2.load(FILES, provider, workers=1, **OPTIONS) as data:
        data.load_state_dict(state)
        assert seen + stream(data) == uninterrupted


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "10.0.0.7:7100",
        "tcp://10.0.0.7",
        "tcp://:7100",
        "tcp://10.0.0.7:port",
        "tcp://10.0.0.7:65536",
        "tcp://a:1?key=b",
        7,
    ],
)
def test_a_row_server_needs_an_address_of_tcp(
    wrong: Any, provider_file: Callable[[str], str], file: Path, tmp_path: Path
) -> None:
    with (
        serving(provider_file(ROWS), file),
        pytest.raises(OptionError, match=r"an address of this host .* as in tcp://"),
    ):
        pydp2.WorkerHost(file, row_server=wrong)


def test_an_argument_that_does_not_exist_is_named(provider_file: Callable[[str], str], file: Path) -> None:
    with (
        serving(provider_file(ROWS), file),
        pytest.raises(TypeError, match="no option 'rowserver', did you mean 'row_server'"),
    ):
        pydp2.WorkerHost(file, rowserver=HERE)  # type: ignore[call-arg]


def test_a_row_server_that_cannot_be_bound_ends_the_host_with_the_reason(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    with serving(provider_file(ROWS), file):
        host = joined(row_server="tcp://192.0.2.7:7100")
        host.ended()
        assert isinstance(host.error, ServiceUnreachable)
        assert f"cannot bind tcp://192.0.2.7:7100: {os.strerror(errno.EADDRNOTAVAIL)}" in str(host.error)


def test_passes_with_buckets_or_a_cache_or_shared_dynamically_get_their_rows_through_the_service(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    buckets = {"bucket_by": "ids", "bucket_bounds": [8, 16, 24]}
    provider = provider_file(KINDS)
    uninterrupted, plain = local(provider, **buckets), local(provider)
    with serving(provider, file) as service:
        joined(workers=2, row_server=HERE)
        with pydp2.connect(file, job="buckets", timeout=30.0, **OPTIONS | buckets) as data:
            assert stream(data) == uninterrupted
        with pydp2.connect(file, job="dynamic", share="dynamic", **OPTIONS) as data:
            assert stream(data) == plain
        with pydp2.connect(file, job="relaxed", order="relaxed", **OPTIONS) as data:
            assert sum(batch.size for batch in data) == sum(60 + int(name) for name in FILES)
        assert hosts(service)[0]["received_bytes"] > 100_000
    cached = provider_file(KINDS.replace("pool_size=300", "pool_size=300, cache=CacheType.CACHE_PASS_IN_MEM"))
    uninterrupted = local(cached, passes=2)
    with serving(cached, file):
        joined(workers=2, row_server=HERE)
        with pydp2.connect(file, timeout=30.0, **OPTIONS) as data:
            assert stream(data, 2) == uninterrupted

"""A service with a state directory is killed and started again: its trainers go on as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import Error, OptionError, Rewound, ServiceLost, ServiceUnreachable, StateMismatch
from pydp2.server.snapshots.state_dir import LAST, decode
from tests.provider_code import yields
from tests.runs import NUMBERS, Numbered, numbered, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS

FILES = [str(n) for n in range(12)]


class Restarted:
    """A service that is started again with what it was started with."""

    def __init__(self, stack: ExitStack, address: str, folder: Path) -> None:
        self._stack = stack
        self._given = address, folder
        self.service = self.start()
        self.address = self.service.address

    def start(self, **options: Any) -> pydp2.Service:
        address, folder = self._given
        given = {"workers": 2, "state_dir": folder} | options
        self.service = self._stack.enter_context(pydp2.launch(FILES, address, **given))
        return self.service

    def kill(self) -> None:
        os.kill(self.service.pid, signal.SIGKILL)

    def again(self, **options: Any) -> None:
        """Killed and started again."""
        self.kill()
        self.start(**options)
        assert self.service.address == self.address


@pytest.fixture
def address(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.fixture
def restarted(address: str, tmp_path: Path) -> Iterator[Restarted]:
    with ExitStack() as stack:
        yield Restarted(stack, address, tmp_path / "state")


@pytest.fixture
def alone(address: str) -> list[list[Numbered]]:
    """Two passes as a trainer sees them whose service lives."""
    with pydp2.load(FILES, address, workers=2, **OPTIONS) as data:
        return [[numbered(batch) for batch in data] for _ in range(2)]


@pytest.mark.parametrize("at", [0, 7, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 40))])
def test_a_trainer_goes_on_where_it_was(
    restarted: Restarted, alone: list[list[Numbered]], at: int, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[Numbered]] = [[], []]
    with restarted.service.connect(**OPTIONS) as data:
        for number in range(2):
            for batch in data:
                seen[number].append(numbered(batch))
                if number == 0 and batch.index == at:
                    restarted.again(workers=3)
        assert seen == alone
    told = capfd.readouterr().err
    assert f"pydp2: the service at {restarted.address} went away; waiting 30 s for it to be started again" in told
    assert f"pydp2: the service at {restarted.address} is back after" in told


def test_between_two_passes_it_is_the_same(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        assert [numbered(batch) for batch in data] == alone[0]
        restarted.again()
        assert [numbered(batch) for batch in data] == alone[1]


def test_before_its_first_pass_and_many_times_in_one(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        restarted.again()
        seen = []
        for batch in data:
            seen.append(numbered(batch))
            if batch.index % 9 == 3:
                restarted.again()
        assert seen == alone[0]


def test_a_state_that_was_loaded_stays_loaded(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        stream = iter(data)
        for _ in range(5):
            next(stream)
        state = data.state_dict()
        for _ in range(8):
            next(stream)
        data.load_state_dict(state)
        restarted.again()
        assert [numbered(batch) for batch in data] == alone[0][5:]


def test_ranks_of_one_job_get_each_batch_once(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    seen: list[list[Numbered]] = [[], []]
    failed: list[Error] = []
    turn = threading.Barrier(2, timeout=50)
    kills_done = threading.Event()

    def train(rank: int) -> None:
        try:
            with pydp2.connect(restarted.address, rank=rank, world_size=2, **OPTIONS) as data:
                turn.wait()
                for batch in data:
                    seen[rank].append(numbered(batch))
                    if len(seen[rank]) == 12:
                        assert kills_done.wait(50)
                turn.wait()  # who is first would let the other have what is left
        except Error as error:
            failed.append(error)
            turn.abort()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for least in (0, 3, 7):  # as they connect, and in the middle of the pass
        assert wait_until(lambda least=least: bool(failed) or len(seen[0]) >= least)
        restarted.again()
    kills_done.set()
    for thread in threads:
        thread.join(50)
    assert not failed, failed
    assert seen == [alone[0][0::2], alone[0][1::2]]


def test_dynamic_trainers_load_the_latest_state_and_get_each_batch_after_it_once(
    restarted: Restarted, alone: list[list[Numbered]]
) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(pydp2.connect(restarted.address, share="dynamic", prefetch=1, **OPTIONS))
            for _ in range(2)
        ]
        streams = [iter(data) for data in clients]
        before = [numbered(next(stream)) for stream in streams]
        state = clients[1].state_dict()
        restarted.again()
        after: list[Numbered] = []
        for data, stream in zip(clients, streams, strict=True):
            with pytest.raises(Rewound, match="load the same state"):
                list(stream)
            data.load_state_dict(state)
            after += [numbered(batch) for batch in data]
    assert sorted(after) == [batch for batch in alone[0] if batch != before[1]]


RANK = """
import sys, pydp2
with pydp2.connect(sys.argv[1], rank=1, world_size=2, batch_size=16, seed=5) as data:
    for batch in data:
        print(batch.index, flush=True)
        if batch.index == 7:
            sys.stdin.read()
"""


BUCKETS = yields("integer_value_sequence(100)", "([int(filename)] * (i % 7) for i in range(150))", "pool_size=200")


def test_buckets_are_known_to_one_that_was_killed_again_before_its_first_batch(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        restarted = Restarted(stack, provider_file(BUCKETS), tmp_path / "state")
        places = [{"rank": rank, "world_size": 2, "bucket_by": 0, "num_buckets": 3} for rank in range(2)]
        clients = [stack.enter_context(restarted.service.connect(**place, **OPTIONS)) for place in places]
        streams = [iter(client) for client in clients]
        seen = [[next(stream).index for stream in streams] for _ in range(40)]
        for _ in range(2):  # it writes down where it is, the second time without trainers
            os.kill(restarted.service.pid, signal.SIGTERM)
            while restarted.service.poll() is None:
                time.sleep(0.01)
            restarted.start()
        seen += [[one.index, other.index] for one, other in zip(*streams, strict=True)]
    assert seen == [[n, n + 1] for n in range(0, 2 * len(seen), 2)]


def used_by(rank: int, folder: Path) -> int:
    """Before which batch all of a rank's are used, as it is written down."""
    try:
        (job,) = decode((folder / LAST).read_bytes())[1]
    except FileNotFoundError:
        return 0  # the next one is about to take its place
    return int(next((place[4] for place in job["ranks"] if place[0] == rank), 0))


def test_what_a_dead_rank_had_not_used_is_kept_over_a_restart(
    restarted: Restarted, alone: list[list[Numbered]], tmp_path: Path
) -> None:
    seen: list[list[Numbered]] = [[], []]
    with restarted.service.connect(rank=0, world_size=2, **OPTIONS) as first:
        command = [sys.executable, "-c", RANK, restarted.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            stream = iter(first)
            for _ in range(4):
                seen[0].append(numbered(next(stream)))
            assert other.stdout is not None
            assert [int(other.stdout.readline()) for _ in range(4)] == [1, 3, 5, 7]
            # Two services cannot tell what none has heard: ZeroMQ sends the last request from a thread of its own.
            assert wait_until(lambda: used_by(1, tmp_path / "state") == 6)
            other.kill()
        restarted.again()
        with restarted.service.connect(rank=1, world_size=2, **OPTIONS) as second:
            rest = iter(second)
            while True:
                pair = next(stream, None), next(rest, None)
                for mine, batch in zip(seen, pair, strict=True):
                    if batch is not None:
                        mine.append(numbered(batch))
                if pair == (None, None):
                    break
    assert seen[0] == alone[0][0::2]
    assert seen[1] == alone[0][7::2], "7 was in its hand when it died"


def test_two_jobs_come_back_side_by_side(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(restarted.service.connect(job=job, **OPTIONS)) for job in ("one", "two")]
        streams = [iter(client) for client in clients]
        seen = [[numbered(next(stream)) for _ in range(3 + 4 * number)] for number, stream in enumerate(streams)]
        restarted.again()
        for mine, stream in zip(seen, streams, strict=True):
            mine += [numbered(batch) for batch in stream]
        assert seen == [alone[0], alone[0]]


def test_a_service_that_does_not_come_back_is_waited_for_as_long_as_a_lease(restarted: Restarted) -> None:
    with restarted.service.connect(lease=1.0, **OPTIONS) as data:
        stream = iter(data)
        next(stream)
        restarted.kill()
        began = time.monotonic()
        with pytest.raises(ServiceLost, match=r"was not started again within 1 s; start it with the same state_dir"):
            list(stream)
        assert 0.8 <= time.monotonic() - began < 20.0


def test_a_service_that_its_program_closes_is_not_waited_for(restarted: Restarted) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        stream = iter(data)
        next(stream)
        restarted.service.close()
        with pytest.raises(ServiceLost, match="ended: its program closed it"):
            list(stream)


def test_a_service_that_a_signal_ends_is_waited_for(restarted: Restarted, alone: list[list[Numbered]]) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        stream = iter(data)
        seen = [numbered(next(stream))]
        os.kill(restarted.service.pid, signal.SIGTERM)
        while restarted.service.poll() is None:
            time.sleep(0.01)
        restarted.start()
        assert seen + [numbered(batch) for batch in stream] == alone[0]


def test_the_directory_belongs_to_one_service(restarted: Restarted, address: str, tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match="belongs to a service that is running; stop it"):
        pydp2.launch(FILES, address, state_dir=tmp_path / "state")
    with pydp2.launch(FILES, address, workers=1, state_dir=tmp_path / "other") as other:
        assert other.address != restarted.address


def test_another_stream_is_refused_by_what_differs(restarted: Restarted, address: str, tmp_path: Path) -> None:
    with restarted.service.connect(**OPTIONS) as data:
        next(iter(data))
        os.kill(restarted.service.pid, signal.SIGTERM)
        while restarted.service.poll() is None:
            time.sleep(0.01)
        with pytest.raises(StateMismatch, match=r"was written for another stream of job 'default': list was .*, is"):
            pydp2.launch(FILES[1:], address, state_dir=tmp_path / "state")
        restarted.start()  # nothing of the start that failed is left in the way


def test_any_port_is_refused_where_trainers_have_to_find_it_again(address: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="takes any port"):
        pydp2.launch(FILES, address, bind="tcp://127.0.0.1:0", state_dir=tmp_path)


def test_a_socket_whose_name_looks_like_any_port_is_no_port(address: str, tmp_path: Path) -> None:
    with pydp2.launch(FILES, address, workers=1, bind=f"ipc://{tmp_path}/a:0", state_dir=tmp_path / "state") as service:
        assert service.address == f"ipc://{tmp_path}/a:0"


def test_a_path_that_is_no_directory_is_refused(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="must be a directory that can be written"):
        pydp2.launch(FILES, address, state_dir=tmp_path / "file")


def test_serve_is_started_again_by_whoever_watches_over_it(
    address: str, alone: list[list[Numbered]], tmp_path: Path
) -> None:
    (tmp_path / "train.list").write_text("\n".join(FILES))

    def serve() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", "from pydp2_cli import main; main()", "serve", str(tmp_path / "train.list"),
             "--provider", address, "--workers", "2", "--state-dir", str(tmp_path / "state"), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def said(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        plain: dict[str, Any] = json.loads(process.stdout.readline())
        return plain

    with serve() as first:
        where = said(first)["address"]
        with pydp2.connect(where, **OPTIONS) as data:
            seen = []
            for batch in data:
                seen.append(numbered(batch))
                if batch.index == 5:
                    first.send_signal(signal.SIGTERM)
                    assert first.wait(30) == 128 + signal.SIGTERM
                    second = serve()
                if batch.index == 25:
                    again = said(second)
                    assert again["address"] == where
                    os.kill(again["pid"], signal.SIGKILL)
                    told = second.communicate(timeout=30)[1]
                    assert "was killed by SIGKILL; start it again as before, its trainers wait for it" in told
                    third = serve()
            assert said(third)["address"] == where
            assert seen == alone[0]
        third.send_signal(signal.SIGTERM)
        third.communicate(timeout=30)


def damage(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_trainer_learns_that_a_snapshot_is_damaged_and_goes_on_where_it_was(
    restarted: Restarted, alone: list[list[Numbered]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.connect(restarted.address, **OPTIONS) as data:
        seen = []
        for batch in data:
            seen.append(numbered(batch))
            if batch.index == 7:
                assert wait_until((tmp_path / "state" / LAST).exists)
                restarted.kill()
                restarted.service.close()
                damage(tmp_path / "state" / LAST)
                capfd.readouterr()
                restarted.start()
        assert seen == alone[0]
    said = capfd.readouterr().err
    assert "is back after" in said
    assert f"could not go on from where it was: the snapshot {tmp_path / 'state' / LAST} is damaged" in said


def test_trainers_that_cannot_go_on_because_snapshots_are_damaged_are_told_which(
    restarted: Restarted, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stack.enter_context(pydp2.connect(restarted.address, job="written down", **OPTIONS))
        data = stack.enter_context(pydp2.connect(restarted.address, share="dynamic", **OPTIONS))
        stream = iter(data)
        next(stream)
        assert wait_until((tmp_path / "state" / LAST).exists)
        restarted.kill()
        restarted.service.close()
        for path in (tmp_path / "state").glob("snapshot*"):
            damage(path)
        restarted.start()
        with pytest.raises(Rewound, match=rf"what rank 0 .* needs to go on \(the snapshot {tmp_path}.* is damaged"):
            list(stream)


def test_a_pipe_in_the_place_of_a_snapshot_ends_the_start_and_leaves_nothing(
    restarted: Restarted, address: str, tmp_path: Path
) -> None:
    restarted.kill()
    restarted.service.close()
    snapshot = tmp_path / "state" / LAST
    snapshot.unlink(missing_ok=True)
    os.mkfifo(snapshot)
    with pytest.raises(OptionError, match=f"{snapshot} cannot: it is not a regular file"):
        restarted.start()
    snapshot.unlink()
    restarted.start()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_can_write_is_refused(address: str, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OptionError, match=r"only its user can write to.* mode [01]77[57]; run chmod go-w"):
        pydp2.launch(FILES, address, state_dir=folder)
    with pydp2.launch(FILES, address, workers=1, state_dir=folder / "own"):
        assert (folder / "own").stat().st_mode & 0o077 == 0

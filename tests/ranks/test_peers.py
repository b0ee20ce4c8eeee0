"""Peers of one rank, as processes and clients of a service: the same batches for all of them, also after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import JobTaken, OptionError, OptionTypeError, Rewound
from tests.provider_code import sequences
from tests.runs import NUMBERS_OPTIONS as OPTIONS
from tests.runs import Numbered, numbered

from .conftest import FILES

pytestmark = pytest.mark.usefixtures("no_hang")


def mesh(service: pydp2.Service, stack: ExitStack, world: int, peers: int, **options: Any) -> list[pydp2.Client]:
    """The trainers of ``world`` ranks with ``peers`` peers each, in the order of their numbers."""
    return [
        stack.enter_context(
            service.connect(rank=rank, world_size=world, share_along=(peer, peers), **OPTIONS | options)
        )
        for rank in range(world)
        for peer in range(peers)
    ]


def rest_of_pass(clients: Sequence[Iterable[pydp2.Batch]]) -> list[list[Numbered]]:
    """What each client, or loop over one, sees of the rest of a pass, in steps."""
    streams = [iter(client) for client in clients]
    seen: list[list[Numbered]] = [[] for _ in clients]
    going = {*range(len(clients))}
    while going:
        for number in sorted(going):
            batch = next(streams[number], None)
            if batch is None:
                going.remove(number)
            else:
                seen[number].append(numbered(batch))
    return seen


def take(streams: list[Iterator[pydp2.Batch]], steps: int) -> None:
    for _ in range(steps):
        for stream in streams:
            next(stream)


@pytest.mark.parametrize("bind", ["", "tcp://127.0.0.1:*"])
@pytest.mark.parametrize(("world", "peers"), [(1, 2), (2, 2), (2, 3)])
def test_peers_of_a_rank_get_the_batches_of_the_rank(
    address: str, alone: list[Numbered], world: int, peers: int, bind: str
) -> None:
    how = {"bind": bind} if bind else {}
    with pydp2.launch(FILES, address, workers=2, **how) as service, ExitStack() as stack:
        clients = mesh(service, stack, world, peers)
        for number, seen in enumerate(rest_of_pass(clients)):
            assert seen == alone[number // peers :: world]
            assert len(clients[number]) == len(seen)
        second = rest_of_pass(clients)
        assert all(second[number] == second[number - number % peers] for number in range(world * peers))
        assert service.stats()["samples_in_pass"] == sum(len(rows) for _, rows in alone), "one pass is read"


@pytest.mark.parametrize(("world", "peers"), [(4, 1), (1, 1), (2, 2), (1, 3)])
def test_a_state_of_a_mesh_is_one_of_any_other_mesh(
    service: pydp2.Service, address: str, alone: list[Numbered], world: int, peers: int
) -> None:
    with ExitStack() as stack:
        clients = mesh(service, stack, 2, 2)
        take([iter(client) for client in clients], 3)
        states = [json.dumps(client.state_dict()) for client in clients]
    assert len(set(states)) == 1, "the state is the same in all trainers"
    with pydp2.launch(FILES, address, workers=3) as there, ExitStack() as stack:
        clients = mesh(there, stack, world, peers)
        for client in clients:
            client.load_state_dict(json.loads(states[0]))
        for number, seen in enumerate(rest_of_pass(clients)):
            assert seen == alone[6:][number // peers :: world]


TRAINER = """
import sys, pydp2
with pydp2.connect(sys.argv[1], rank=1, world_size=2, share_along=(1, 2), batch_size=16, seed=5) as data:
    for batch in data:
        print(batch.index, flush=True)
        if batch.index == 7:
            sys.stdin.read()
"""


def test_what_a_killed_peer_had_not_used_goes_to_the_process_that_takes_its_place(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    command = [sys.executable, "-c", TRAINER, service.address]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ExitStack() as stack:
        stack.callback(child.communicate)
        stack.callback(child.kill)
        others = [
            stack.enter_context(service.connect(rank=rank, world_size=2, share_along=(peer, 2), **OPTIONS))
            for rank, peer in ((0, 0), (0, 1), (1, 0))
        ]
        streams = [iter(other) for other in others]
        take(streams, 4)
        assert child.stdout is not None
        assert [int(child.stdout.readline()) for _ in range(4)] == [1, 3, 5, 7]
        child.kill()
        child.wait()  # a service bears with a place that is taken for a second, and it may take longer to die
        with service.connect(rank=1, world_size=2, share_along=(1, 2), **OPTIONS) as replaced:
            *rest, own = rest_of_pass([*streams, replaced])
    assert own == alone[7::2], "from the batch that was in its hand"
    assert rest == [alone[8::2], alone[8::2], alone[9::2]]


def test_a_service_that_is_started_again_goes_on_with_each_peer_where_it_was(
    address: str, alone: list[Numbered], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"workers": 1, "state_dir": str(tmp_path / "state"), "bind": f"ipc://{tmp_path}/service"}
    with ExitStack() as stack:
        first = pydp2.launch(FILES, address, **how)
        clients = mesh(first, stack, 2, 2)
        streams = [iter(client) for client in clients]
        seen = [[numbered(next(stream)) for _ in range(number + 1)] for number, stream in enumerate(streams)]
        first._process.kill()
        first._process.wait()
        with pydp2.launch(FILES, address, **how):
            for had, rest in zip(seen, rest_of_pass(streams), strict=True):
                had += rest
            for client in clients:
                client.close()
    assert seen == [alone[0::2], alone[0::2], alone[1::2], alone[1::2]]


def test_a_peer_that_loads_no_state_beside_one_that_does_gets_no_batch(service: pydp2.Service) -> None:
    with ExitStack() as stack:
        one, other = mesh(service, stack, 1, 2)
        take([iter(one), iter(other)], 2)
        state = one.state_dict()
        one.load_state_dict(state)
        assert next(iter(one)).index == 2
        with pytest.raises(Rewound, match="another trainer of job 'default' has loaded a state"):
            list(other)


def test_trainers_of_a_job_say_the_same_number_of_peers(service: pydp2.Service) -> None:
    place = {"rank": 0, "world_size": 2}
    with service.connect(**place, share_along=(0, 2), **OPTIONS):
        with pytest.raises(OptionError, match=r"has share_along=\(k, 2\), this trainer says share_along=\(k, 3\)"):
            service.connect(**place, share_along=(1, 3), **OPTIONS)
        with pytest.raises(OptionError, match=r"has share_along=\(k, 2\), this trainer says no share_along"):
            service.connect(**place, **OPTIONS)
        with pytest.raises(OptionError, match=r"runs with other options: seed is 5 there, 6 here"):
            service.connect(**place, share_along=(1, 2), batch_size=16, seed=6)
        with pytest.raises(JobTaken, match=r"peer 0 of rank 0 is taken"):
            service.connect(**place, share_along=(0, 2), lease=60.0, **OPTIONS)


@pytest.mark.parametrize(
    ("share_along", "error", "text"),
    [
        ((2, 2), OptionError, r"in share_along=\(k, K\) k must be below K, got \(2, 2\)"),
        ((0, 0), OptionError, "the second number of share_along must be at least 1, got 0"),
        ((-1, 2), OptionError, "the first number of share_along must be at least 0, got -1"),
        (2, OptionTypeError, r"share_along must be a pair \(k, K\): .*; got 2"),
        ((0, 1.5), OptionTypeError, "the second number of share_along must be a whole number, got 1.5"),
        ((0, 65_536), OptionError, "world_size=2 ranks with 65536 peers each are more than 65536"),
    ],
)
def test_a_pair_that_cannot_be_is_refused(
    service: pydp2.Service, share_along: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        service.connect(rank=0, world_size=2, share_along=share_along, **OPTIONS)


def test_dynamic_sharing_has_no_peers(service: pydp2.Service) -> None:
    with pytest.raises(OptionError, match="without ranks: leave share_along out"):
        service.connect(share="dynamic", share_along=(0, 2), **OPTIONS)


def test_a_service_of_one_process_has_no_peers(address: str) -> None:
    with pytest.raises(OptionError, match="this process alone, which has no peers: leave share_along out"):
        pydp2.load(FILES, address, share_along=(0, 2), **OPTIONS)  # type: ignore[call-arg]


def test_a_client_says_which_peer_it_is(service: pydp2.Service) -> None:
    with service.connect(rank=0, world_size=2, share_along=(1, 2), **OPTIONS) as data:
        assert "job default: peer 1 of 2 of rank 0 of 2, batches of 16" in repr(data)


def test_peers_of_a_mixture_get_the_same_rows(address: str) -> None:
    with pydp2.launch({"a": FILES[:6], "b": FILES[6:]}, address, workers=1) as service, ExitStack() as stack:
        options: dict[str, Any] = {"address": service.address, "rank": 0, "world_size": 1, **OPTIONS}
        clients = [
            stack.enter_context(pydp2.mix({"a": 0.7, "b": 0.3}, share_along=(peer, 2), **options)) for peer in range(2)
        ]
        seen = [(one.index, one[0].tolist(), other[0].tolist()) for one, other in zip(*clients, strict=True)]
    assert seen
    assert all(one == other for _, one, other in seen)


def test_packed_rows_keep_the_place_of_their_trainer(provider_file: Callable[[str], str]) -> None:
    code = sequences(40, "1 + i % 7", "pool_size=100", first="1000 * int(filename)")
    with pydp2.launch(FILES[:4], provider_file(code), workers=1) as service, ExitStack() as stack:
        clients = [
            stack.enter_context(pydp2.pack_sequences(client, slot=0, length=16, batch_size=4))
            for client in mesh(service, stack, 2, 2, batch_size=4, last_batch="pad")
        ]
        seen = [[batch[0].tolist() for batch in step] for step in zip(*clients, strict=True)]
    assert seen
    assert all(step[0] == step[1] and step[2] == step[3] for step in seen)
    assert any(step[0] != step[2] for step in seen)

"""A running service, while others throw at its sockets whatever comes to mind: the trainer notices nothing.

``PYDP2_FUZZ=300000`` throws as many messages instead of a few thousand.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import pydp2
from pydp2.client.saved_state import seal
from pydp2.errors import LocalError, RemoteError
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import CLIENT_LINK, LinkRole
from pydp2.system.process_memory import resident_bytes
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.keys import KeyPair, secure_client
from pydp2.transport.service_address import INNER_SUFFIX, split_key
from tests.protocol.conftest import EXAMPLES
from tests.protocol.test_broken_frames import a_chunk, mutate, mutated_frames

THROWN = int(os.environ.get("PYDP2_FUZZ", "1500"))
PROVIDER = """
@provider(input_types={"x": integer_value(100000)}, pool_size=500)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield {"x": int(line)}
"""
BATCH = 32


class Stranger:
    """A raw socket to ``address``, with keys of its own where that has a key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, pair: KeyPair | None = None) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDTIMEO, 10_000)
        endpoint, server_key = split_key(address)
        if pair is not None:
            secure_client(self._socket, pair, server_key)
        self._socket.connect(endpoint)

    def throw(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames or [b""])

    def close(self) -> None:
        self._socket.close()


def heard(socket: zmq.Socket[bytes]) -> m.Message:
    """What the service answers."""
    while socket.poll(20_000):
        message, _ = m.decode(socket.recv_multipart())
        if not isinstance(message, m.Probe):
            return message
    raise AssertionError("the service does not answer")


def inside(address: str, hub: str = "clients") -> str:
    """Where libzmq listens: whoever may connect to the service is told that path."""
    return f"{address.rpartition('/')[0]}/{hub}{INNER_SUFFIX}"


NUMBERS = [0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**64 - 1]
ODD: list[Any] = [
    *NUMBERS,
    None,
    True,
    "",
    "strict",
    "9" * 400,
    "1e400GiB",
    1.5,
    float("nan"),
    [],
    {},
    [[1]],
    {"a": {}},
]


def an_attach(choose: random.Random) -> m.Message:
    """Somebody who wants to be the trainer, with options of which most cannot be."""
    names = [
        "batch_size",
        "seed",
        "shuffle",
        "order",
        "interleave",
        "pool_bytes",
        "last_batch",
        "prefetch",
        "workers",
        "x",
    ]
    options = {name: choose.choice(ODD) for name in choose.sample(names, choose.randrange(len(names)))}
    version, job = (
        choose.choice([*[m.WIRE_VERSION] * 3, 0, m.WIRE_VERSION + 1]),
        choose.choice(["default", "", "x" * 100]),
    )
    rank, world_size = choose.choice([0, 0, 1, 2**61]), choose.choice([1, 1, 0, 2, 2**61])
    host = choose.choice(["", "", "node3", "\x1b[31m", "x" * 300])
    return m.Attach(version, job, rank, world_size, choose.choice(["", "s"]), options, 1, choose.choice([0, 9]), host)


def something(choose: random.Random) -> list[bytes]:
    """What a stranger may throw at a client's socket."""
    kind = choose.randrange(6)
    if kind == 0:
        return [choose.randbytes(choose.randrange(200)) for _ in range(choose.randrange(4))]
    if kind == 1:
        return [m.encode(an_attach(choose))]
    example = m.encode(choose.choice(EXAMPLES))
    if kind == 2:
        return [example]
    if kind == 3:
        return [bytes(choose.choice([60_000, 65_536, 65_537, 70_000]))]
    return mutated_frames(choose, [mutate(choose, example)])


def something_for_workers(choose: random.Random) -> list[bytes]:
    """What one may throw at the workers' socket: as if it were a worker, too."""
    kind = choose.randrange(4)
    if kind == 0:
        return [m.encode(m.Hello(m.WIRE_VERSION, choose.choice([0, 1, 2, 3, 99, 2**60]), choose.randrange(1 << 22)))]
    if kind == 1:
        return a_chunk()
    if kind == 2:
        return mutated_frames(choose, a_chunk())
    return something(choose)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    one: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield one
    one.destroy(linger=0)


def passes(client: pydp2.Client, count: int) -> list[list[int]]:
    return [[int(x) for batch in client for x in batch["x"]] for _ in range(count)]


@pytest.fixture
def numbers(text_files: Callable[..., list[str]]) -> list[str]:
    return text_files([range(i * 1000, i * 1000 + 300) for i in range(12)])


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the server's memory in /proc")
@pytest.mark.parametrize(
    "target",
    ["clients", "workers", "trainers with keys", pytest.param("observers with keys", marks=pytest.mark.slow)],
)
def test_the_trainer_s_passes_stay_exact_and_the_server_small(
    target: str,
    numbers: list[str],
    provider_file: Callable[..., str],
    context: zmq.Context[zmq.Socket[bytes]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    address = provider_file(PROVIDER)
    with pydp2.launch(numbers, address, workers=2) as service, service.connect(batch_size=BATCH) as client:
        quiet = passes(client, 3)
    assert all(sorted(one) == sorted(quiet[0]) for one in quiet)

    file = tmp_path / "run.json" if "keys" in target else None
    with (
        pydp2.launch(numbers, address, workers=2, connection=file) as service,
        service.connect(batch_size=BATCH) as client,
    ):
        pair = None if file is None else ConnectionFile.read(file).keys[target.partition("s ")[0]]
        path = service.address if file is not None else inside(service.address, target)
        make = something_for_workers if target == "workers" else something
        problems: list[BaseException] = []
        sizes: list[int] = []
        go_on = threading.Event()

        def throw(seed: int, count: int) -> None:
            choose = random.Random(seed)
            try:
                while count > 0:
                    stranger = Stranger(context, path, pair)
                    try:
                        for _ in range(here := min(count, choose.choice([1, 10, 100]))):
                            stranger.throw(make(choose))
                        count -= here
                        assert service.stats()["attached"]
                    finally:
                        stranger.close()
            except BaseException as error:
                problems.append(error)

        def all_of_it() -> None:
            throw(0, THROWN // 3)
            sizes.append(resident_bytes(service.pid))
            threads = [threading.Thread(target=throw, args=(seed, THROWN // 3)) for seed in (1, 2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sizes.append(resident_bytes(service.pid))
            go_on.set()

        thrower = threading.Thread(target=all_of_it)
        thrower.start()
        disturbed = passes(client, 3)
        while not go_on.is_set():
            passes(client, 1)
        thrower.join()
        assert problems == []
        assert disturbed == quiet
        most = 5 if THROWN <= 3000 else 16  # what is under way at once counts as well
        assert sizes[1] - sizes[0] < most << 20
        assert service.poll() is None
        assert service.stats()["attached"]
    said = capfd.readouterr().err
    assert re.findall(r"protocol: (\d+) so far", said), "told by count"
    assert len(re.findall("broke the protocol", said)) <= 10, "and only the first ones in full"
    assert "Traceback" not in said


def test_a_job_may_be_asked_for_with_any_options_and_the_service_lives(
    numbers: list[str], provider_file: Callable[..., str], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Nobody else holds the job: what can be is begun, and read as far as it goes."""
    choose = random.Random(5)
    begun = 0
    with pydp2.launch(numbers, provider_file(PROVIDER), workers=1) as service:
        for number in range(300):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 1000)
            socket.connect(inside(service.address))
            attach = an_attach(choose)
            assert isinstance(attach, m.Attach)
            if number % 3 == 0:
                two = choose.sample(["seed", "interleave", "prefetch", "batch_size"], 2)
                options = {"batch_size": 10} | {name: choose.choice(NUMBERS) for name in two}
                attach = m.Attach(m.WIRE_VERSION, "default", 0, 1, "", options, 1)
            socket.send(m.encode(attach))
            answer = heard(socket)
            assert isinstance(answer, m.Welcome | m.Refused), answer
            if isinstance(answer, m.Welcome):
                begun += 1
                pass_id, credit = choose.choice([0, 5, 2**62 - 1]), choose.choice([1, 2**62 - 1])
                socket.send(
                    m.encode(m.BeginPass(1, pass_id, choose.choice([0, 0, 1, 2**62 - 1]), credit, {}, 0, [], ""))
                )
                first = heard(socket)
                assert isinstance(first, m.BatchHead | m.PassEnd | m.Failed), first
                socket.send(m.encode(m.Detach(1, 0)))
            socket.close()
        assert begun > 10
        with service.connect(batch_size=BATCH) as client:
            assert len(passes(client, 1)[0]) == 3600


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a state something stands that could be damaged."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [
        place
        for key, item in inner
        if key not in ("stream_identity", "version")
        for place in places_of(item, (*path, key))
    ]
    return [*found, path] if path else found


def damage(choose: random.Random, state: dict[str, Any]) -> None:
    """Change one thing in ``state``."""
    *path, last = choose.choice(places_of(state))
    holder: Any = state
    for key in path:
        holder = holder[key]
    value = holder[last]
    if isinstance(value, bool):
        holder[last] = not value
    elif isinstance(value, int):
        holder[last] = choose.choice([value + 1, max(0, value - 1), 0, 3, 11, 12, 300, 2**62 - 1])
    elif isinstance(value, list) and value:
        choose.choice([value.pop, lambda: value.append(choose.choice(value)), lambda: choose.shuffle(value)])()
    else:
        holder[last] = choose.choice([None, 0, "", []])


def test_a_damaged_state_is_an_error_or_a_pass_and_the_service_lives(
    numbers: list[str], provider_file: Callable[..., str]
) -> None:
    choose = random.Random(7)
    seen: set[str] = set()
    with (
        pydp2.launch(numbers, provider_file(PROVIDER), workers=2) as service,
        service.connect(batch_size=BATCH, interleave=4) as client,
    ):
        states = [client.state_dict() for number, _ in enumerate(client) if number in (3, 60, 100, 110)]
        assert any(state["point"] for state in states)
        for _ in range(80):
            state = copy.deepcopy(choose.choice(states))
            damage(choose, state)
            with contextlib.suppress(TypeError, ValueError):  # else the client sees it, which another program may not
                state = seal(state)
            try:
                client.load_state_dict(state)
                assert len(passes(client, 1)[0]) <= 3600
                seen.add("pass")
            except (LocalError, RemoteError) as error:  # any other would be the service's fault
                seen.add(type(error).__name__)
        assert {"pass", "OptionError", "StateMismatch"} <= seen
        assert service.poll() is None


def test_somebody_who_only_asks_leaves_nothing_behind_at_the_server(
    numbers: list[str], provider_file: Callable[..., str]
) -> None:
    with pydp2.launch(numbers, provider_file(PROVIDER), workers=1) as service:
        for _ in range(20):
            service.stats()
        before = resident_bytes(service.pid)
        for _ in range(200):
            assert not service.stats()["attached"]
        assert resident_bytes(service.pid) - before < 2 << 20


def test_a_frame_above_the_limit_costs_its_sender_the_connection(
    numbers: list[str], provider_file: Callable[..., str], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with (
        pydp2.launch(numbers, provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=BATCH) as client,
    ):
        stranger = Stranger(context, inside(service.address))
        stranger.throw([bytes(64 << 20)])
        assert len(passes(client, 1)[0]) == 3600
        stranger.close()


def test_what_only_a_client_says_is_what_a_client_may_throw() -> None:
    """So that the names above do not grow old."""
    assert {kind for _, who, kind in CLIENT_LINK if who is LinkRole.CLIENT} <= {type(example) for example in EXAMPLES}
    assert Path(__file__).exists()

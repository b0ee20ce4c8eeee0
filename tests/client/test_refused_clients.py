"""A client that the service does not take anything from is told so: it never waits for an answer that cannot come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pydp2
from pydp2.errors import RemoteProtocolError
from pydp2.protocol import messages as m
from tests.provider_code import numbers
from tests.raw_trainer import raw_trainers

CODE = numbers(500, "pool_size=64")
_SECONDS = 30.0  # far more than an answer takes, far less than for ever


@pytest.fixture(params=["ipc", "tcp"])
def service(request: Any, provider_file: Callable[..., str]) -> Iterator[pydp2.Service]:
    where: dict[str, Any] = {"bind": "tcp://127.0.0.1:*"} if request.param == "tcp" else {}
    with pydp2.launch(["a", "b"], provider_file(CODE), workers=1, **where) as service:
        yield service


def in_time(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises, which must be known in time."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error.with_traceback(None))  # which keeps what the client had

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert found, "it still waits"
    return found[0]


def say(client: pydp2.Client, *frames: bytes) -> None:
    """Send what no client sends."""
    client._connection._line.send([*frames])


REFUSED = {
    "no message": [b"\xff garbage"],
    "a message of another release": [m.encode(m.Detach(1, 1)).replace(b"Detach", b"Detain")],
    "a point without its pool": [m.encode(m.BeginPass(9, 0, 0, 4, {"index": 1}, 0, [], ""))],
    "a pool without its point": [m.encode(m.BeginPass(9, 0, 0, 4, {}, 0, [], "")), b"pool"],
    "frames that are not there": [m.encode(m.BeginPass(9, 0, 0, 4, {}, 7, [], ""))],
    "records that are none": [m.encode(m.BeginPass(9, 0, 0, 4, {}, 1, [], "")), b"\xc1"],
    "a message of a worker": [m.encode(m.Hello(1, 1, 1))],
    "a place for the second time": [m.encode(m.Attach(m.WIRE_VERSION, "default", 0, 1, "s", {}, 1))],
}


@pytest.mark.parametrize("frames", REFUSED.values(), ids=REFUSED)
def test_a_client_whose_message_is_refused_gets_the_reason(service: pydp2.Service, frames: list[bytes]) -> None:
    with service.connect(batch_size=10) as client:
        stream = iter(client)
        next(stream)
        say(client, *frames)
        error = in_time(lambda: [*stream])
        assert isinstance(error, RemoteProtocolError), error
        assert "the service does not take what this client sent" in str(error)
        assert isinstance(in_time(lambda: next(iter(client))), RemoteProtocolError), "and so it stays"
    with service.connect(batch_size=10) as client:
        assert sum(map(len, client)) == 1000


def test_a_client_that_is_refused_before_its_first_pass_gets_the_reason(service: pydp2.Service) -> None:
    with service.connect(batch_size=10) as client:
        say(client, b"no message")
        assert isinstance(in_time(lambda: next(iter(client))), RemoteProtocolError)


def test_a_client_that_the_service_does_not_know_any_more_learns_it_while_it_waits(
    provider_file: Callable[..., str],
) -> None:
    """Its next sign of life is answered."""
    address = provider_file(CODE.replace("yield", "import time; time.sleep(3600); yield"))
    with pydp2.load(["a"], address, batch_size=10, lease=4) as client:
        stream = iter(client)
        client._begin()
        say(client, m.encode(m.Detach(1, 0)))
        assert isinstance(in_time(lambda: next(stream)), RemoteProtocolError)


def test_who_goes_on_after_a_refusal_is_not_answered_and_not_logged_again(
    provider_file: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pydp2.launch(["a"], provider_file(CODE), workers=1) as service,
        raw_trainers(service.address) as trainers,
    ):
        one, other = trainers(), trainers()
        one.say(m.Need(1, 1, 0, 0, 0))
        closing = one.hear()
        assert isinstance(closing, m.Closing)
        assert "Need from a client that is not attached" in closing.error["message"]
        for _ in range(50):
            one.say(m.Need(1, 1, 0, 0, 0))
        other.say(m.AskStats())
        assert isinstance(other.hear(), m.Stats)
        assert one.hear(0.2) is None
        service.stats()
    assert capfd.readouterr().err.count("broke the protocol") == 1

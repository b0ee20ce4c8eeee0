"""A service of rank 0 for ranks on other machines: what they are handed, and where it listens."""

from __future__ import annotations

import json
import pickle  # noqa: TID251  # as torch hands a dataset to the workers of its DataLoader
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ListError, OptionError, RemoteProtocolError, ServiceUnreachable
from pydp2.frameworks import hand_over
from pydp2.frameworks.hand_over import reachable_address, receive_service, start_service
from pydp2.frameworks.shared_service import Ranks, SharedService, leave, open_client, open_service
from pydp2.frameworks.worker_share import WorkerShares
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.service_address import split_key, with_key
from tests.frameworks.conftest import HERE, DictStore, of_machines
from tests.runs import NUMBERS, NUMBERS_OPTIONS, numbered

FILES = [str(n) for n in range(6)]


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


def test_another_rank_connects_with_what_it_was_handed_and_no_file_stays(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = DictStore(HERE)
    connection, service = start_service(FILES, provider, store, "key", workers=1)
    with service:
        assert receive_service(store, "key", 0.0) == connection
        assert connection.address.startswith("tcp://127.0.0.1:")
        assert not list(tmp_path.glob("pydp2-connection-*"))
        assert connection.keys["trainer"].secret not in repr(connection)
        port_of_nobody = with_key("tcp://127.0.0.1:1", split_key(connection.address)[1])
        for known in (
            replace(connection, address=port_of_nobody),  # a rank on the machine of rank 0 shares memory
            replace(connection, local_address=""),  # a rank elsewhere
        ):
            with pydp2.connect(known, **NUMBERS_OPTIONS) as data:
                assert sum(map(len, data)) == sum(n * 29 % 97 + 20 for n in range(6))


def test_a_connection_file_that_the_user_names_stays_as_long_as_the_service(provider: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    connection, service = start_service(FILES, provider, DictStore(HERE), "key", workers=1, connection=path)
    with service:
        assert ConnectionFile.read(path) == connection
    assert not path.exists()


def test_all_ranks_get_the_error_with_which_the_service_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DictStore(HERE)
    with pytest.raises(ListError) as raised:
        start_service("missing.list", "x.process", store, "list")
    with pytest.raises(ListError) as received:
        receive_service(store, "list", 0.0)
    assert str(received.value) == str(raised.value)
    assert "Rank 0" in received.value.__notes__[0]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hand_over, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_service(FILES, "x.process", store, "interrupt")
    with pytest.raises(ServiceUnreachable, match="rank 0 has not started the service for all ranks: KeyboardInterrupt"):
        receive_service(store, "interrupt", 0.0)


def test_a_service_of_which_nothing_can_be_handed_over_ends(provider: str) -> None:
    class Full(DictStore):
        def put(self, key: str, text: str) -> None:
            raise ServiceUnreachable("the store does not answer")

    with pytest.raises(ServiceUnreachable, match="the store does not answer"):
        start_service(FILES, provider, Full(HERE), "key", workers=1)


def test_other_ranks_wait_until_a_deadline_and_take_nothing_else() -> None:
    store = DictStore()
    with pytest.raises(ServiceUnreachable, match=r"rank 0 has not started the service for all ranks within 0\.05 s"):
        receive_service(store, "key", 0.05)
    for text in ("", "[]", "{}", json.dumps({"connection": "{}"}), json.dumps({"connection": 3})):
        store.put("key", text)
        with pytest.raises(RemoteProtocolError, match="the store has something else"):
            receive_service(store, "key", 0.0)


def test_a_socket_of_one_machine_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"need a service with a TCP address, got bind='ipc:///tmp/a'; leave bind out"
    ):
        start_service(FILES, "x.process", DictStore(), "key", bind="ipc:///tmp/a")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("127.0.0.1:29500", {"bind": "tcp://127.0.0.1:*"}),
        ("localhost:29500", {"bind": "tcp://127.0.0.1:*"}),
        ("nowhere.invalid:29500", {"bind": "tcp://0.0.0.0:*"}),
        ("", {"bind": "tcp://0.0.0.0:*"}),
        ("head:29500", {"bind": "tcp://0.0.0.0:*", "advertise": "head"}),
        ("[::1]:29500", {"bind": "tcp://[::1]:*"}),
    ],
)
def test_the_service_listens_where_the_others_reach_the_store(
    endpoint: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``head`` is a name that this machine takes for its own loopback, as Debian's ``/etc/hosts`` has it."""
    known = socket.getaddrinfo

    def find(host: str, port: int, **options: Any) -> Any:
        if host.endswith(".invalid") or not host:
            raise socket.gaierror("not known")
        names = {"head": "127.0.1.1", "localhost": "127.0.0.1"}
        return known(names.get(host, host), port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    if endpoint.startswith("[") and not socket.has_dualstack_ipv6():
        expected = {"bind": "tcp://0.0.0.0:*"}
    assert reachable_address(endpoint) == expected


def test_ranks_on_two_machines_read_as_one_does_with_workers_of_the_second(provider: str, tmp_path: Path) -> None:
    """The n-th loader of a rank shares its service with the n-th of the others, also under one job."""
    with pydp2.load(FILES, provider, workers=1, **NUMBERS_OPTIONS) as data:
        alone = [numbered(batch) for batch in data]
    ranks = of_machines(tmp_path.name, DictStore(HERE))

    def read(of_rank: Ranks) -> list[Any]:
        seen = []
        for _ in range(2):
            client = open_client(FILES, provider, of_rank, workers=0, workers_per_node=1, **NUMBERS_OPTIONS)
            seen.append([numbered(batch) for batch in client])
            if isinstance(client.owner, SharedService):
                assert [host["places"] for host in client.owner.service.stats()["hosts"]] == [1]
            leave(client)
        return seen

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(read, ranks)
    for n in range(2):
        assert len(first[n]) == len(second[n])
        assert [batch for batch in sorted(first[n] + second[n]) if batch[1]] == alone


def test_workers_of_a_framework_read_on_two_machines(provider: str, tmp_path: Path) -> None:
    """They are other processes, to which what was handed over goes on."""
    with pydp2.load(FILES, provider, workers=1, **NUMBERS_OPTIONS) as data:
        alone = [numbered(batch) for batch in data]

    def read(of_rank: Ranks) -> list[Any]:
        shares = WorkerShares(FILES, provider, of_rank, workers=1, **NUMBERS_OPTIONS)
        copy = pickle.loads(pickle.dumps(shares))
        with copy.connect(0, 1, " pass 0") as client:
            seen = [numbered(batch) for batch in client]
        shares.close()
        return seen

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(read, of_machines(tmp_path.name, DictStore(HERE)))
    assert [batch for batch in sorted(first + second) if batch[1]] == alone


def test_workers_of_other_machines_are_none_of_one_machine_and_of_a_given_service(
    provider: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"workers_per_node is for a service that rank 0 starts, and the address"):
        open_client("tcp://127.0.0.1:1", None, Ranks(), workers_per_node=1, batch_size=4)
    with pytest.raises(OptionError, match="workers_per_node must be at least 0, got -1"):
        open_service(FILES, provider, of_machines(tmp_path.name, DictStore())[1], workers_per_node=-1)
    with open_client(FILES, provider, Ranks(), workers=1, workers_per_node=3, **NUMBERS_OPTIONS) as data:
        assert sum(map(len, data)) > 0

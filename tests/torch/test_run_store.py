"""The stores of torch as the store of a run, with a real TCPStore."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

from pydp2.errors import ServiceUnreachable  # noqa: E402
from pydp2.frameworks.run_store import RunStore, meet  # noqa: E402
from pydp2.torch.ranks import find_ranks  # noqa: E402
from pydp2.torch.run_store import TorchStore, store_of_run  # noqa: E402

DEADLINE = 20.0
pytestmark = pytest.mark.may_leave(descriptors=False)  # a TCPStore keeps some of its own


@pytest.fixture
def server() -> Any:
    """The store of the agent of torchrun."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=DEADLINE))


def environment(server: Any, **others: str) -> dict[str, str]:
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return found | others


def store_of_agent(server: Any) -> RunStore:
    found = store_of_run(environment(server))
    assert found is not None
    return found


def test_what_one_rank_puts_another_takes(server: Any) -> None:
    first, second = store_of_agent(server), store_of_agent(server)
    assert first.endpoint == f"127.0.0.1:{server.port}"
    assert second.take("key") is None
    for text in ("text", "another one, ü"):
        first.put("key", text)
        assert second.take("key") == text


def test_ranks_agree_on_a_new_name_each_time_that_torchrun_starts_them(server: Any) -> None:
    def start(world_size: int) -> set[str]:
        with ThreadPoolExecutor(world_size) as pool:
            return {*pool.map(lambda rank: meet(store_of_agent(server), rank, world_size, DEADLINE), range(world_size))}

    names = [start(world_size) for world_size in (3, 2, 4)]
    assert [len(found) for found in names] == [1, 1, 1]
    assert len(set().union(*names)) == 3


def test_a_store_that_is_gone_is_an_error_that_names_it(server: Any) -> None:
    lost = TorchStore(lambda: dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(seconds=1)), "head:1")
    with pytest.raises(ServiceUnreachable, match=r"the store of torch.distributed at head:1 must answer"):
        lost.take("key")


def test_the_store_is_that_of_torchrun_else_that_of_the_process_group(server: Any) -> None:
    """Where torchrun does not share its store, rank 0 has one once the process group is there."""
    assert store_of_run({}) is None
    assert store_of_run(environment(server, TORCHELASTIC_USE_AGENT_STORE="False")) is None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = store_of_run(environment(server, TORCHELASTIC_USE_AGENT_STORE="False"))
        assert found is not None
        found.put("key", "text")
        assert found.take("key") == "text"
        assert found.take("other") is None
        assert store_of_agent(server).take("key") is None, "another store"
    finally:
        dist.destroy_process_group()


def test_a_rank_knows_which_it_is_on_its_machine(server: Any) -> None:
    of_second = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    found = find_ranks(environment(server, **of_second))
    assert (found.rank, found.local_world_size, found.local_rank) == (3, 2, 1)
    assert found.store is not None

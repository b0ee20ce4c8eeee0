"""One service for the ranks of a machine: started by the first, found by the others, there until all have left."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import OptionError
from pydp2.frameworks.shared_service import Ranks, SharedService, chosen_ranks, keep_service, open_client, open_service
from tests.runs import NUMBERS, NUMBERS_OPTIONS
from tests.warm_starts import run_program

FILES = [str(n) for n in range(6)]
DEADLINE = 60.0
RANK = """
import json, sys, time
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.shared_service import Ranks, SharedService, keep_service, open_client, open_service
rank, world, address, late, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5]
time.sleep(late)
seen = []
for job in ("train", "train", "test"):
    client = open_client([str(n) for n in range(6)], address, Ranks(rank, world, world, "RUN"), job=job, workers=1,
                         batch_size=16, seed=5)
    data = FrameworkLoader(client, lambda batch: [batch.index, batch[0].tolist()[: len(batch) - batch.padding]])
    for value in data:
        time.sleep(rank * 0.01)
        seen.append(value)
    if end == "close":
        data.close()
print(json.dumps(seen))
"""


def run_ranks(folder: Path, address: str, end: str, late: tuple[float, ...]) -> list[list[tuple[int, list[int]]]]:
    """What each rank has seen of its three loaders."""
    (folder / "rank.py").write_text(RANK.replace("RUN", folder.name))
    words = [["rank.py", str(rank), str(len(late)), address, str(late[rank]), end] for rank in range(len(late))]
    seen = []
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda each: run_program(each, folder, DEADLINE), words):
            assert done.returncode == 0, done.stdout + done.stderr
            seen.append(json.loads(done.stdout))
    return seen


def test_a_launcher_that_the_framework_does_not_know_is_no_reason_to_read_all_in_each_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(
        OptionError, match=r"this process is rank 1 of 2 \(OMPI_.*\), and the framework knows of no other"
    ):
        chosen_ranks(None, None, Ranks)
    assert chosen_ranks(None, None, lambda: Ranks(1, 2)) == Ranks(1, 2), "it knows"
    assert chosen_ranks(None, 1, Ranks) == Ranks(), "each is to read all"
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert chosen_ranks(None, None, Ranks) == Ranks()


@pytest.mark.parametrize(("end", "late"), [("close", (0.3, 0.0)), ("exit", (0.0, 0.3))])
def test_ranks_share_one_service_per_loader_whoever_comes_first_and_however_they_end(
    provider_file: Callable[[str], str], tmp_path: Path, end: str, late: tuple[float, ...]
) -> None:
    """A rank that is slower than the one that has the service still gets all of its batches."""
    address = provider_file(NUMBERS)
    with pydp2.load(FILES, address, workers=1, **NUMBERS_OPTIONS) as data:
        alone = [[batch.index, batch[0].tolist()] for batch in data]
    seen = run_ranks(tmp_path, address, end, late)
    assert len({len(each) for each in seen}) == 1, "all take equally many steps"
    steps = len(seen[0]) // 3
    for n in range(3):
        mixed = sorted(value for each in seen for value in each[n * steps : (n + 1) * steps])
        assert [value for value in mixed if value[1]] == alone


def test_ranks_on_several_machines_need_a_service_that_is_given() -> None:
    with pytest.raises(OptionError, match=r"2 of 4 ranks run on this machine.*pydp2 serve"):
        open_client(FILES, "x.process", Ranks(0, 4, 2, "run"), batch_size=4)


def test_a_client_is_taken_as_it_is(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(FILES, provider_file(NUMBERS), workers=1, **NUMBERS_OPTIONS) as data:
        assert open_client(data, None, Ranks()) is data
        with pytest.raises(OptionError, match=r"already, got seed beside it; give them to the call that makes"):
            open_client(data, None, Ranks(), seed=3)


def test_a_service_that_is_given_by_address_is_connected_to_and_not_ended(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(FILES, provider_file(NUMBERS), workers=1) as service:
        for _ in range(2):
            with open_client(service.address, None, Ranks(), **NUMBERS_OPTIONS) as data:
                assert sum(map(len, data)) == sum(n * 29 % 97 + 20 for n in range(6))
        assert service.poll() is None


def test_a_list_without_a_provider_is_an_error_that_names_the_provider(tmp_path: Path) -> None:
    (tmp_path / "train.list").write_text("a\nb\n")
    with pytest.raises(OptionError, match=r"no provider was given, so .*if it is a list of files, give the provider"):
        open_client(tmp_path / "train.list", None, Ranks(), batch_size=4)


@pytest.mark.parametrize("files", ["*.jsonl", "0.jsonl", ["0.jsonl", "1.jsonl"]])
def test_data_of_a_known_format_need_no_provider(files: str | list[str], tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"n": 7}\n' * 3)
    with open_client(files, None, Ranks(), root=tmp_path, batch_size=10, workers=1) as data:
        assert [batch["n"].tolist() for batch in data] == [[7] * (3 if files == "0.jsonl" else 6)]


def test_a_rank_keeps_the_service_while_nothing_of_it_reads(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """As between two passes that worker processes read, which are new ones in each pass."""
    of_rank = [Ranks(rank, 2, 2, tmp_path.name) for rank in range(2)]
    address, service = open_service(FILES, provider_file(NUMBERS), of_rank[0], workers=1)
    assert isinstance(service, SharedService)
    with ThreadPoolExecutor() as pool, keep_service(address, of_rank[1], job="default"):
        ended = pool.submit(service.close)
        with pydp2.connect(address, **NUMBERS_OPTIONS) as data:
            assert sum(len(batch) for batch in data) > 0
        assert service.service.poll() is None, "nobody reads, but a rank is there"
        assert not ended.done()
    ended.result(DEADLINE)
    assert service.service.poll() is not None

"""Workers that a rank has started on its machine: when they end, and what keeps them from starting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pydp2
from pydp2.frameworks.shared_service import open_service
from tests.frameworks.conftest import HERE, DictStore, of_machines
from tests.runs import NUMBERS, NUMBERS_OPTIONS, processes, wait_until

FILES = [str(n) for n in range(6)]
DEADLINE = 60.0
RANK = """
import sys
from pathlib import Path
from pydp2.frameworks.node_workers import start_workers
from pydp2.transport.key_files import ConnectionFile

start_workers(ConnectionFile.read(Path(sys.argv[1])), 1, None, 60.0)
input()
"""


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.mark.parametrize("end", ["killed", "ended", "the service ends"])
def test_they_end_with_their_rank_however_it_ends_and_with_the_service(end: str, provider: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    service = pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*", connection=file)
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(file)], stdin=subprocess.PIPE, cwd=tmp_path)
    try:
        assert wait_until(lambda: [host["state"] for host in service.stats()["hosts"]] == ["prepared"])
        if end == "killed":
            rank.kill()
        elif end == "ended":
            rank.communicate(b"\n", DEADLINE)
            assert rank.returncode == 0
        else:
            service.close()
        assert wait_until(lambda: not processes("pydp2-host"))
        if end != "the service ends":
            with service.connect(**NUMBERS_OPTIONS) as data:
                assert sum(map(len, data)) == sum(n * 29 % 97 + 20 for n in range(6)), "the files of others"
    finally:
        rank.kill()
        rank.communicate()
        service.close()


def test_what_keeps_workers_from_a_machine_is_said_there(
    provider: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file of the list is not there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FILES[0]).touch()
    first, second = of_machines(tmp_path.name, DictStore(HERE))
    said: list[str] = []

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return "pydp2: this machine has no workers for tcp://127.0.0.1:" in "".join(said)

    with ThreadPoolExecutor() as pool:
        opening = pool.submit(open_service, FILES, provider, first, workers=1, root=tmp_path)
        open_service(FILES, provider, second, workers_per_node=1, root=tmp_path / "elsewhere")
        service = opening.result(DEADLINE)[1]
        assert service is not None
        try:
            assert wait_until(is_said), said
        finally:
            service.service.close()

"""A service on a Ray cluster of this machine: nodes come and go, and the stream stays that of a local service.

Needs `pip install -e '.[test,ray]'`; skipped where Ray is not installed. The example needs `ray[train]` too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import Error, OptionError, ServiceUnreachable
from tests.faults.relay import free_port
from tests.runs import alarm, processes, wait_until

ray: Any = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")
from pydp2_cli.serve import _LINE_SECONDS  # noqa: E402

import pydp2.ray  # noqa: E402  # its extra is there
from tests.provider_code import numbers  # noqa: E402

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]
FILES = [str(n) for n in range(24)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5}
SLOW = numbers("int(filename) * 29 % 97 + 20", "pool_size=200", first="1000 * int(filename)", pause=0.002)
EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/train_digits_ray.py"


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """A Ray cluster stays for the whole module, with threads and processes of its own: only ours are looked for."""
    yield
    assert wait_until(lambda: not processes("pydp2-"), 30), processes("pydp2-")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.nodes = [made.add_node(num_cpus=2) for _ in range(3)]
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(SLOW)


def uninterrupted(provider: str) -> list[list[int]]:
    with pydp2.load(FILES, provider, workers=2, **OPTIONS) as data:
        return [batch[0].tolist() for batch in data]


def active(service: pydp2.ray.RayService) -> int:
    return sum(each["active"] for each in service.stats()["workers"])


def test_a_node_that_is_killed_in_the_middle_of_a_pass_is_replaced_and_the_stream_is_exact(
    cluster: Any, provider: str
) -> None:
    expected = uninterrupted(provider)
    with alarm(150), pydp2.ray.launch(FILES, provider, name="train", hosts=3, workers_per_host=1) as service:
        assert wait_until(lambda: active(service) == 3, 60)
        assert len({each["host"] for each in service.stats()["hosts"]}) == 3, "Ray spreads them"
        with pydp2.ray.connect("train", **OPTIONS) as data:
            batches = iter(data)
            seen = [next(batches)[0].tolist() for _ in range(5)]
            here = ray.get_runtime_context().get_node_id()  # where the server is
            victim = next(node for node in cluster.nodes if node.node_id != here)
            cluster.nodes.remove(victim)
            cluster.remove_node(victim, allow_graceful=False)
            cluster.nodes.append(cluster.add_node(num_cpus=2))
            seen += [batch[0].tolist() for batch in batches]
            assert seen == expected
            assert wait_until(lambda: active(service) == 3, 60), service.stats()["ray"]
            assert [batch[0].tolist() for batch in data] != expected, "another pass"


def test_rows_may_stay_on_the_nodes_of_their_workers(cluster: Any, provider: str) -> None:
    expected = uninterrupted(provider)
    with (
        alarm(120),
        pydp2.ray.launch(FILES, provider, name="kept", hosts=2, workers_per_host=1, row_server=True) as service,
        service.connect(**OPTIONS) as data,
    ):
        batches = iter(data)
        seen = [next(batches)[0].tolist()]
        assert sum(host["rows_kept"] for host in service.stats()["hosts"]), service.stats()["hosts"]
        seen += [batch[0].tolist() for batch in batches]
        assert seen == expected


def test_hosts_follow_the_wanted_number(cluster: Any, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        alarm(120),
        pydp2.ray.launch(
            FILES, provider, name="auto", hosts="auto", workers_per_host=1, max_hosts=2, scale_seconds=1.0
        ) as service,
        service.connect(**OPTIONS) as data,
    ):
        deadline = time.monotonic() + 90
        while service.stats()["ray"]["hosts"] < 2 and time.monotonic() < deadline:
            for _ in data:  # it takes all that comes, and waits for more
                if service.stats()["ray"]["hosts"] == 2:
                    break
        said = service.stats()
        assert said["ray"]["hosts"] == 2, said["scaling"]


def test_what_keeps_hosts_from_joining_is_said(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('not on this node')\n")
    with alarm(60), pydp2.ray.launch(FILES, f"{tmp_path}/broken.py:process", name="broken") as service:
        assert wait_until(lambda: bool(service.stats()["ray"]["errors"]), 30)
        assert "not on this node" in service.stats()["ray"]["errors"][0]


def test_mistakes_are_told_at_once(cluster: Any, provider: str) -> None:
    with pytest.raises(ServiceUnreachable, match="no service 'nobody' is on this Ray cluster"):
        pydp2.ray.connect("nobody", **OPTIONS)
    with pytest.raises(OptionError, match="workers is decided by Ray"):
        pydp2.ray.launch(FILES, provider, workers=2)
    with pytest.raises(OptionError, match="hosts must be a number from 1 on, or 'auto', got 0"):
        pydp2.ray.launch(FILES, provider, hosts=0)
    with pytest.raises(OptionError, match="compress must be 'zstd' or None, got 'gzip'"):
        pydp2.ray.launch(FILES, provider, compress="gzip")
    with pytest.raises(OptionError, match="memory_limit must be at least"):
        pydp2.ray.launch(FILES, provider, memory_limit=5)


def test_the_service_lives_on_without_the_program_that_started_it(cluster: Any, provider: str) -> None:
    with alarm(60):
        first = pydp2.ray.launch(FILES, provider, name="lasting")
        try:
            again = pydp2.ray.RayService("lasting")
            with again.connect(**OPTIONS) as data:
                assert sum(1 for _ in data) == len(uninterrupted(provider))
                assert data._connection.row_sources.shared_rows is not None, "it is on the node of the server"
        finally:
            first.close()
        with pytest.raises(ServiceUnreachable):
            pydp2.ray.RayService("lasting")


def the_server() -> int:
    """The process that serves, once it is the only one."""
    assert wait_until(lambda: len(processes("pydp2-server")) == 1)
    return processes("pydp2-server")[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def going_on(folder: Path) -> dict[str, Any]:
    """Options of a service that Ray starts again."""
    return {"state_dir": str(folder / "state"), "bind": f"tcp://127.0.0.1:{free_port()}"}


def test_a_server_that_dies_alone_is_started_again_and_its_trainers_wait_for_it(
    cluster: Any, provider: str, tmp_path: Path
) -> None:
    expected = uninterrupted(provider)
    with (
        alarm(120),
        pydp2.ray.launch(FILES, provider, name="alone", **going_on(tmp_path)) as service,
        service.connect(**OPTIONS) as data,
    ):
        batches = iter(data)
        seen = [next(batches)[0].tolist() for _ in range(5)]
        os.kill(the_server(), signal.SIGKILL)  # as the system does where memory is short
        seen += [batch[0].tolist() for batch in batches]
        assert seen == expected


def is_told(reason: str, what: Callable[[], object]) -> bool:
    """Whether ``what()`` raises an error of pydp2 with this reason."""
    try:
        what()
    except Exception as error:  # Ray's own, while it restarts the actor
        return isinstance(error, Error) and reason in str(error)
    return False


def test_a_server_that_cannot_be_started_again_yet_is_tried_until_it_can_and_says_why(
    cluster: Any, provider: str, tmp_path: Path
) -> None:
    expected = uninterrupted(provider)
    with (
        alarm(150),
        pydp2.ray.launch(FILES, provider, name="held", **going_on(tmp_path)) as service,
        service.connect(**OPTIONS, lease=90.0) as data,
    ):
        batches = iter(data)
        seen = [next(batches)[0].tolist() for _ in range(5)]
        old = the_server()
        actor = parent_of(old)
        os.kill(old, signal.SIGSTOP)  # it keeps its state directory and its port, and cannot see that its actor goes
        try:
            os.kill(actor, signal.SIGKILL)
            why = "belongs to a service that is running"
            assert wait_until(lambda: is_told(why, service.stats), 60)
            assert wait_until(lambda: is_told(why, lambda: service.connect(job="another", timeout=1.0).close()), 60)
        finally:
            os.kill(old, signal.SIGKILL)
        seen += [batch[0].tolist() for batch in batches]
        assert seen == expected


def answers(name: str) -> bool:
    """Whether the service has a server that answers."""
    try:
        return bool(pydp2.ray.RayService(name).stats())
    except Exception:  # Ray's own, while it restarts the actor
        return False


def serving(provider: str, name: str, *more: str, folder: Path) -> Any:
    """``pydp2 serve --engine ray`` in a process of its own, once it serves."""
    (folder / "train.list").write_text("".join(f"{file}\n" for file in FILES))
    place = ["--root", str(folder), "--provider", provider, "--name", name, *more]
    command = [sys.executable, "-m", "pydp2", "serve", str(folder / "train.list"), "--engine", "ray", *place]
    address = ray.get_runtime_context().gcs_address
    made = subprocess.Popen(
        command, env=os.environ | {"RAY_ADDRESS": address}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == f"{name}\n"
    return made


def test_the_command_ends_with_the_reason_once_its_server_is_gone(cluster: Any, provider: str, tmp_path: Path) -> None:
    with alarm(120), serving(provider, "told", folder=tmp_path) as command:
        os.kill(the_server(), signal.SIGKILL)
        _, err = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "the server of 'told' has ended" in err.splitlines()[-1]


def test_the_command_goes_on_while_ray_starts_its_server_again(cluster: Any, provider: str, tmp_path: Path) -> None:
    kept = [f"--{name}={value}" for name, value in going_on(tmp_path).items()]
    with alarm(180), serving(provider, "kept on", *kept, folder=tmp_path) as command:
        for _ in range(3):  # so that it looks at the service while Ray starts it
            assert wait_until(lambda: answers("kept on"), 60)
            os.kill(the_server(), signal.SIGKILL)
        assert wait_until(lambda: answers("kept on"), 60)
        with pydp2.ray.connect("kept on", **OPTIONS) as data:
            assert [batch[0].tolist() for batch in data] == uninterrupted(provider)
        assert command.poll() is None
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=60)
    assert command.returncode == 128 + signal.SIGTERM


def test_the_command_may_first_look_at_its_service_while_ray_starts_the_server_again(
    cluster: Any, provider: str, tmp_path: Path
) -> None:
    kept = [f"--{name}={value}" for name, value in going_on(tmp_path).items()]
    with alarm(180), serving(provider, "late", *kept, folder=tmp_path) as command:
        time.sleep(_LINE_SECONDS - 0.5)  # the actor of a server that died ends a second later at the earliest
        os.kill(the_server(), signal.SIGKILL)
        assert not wait_until(lambda: command.poll() is not None, 3)
        assert wait_until(lambda: answers("late"), 60)
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=60)
    assert command.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("comes_back", [False, True], ids=["without state_dir", "with state_dir"])
def test_the_command_ends_once_another_program_closes_its_service(
    comes_back: bool, cluster: Any, provider: str, tmp_path: Path
) -> None:
    kept = [f"--{name}={value}" for name, value in going_on(tmp_path).items()] if comes_back else []
    with alarm(120), serving(provider, "closed", *kept, folder=tmp_path) as command:
        pydp2.ray.RayService("closed").close()
        try:
            _, err = command.communicate(timeout=30)
        finally:
            command.kill()
    assert command.returncode == 1
    assert "the service 'closed' has ended: no service 'closed' is on this Ray cluster" in err.splitlines()[-1]


def test_statistics_come_while_many_hosts_wait_for_resources(cluster: Any, provider: str) -> None:
    with (
        alarm(60),
        pydp2.ray.launch(FILES, provider, name="waiting", hosts=20, resources={"what no node has": 1}) as service,
    ):
        assert service.stats()["ray"] == {"hosts": 20, "errors": []}


def train_digits(cluster: Any, folder: Path, *words: str) -> tuple[bytes, str]:
    """Run the example on the cluster: the file with its model and place in the data, and what it printed."""
    environment = os.environ | {
        "RAY_ADDRESS": cluster.address,
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # every so often it looks for reports; every 2 s by default
        "OPENBLAS_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(folder), "--passes", "2", "--every", "4", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            output, _ = running.communicate(timeout=150)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    assert running.returncode == 0, output
    assert "accuracy on digits that were held out: 0.9" in output, output
    return (folder / "model.npz").read_bytes(), output


@pytest.fixture(scope="module")
def undisturbed(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the example ends with if nothing happens."""
    pytest.importorskip("ray.train", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("undisturbed")
    made, _ = train_digits(cluster, folder)
    assert not (folder / "killed").exists()
    return made


@pytest.mark.parametrize(
    ("steps", "goes_on"), [(3, False), (15, True)], ids=["before the first checkpoint", "behind the third"]
)
def test_the_example_with_a_trainer_that_is_killed_ends_with_the_weights_of_one_that_never_was(
    steps: int, goes_on: bool, cluster: Any, undisturbed: bytes, tmp_path: Path
) -> None:
    """Bit by bit, momentum and place in the data too; it begins anew, or goes on in the middle of a pass."""
    made, said = train_digits(cluster, tmp_path, "--kill-after", str(steps))
    assert (tmp_path / "killed").exists()
    assert made == undisturbed
    assert bool(re.search(r"begins in pass 0 at batch [1-9]", said)) == goes_on, said


ARGUMENTS = """
import sys
N = len(sys.argv)

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield N
"""


def test_workers_have_the_arguments_of_the_program_that_serves(
    cluster: Any, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *"abcdefghijklmnopq"])
    with (
        alarm(120),
        pydp2.ray.launch(FILES, provider_file(ARGUMENTS), name="argv", hosts=1, workers_per_host=1) as service,
        service.connect(**OPTIONS) as data,
    ):
        assert {value for batch in data for value in batch[0].tolist()} == {18}

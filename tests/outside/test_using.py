"""How a client is used, and how it cannot be: every wrong use is an error that says so, and harms nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ClientUseError, GuardError, JobTaken, ProviderError

from ..provider_code import numbers
from ..runs import Program, one_pass, processes, wait_until

CODE = numbers(100, "should_shuffle=False", first="100 * settings.pass_id")


@pytest.fixture
def service(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(["a"], provider_file(CODE), workers=1) as service:
        yield service


@pytest.fixture
def data(service: pydp2.Service) -> Iterator[pydp2.Client]:
    with service.connect(batch_size=10) as data:
        yield data


def samples(batches: Any) -> list[int]:
    return [value for batch in batches for value in batch[0].tolist()]


def test_a_second_trainer_is_refused_and_the_first_undisturbed(service: pydp2.Service, data: pydp2.Client) -> None:
    stream = iter(data)
    first = samples([next(stream)])
    with pytest.raises(JobTaken, match=r"another trainer reads this job .*; wait until it has closed its client"):
        service.connect(batch_size=10)
    assert first + samples(stream) == [*range(100)]


def test_a_job_is_free_when_its_trainer_has_closed(service: pydp2.Service) -> None:
    for _ in range(3):
        with service.connect(batch_size=10) as data:
            assert samples(data) == [*range(100)]


def test_a_nested_iteration_is_refused_and_the_outer_one_goes_on(data: pydp2.Client) -> None:
    got: list[int] = []
    for batch in data:
        if batch.index < 9:  # after the last batch there is no pass under way
            with pytest.raises(ClientUseError, match="in the middle of a pass: a second iteration would mix two"):
                iter(data)
        got += batch[0].tolist()
    assert got == [*range(100)]


def test_leaving_a_loop_and_iterating_again_is_a_clean_next_pass(data: pydp2.Client) -> None:
    """Nothing of the pass that was left shows up, wherever it was left."""
    for pass_id in range(12):
        wanted = pass_id
        for batch in data:
            assert batch.pass_id == pass_id
            assert batch[0].tolist() == [
                *range(100 * pass_id + 10 * batch.index, 100 * pass_id + 10 * batch.index + 10)
            ]
            if batch.index == wanted:
                break
    assert samples(data) == [*range(1200, 1300)]


def test_an_iterator_that_is_kept_can_be_closed(data: pydp2.Client) -> None:
    one = iter(data)
    next(one)
    one.close()  # type: ignore[attr-defined]
    assert list(one) == []
    assert samples(data) == [*range(100, 200)]


def test_an_iterator_at_its_end_stays_there(data: pydp2.Client) -> None:
    one = iter(data)
    assert samples(one) == [*range(100)]
    assert list(one) == []
    assert samples(data) == [*range(100, 200)]


def test_a_client_may_be_made_in_one_thread_and_read_in_another(data: pydp2.Client) -> None:
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(samples(data)))
    thread.start()
    thread.join()
    assert got == [*range(100)]


def test_a_closed_client_says_so(service: pydp2.Service) -> None:
    data = service.connect(batch_size=10)
    stream = iter(data)
    next(stream)
    data.close()
    data.close()
    for use in (lambda: next(stream), lambda: iter(data), lambda: data.stats()):
        with pytest.raises(ClientUseError, match=r"this client is closed; connect\(\) again for more passes"):
            use()


def test_a_client_that_nobody_holds_is_closed(service: pydp2.Service) -> None:
    data = service.connect(batch_size=10)
    next(iter(data))
    del data
    gc.collect()
    with service.connect(batch_size=10) as data:
        assert samples(data) == [*range(100)]


def test_the_service_of_load_ends_when_nobody_holds_its_client(provider_file: Callable[[str], str]) -> None:
    for batch in pydp2.load(["a"], provider_file(CODE), batch_size=10, workers=1):
        assert len(batch) == 10
        break
    gc.collect()
    assert wait_until(lambda: processes("pydp2-") == [])


def test_a_service_lives_as_long_as_the_client_that_was_made_in_one_line(provider_file: Callable[[str], str]) -> None:
    data = pydp2.launch(["a"], provider_file(CODE), workers=1).connect(batch_size=10)
    gc.collect()
    assert samples(data) == [*range(100)]
    data.close()
    del data
    gc.collect()
    assert processes("pydp2-") == []


FORKING = """
import os, sys, pydp2
from pydp2.errors import ClientUseError

def main():
    data = pydp2.load(["a"], "prov.process", batch_size=10, workers=1)
    stream = iter(data)
    next(stream)
    child = os.fork()
    if child == 0:
        for use in (lambda: next(stream), lambda: iter(data), lambda: data.stats()):
            try:
                use()
            except ClientUseError as error:
                print("child:", error, flush=True)
        data.close()
        {end}
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("rows", 10 + sum(len(batch) for batch in stream), sum(len(batch) for batch in data))

main()
"""


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "sys.exit(0)", "del stream, data; import gc; gc.collect(); sys.exit(0)"]
)
def test_after_a_fork_the_child_cannot_use_the_client_and_the_parent_can(
    end: str, program: Callable[..., Program], provider_file: Callable[[str], str]
) -> None:
    """However the child ends: it neither hangs nor takes the parent's pass or service with it."""
    provider_file(CODE)
    parent = program(FORKING.replace("{end}", end))
    assert parent.said("rows", 30) == "rows 100 100"
    assert parent.ended() == 0
    text = "child: this client was made before a fork and belongs to the parent process; call connect() in each process"
    assert [line.startswith(text) for line in parent.lines] == [True, True, True, False]
    assert parent.screen == ""


@pytest.mark.parametrize(
    ("call", "place"),
    [("load", "hook"), ("launch", "hook"), ("load", "process"), ("launch", "process"), ("connect", "process")],
)
def test_a_service_cannot_be_started_or_read_inside_a_worker(
    call: str, place: str, provider_file: Callable[[str], str]
) -> None:
    where = "'ipc:///tmp/pydp2-nobody/s'" if call == "connect" else "['a'], 'prov.process'"
    options = "" if call == "launch" else ", batch_size=1"
    code = f"""
    import pydp2
    def call():
        pydp2.{call}({where}{options})

    def hook(settings, **kwargs):
        {"call()" if place == "hook" else "pass"}

    @provider(input_types=[integer_value(1000)], init_hook=hook)
    def process(settings, filename):
        {"call()" if place == "process" else "pass"}
        yield 1
    """
    with pytest.raises(ProviderError, match=r"GuardError: a worker process cannot start or read a service") as caught:
        raise one_pass(["a"], provider_file(code)).error or AssertionError("nothing was said")
    assert isinstance(caught.value, RuntimeError)
    assert 'put that code under `if __name__ == "__main__":`' in str(caught.value)


def test_a_guard_error_is_one_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDP2_WORKER", "0")
    with pytest.raises(GuardError):
        pydp2.load(["a"], "prov.process", batch_size=1)


def test_a_script_without_a_guard_is_told_of_it(program: Callable[..., Program]) -> None:
    """Its own provider is imported by workers, which run the script's other lines too."""
    script = program(
        "import pydp2\nfrom pydp2 import *\n"
        "@provider(input_types=[integer_value(10)])\ndef process(settings, filename):\n    yield 1\n"
        "for batch in pydp2.load(['a'], process, batch_size=1, workers=1):\n    print(len(batch))\n"
    )
    assert script.ended() == 1
    last = script.screen.splitlines()[-1]
    assert last.startswith("pydp2.errors.GuardError: a worker process cannot start or read a service")
    assert last.endswith('put that code under `if __name__ == "__main__":`')


def test_a_program_may_end_with_everything_open(
    program: Callable[..., Program], provider_file: Callable[..., str]
) -> None:
    """What is still there when the interpreter ends is closed: it does not hang, and says nothing."""
    provider_file(CODE)
    script = program(
        "import pydp2\nservice = pydp2.launch(['a'], 'prov.process', workers=1)\n"
        "data = service.connect(batch_size=10)\nstream = iter(data)\nnext(stream)\n"
        "other = pydp2.load(['a'], 'prov.process', batch_size=3, workers=1)\nmore = iter(other)\nnext(more)\n"
    )
    assert script.ended() == 0
    assert script.screen == ""


def test_a_service_outlives_the_thread_that_launched_it(provider_file: Callable[[str], str]) -> None:
    launched: list[pydp2.Service] = []
    address = provider_file(CODE)
    thread = threading.Thread(target=lambda: launched.append(pydp2.launch(["a"], address, workers=1)))
    thread.start()
    thread.join()
    with launched[0] as service, service.connect(batch_size=10) as data:
        assert samples(data) == [*range(100)]
        assert samples(data) == [*range(100, 200)]


def test_a_program_that_keeps_a_process_with_its_provider_says_nothing_of_it_at_its_end(
    program: Callable[..., Program], provider_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that takes long to import is kept imported for later services."""
    provider_file(CODE + "\nimport time\ntime.sleep(0.6)\n")
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = program(
        "import pydp2\nfrom pydp2.api import preparation\n"
        "with pydp2.load(['a'], 'prov.process', batch_size=10, workers=1) as data:\n    list(data)\n"
        "print('kept', len(preparation._channels))\n"
    )
    assert script.ended() == 0
    assert script.lines == ["kept 1"]
    assert script.screen == ""


@pytest.mark.parametrize(
    "setting", ["PYTHONWARNINGS=error", "PYTHONDEVMODE=1", "PYTHONOPTIMIZE=2", "LC_ALL=C", "PYTHONSAFEPATH=1"]
)
def test_it_works_however_python_is_set_up(
    setting: str,
    program: Callable[..., Program],
    provider_file: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And says nothing of its own."""
    provider_file(CODE)
    monkeypatch.setenv(*setting.split("="))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = program(
        "import pydp2\nwith pydp2.load(['a', 'b'], 'prov.process', batch_size=10, workers=2) as data:\n"
        "    print('rows', sum(len(batch) for batch in data))\n"
    )
    assert script.ended() == 0
    assert script.lines == ["rows 200"]
    assert script.screen == ""

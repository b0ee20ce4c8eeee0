"""Readers over providers and services, providers over readers, and records that many clients share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2 import dense_vector, integer_value, integer_value_sequence, provider, reader
from pydp2.errors import BadSample, ClientUseError, FormatError, OptionError, OptionTypeError, ProviderError
from pydp2.formats import paddle_recordio

from ..provider_code import lines

NUMBERS = lines("should_shuffle=False")


# -- provider.reader(files) --------------------------------------------------------------------------------------------
@provider(input_types={"word": integer_value_sequence(256), "label": integer_value(100)})
def words(settings: Any, filename: str) -> Iterator[Any]:
    with open(filename) as lines:
        for number, line in enumerate(lines):
            yield {"word": list(line.strip().encode()), "label": settings.pass_id * 10 + number}


def test_a_provider_is_a_reader_of_its_files_pass_by_pass(text_files: Callable[..., list[str]]) -> None:
    files = text_files([["a", "b"], [], ["c"]])
    samples = words.reader(files)
    assert list(samples()) == [([97], 0), ([98], 1), ([99], 0)]
    assert [label for _, label in samples()] == [10, 11, 10]
    assert [len(entries) for entries in reader.batch(samples, 2)()] == [2, 1]
    with pytest.raises(OptionTypeError, match="files must be the files themselves"):
        words.reader(files[0])
    with pytest.raises(OptionTypeError, match=r"files must have an order, got a set; write sorted\(…\)"):
        words.reader({"a", "b"})


def test_the_hook_of_a_provider_runs_once_and_a_single_slot_is_a_tuple(text_files: Callable[..., list[str]]) -> None:
    hooks = []

    @provider(init_hook=lambda settings, width, **kw: hooks.append(width) or vars(settings).update(
        input_types=[integer_value(width)]))  # fmt: skip
    def process(settings: Any, filename: str) -> Iterator[int]:
        yield int(settings.rng.integers(1000))

    files = text_files([[], []])
    samples = process.reader(files, args={"width": 1000}, seed=4)
    passes = [list(samples()) for _ in range(2)]
    assert hooks == [1000]
    assert len({sample for one in passes for sample in one}) == 4  # each file and pass draws its own
    assert [list(process.reader(files, args={"width": 1000}, seed=4)())] == passes[:1]
    with pytest.raises(BadSample, match="sample 0, slot 0: expected an int in"):
        list(process.reader(files, args={"width": 1})())


def test_the_hook_runs_once_if_two_threads_begin_the_first_two_passes() -> None:
    hooks: list[str] = []
    began, again = threading.Event(), threading.Event()

    def hook(settings: Any, **kwargs: Any) -> None:
        hooks.append("hook")
        (again if began.is_set() else began).set()
        again.wait(0.3)

    @provider(input_types=[integer_value(9)], init_hook=hook)
    def process(settings: Any, filename: str) -> Iterator[int]:
        yield settings.pass_id

    samples = process.reader(["f"])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(list, samples())
        assert began.wait(10)
        second = pool.submit(list, samples())
        assert (first.result(10), second.result(10)) == ([(0,)], [(1,)])
    assert hooks == ["hook"]


# -- client.reader() ---------------------------------------------------------------------------------------------------
def test_a_service_is_a_reader_of_single_samples(provider_file: Any, text_files: Any) -> None:
    files = text_files([range(25), range(100, 107)])
    with pydp2.load(files, provider_file(NUMBERS), batch_size=10, workers=1, last_batch="pad") as data:
        samples = data.reader()
        assert list(samples()) == [(i,) for i in [*range(25), *range(100, 107)]]
        assert list(map(len, reader.batch(samples, 7)())) == [7, 7, 7, 7, 4]
        assert list(reader.firstn(samples, 3)()) == [(0,), (1,), (2,)]
        assert len(list(reader.buffered(samples, 5)())) == 32  # also in another thread, after a pass that was left
        begun = samples()
        next(begun)
        with pytest.raises(ClientUseError, match="in the middle of a pass"):
            list(samples())
        begun.close()  # type: ignore[attr-defined]


# -- provider_from_reader ----------------------------------------------------------------------------------------------
MADE = """
import numpy as np
from pydp2 import reader

def creator(filename):
    if filename.endswith("gone"):
        raise FileNotFoundError(filename)
    return reader.map_readers(lambda line: (np.full(3, float(line)), int(line)), reader.text_file(filename))

process = reader.provider_from_reader(
    creator, input_types={"x": dense_vector(3), "y": integer_value(1000)}, should_shuffle=False)
single = reader.provider_from_reader(lambda name: lambda: [1, (2,), (3,)], input_types=[integer_value(9)])
"""


def test_a_reader_creator_is_served_as_a_provider(provider_file: Any, text_files: Any) -> None:
    files = text_files([range(5), range(10, 14)])
    address = provider_file(MADE)
    with pydp2.load(files, address, batch_size=100, workers=2) as data:
        (batch,) = data
        assert batch["y"].tolist() == [*range(5), *range(10, 14)]
        assert batch["x"][:, 2].tolist() == [*range(5), *range(10, 14)]
        source = data.state_dict()
    with pydp2.load(files, address.replace(":process", ":single"), batch_size=100, workers=1, is_train=False) as data:
        (batch,) = data
        assert batch[0].tolist() == [1, 2, 3] * 2
    path = Path(address.partition(":")[0])
    path.write_text(path.read_text() + "\n# changed\n")
    with (
        pydp2.load(files, address, batch_size=100, workers=1) as data,
        pytest.raises(pydp2.errors.StateMismatch, match="provider_source"),
    ):
        data.load_state_dict(source)
    with pytest.raises(ProviderError, match="raised FileNotFoundError") as caught:  # noqa: SIM117
        with pydp2.load(["x.gone"], address, batch_size=1, workers=1) as data:
            list(data)
    assert isinstance(caught.value, FileNotFoundError)


lines = reader.provider_from_reader(reader.text_file, input_types=[dense_vector(1)])


def test_it_is_found_by_the_name_that_it_was_assigned_to(text_files: Any) -> None:
    from pydp2.providers import address_of

    assert address_of(lines).endswith(":lines")
    made = reader.provider_from_reader(
        lambda name: reader.map_readers(float, reader.text_file(name)), input_types=[integer_value(5)]
    )
    with pytest.raises(BadSample, match="expected an int"):
        list(made.samples(text_files([[1]])[0]))
    with pytest.raises(OptionTypeError, match="reader_creator must be"):
        reader.provider_from_reader("x", input_types=[integer_value(1)])  # type: ignore[arg-type]


def test_a_creator_that_is_itself_a_generator_is_told_so() -> None:
    def creator(name: str) -> Any:
        yield 1

    made = reader.provider_from_reader(creator, input_types=[integer_value(5)])
    with pytest.raises(Exception, match=r"what reader_creator returns must be a reader.* not what its call gives"):
        list(made.samples("f"))


def test_what_the_reader_holds_is_closed_with_the_pass() -> None:
    closed = []

    def creator(name: str) -> Any:
        def read() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append(name)

        return read

    made = reader.provider_from_reader(creator, input_types=[integer_value(5)])
    samples = made.samples("f")
    assert next(samples) == [1]
    samples.close()  # type: ignore[attr-defined]
    assert closed == ["f"]


# -- cloud_reader ------------------------------------------------------------------------------------------------------
@pytest.fixture
def record_files(tmp_path: Path) -> list[str]:
    """Three files with 20 pickled numbers each."""
    paths = []
    for f in range(3):
        paths.append(str(tmp_path / f"part-{f}.rec"))
        with paddle_recordio.Writer(paths[-1]) as writer:
            for i in range(20):
                writer.write(b"I%d\n." % (20 * f + i))
    return paths


@pytest.fixture
def master(record_files: list[str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(record_files, "pydp2.reader.cloud.records", workers=1) as service:
        yield service


def test_one_client_has_all_records_in_each_pass(master: pydp2.Service) -> None:
    records = reader.cloud_reader(master.address, buf_size=7)
    assert [list(records()) for _ in range(2)] == [list(range(60))] * 2
    raw = reader.cloud_reader(master.address, job="raw", decode=bytes)
    assert next(iter(raw())) == b"I0\n."
    raw.close()
    records.close()
    assert list(records()) == list(range(60))
    records.close()
    records.close()


def test_several_clients_share_the_records_of_a_pass(master: pydp2.Service) -> None:
    got: list[list[int]] = [[], []]
    both = threading.Barrier(2, timeout=20)
    clients = [reader.cloud_reader(master.address, 20, buf_size=4) for _ in got]

    def run(number: int) -> None:
        entries = clients[number]()
        got[number].append(next(entries))
        both.wait()  # both have a task before either asks for more
        got[number].extend(entries)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for client in clients:
        client.close()
    assert sorted(got[0] + got[1]) == list(range(60))
    assert all(len(one) >= 4 for one in got)


def test_a_task_that_was_left_is_handed_out_again_at_once(master: pydp2.Service) -> None:
    one, other = (reader.cloud_reader(master.address, 20, buf_size=4) for _ in range(2))
    ours, theirs = one(), other()
    begun = next(theirs), next(ours)
    assert set(begun) <= set(range(0, 60, 4))  # each has the first record of a task
    ours.close()  # type: ignore[attr-defined]  # in the middle of its task
    got = [begun[0], *theirs]
    assert sorted(got) == list(range(60))
    one.close()
    other.close()


def test_a_task_of_a_client_that_was_killed_is_handed_out_again(master: pydp2.Service) -> None:
    code = f"""
        from pydp2 import reader
        records = reader.cloud_reader({master.address!r}, 3, buf_size=4)()
        print(next(records), flush=True)
        import time
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        taken = int(process.stdout.readline())
        records = reader.cloud_reader(master.address, 3, buf_size=4)
        entries = records()
        first = next(entries)
        assert first != taken
        os.kill(process.pid, signal.SIGKILL)
    assert sorted([first, *entries]) == list(range(60))
    records.close()


def test_a_task_that_takes_too_long_is_handed_out_again(master: pydp2.Service) -> None:
    slow, quick = (reader.cloud_reader(master.address, 2.0, buf_size=30) for _ in range(2))
    held, entries = slow(), quick()
    taken = next(held)
    assert sorted(entries) == list(range(60))  # it waits until the task of the other is its own
    assert taken in (0, 30)
    held.close()  # type: ignore[attr-defined]
    slow.close()
    quick.close()


def test_options_that_cannot_be_are_refused_before_anything_is_connected() -> None:
    for wrong in ({"buf_size": 0}, {"timeout_sec": 0}, {"shufle": True}, {"decode": 5}):
        with pytest.raises((ValueError, TypeError)):
            reader.cloud_reader("ipc://nowhere", **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="master must be the address"):
        reader.cloud_reader(["a.dat"], "http://localhost:2379")  # type: ignore[arg-type]
    for seconds in ("5", True, 0, float("inf")):
        with pytest.raises((OptionError, OptionTypeError), match="timeout_sec must be"):
            reader.cloud_reader("ipc://nowhere", seconds)  # type: ignore[arg-type]


def test_a_record_that_cannot_be_decoded_is_named(master: pydp2.Service) -> None:
    def refuse(record: bytes) -> int:
        raise error

    for job, error in (("torn", FormatError("torn")), ("odd", KeyError("odd"))):
        records = reader.cloud_reader(master.address, job=job, decode=refuse)
        with pytest.raises(type(error)) as caught:
            list(records())
        text = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
        assert f"record 0 of task 0, pass 0, of the master {master.address}" in text
        records.close()


def test_records_travel_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.rec"
    given = [b"", bytes(range(256)), os.urandom(100_000), b"x"]
    with paddle_recordio.Writer(path) as writer:
        for record in given:
            writer.write(record)
    with pydp2.launch([str(path)], "pydp2.reader.cloud.records", workers=1) as service:
        records = reader.cloud_reader(service.address, decode=bytes)
        assert list(records()) == given
        records.close()
    assert np.array_equal(next(reader.recordio(path, decode=len)()), 0)  # type: ignore[call-overload]

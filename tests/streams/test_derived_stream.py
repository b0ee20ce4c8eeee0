"""Streams made of the batches of services: errors of the data, exceptions in the middle of a call, threads, forks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import ClientUseError, OptionError, OptionTypeError, ProviderError, StateMismatch
from pydp2.streams import derived_stream
from tests.list_stream import Interruption, ListStream
from tests.runs import alarm

PROVIDER = """
import pathlib

def hook(settings, file_list, mended="", **kwargs):
    settings.input_types = {"n": integer_value(1000000)}
    settings.mended = mended

@provider(init_hook=hook, pool_size=50)
def process(settings, filename):
    for i in range(60):
        if settings.mended and filename == "3" and i == 30 and not pathlib.Path(settings.mended).exists():
            raise RuntimeError("a bad day")
        yield {"n": int(filename) * 1000 + i}
"""
ROOT = str(Path(derived_stream.__file__).parents[1])
LISTS = [["1", "2"], ["3", "4", "5"]]
Seen = tuple[int, int, list[int]]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    with alarm(100):
        yield


def sign(batch: Any) -> Seen:
    return batch.pass_id, batch.index, batch["n"].tolist()


def mixed_lists(address: str, **options: Any) -> pydp2.Mixture:
    return pydp2.mix([(files, 1) for files in LISTS], address, batch_size=4, seed=1, workers=1, **options)


def test_exceptions_wherever_a_function_is_entered_lose_nothing_and_repeat_nothing(
    provider_file: Callable[[str], str],
) -> None:
    address = provider_file(PROVIDER)
    with mixed_lists(address) as mixed:
        uninterrupted = [sign(batch) for _ in range(2) for batch in mixed]
    dice = Random(5)
    waits = [dice.randint(1, 150) for _ in range(12)]  # calls of the package before each exception

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        """Raise when a function is entered, as a handler would that runs there."""
        code = frame.f_code
        if event == "call" and waits and code.co_filename.startswith(ROOT) and code.co_name != "__del__":
            waits[0] -= 1
            if not waits[0]:
                del waits[0]
                raise Interruption

    seen: list[Any] = []  # looked at later: that calls the package too
    with mixed_lists(address) as mixed:
        one = None
        try:
            while len(seen) < len(uninterrupted):
                sys.setprofile(interrupt)  # an exception that it raises ends it
                try:
                    one = one or iter(mixed)
                    batch = next(one, None)
                except Interruption:
                    continue
                if batch is None:
                    one = None
                else:
                    seen.append(batch)
        finally:
            sys.setprofile(None)
    assert [sign(batch) for batch in seen] == uninterrupted
    assert waits == []


def test_after_an_error_of_the_data_the_next_pass_begins(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    mended.touch()
    address, args = provider_file(PROVIDER), {"mended": str(mended)}
    with mixed_lists(address, args=args) as mixed:
        uninterrupted = [[sign(batch) for batch in mixed] for _ in range(2)]
    mended.unlink()
    with mixed_lists(address, args=args) as mixed:
        seen: list[Seen] = []
        with pytest.raises(ProviderError, match="a bad day"):
            seen.extend(sign(batch) for batch in mixed)
        assert seen == uninterrupted[0][: len(seen)]
        assert mixed.state_dict()["batch"] == len(seen)
        mended.touch()
        assert [sign(batch) for batch in mixed] == uninterrupted[1]


@pytest.mark.parametrize(
    ("allow", "error", "says"),
    [
        (["provider"], OptionError, r"allow may name 'provider_source', 'args', 'block_list', got 'provider'"),
        (["args", 3], OptionError, "got 3$"),
        ("args", OptionTypeError, r'such as allow=\["provider_source"\], got \'args\' \(str\)'),
        (None, OptionTypeError, "got None"),
    ],
)
def test_what_allow_cannot_be_is_said_and_the_state_is_not_blamed(
    allow: Any, error: type[Exception], says: str, provider_file: Callable[[str], str]
) -> None:
    with mixed_lists(provider_file(PROVIDER)) as mixed:
        for stream in (mixed, mixed._cursors[0].stream):
            state = stream.state_dict()
            with pytest.raises(error, match=says):
                stream.load_state_dict(state, allow=allow)
            stream.load_state_dict(state, allow={"args"})


def test_changed_code_is_allowed_in_the_sources_of_a_stream(provider_file: Callable[[str], str]) -> None:
    with mixed_lists(provider_file(PROVIDER)) as mixed:
        state = mixed.state_dict()
    with mixed_lists(provider_file(PROVIDER + "# a comment\n")) as mixed:
        with pytest.raises(StateMismatch, match=r'pass allow=\["provider_source"\]$'):
            mixed.load_state_dict(state)
        mixed.load_state_dict(state, allow={"provider_source"})
        assert len([*mixed]) == 75


def test_what_takes_a_stream_for_an_array_gets_an_error_and_reads_nothing() -> None:
    with ListStream([[1]] * 9, 2) as data:
        with pytest.raises(TypeError, match="a ListStream gives batches of arrays, and is none: loop over it"):
            np.asarray(data)
        with pytest.raises(TypeError, match=r"cannot be had by number \(0\)"):
            data[0]
        assert data.calls == 0


def test_another_thread_and_a_fork_are_refused() -> None:
    with pydp2.mix({ListStream([[1]] * 9, 2): 1}, batch_size=2) as mixed:
        one = iter(mixed)
        next(one)
        inside = [0]
        mixed._session.current_call[0] = inside  # as a call of another thread has it
        with pytest.raises(ClientUseError, match="another thread is inside"):
            next(one)
        del mixed._session.current_call[0]
        child = os.fork()
        if not child:
            try:
                next(one)
            except ClientUseError:
                os._exit(5)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert len(list(one)) == 4


def test_a_thread_that_waits_for_a_batch_is_told_when_another_one_closes_the_stream(
    provider_file: Callable[[str], str],
) -> None:
    slow = provider_file(PROVIDER.replace("    for i", "    import time\n    time.sleep(60)\n    for i"))
    mixed = mixed_lists(slow)
    raised: list[Exception] = []
    begun = threading.Event()

    def wait() -> None:
        one = iter(mixed)
        begun.set()
        try:
            next(one)
        except ClientUseError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(30)
    mixed.close()
    thread.join(30)
    assert "closed" in str(raised[0])
    mixed.close()

"""What every kind of reader keeps to: the end, looking ahead, beginning anew, iterating, closing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.errors import ClientUseError, OptionError, OptionTypeError
from pydp2.fluid import base

from ..runs import wait_until
from .conftest import KINDS, SHAPES, flat, numbers, rest

ALL = list(range(12))
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing to fork")


def test_cf_1_after_the_end_there_is_no_next_data(made: fluid.Reader) -> None:
    assert sorted(flat([made.read_next() for _ in ALL])) == ALL
    for _ in range(3):
        with pytest.raises(fluid.EOFException, match=r"^There is no next data$"):
            made.read_next()
        assert not made.has_next()
    assert issubclass(fluid.EOFException, EOFError)


def test_cf_2_has_next_does_not_consume(made: fluid.Reader) -> None:
    found = []
    for i in range(len(ALL)):
        assert all(made.has_next() for _ in range(i % 4 + 1))
        found.append(made.read_next())
    assert sorted(flat(found)) == ALL
    assert not any(made.has_next() for _ in range(3))


@pytest.mark.parametrize("read", [0, 1, 5, 11, 12])
@pytest.mark.parametrize("looked", [False, True])
def test_cf_3_reinit_begins_at_the_first_instance(made: fluid.Reader, read: int, looked: bool) -> None:
    for _ in range(3):
        begun = [made.read_next() for _ in range(read)]
        assert len(set(flat(begun))) == read
        assert not looked or made.has_next() == (read < 12)
        made.reinit()
    assert sorted(rest(made)) == ALL
    made.reinit()
    assert sorted(rest(made)) == ALL


def test_iterating_and_calling_give_a_pass_from_the_first_instance(made: fluid.Reader) -> None:
    assert sorted(flat(made)) == ALL
    assert sorted(flat(made())) == ALL
    made.reinit()
    made.read_next()
    assert sorted(flat(made)) == ALL
    assert not made.has_next()


def test_an_instance_is_a_tuple_of_tensors(made: fluid.Reader) -> None:
    instance = made.read_next()
    assert isinstance(instance, tuple)
    assert isinstance(instance[0], fluid.LoDTensor)


def test_a_pass_is_left_when_a_newer_one_is_begun(made: fluid.Reader) -> None:
    older = iter(made)
    next(older)
    newer = iter(made)
    assert len(flat([next(older)])) == 1  # it has not begun
    next(newer)
    with pytest.raises(ClientUseError, match="a newer loop over this reader"):
        next(older)
    assert len(flat(newer)) == len(ALL) - 1
    assert list(newer) == []


def test_threads_may_share_a_pass(made: fluid.Reader) -> None:
    shared, found = iter(made), [list[int]() for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(flat(shared))) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(chain(*found)) == ALL


def test_a_closed_reader_cannot_be_used(made: fluid.Reader) -> None:
    made.read_next()
    made.close()
    made.close()
    for use in (made.read_next, made.has_next, made.reinit):
        with pytest.raises(ClientUseError, match="the reader is closed"):
            use()
    with pytest.raises(ClientUseError, match="the reader is closed"):
        list(made)


@pytest.mark.parametrize("read", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_nobody_holds_leaves_no_thread(kind: str, read: int, nums: Any, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    reader = KINDS[kind](nums(70, 40), tmp_path)
    reader.has_next()
    for _ in range(read):
        reader.read_next()
    gc.disable()  # the readers are to be gone by themselves
    try:
        del reader
        assert wait_until(lambda: set(threading.enumerate()) <= before)
    finally:
        gc.enable()


def test_a_pass_that_is_closed_leaves_no_thread_and_the_reader_at_its_beginning(made: fluid.Reader) -> None:
    before = set(threading.enumerate())
    for make in (made.__iter__, made.__call__):
        begun: Any = make()
        never: Any = make()
        next(begun)
        begun.close()
        never.close()
        assert set(threading.enumerate()) <= before
        assert list(begun) == []
        assert sorted(rest(made)) == ALL


def test_the_end_of_a_pass_leaves_no_thread(made: fluid.Reader) -> None:
    before = set(threading.enumerate())
    rest(made)
    assert wait_until(lambda: set(threading.enumerate()) <= before)


def test_an_error_is_raised_in_its_place_and_until_the_next_pass() -> None:
    fail = True

    def source() -> Any:
        yield np.zeros((1, 1))
        if fail:
            raise KeyError("broken")
        yield np.ones((1, 1))

    reader = fluid.multi_pass(fluid.from_reader(source), 1)
    assert flat([reader.read_next()]) == [0]
    assert reader.has_next()
    assert reader.has_next()
    for use in (reader.read_next, reader.read_next, reader.has_next):
        with pytest.raises(KeyError, match="broken"):
            use()
    fail = False
    reader.reinit()
    assert flat(reader) == [0, 1]


def test_the_loop_that_ctrl_c_interrupted_does_not_end_as_if_there_were_no_more_data() -> None:
    press = True

    def source() -> Any:
        for i in range(20):
            if i == 5 and press:
                signal.raise_signal(signal.SIGINT)
            yield (np.full((1, 1), i),)

    reader = fluid.batch(fluid.Preprocessor(source, lambda value: value), 2)
    found: list[Any] = []

    def loop() -> None:
        while reader.has_next():
            found.append(reader.read_next())

    with pytest.raises(KeyboardInterrupt):
        loop()
    with pytest.raises(ClientUseError, match=r"interrupted by KeyboardInterrupt, .* is lost; reinit\(\) begins a new"):
        loop()
    assert flat(found) == [0, 1, 2, 3]
    press = False
    assert flat(reader) == [*range(20)]


def test_an_end_raised_inside_of_an_instance_does_not_pass_for_the_end_of_the_data() -> None:
    empty = fluid.from_reader(numbers())
    reader = fluid.Preprocessor(numbers(1, 2), lambda value: empty.read_next())
    with pytest.raises(RuntimeError, match="in the middle of an instance"):
        reader.read_next()


DECORATORS: dict[str, Any] = {
    "shuffle": lambda reader: fluid.shuffle(reader, 2),
    "batch": lambda reader: fluid.batch(reader, 2),
    "multi_pass": lambda reader: fluid.multi_pass(reader, 2),
    "threaded": fluid.threaded,
    "preprocessor": fluid.Preprocessor,
    "double_buffer": fluid.double_buffer,
}
ABOVE = DECORATORS | {
    "preprocessor": lambda reader: fluid.Preprocessor(reader, lambda value: value),
    "holder": fluid.ReaderHolder,
}


@pytest.mark.parametrize("decorate", DECORATORS.values(), ids=DECORATORS)
def test_a_decorator_needs_a_reader(decorate: Any) -> None:
    with pytest.raises(OptionError, match="needs an underlying reader, got None"):
        decorate(None)
    with pytest.raises(OptionTypeError, match="a reader must be a callable"):
        decorate([1, 2])


@pytest.mark.parametrize("decorate", DECORATORS.values(), ids=DECORATORS)
def test_closing_a_decorator_closes_what_is_below(decorate: Any, nums: Any) -> None:
    below = fluid.open_files(nums(50), SHAPES)
    with decorate(below):
        pass
    with pytest.raises(ClientUseError, match="the reader is closed"):
        below.read_next()


def test_a_decorator_goes_on_where_its_reader_stands_and_iterates_from_the_first() -> None:
    below = fluid.from_reader(numbers(1, 2, 3))
    below.read_next()
    above = fluid.threaded(below)
    assert flat([above.read_next()]) == [2]
    assert flat(above) == [1, 2, 3]


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("decorate", ABOVE.values(), ids=ABOVE)
def test_a_pass_that_was_interrupted_says_so_until_a_new_one_is_begun(decorate: Any, look: bool) -> None:
    leave = True

    def source() -> Any:
        for i in range(8):
            if i == 5 and leave:
                raise SystemExit(3)
            yield (np.full((1, 1), i),)

    def loop(reader: fluid.Reader) -> None:
        while not look or reader.has_next():
            reader.read_next()

    with decorate(fluid.from_reader(source)) as reader:
        with pytest.raises(SystemExit):
            loop(reader)
        for use in (reader.has_next, reader.read_next, reader.has_next):
            with pytest.raises(ClientUseError, match="interrupted by SystemExit"):
                use()
        leave = False
        reader.reinit()
        assert sorted(set(rest(reader))) == [*range(8)]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("decorate", ABOVE.values(), ids=ABOVE)
def test_iterating_begins_at_the_first_instance_wherever_readers_below_were_left(decorate: Any, deep: bool) -> None:
    below = fluid.from_reader(numbers(1, 2, 3, 4))
    with decorate(fluid.threaded(below) if deep else below) as above:
        below.read_next()
        assert sorted(set(flat(above))) == [1, 2, 3, 4]


@pytest.mark.parametrize("decorate", ABOVE.values(), ids=ABOVE)
def test_looking_ahead_before_iterating_begins_no_second_pass(decorate: Any) -> None:
    passes: list[int] = []

    def source() -> Any:
        passes.append(len(passes))
        yield np.zeros((1, 1))

    with decorate(source) as reader:
        assert reader.has_next()
        assert passes == [0]
        assert len(list(reader)) == len(passes)


@pytest.mark.parametrize("use", ["reinit", "close"])
def test_a_read_that_hangs_in_another_thread_is_told_after_a_deadline(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go = threading.Event(), threading.Event()

    def source() -> Any:
        inside.set()
        assert go.wait(20)
        yield np.zeros((1, 1))

    reader = fluid.from_reader(source)
    thread = threading.Thread(target=reader.has_next)
    thread.start()
    assert inside.wait(20)
    monkeypatch.setattr("pydp2.fluid.base.STOP_SECONDS", 0.05)
    try:
        with pytest.raises(TimeoutError, match=r"another thread is still inside a read of this reader after 0\.05 s"):
            getattr(reader, use)()
    finally:
        go.set()
        thread.join(20)
    assert reader.has_next()
    getattr(reader, use)()


def test_cf_27_shuffle_above_batch_moves_batches_and_batch_above_shuffle_mixes_them() -> None:
    values = list(range(40))
    moved = fluid.shuffle(fluid.batch(numbers(*values), 4), 5, seed=3)
    batches = [flat([instance]) for instance in moved]
    assert batches != sorted(batches)
    assert sorted(batches) == [values[i : i + 4] for i in range(0, 40, 4)]
    mixed = fluid.batch(fluid.shuffle(numbers(*values), 20, seed=3), 4)
    batches = [flat([instance]) for instance in mixed]
    assert list(map(len, batches)) == [4] * 10
    assert sorted(flat(mixed)) == values
    assert any(max(b) - min(b) > 4 for b in batches)


def test_cf_27_decorators_nest_in_any_order() -> None:
    kinds: list[Any] = [lambda r: fluid.shuffle(r, 3), lambda r: fluid.batch(r, 2), lambda r: fluid.multi_pass(r, 2),
                        fluid.threaded, fluid.double_buffer]  # fmt: skip
    for order in permutations(kinds):
        reader: Any = numbers(*range(6))
        for decorate in order:
            reader = decorate(reader)
        with reader:
            assert sorted(flat(reader)) == sorted([*range(6)] * 2)
            reader.reinit()
            reader.read_next()
            reader.reinit()
            assert sorted(rest(reader)) == sorted([*range(6)] * 2)


@pytest.mark.parametrize("entry", [None, "text", 5, {"a": 1}, [["a"]], [[[1], [2, 3]]]])
def test_what_is_no_instance_is_told(entry: Any) -> None:
    reader = fluid.from_reader(lambda: iter([entry]))
    with pytest.raises(OptionTypeError, match=r"a reader must give (a list or tuple of tensors|numbers for slot 0)"):
        reader.read_next()


def test_a_reader_that_returns_nothing_is_told() -> None:
    with pytest.raises(OptionTypeError, match="must return an iterable"):
        fluid.from_reader(lambda: None).read_next()  # type: ignore[arg-type, return-value]


def test_a_source_that_is_left_is_closed() -> None:
    closed = []

    def source() -> Any:
        try:
            for i in range(5):
                yield np.full((1, 1), i)
        finally:
            closed.append(True)

    reader = fluid.from_reader(source)
    reader.read_next()
    reader.reinit()
    assert closed == [True]
    reader.read_next()
    reader.close()
    assert closed == [True, True]


@forks
def test_a_pass_that_was_begun_before_a_fork_is_told_in_the_child(nums: Any) -> None:
    """Its threads are not there; a pass begun in the child has its own."""
    with fluid.open_files(nums(500), SHAPES, buffer_size=1) as reader:
        reader.read_next()
        assert wait_until(lambda: len(reader._queue()._items) == 1)  # type: ignore[attr-defined]
        pid = _forked(reader)
        ended: list[int] = []
        try:
            assert wait_until(lambda: ended.append(_ended(pid)) or ended[-1] >= 0, 30)  # type: ignore[func-returns-value]
        finally:
            if ended[-1] < 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        assert ended[-1] == 0
        assert len(rest(reader)) == 499


def _ended(pid: int) -> int:
    """The exit code of the child, -1 while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else -1


def _forked(reader: fluid.Reader) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks with threads: that is what is tried here
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with pytest.raises(ClientUseError, match="begun before a fork, and only the process that began it"):
            reader.read_next()
        reader.reinit()
        code = 0 if len(rest(reader)) == 500 else 2
    finally:
        os._exit(code)


def test_an_error_that_is_raised_again_does_not_grow() -> None:
    def source() -> Any:
        raise KeyError("broken")

    def length() -> int:
        with pytest.raises(KeyError, match="broken") as caught:
            reader.read_next()
        return len(list(traceback.walk_tb(caught.value.__traceback__)))

    reader = fluid.from_reader(source)
    length()
    assert length() == [length() for _ in range(5)][-1]


@forks
def test_a_pass_of_any_reader_that_was_begun_before_a_fork_is_the_parents_alone(made: fluid.Reader) -> None:
    found = flat([made.read_next()])
    left, generator = iter(made), made()

    def child() -> None:
        for use in (made.read_next, made.has_next):
            with pytest.raises(ClientUseError, match="begun before a fork"):
                use()
        assert sorted(flat(left)) == sorted(flat(generator)) == sorted(flat(made)) == ALL
        assert not made.has_next()
        for _ in range(2):
            made.reinit()
            made.read_next()
        made.reinit()
        assert sorted(rest(made)) == ALL
        made.close()

    _check_in_a_fork(child)
    assert sorted(found + rest(made)) == ALL


@forks
def test_a_pass_that_has_ended_has_ended_in_a_fork_too(nums: Any) -> None:
    reader = fluid.shuffle(fluid.FileReader(nums(3)[0], SHAPES), 2)
    assert len(rest(reader)) == 3

    def child() -> None:
        assert not reader.has_next()
        with pytest.raises(fluid.EOFException):
            reader.read_next()
        assert len(flat(reader)) == 3

    _check_in_a_fork(child)


@forks
@pytest.mark.parametrize("decorate", [fluid.double_buffer, fluid.from_reader], ids=["double_buffer", "another thread"])
def test_a_new_pass_in_a_fork_does_not_wait_for_threads_that_are_not_there(
    decorate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def source() -> Any:
        yield from numbers(1)()
        if os.getpid() == parent:
            inside.set()
            go_on.wait(60)
        yield from numbers(2)()

    monkeypatch.setattr(base, "STOP_SECONDS", 5.0)
    reader = decorate(fluid.from_reader(source))
    assert flat([reader.read_next()]) == [1]
    other = threading.Thread(target=reader.has_next)
    other.start()
    try:
        assert inside.wait(30)

        def child() -> None:
            assert flat(reader) == [1, 2]
            reader.reinit()
            assert rest(reader) == [1, 2]
            reader.close()

        _check_in_a_fork(child)
    finally:
        go_on.set()
        other.join()
    assert rest(reader) == [2]
    reader.close()


@forks
def test_what_a_pass_of_the_parent_has_open_is_not_closed_in_a_fork() -> None:
    closed = []

    def source() -> Any:
        try:
            yield from numbers(1, 2, 3)()
        finally:
            closed.append(os.getpid())

    for leave in ("reinit", "close"):
        reader = fluid.shuffle(source, 1)
        reader.read_next()

        def child(reader: fluid.Reader = reader, leave: str = leave) -> None:
            getattr(reader, leave)()
            assert closed == []

        _check_in_a_fork(child)
        reader.close()
        assert closed.pop() == os.getpid()


def _check_in_a_fork(check: Callable[[], None]) -> None:
    """Run ``check`` in a fork; what it raises fails the test, and so does a hang."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
        pid = os.fork()
    if not pid:
        signal.alarm(30)
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

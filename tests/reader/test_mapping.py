"""``xmap_readers``: each entry mapped once, in threads and processes; errors come through; nothing hangs or stays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pydp2.errors import OptionError
from pydp2.reader import buffered, xmap_readers

from ..runs import wait_until

Numbers = Callable[..., Callable[[], Iterator[int]]]
Program = Callable[..., str]
SETTINGS = [(workers, size) for workers in (1, 2, 4, 8, 16) for size in (0, 1, 2, 4, 8, 16)]


def double(x: int) -> int:
    return 2 * x


@pytest.mark.parametrize(("workers", "size"), SETTINGS)
def test_rd_18_with_order_results_come_in_the_order_of_the_source(workers: int, size: int, numbers: Numbers) -> None:
    assert list(xmap_readers(double, numbers(50), workers, size, order=True)()) == [2 * i for i in range(50)]


@pytest.mark.parametrize(("workers", "size"), SETTINGS)
def test_rd_19_without_order_they_are_the_same_results(workers: int, size: int, numbers: Numbers) -> None:
    assert sorted(xmap_readers(double, numbers(50), workers, size)()) == [2 * i for i in range(50)]


@pytest.mark.parametrize("order", [True, False])
def test_rd_20_it_can_be_iterated_three_times_in_a_row(order: bool, numbers: Numbers) -> None:
    mapped = xmap_readers(double, numbers(20), 3, 4, order)
    assert [sorted(mapped()) for _ in range(3)] == [[2 * i for i in range(20)]] * 3


def test_rd_18_to_20_hold_for_processes(program: Program) -> None:
    program("""
        def mapper(x):
            return 2 * x, os.getpid()

        for order in (True, False):
            for workers in (1, 2, 4, 8, 16):
                for size in (0, 1, 16):
                    mapped = xmap_readers(mapper, numbers(40), workers, size, order, processes=True)
                    for _ in range(3 if workers == 2 else 1):
                        got = list(mapped())
                        results = [x for x, _ in got]
                        assert (results if order else sorted(results)) == [2 * i for i in range(40)]
                        pids = {pid for _, pid in got}
                        assert os.getpid() not in pids and len(pids) <= workers
    """)


def test_more_than_one_mapper_works_at_a_time(numbers: Numbers) -> None:
    both = threading.Barrier(2, timeout=20)
    assert len(list(xmap_readers(lambda x: both.wait(), numbers(10), 2, 4)())) == 10


def test_rd_21_an_exception_of_the_mapper_is_raised_at_its_place(numbers: Numbers, until_error: Any) -> None:
    def mapper(x: int) -> int:
        if x == 30:
            raise KeyError("thirty")
        return x

    got, error = until_error(xmap_readers(mapper, numbers(100), 4, 8, order=True)())
    assert got == list(range(30))
    assert isinstance(error, KeyError)
    with pytest.raises(KeyError, match="thirty"):
        list(xmap_readers(mapper, numbers(100), 4, 8)())


@pytest.mark.parametrize("order", [True, False])
def test_rd_21_an_exception_of_the_source_comes_behind_what_it_gave(order: bool, until_error: Any) -> None:
    def source() -> Iterator[int]:
        yield from range(20)
        raise OSError("the disk")

    got, error = until_error(xmap_readers(double, source, 4, 8, order)())
    assert isinstance(error, OSError)
    assert sorted(got) == [2 * i for i in range(20)]


@pytest.mark.parametrize("number", [0, -1])
def test_rd_21_fewer_than_one_mapper_is_a_value_error(number: int, numbers: Numbers) -> None:
    with pytest.raises(OptionError, match="process_num must be at least 1"):
        xmap_readers(double, numbers(1), number, 1)
    assert issubclass(OptionError, ValueError)


def test_rd_21_an_exception_in_a_process_keeps_its_type_and_its_traceback(program: Program) -> None:
    program("""
        class Mine(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")

        def mapper(x):
            if x == 3:
                raise LookupError("three")
            if x == 103:
                raise Mine(1, 2)  # cannot be built again from its args
            return (lambda: 0) if x == 203 else x

        got = []
        try:
            for x in xmap_readers(mapper, numbers(10), 2, 2, True, processes=True)():
                got.append(x)
        except LookupError as error:
            assert type(error) is LookupError and error.args == ("three",)
            assert "in mapper" in error.__notes__[0], error.__notes__
        assert got == [0, 1, 2]
        try:
            list(xmap_readers(mapper, numbers(10, 100), 2, 2, processes=True)())
        except ProviderError as error:
            assert "Mine was raised" in str(error) and "1 and 2" in str(error)
        try:
            list(xmap_readers(mapper, numbers(10, 200), 2, 2, processes=True)())
        except Exception as error:
            assert "lambda" in str(error), error
        else:
            raise AssertionError("a function that cannot travel came through")
    """)


def test_an_entry_that_cannot_be_pickled_is_an_error_at_its_place(program: Program) -> None:
    program("""
        def source():
            yield from (1, 2, lambda: 3, 4, 5)

        got = []
        try:
            for x in xmap_readers(lambda x: x, source, 2, 2, True, processes=True)():
                got.append(x)
        except Exception as error:
            assert "lambda" in str(error), error
        assert got == [1, 2]
    """)


def test_an_entry_or_result_that_cannot_be_built_again_is_an_error_at_its_place(program: Program) -> None:
    program("""
        class Bad:
            def __init__(self, function, *given):
                self.how = function, given

            def __reduce__(self):
                return self.how

        def source():
            yield from (1, 2, entry, 4, 5)

        def mapper(x):
            return result if x == 3 else x

        os_error = Bad(os.stat, "/no/such/file")
        cases = (
            (Bad(int, "x"), None, "an entry for mapper", "ValueError: invalid literal"),
            (os_error, None, "an entry for mapper", "FileNotFoundError"),
            (Bad(sys.exit, 3), None, None, "3"),
            (3, Bad(int, "x"), "what mapper", "ValueError: invalid literal"),
            (3, os_error, "what mapper", "FileNotFoundError"),
        )
        for entry, result, *texts in cases:
            got = []
            try:
                for x in xmap_readers(mapper, source, 2, 2, True, processes=True)():
                    got.append(x)
            except (ReaderError, SystemExit) as error:
                assert texts[0] is None or isinstance(error, ReaderError)
                assert all(text in str(error) for text in texts if text), error
            else:
                raise AssertionError("it did not raise")
            assert got == [1, 2], got
    """)


def test_an_entry_or_result_that_raises_an_os_error_when_it_is_pickled_is_no_lost_process(program: Program) -> None:
    program("""
        class Bad:
            def __reduce__(self):
                raise BrokenPipeError("of its own")

        for mapper, entry in ((lambda x: x, Bad()), (lambda x: Bad(), 1)):
            try:
                list(xmap_readers(mapper, lambda: iter([entry]), 1, 1, processes=True)())
            except BrokenPipeError as error:
                assert "of its own" in str(error)
            else:
                raise AssertionError("it did not raise")
    """)


@pytest.mark.parametrize("order", [True, False])
def test_a_process_that_is_killed_is_an_error_and_no_hang(order: bool, program: Program) -> None:
    program(
        """
        def mapper(x):
            if x == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return x

        order = sys.argv[1] == "True"
        try:
            list(xmap_readers(mapper, numbers(10**6), 2, 4, order, processes=True)())
        except ReaderError as error:
            assert "was killed by SIGKILL" in str(error), error
        else:
            raise AssertionError("it did not raise")
        """,
        order,
    )


def test_large_entries_and_results_do_not_stand_in_each_others_way(program: Program) -> None:
    program("""
        import numpy as np

        large = np.arange(1 << 18)
        mapped = xmap_readers(lambda x: x + 1, lambda: iter([large] * 20), 2, 3, True, processes=True)
        assert all((got == large + 1).all() for got in mapped())
    """)


@pytest.mark.parametrize("order", [True, False])
def test_threads_end_when_the_consumer_leaves(order: bool, numbers: Numbers) -> None:
    entries = xmap_readers(double, numbers(10**9), 3, 4, order)()
    next(entries)  # type: ignore[call-overload]
    entries.close()  # type: ignore[attr-defined]
    assert wait_until(lambda: not any(each.name.startswith("pydp2 xmap") for each in threading.enumerate()))


def test_processes_end_when_the_consumer_leaves_and_when_it_is_killed(program: Program) -> None:
    program("""
        def mapper(x):
            if x > 50:
                time.sleep(100)  # nobody waits for this
            return os.getpid()

        def left(how):
            entries = xmap_readers(mapper, numbers(10**6), 2, 4, processes=True)()
            pids = {next(entries) for _ in range(45)}
            if how == "close":
                entries.close()
            elif how == "kill":
                print(*pids, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            del entries
            return pids

        for how in ("close", "forget"):
            pids = left(how)
            until(lambda: not any(map(alive, pids)))
        out, inn = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(inn, 1)
            left("kill")
        os.close(inn)
        pids = [int(pid) for pid in os.read(out, 1000).split()]
        os.waitpid(child, 0)
        assert pids
        until(lambda: not any(map(alive, pids)))
    """)


def test_no_more_than_the_buffer_is_under_way() -> None:
    asked = []

    def source() -> Iterator[int]:
        for i in range(1000):
            asked.append(i)
            yield i

    for order in (True, False):
        asked.clear()
        entries = xmap_readers(double, source, 2, 3, order)()
        next(entries)  # type: ignore[call-overload]
        most = 1 + 3 + 2 + 1  # given, waiting, with the mappers, in the hand of the thread that reads
        assert wait_until(lambda most=most: len(asked) == most)  # type: ignore[misc]
        time.sleep(0.02)  # nothing is waited for: the claim is that no more comes
        assert len(asked) == most
        entries.close()  # type: ignore[attr-defined]


def test_where_there_are_threads_already_it_warns_once_and_uses_threads(numbers: Numbers) -> None:
    mapped = xmap_readers(lambda x: (x, os.getpid()), numbers(10), 2, 4, processes=True)
    threaded = buffered(mapped, 2)
    with pytest.warns(RuntimeWarning, match="uses threads instead of processes") as warned:
        passes = [sorted(threaded()) for _ in range(2)]
    assert passes == [[(i, os.getpid()) for i in range(10)]] * 2
    assert len(warned) == 1


def test_a_mapper_may_run_under_numpys_own_threads(program: Program) -> None:
    program("""
        import numpy as np

        square = np.ones((400, 400))
        square @ square
        mapper = lambda x: (os.getpid(), float((square @ square)[0, 0]))
        got = list(xmap_readers(mapper, numbers(6), 2, 2, processes=True)())
        assert {x for _, x in got} == {400.0} and os.getpid() not in {pid for pid, _ in got}
    """)


def test_the_mapper_that_runs_in_a_process_sees_what_it_closes_over(program: Program) -> None:
    program("""
        offset = [10]
        mapped = xmap_readers(lambda x: x + offset[0], numbers(3), 1, 1, True, processes=True)
        assert list(mapped()) == [10, 11, 12]
        offset[0] = 20  # each pass forks anew
        assert list(mapped()) == [20, 21, 22]
    """)


def test_any_is_no_reader(numbers: Numbers) -> None:
    value: Any = 5
    with pytest.raises(TypeError, match="mapper must be a function"):
        xmap_readers(value, numbers(1), 1, 1)

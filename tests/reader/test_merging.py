"""``multiprocess_reader``: several readers as one, each in its process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pydp2.errors import OptionError, OptionTypeError, ReaderError
from pydp2.reader import buffered, multiprocess_reader

Numbers = Callable[..., Callable[[], Iterator[int]]]
Program = Callable[..., str]
BOTH = pytest.mark.parametrize("use_pipe", [True, False], ids=["pipe", "queue"])


@BOTH
def test_rd_22_three_readers_are_merged_without_loss(use_pipe: bool, program: Program) -> None:
    program(
        """
        pids = set()

        def source(first, n):
            def reader():
                for i in range(first, first + n):
                    yield i, os.getpid()
            return reader

        use_pipe = sys.argv[1] == "True"
        merged = multiprocess_reader([source(0, 5), source(100, 1), source(200, 900)], use_pipe, 7)
        for _ in range(2):
            got = list(merged())
            numbers = [i for i, _ in got]
            assert sorted(numbers) == [*range(5), 100, *range(200, 1100)]
            for low, high in ((0, 100), (100, 200), (200, 2000)):
                own = [i for i in numbers if low <= i < high]
                assert own == sorted(own)  # each reader's order is kept
            if use_pipe:
                assert numbers[:8] == [0, 100, 200, 1, 201, 2, 202, 3]  # in turns
            assert len({pid for _, pid in got}) == 3 and os.getpid() not in {pid for _, pid in got}
        """,
        use_pipe,
    )


@BOTH
def test_rd_23_none_and_an_exception_in_a_child_are_value_errors_here(use_pipe: bool, program: Program) -> None:
    program(
        """
        def none():
            yield 1
            yield None

        def raises():
            yield 1
            raise KeyError("lost")

        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(a)

        def odd():
            raise Odd(1, 2)
            yield

        use_pipe = sys.argv[1] == "True"
        cases = ((none, ValueError, "an entry is None"), (raises, KeyError, "lost"), (odd, Exception, "Odd"))
        for bad, kind, text in cases:
            try:
                list(multiprocess_reader([numbers(3), bad], use_pipe)())
            except ValueError as error:
                assert isinstance(error, ReaderError) and text in str(error), error
                assert "reader 1 of multiprocess_reader raised" in str(error) and "Traceback" in str(error)
                assert isinstance(error.__cause__, kind)
            else:
                raise AssertionError(f"{bad} did not raise")
        """,
        use_pipe,
    )


@BOTH
def test_rd_23_what_cannot_be_built_again_in_the_parent_is_a_value_error(
    use_pipe: bool, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "only_there.py").write_text("class Sample: pass\nclass Odd(KeyError): pass\n")
    program(
        """
        class Bad:
            def __reduce__(self):
                return int, ("x",)

        class Leaves:
            def __reduce__(self):
                return sys.exit, (3,)

        class Mixed(LookupError):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")

        def there(name):
            def reader():
                yield 1
                sys.path.insert(0, sys.argv[2])
                import only_there
                if name == "Odd":
                    raise only_there.Odd("boom")
                yield only_there.Sample()
            return reader

        def mixed():
            yield 1
            raise Mixed(1, 2)

        use_pipe = sys.argv[1] == "True"
        cases = (
            (lambda: iter([Bad()]), "what reader 1 of multiprocess_reader", "ValueError: invalid literal"),
            (there("Sample"), "cannot be built again in this process", "No module named 'only_there'"),
            (there("Odd"), "Odd was raised", "boom"),
            (mixed, "Mixed was raised", "1 and 2"),
        )
        for bad, *texts in cases:
            try:
                list(multiprocess_reader([numbers(3), bad], use_pipe)())
            except ReaderError as error:
                assert all(text in str(error) for text in texts), error
                assert isinstance(error.__cause__, Exception)
                assert not bad is mixed or isinstance(error.__cause__, LookupError)
            else:
                raise AssertionError("it did not raise")
        try:
            list(multiprocess_reader([lambda: iter([Leaves()])], use_pipe)())
        except SystemExit as error:
            assert error.code == 3
        else:
            raise AssertionError("it did not raise")
        """,
        use_pipe,
        tmp_path,
    )


@BOTH
def test_rd_24_tuples_and_arrays_stay_what_they_are(use_pipe: bool, program: Program) -> None:
    program(
        """
        import numpy as np

        given = [(1, (2, 3)), [4, (5,)], np.arange(6, dtype=np.int16).reshape(2, 3), "", b"", 0, (), {"a": {1}}]
        got = list(multiprocess_reader([lambda: iter(given)], sys.argv[1] == "True")())
        assert list(map(type, got)) == list(map(type, given))
        assert got[2].dtype == np.int16 and (got.pop(2) == given.pop(2)).all()
        assert got == given
        """,
        use_pipe,
    )


def test_rd_25_an_empty_list_and_what_is_no_list_are_refused(numbers: Numbers) -> None:
    with pytest.raises(OptionError, match="at least one reader"):
        multiprocess_reader([])
    for wrong in ((numbers(1),), numbers(1), None):
        with pytest.raises(OptionTypeError, match="must be a list of readers"):
            multiprocess_reader(wrong)  # type: ignore[arg-type]


@BOTH
def test_a_child_that_is_killed_is_an_error_and_no_hang(use_pipe: bool, program: Program) -> None:
    program(
        """
        def dies():
            yield os.getpid()
            os.kill(os.getpid(), signal.SIGKILL)

        def leaves():
            yield 1
            os._exit(7)

        use_pipe = sys.argv[1] == "True"
        for bad, text in ((dies, "was killed by SIGKILL"), (leaves, "ended with exit code 7")):
            try:
                list(multiprocess_reader([numbers(10**6), bad], use_pipe)())
            except ReaderError as error:
                assert text in str(error) and "reader 1" in str(error), error
            else:
                raise AssertionError("it did not raise")
        """,
        use_pipe,
    )


@BOTH
def test_children_end_when_the_consumer_leaves_and_run_their_last_lines(use_pipe: bool, program: Program) -> None:
    out = program(
        """
        def source():
            try:
                while True:
                    yield os.getpid()
            finally:
                os.write(1, b"left\\n")

        for how in ("close", "forget", "break"):
            entries = multiprocess_reader([source, source], sys.argv[1] == "True", 5)()
            pids = {next(entries) for _ in range(10)}
            if how == "close":
                entries.close()
            del entries
            until(lambda: not any(map(alive, pids)))
        """,
        use_pipe,
    )
    assert out == "left\n" * 6


@BOTH
@pytest.mark.parametrize("how", ["close", "kill", "terminate"])
def test_readers_that_wait_are_closed_and_their_commands_end(
    how: str, use_pipe: bool, program: Program, tmp_path: Path
) -> None:
    command = tmp_path / "waits"
    command.write_text("#!/bin/sh\necho $$\nexec sleep 100\n")
    command.chmod(0o755)
    program(
        """
        import multiprocessing

        how, command, use_pipe = sys.argv[1:]

        def numbers_and_pid():
            while True:
                yield os.getpid()

        def waits():
            return PipeReader(command).get_line()

        def begin():
            entries = multiprocess_reader([waits, numbers_and_pid], use_pipe == "True")()
            pids = set()
            while len(pids) < 2:
                pids.add(int(next(entries)))
            return entries, pids

        if how == "kill":
            out, inn = os.pipe()
            parent = os.fork()
            if parent == 0:
                _, pids = begin()
                os.write(inn, " ".join(map(str, pids)).encode())
                os.kill(os.getpid(), signal.SIGKILL)
            os.close(inn)
            pids = [int(pid) for pid in os.read(out, 1000).split()]
            os.waitpid(parent, 0)
        else:
            entries, pids = begin()
            if how == "terminate":
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGTERM)
                try:
                    for _ in entries:
                        pass
                except ReaderError as error:
                    assert "was killed by SIGTERM" in str(error), error
                else:
                    raise AssertionError("it did not raise")
            entries.close()
        assert len(pids) == 2
        until(lambda: not any(map(alive, pids)))
        """,
        how,
        command,
        use_pipe,
    )


def test_what_a_reader_has_started_ends_with_it_also_where_it_does_not_give_way(program: Program) -> None:
    program("""
        import subprocess

        def stubborn():
            started = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE)
            yield started.pid, int(started.stdout.readline())
            while True:
                try:
                    time.sleep(100)
                except BaseException:
                    pass

        entries = multiprocess_reader([stubborn], False)()
        pids = next(entries)
        entries.close()
        until(lambda: not any(map(alive, pids)))
    """)


def test_in_a_daemonic_process_it_warns_and_uses_threads(program: Program) -> None:
    program("""
        import multiprocessing

        def work():
            for make in (lambda: multiprocess_reader([numbers(5), numbers(5, 5)]),
                         lambda: xmap_readers(lambda x: x, numbers(10), 2, 4, processes=True)):
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    entries = make()
                    assert [sorted(entries()) for _ in range(2)] == [list(range(10))] * 2
                (warning,) = warned
                assert "this process is daemonic" in str(warning.message), warning

        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        process.join(20)
        assert process.exitcode == 0, process.exitcode
    """)


def test_rd_1_holds_for_readers_in_processes(program: Program) -> None:
    program("""
        warnings.filterwarnings("ignore", "multiprocess_reader|xmap_readers")  # while one is open, there are threads
        for decorated in (
            multiprocess_reader([numbers(10)]),
            multiprocess_reader([numbers(10)], False),
            xmap_readers(lambda x: x, numbers(10), 2, 3, True, processes=True),
        ):
            begun = decorated()
            assert [next(begun), next(begun)] == [0, 1]
            assert [list(decorated()), list(decorated())] == [list(range(10))] * 2
            assert list(begun) == list(range(2, 10))
    """)


@BOTH
def test_children_end_with_a_parent_that_is_killed(use_pipe: bool, program: Program) -> None:
    program(
        """
        def source():
            yield os.getpid()
            time.sleep(100)

        out, inn = os.pipe()
        child = os.fork()
        if child == 0:
            entries = multiprocess_reader([source] * 3, sys.argv[1] == "True")()
            os.write(inn, " ".join(str(next(entries)) for _ in range(3)).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(inn)
        pids = [int(pid) for pid in os.read(out, 1000).split()]
        os.waitpid(child, 0)
        assert len(pids) == 3
        until(lambda: not any(map(alive, pids)))
        """,
        use_pipe,
    )


@BOTH
def test_a_fork_in_an_open_pass_is_told_and_takes_nothing_from_the_parent(use_pipe: bool, program: Program) -> None:
    program(
        """
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
        entries = multiprocess_reader([numbers(1000)], sys.argv[1] == "True")()
        assert next(entries) == 0
        pid = os.fork()
        if pid == 0:
            try:
                list(entries)
            except ClientUseError as error:
                assert "begun before a fork" in str(error), error
                entries.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert list(entries) == list(range(1, 1000))
        """,
        use_pipe,
    )


def test_a_child_obeys_the_process_alone_that_has_forked_it(program: Program) -> None:
    program("""
        from pydp2.reader.children import ForkedChild

        def echo(inbox, send):
            while True:
                send(inbox.get())

        child = ForkedChild("echo", echo)
        pid = os.fork()
        if pid == 0:
            told = 0
            for use in (lambda: child.send(1), child.receive):
                try:
                    use()
                except ClientUseError as error:
                    told += "begun before a fork" in str(error)
            child.stop()
            child.close()
            os._exit(7 + told)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        child.send(5)
        assert child.receive() == ("item", 5)
        child.close()
    """)


@BOTH
def test_a_seed_gives_each_pass_of_processes_the_order_that_it_has_without_them(
    use_pipe: bool, program: Program
) -> None:
    program(
        """
        warnings.filterwarnings("ignore", "multiprocess_reader")  # in a child there are threads
        decorators = (
            lambda source: source,
            lambda source: map_readers(lambda x: -x, source),
            lambda source: chain(source, source),
            lambda source: compose(source, numbers(30)),
            lambda source: firstn(source, 7),
            lambda source: buffered(source, 3),
            lambda source: xmap_readers(lambda x: -x, source, 2, 3, order=True),
            lambda source: batch(source, 4),
            lambda source: multiprocess_reader([source]),
            lambda source: shuffle(buffered(map_readers(lambda x: x, source), 3), 9, seed=2),
        )
        for number, decorate in enumerate(decorators):
            here = decorate(shuffle(numbers(30), 30, seed=1))
            inside = decorate(shuffle(numbers(30), 30, seed=1))
            there = multiprocess_reader([inside], sys.argv[1] == "True")
            if number == 8:
                here = shuffle(numbers(30), 30, seed=1)
            expected = [list(here()) for _ in range(5)]
            assert len(set(map(str, expected))) == 5
            assert [list(there()) for _ in range(3)] == expected[:3], number
            if number != 8:
                assert list(inside()) == expected[3], number  # passes are counted here and there together
                assert list(there()) == expected[4], number
        """,
        use_pipe,
    )


def test_one_reader_that_is_merged_with_itself_has_a_pass_in_each_process(program: Program) -> None:
    program("""
        source = shuffle(numbers(20), 20, seed=1)
        merged = multiprocess_reader([source, source])
        expected = shuffle(numbers(20), 20, seed=1)
        for _ in range(2):
            got = list(merged())
            assert [got[::2], got[1::2]] == [list(expected()), list(expected())]
        left = merged()
        next(left)
        left.close()  # both passes count, however far they were read
        for _ in range(2):
            list(expected())
        assert list(merged())[::2] == list(expected())
    """)


def test_passes_of_providers_and_of_fluid_go_on_in_processes_too(program: Program) -> None:
    program("""
        import numpy as np
        from pydp2 import fluid, integer_value, provider

        @provider(input_types=[integer_value(100)])
        def process(settings, filename):
            yield settings.pass_id

        def rows():
            return iter([(np.array([i]),) for i in range(20)])

        def of_fluid():
            return fluid.ReaderHolder(fluid.batch(fluid.shuffle(rows, 20, seed=2), 1))

        def repeated():
            return fluid.multi_pass(fluid.shuffle(rows, 20, seed=2), 2)

        def flat(entries):
            return [int(entry[0] if np.isscalar(entry[0]) else entry[0].data[0]) for entry in entries]

        for make in (lambda: process.reader(["a"]), of_fluid, repeated):
            here, inside = make(), make()
            there = multiprocess_reader([inside])
            expected = [flat(here()) for _ in range(6)]
            assert len(set(map(str, expected))) == 6
            assert [flat(there()) for _ in range(3)] == expected[:3]
            assert flat(inside()) == expected[3]
            assert flat(there()) == expected[4]
            assert flat(inside()) == expected[5]
        fluid_reader, again = of_fluid(), of_fluid()
        expected = [flat(again()) for _ in range(2)]
        twice = list(multiprocess_reader([chain(fluid_reader, fluid_reader)])())
        assert flat(twice) == [i for one in expected for i in one]
    """)


@BOTH
def test_where_there_are_threads_already_it_warns_and_uses_threads(use_pipe: bool, numbers: Numbers) -> None:
    def raises() -> Iterator[Any]:
        yield os.getpid()
        raise KeyError("lost")

    with pytest.warns(RuntimeWarning, match="uses threads instead of processes"):
        got = sorted(buffered(multiprocess_reader([numbers(5), numbers(3, 10)], use_pipe), 2)())
    assert got == [0, 1, 2, 3, 4, 10, 11, 12]
    with pytest.warns(RuntimeWarning), pytest.raises(ReaderError, match=r"reader 1 .* raised KeyError"):
        list(buffered(multiprocess_reader([numbers(5), raises], use_pipe), 2)())

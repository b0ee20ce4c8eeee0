"""Workers as local processes: started, told apart when they end, and never left behind, whoever dies first."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
pytestmark = linux
Run = Callable[..., str]


def test_a_worker_runs_on_its_seat_and_its_end_is_told(run: Run) -> None:
    run("""
        def main(worker, row):
            row[0], row[1], row[7] = worker, os.getpid(), 77
        engine = engine_of(main)
        for worker in (5, 6):
            engine.start(worker, worker - 5)
        for worker in (5, 6):
            started, exited = wait(engine, Started, worker), wait(engine, Exited, worker)
            assert started.pid == exited.pid != os.getpid()
            assert exited.status == 0
            assert list(engine.row(worker - 5)) == [worker, started.pid, 0, 0, 0, 0, 0, 77], "rows outlive workers"
        assert wait.__defaults__ and not seen
        engine.start(7, 0)
        assert list(engine.row(0)) == [0] * 8 or engine.row(0)[0] == 7, "a seat is cleared for the next one"
        wait(engine, Exited, 7)
        assert engine.row(1)[0] == 6
        engine.close()
    """)


def test_every_way_to_end_is_told_apart(run: Run) -> None:
    run("""
        def main(worker, row):
            match worker:
                case 0: return
                case 1: os._exit(3)
                case 2: sys.exit(4)
                case 3: raise ValueError("what happened")
                case 4: os.abort()
                case 5: os.kill(os.getpid(), signal.SIGTERM)
                case 6: os.kill(os.getpid(), signal.SIGKILL)
                case 7: raise KeyboardInterrupt
        engine = engine_of(main)
        found = {}
        for worker in range(8):
            engine.start(worker, 0)
            status = wait(engine, Exited, worker).status
            found[worker] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        killed = {4: signal.SIGABRT, 5: signal.SIGTERM, 6: signal.SIGKILL}
        assert found == {0: 0, 1: -3, 2: -1, 3: -1, 7: -1} | killed, found
        assert "ValueError: what happened" in text_of(3)
        engine.close()
    """)


def test_what_a_worker_writes_comes_through_its_pipe_and_not_to_ours(run: Run) -> None:
    out = run("""
        def main(worker, row):
            print("said", worker)
            sys.stderr.write("complained\\n")
            os.write(1, b"raw\\n")
            os.system("echo from a shell")
            assert sys.stdin.read() == "", "nobody types into a worker"
        engine = engine_of(main)
        engine.start(0, 0)
        wait(engine, Exited, 0)
        text = text_of(0)
        assert sorted(text.split("\\n")) == ["", "complained", "from a shell", "raw", "said 0"], text
        engine.close()
    """)
    assert out == ""


def test_what_was_printed_before_the_fork_is_not_printed_twice(run: Run) -> None:
    assert (
        run("""
        sys.stdout.write("once ")
        sys.stdout.flush()
        engine = engine_of(lambda worker, row: None)
        engine.start(0, 0)
        wait(engine, Exited, 0)
        assert text_of(0) == ""
        engine.close()
        print("end")
    """)
        == "once end\n"
    )


def test_killing_a_worker_ends_what_it_started(run: Run) -> None:
    run("""
        def main(worker, row):
            row[0] = sleeper()
            row[1] = os.getpid()
            if worker == 0:
                time.sleep(1000)
        engine = engine_of(main)
        engine.start(0, 0)
        engine.start(1, 1)
        wait(engine, Exited, 1)
        until(lambda: not alive(engine.row(1)[0]))
        until(lambda: engine.row(0)[1])
        assert alive(engine.row(0)[0])
        engine.kill(0)
        assert os.WTERMSIG(wait(engine, Exited, 0).status) == signal.SIGKILL
        until(lambda: not alive(engine.row(0)[0]))
        engine.kill(0)   # twice, and after it is gone
        engine.kill(99)
        engine.start(2, 0)
        wait(engine, Started, 2)
        engine.close()
        until(lambda: not alive(engine.row(0)[0]))
    """)


def test_a_worker_can_be_asked_for_its_stack(run: Run) -> None:
    run("""
        from pydp2.host.engine.local import DUMP_SIGNAL
        def main(worker, row):
            faulthandler.register(DUMP_SIGNAL, all_threads=True)
            where_it_hangs(row)
        def where_it_hangs(row):
            row[0] = 1
            time.sleep(1000)
        engine = engine_of(main)
        engine.start(0, 0)
        until(lambda: engine.events() is not None and engine.row(0)[0] and 0 in outputs)
        engine.dump(0)
        engine.dump(5)
        data = b""
        while b"in main" not in data:
            data += os.read(outputs[0], 65536)
        assert b"in where_it_hangs" in data
        engine.close()
    """)


def test_a_worker_leaves_ctrl_c_to_the_program_and_ends_at_sigterm(run: Run) -> None:
    run("""
        engine = engine_of(forever)
        engine.start(0, 0)
        until(lambda: engine.row(0)[0])
        pid = wait(engine, Started, 0).pid
        os.kill(pid, signal.SIGINT)
        time.sleep(0.05)
        assert alive(pid)
        os.kill(pid, signal.SIGTERM)
        assert os.WTERMSIG(wait(engine, Exited, 0).status) == signal.SIGTERM
        engine.close()
    """)


def test_when_the_nursery_is_killed_workers_and_what_they_started_end_and_the_engine_says_so(run: Run) -> None:
    run("""
        def main(worker, row):
            row[0], row[1] = sleeper(), os.getpid()
            time.sleep(1000)
        engine = engine_of(main)
        for worker in (0, 1):
            engine.start(worker, worker)
        for worker in (0, 1):
            wait(engine, Started, worker)
            until(lambda: engine.row(worker)[1])
        pids = [engine.row(worker)[i] for worker in (0, 1) for i in (0, 1)]
        os.kill(engine._supervisor.pid, signal.SIGKILL)
        def lost():
            try:
                engine.events()
            except EngineLost as error:
                return "no worker can be replaced" in str(error)
        until(lost)
        until(lambda: not any(map(alive, pids)))
        try:
            engine.start(2, 0)
        except EngineLost:
            pass
        else:
            raise SystemExit("nothing can be started any more")
        engine.close()
        engine.close()
    """)


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", "sys.exit(1)", "1 / 0"])
def test_when_the_engine_s_process_ends_nothing_is_left(
    run: Run, how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pids = tmp_path_factory.mktemp("p") / "pids"
    run(
        f"""
        def main(worker, row):
            row[0], row[1] = sleeper(), os.getpid()
            time.sleep(1000)
        engine = engine_of(main)
        for worker in (0, 1):
            engine.start(worker, worker)
        for worker in (0, 1):
            wait(engine, Started, worker)
            until(lambda: engine.row(worker)[1])
        pids = [engine.row(worker)[i] for worker in (0, 1) for i in (0, 1)] + [engine._supervisor.pid]
        Path({str(pids)!r}).write_text(" ".join(map(str, pids)))
        {how}
        """,
        fails=True,
    )
    run(f"""
        for pid in Path({str(pids)!r}).read_text().split():
            until(lambda: not alive(pid))
    """)


def test_without_a_parent_death_signal_workers_see_by_a_pipe_that_the_nursery_is_gone(run: Run) -> None:
    """As where the kernel has none."""
    run("""
        sys.platform = "other"
        engine = engine_of(forever)
        engine.start(0, 0)
        until(lambda: engine.row(0)[0])
        os.kill(engine._supervisor.pid, signal.SIGKILL)
        until(lambda: not alive(engine.row(0)[0]))
        engine.close()
    """)


def test_closing_ends_every_worker_and_waits_for_it(run: Run) -> None:
    run("""
        def main(worker, row):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            row[0], row[1] = sleeper(), os.getpid()
            while True:
                time.sleep(1000)
        engine = engine_of(main, seats=8)
        for worker in range(8):
            engine.start(worker, worker)
        until(lambda: all(engine.row(worker)[1] for worker in range(8)))
        pids = [engine.row(worker)[i] for worker in range(8) for i in (0, 1)]
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < 20
        until(lambda: not any(map(alive, pids)))
        assert not alive(engine._supervisor.pid)
        assert children(os.getpid()) == []
        engine.close()
        assert engine.events() == []
    """)


def test_an_engine_that_never_started_anything_can_be_closed(run: Run) -> None:
    run("""
        before = set(os.listdir("/proc/self/fd"))
        engine_of(forever).close()
        assert set(os.listdir("/proc/self/fd")) == before
    """)


def test_two_hundred_workers_one_after_the_other_leave_nothing(run: Run) -> None:
    run("""
        def main(worker, row):
            row[0] = worker + 1
            if worker % 2:
                time.sleep(1000)
        engine = engine_of(main)
        def descriptors(pid):
            return len(os.listdir(f"/proc/{pid}/fd"))
        def one(worker):
            engine.start(worker, worker % 2)
            if worker % 2:
                engine.kill(worker) if worker % 4 == 1 else (wait(engine, Started, worker), engine.kill(worker))
            wait(engine, Exited, worker)
            text_of(worker)
        for worker in range(10):
            one(worker)
        before = descriptors("self"), descriptors(engine._supervisor.pid)
        for worker in range(10, 210):
            one(worker)
        assert (descriptors("self"), descriptors(engine._supervisor.pid)) == before
        assert len(notes) == (not ONCE), notes  # the zygote lived on
        assert len(children(engine._supervisor.pid)) == ONCE, children(engine._supervisor.pid)  # the zygote
        assert engine._status_row_of == engine._pids == {}
        engine.close()
    """)


def test_many_workers_at_once_each_get_their_own_pipe(run: Run) -> None:
    run("""
        engine = engine_of(lambda worker, row: print("I am", worker), seats=60)
        for worker in range(60):
            engine.start(worker, worker)
        for worker in range(60):
            wait(engine, Exited, worker)
            assert text_of(worker) == f"I am {worker}\\n"
        engine.close()
    """)


def test_a_process_with_threads_forks_no_workers(run: Run) -> None:
    out = run(
        """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        engine_of(forever)
    """,
        fails=True,
    )
    assert "RuntimeError: workers are forked from a process with one thread, this one has 2" in out


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "02", "012"])
def test_a_program_without_stdin_stdout_or_stderr_has_workers_too(run: Run, closed: str) -> None:
    run(
        f"""
        result = os.dup(2)
        for number in map(int, {closed!r}):
            os.close(number)
        def main(worker, row):
            print("out")
            os.write(2, b"err\\n")
            os.system("echo shell")
            row[0] = sys.stdin.read() == "" and os.read(0, 1) == b""
            row[1] = sleeper()
            row[2] = 1
            time.sleep(1000)
        engine = engine_of(main)
        for worker in (0, 1):
            engine.start(worker, worker)
        until(lambda: engine.row(0)[2] and engine.row(1)[2])
        assert engine.row(0)[0]
        while len(outputs) < 2:
            engine.events()
        for worker in (0, 1):
            data = b""
            while data.count(b"\\n") < 3:
                data += os.read(outputs[worker], 1000)
            assert sorted(data.split()) == [b"err", b"out", b"shell"], data
        sleepers = [engine.row(0)[1], engine.row(1)[1]]
        os.kill(engine._supervisor.pid, signal.SIGKILL)
        try:
            until(lambda: engine.events() is None)
        except EngineLost:
            until(lambda: not any(map(alive, sleepers)))
        engine.close()
        os.write(result, b"fine")
    """
    )


def test_many_open_descriptors_are_no_hindrance(run: Run) -> None:
    """Numbers above 1023 are more than select() takes."""
    run("""
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096, hard))
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1500)]
        engine = engine_of(lambda worker, row: print("hello"))
        assert engine.fileno() > 1023
        for worker in range(5):
            engine.start(worker, 0)
            assert wait(engine, Exited, worker).status == 0
            assert text_of(worker) == "hello\\n"
        engine.start(9, 0)
        engine.close()
    """)


def test_processes_are_recognised_by_name(run: Run) -> None:
    run("""
        engine = engine_of(forever)
        engine.start(3, 0)
        until(lambda: engine.row(0)[0])
        def name(pid):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        assert name(engine._supervisor.pid) == "pydp2-supervise"
        assert name(engine.row(0)[0]) == "pydp2-worker-3"
        engine.close()
    """)


def test_a_seat_that_is_none_is_refused(run: Run) -> None:
    run("""
        engine = engine_of(forever, seats=2)
        for seat in (-1, 2):
            try:
                engine.row(seat)
            except IndexError:
                pass
            else:
                raise SystemExit("a row that is not there")
        engine.close()
    """)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_worker_that_a_signal_has_stopped_is_told_from_one_that_runs(run: Run) -> None:
    run("""
        engine = engine_of(forever)
        assert not engine.is_stopped(3)
        engine.start(3, 0)
        pid = wait(engine, Started, 3).pid
        assert not engine.is_stopped(3)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: engine.is_stopped(3))
        os.kill(pid, signal.SIGCONT)
        until(lambda: not engine.is_stopped(3))
        os.kill(pid, signal.SIGSTOP)
        engine.kill(3)
        assert wait(engine, Exited, 3).status == signal.SIGKILL
        assert not engine.is_stopped(3)
        engine.close()
    """)


def test_without_a_descriptor_for_what_a_worker_writes_nothing_is_lost(run: Run) -> None:
    """It waits in the kernel until there is one; others' ends are told later, and no line is missing."""
    run("""
        import resource
        def main(worker, row):
            print("said", worker, flush=True)
        engine = engine_of(main)
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        for worker in range(4):
            engine.start(worker, worker % 2)
        until(lambda: engine.events() == [] and engine.out_of_descriptors)
        for _ in range(100):
            assert not any(isinstance(e, (Started, Exited)) for e in engine.events()) and engine.out_of_descriptors
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for worker in range(4):
            wait(engine, Exited, worker)
            assert text_of(worker) == f"said {worker}\\n"
        assert not engine.out_of_descriptors
        engine.close()
    """)


def test_what_workers_share_is_prepared_before_anybody_asks_for_one(run: Run) -> None:
    run("""
        import tempfile
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        engine = engine_of(forever, prepare=lambda worker: Path(f"prepared {worker}").touch())
        if ONCE:
            until(lambda: os.path.exists("prepared None"))
        engine.start(0, 0)
        wait(engine, Started, 0)
        until(lambda: engine.row(0)[0])
        for path in Path(folder).glob("prepared *"):
            assert path.name == ("prepared None" if ONCE else "prepared 0")
            path.unlink()
        os.rmdir(folder)
        engine.close()
    """)


def test_one_that_ends_while_it_prepares_before_a_worker_was_asked_for_is_that_worker_s_end(run: Run) -> None:
    run("""
        engine = engine_of(forever, prepare=lambda worker: os._exit(3))
        time.sleep(0.3)
        assert all(isinstance(event, EngineNote) for event in engine.events())
        for worker in (0, 1, 2):
            engine.start(worker, worker % 2)
            started, exited = wait(engine, Started, worker), wait(engine, Exited, worker)
            assert started.pid == exited.pid
            assert os.waitstatus_to_exitcode(exited.status) == 3
        time.sleep(0.1)
        assert not engine.events() and not seen, seen
        engine.close()
    """)

from __future__ import annotations

from pydp2.data.packers import sample_loop
from pydp2.host.engine import base
from pydp2.host.engine.base import StatusPage
from pydp2.host.output_labels import OutputLabels
from pydp2.host.worker import loop
from pydp2.protocol.output_marks import file_change_mark
from pydp2.protocol.worker_status import FILE, WORKER, WorkerStatus
from pydp2.server import main


def shown() -> OutputLabels:
    row = StatusPage(1).row(0)
    row[WORKER], row[FILE] = 8, 0
    return OutputLabels(7, WorkerStatus(row), ["a.txt", "b.txt"])


def texts(of: OutputLabels, *lines: str) -> list[str]:
    kept, _ = of.lines([line.encode() for line in lines], of.current_file())
    return [line.text.decode() for line in kept]


def test_lines_carry_worker_and_file_and_a_mark_between_them_says_where_it_changed() -> None:
    made = shown()
    lines, after = made.lines([b"one", file_change_mark(1, 0).rstrip(), b"two"], 0)
    assert [(line.mark, line.text) for line in lines] == [("worker 7 b.txt", b"one"), ("worker 7 a.txt", b"two")]
    assert after == 0


def test_of_the_stack_of_a_generator_only_what_is_the_users_is_shown() -> None:
    stack = [
        "Current thread 0x00007f (most recent call first):",
        '  File "/home/me/mine.py", line 8 in process',
        f'  File "{sample_loop.__file__}", line 87 in next_unpacked',
        f'  File "{loop.__file__}", line 210 in _run_task',
        f'  File "{base.__file__}", line 21 in run',
        f'  File "{main.__file__}", line 47 in main',
        '  File "<string>", line 1 in <module>',
    ]
    assert texts(shown(), *stack, "and on") == [*stack[:2], "and on"]


def test_a_thread_that_is_nothing_of_the_users_is_not_shown_but_theirs_are() -> None:
    made = shown()
    ours = ["Thread 0x00007f01 (most recent call first):", f'  File "{loop.__file__}", line 36 in _run', ""]
    theirs = ["Thread 0x00007f02 (most recent call first):", '  File "/home/me/mine.py", line 3 in fetch', ""]
    current = ["Current thread 0x00007f03 (most recent call first):", '  File "/home/me/mine.py", line 9 in process']
    assert texts(made, *ours, *theirs, *current) == [*theirs, *current]
    assert texts(made, *theirs, *ours, *current) == [*theirs, *current]
    assert texts(made, theirs[0]) == []
    assert texts(made, *theirs[1:]) == theirs, "also when it comes in pieces"

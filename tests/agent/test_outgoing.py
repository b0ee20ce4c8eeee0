"""What the workers of a host send goes out within a window, and what is waited for goes first."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from pydp2.host.agent.outgoing import MAX_WINDOW, MIN_WINDOW, OutgoingQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(1, 60)),
        st.tuples(st.just("prefer"), st.integers(0, 3)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("taken"), st.integers(0, 80)),
    ),
    max_size=200,
)


@given(STEPS)
def test_each_message_goes_once_those_of_a_worker_in_order_and_never_more_than_the_window(steps: list[tuple]) -> None:
    queue = OutgoingQueue(100)
    pushed: dict[int, list[bytes]] = defaultdict(list)
    popped: dict[int, list[bytes]] = defaultdict(list)
    sent = taken = count = 0

    def pop() -> bool:
        nonlocal sent
        before = queue.bytes_under_way
        if (message := queue.pop()) is None:
            return False
        worker, (frame,) = message
        assert worker == frame[0]
        popped[frame[0]].append(frame)
        sent += len(frame)
        assert before == 0 or queue.bytes_under_way <= 100, "one message alone may be larger"
        return True

    for step in steps:
        match step:
            case ("push", worker, size):
                count += 1
                frame = bytes([worker]) + count.to_bytes(4, "little") + bytes(size)
                pushed[worker].append(frame)
                queue.push(worker, [frame])
            case ("prefer", worker):
                queue.prefer(worker)
            case ("pop",):
                pop()
            case ("taken", more):
                taken = min(sent, taken + more)
                queue.taken(taken)
        waiting = sum(len(f) for w in pushed for f in pushed[w][len(popped[w]) :])
        assert queue.waiting_bytes == waiting
        assert queue.bytes_under_way == sent - taken
    while queue.waiting_bytes:
        queue.taken(sent)
        assert pop(), "with an empty window the next message always goes"
    assert popped == {worker: frames for worker, frames in pushed.items() if frames}


def test_a_worker_that_a_merge_waits_for_comes_first_until_its_queue_is_empty() -> None:
    queue = OutgoingQueue(1000)
    for worker in (1, 2, 3):
        for number in range(2):
            queue.push(worker, [b"%d%d" % (worker, number)])
    queue.prefer(3)
    queue.prefer(7)
    order = []
    while (message := queue.pop()) is not None:
        order.append(message[1][0])
    assert order == [b"30", b"31", b"10", b"20", b"11", b"21"]
    queue.push(3, [b"32"])
    queue.push(1, [b"12"])
    assert queue.pop() == (3, [b"32"]), "nobody waits for it any more: it came first"


def test_the_window_fits_rate_and_round_trip_within_its_bounds() -> None:
    queue = OutgoingQueue()
    assert queue.window == MIN_WINDOW
    for rate, round_trip, window in (
        (1e6, 0.001, MIN_WINDOW),
        (1e8, 0.1, 20_000_000),
        (2e8, 0.001, 20_000_000),  # as if it were 50 ms
        (1e10, 1.0, MAX_WINDOW),
    ):
        queue.fit_window(rate, round_trip)
        assert queue.window == window

"""A worker may speak before its engine has told which process it is; others who say they are that worker are not."""

from __future__ import annotations

from pydp2.host.early_hellos import EarlyHellos
from pydp2.protocol.messages import Broken, Declared, Hello

WORKER, PID = 3, 4711
HELLO, DECLARED = Hello(2, WORKER, PID), Declared({}, "", [])


def test_what_a_worker_said_before_its_start_is_told_is_kept_in_order() -> None:
    early = EarlyHellos()
    assert early.take(WORKER, PID) == (b"", [])
    early.hold(b"a", HELLO)
    early.add(b"a", DECLARED)
    assert early.take(WORKER, PID) == (b"a", [HELLO, DECLARED])
    assert early.take(WORKER, PID) == (b"", []), "once"


def test_of_several_who_say_so_only_the_process_of_the_worker_is_believed() -> None:
    early = EarlyHellos()
    for peer, pid in ((b"liar", 1), (b"a", PID), (b"other", 2)):
        early.hold(peer, Hello(2, WORKER, pid))
        early.add(peer, Broken({"kind": peer.decode()}))
    assert early.take(WORKER, PID) == (b"a", [HELLO, Broken({"kind": "a"})])
    early.add(b"liar", DECLARED)
    assert early.take(WORKER, 1) == (b"", []), "the liars are forgotten"


def test_nobody_fills_the_memory_with_such_words() -> None:
    early = EarlyHellos()
    for n in range(1000):
        early.hold(b"%d" % n, Hello(2, n, n))
        for _ in range(100):
            early.add(b"%d" % n, DECLARED)
    kept = [early.take(n, n)[1] for n in range(1000)]
    assert sum(map(bool, kept)) == 64
    assert max(map(len, kept)) == 5

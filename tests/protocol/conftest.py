"""Messages of every kind: any that may be sent, and one example of each."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, FILE_RAISED, FileAssignment, FileRange

text = st.text('aZ0 "\\\n\0é一😀', max_size=20)
number = st.integers(0, m.INT_LIMIT - 1)
leaf = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), text)
plain = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
_BY_TYPE = {
    "int": number,
    "Word": st.integers(0, (1 << 64) - 1),
    "bool": st.booleans(),
    "str": text,
    "Plain": st.dictionaries(text, plain, max_size=4),
    "list[Any]": st.lists(plain, max_size=4),
}


def of_kind(kind: type[m.Message]) -> st.SearchStrategy[m.Message]:
    """Any message of ``kind``."""
    return st.builds(kind, **{f.name: _BY_TYPE[str(f.type)] for f in fields(kind)})


messages = st.sampled_from(sorted(m.MESSAGES.values(), key=lambda kind: kind.__name__)).flatmap(of_kind)


@st.composite
def parts(draw: st.DrawFn) -> FileRange:
    """A range of a file as a worker may send it."""
    first = draw(st.integers(0, 1 << 40))
    count = draw(st.integers(0, 30))
    dropped_samples = sorted(draw(st.sets(st.integers(first, first + count - 1), max_size=count))) if count else []
    state = draw(st.sampled_from([FILE_OPEN, FILE_ENDED, FILE_RAISED]))
    error = {"kind": "ProviderError", "message": draw(text)} if state == FILE_RAISED else {}
    reasons: list[Any] = [[y, draw(text), draw(text)] for y in dropped_samples]
    numbers = [draw(st.integers(0, 1 << 40)) for _ in range(2)]
    crcs = [draw(st.integers(0, 2**56))]
    return FileRange(
        *numbers, first, count, count - len(dropped_samples), state, crcs, reasons, error, draw(st.booleans())
    )


assignments = st.builds(
    FileAssignment,
    **dict.fromkeys(("file", "attempt", "position", "start", "spent_bytes", "limit", "pause"), number),
    bound=st.booleans(),
    crcs=st.lists(number, max_size=3),
    **dict.fromkeys(("send_from", "until", "check_at", "check_crc", "reread_frame", "ramp_until"), number),
    block_length=st.integers(1, 1 << 40),
)

DECLARATION = {
    "slots": [[[2, 0, 0, None, None], [10, 1, 3, None, None]], ["pixel", "label"]],
    "shuffle": True, "pool_size": 100, "min_pool_size": -1, "can_over_batch_size": True, "weighted": True, "cache": 0,
    "check": True, "check_fail_continue": True,
}  # fmt: skip
ERROR = {"kind": "BadSample", "message": "file a, sample 3", "slot": "pixel", "exp": "2 numbers", "got": "3"}
EXAMPLES: tuple[m.Message, ...] = (
    m.Hello(m.WIRE_VERSION, 2, 4711),
    m.Declared(DECLARATION, "0123456789abcdef", ["a warning"], {"mytext.py": "0123456789abcdef"}),
    m.Broken(ERROR),
    m.BeginDispatch(5, 3, 2**64 - 1, True),
    m.Assign(3, [FileAssignment(7, 1, 2, 100, 5000, 70000, 1 << 62, True, [123456789]).to_wire()]),
    m.Grant([[1, 90000, 1 << 62, 1]]),
    m.Want(1, 7),
    m.GrantCells(),
    m.EndDispatch(3),
    m.Retire(),
    m.StealFile(7),
    m.ReturnFiles([1, 7]),
    m.Quit(),
    m.Chunk(
        4,
        [
            FileRange(
                7, 1, 100, 4, 3, FILE_OPEN, [1234567890123], [[101, "pixel", "expected 2 numbers, got 3"]], {}
            ).to_wire(),
            FileRange(
                8, 0, 0, 1, 1, FILE_RAISED, [42], [], {"kind": "ProviderError", "message": "é", "builtin": ""}
            ).to_wire(),
        ],
        [[7, 1, 104, 640]],
        1500,
        20,
        0,
        900,
        300,
    ),
    m.AskSpec(1, "0.1.0"),
    m.Spec({"worker_memory": None, "start": "auto"}, "0123456789abcdef"),
    m.Join(
        1, "0.1.0", "node7", 8, "fedcba9876543210", "0123456789abcdef", {"python": "3.11.7"}, "zstd", "tcp://node7:7800"
    ),
    m.OpenData("fedcba9876543210"),
    m.DataOpened(),
    m.Prepared([1, 0, 1]),
    m.StartWorker(3, 5),
    m.KillWorker(3),
    m.ToWorker(3),
    m.FromWorker(3, [0, 4096]),
    m.WorkerStarted(3, 4713),
    m.WorkerExited(3, 9, [7, 1, 104], "was killed because it stood still", True, False),
    m.HostBeat(123456789, [[3, 7, 1, 104]], {"memory": 1 << 30}, [[3, 250000]]),
    m.HostReceived(1 << 20, 123456789),
    m.Drain(),
    m.RowReaders(["0123456789abcdef"]),
    m.ReleaseRows(),
    m.SendRows(),
    m.RowsUnreachable(["tcp://node7:7800"]),
    m.FetchRows(9),
    m.FetchedRows(9, 128, False),
    m.Attach(
        m.WIRE_VERSION, "default", 1, 4, "0123456789abcdef", {"batch_size": 128, "seed": 0, "shuffle": None}, 4712
    ),
    m.Welcome(DECLARATION, {"files": 12, "workers": 2, "shuffle": True}),
    m.Refused(ERROR),
    m.BeginPass(
        4,
        3,
        17,
        2,
        {"index": 12, "ended": False},
        1,
        [19, 22],
        "fedcba9876543210",
        {"bounds": [8, 16], "group": 2},
    ),
    m.LeavePass(4, 3),
    m.Need(4, 1, 3, 1000, 2000),
    m.BatchHead(
        4,
        0,
        128,
        128,
        4096,
        0,
        0,
        1,
        [3],
        {"index": 0, "ended": True},
        1,
        {"longest": 16, "group_longest": 16, "bounds": [8, 16], "group": 2},
        [[1, 128, 128, 4096, 0, 0, 2, 8]],
        1500,
        [["tcp://node7:7800", 100]],
        has_origins=True,
    ),
    m.PassEnd(4, 12, 1500, 3, True),
    m.Failed(4, ERROR),
    m.BeginAgain(4),
    m.Detach(4, 3),
    m.AskStats(),
    m.Stats(),
    m.AskFiles(),
    m.Files(),
    m.AskSamples("default", 3),
    m.Samples(DECLARATION, 3, 2, 1500),
    m.SetWeights("default", {"wiki": "7/10", "code": "0"}),
    m.WeightsSet(2, 1500),
    m.Probe(),
    m.Closing("it ended", {}),
    m.AskTrace(10_000),
    m.Trace(),
    m.RecordSpans(True),
    m.RecordedSpans(0, 123_456_789, False),
)

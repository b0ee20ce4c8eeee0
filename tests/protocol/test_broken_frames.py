"""Real messages with bytes changed, cut, doubled and swapped: they give a value or the one error, and little memory.

``PYDP2_FUZZ=200000`` tries as many instead of a few thousand.
"""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    sparse_binary_vector,
    sparse_float_vector_sequence,
)
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError, OptionTypeError, RemoteProtocolError, from_wire
from pydp2.options.tables import job_options
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, FILE_RAISED, FileAssignment, FileRange
from pydp2.server.workers.chunk_decoder import decode_chunk
from tests.protocol.conftest import EXAMPLES

TRIES = int(os.environ.get("PYDP2_FUZZ", "2000"))
SLOTS = Slots(
    (
        dense_vector(3),
        dense_vector(4, dtype="uint8", shape=(2, 2)),
        integer_value(10),
        integer_value_sequence(2**40),
        sparse_binary_vector(50),
        sparse_float_vector_sequence(20),
        dense_vector_sub_sequence(2),
    ),
    tuple("abcdefg"),
)
DECLARED = Schema(
    slots=SLOTS, shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=True, cache=0,
    check=True, check_fail_continue=True,
)  # fmt: skip


def a_chunk(rows: int = 6) -> list[bytes]:
    """A chunk as a worker sends it: two files, a dropped sample, an end, an error."""
    packer = Packer(SLOTS, strict=False)
    for i in range(rows):
        steps = i % 3
        packer.add(
            [
                [0.5, 1.0, float(i)],
                np.full((2, 2), i, np.uint8),
                i % 10,
                [2**33 + k for k in range(steps)],
                list(range(i)),
                [[(k, 0.5) for k in range(2)]] * steps,
                [[[1.0, 2.0]] * k for k in range(steps)],
            ]
        )
    columns = packer.finish().columns
    parts = [
        FileRange(7, 1, 100, rows - 1, rows - 2, FILE_OPEN, [123], [[101, "a", "expected 3 numbers, got 2"]], {}),
        FileRange(8, 0, 0, 2, 2, FILE_ENDED, [5], [], {}),
        FileRange(
            9, 0, 4, 0, 0, FILE_RAISED, [5], [], {"kind": "ProviderError", "message": "no", "builtin": "KeyError"}
        ),
    ]
    chunk = m.Chunk(rows, [part.to_wire() for part in parts], [[7, 1, 105, 640]], 1, 2)
    weights = np.arange(rows, dtype=np.int64)
    return [m.encode(chunk), *(frame.tobytes() for frame in columns.frames()), weights.tobytes()]


def mutate(choose: random.Random, data: bytes) -> bytes:
    """``data`` with something changed."""
    out = bytearray(data)
    for _ in range(choose.choice([1, 1, 1, 2, 5])):
        at = choose.randrange(len(out)) if out else 0
        match choose.randrange(8):
            case 0 if out:
                out[at] = choose.randrange(256)
            case 1 if out:
                out[at] ^= 1 << choose.randrange(8)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = choose.randbytes(choose.choice([1, 1, 4, 8]))
            case 4:
                end = at + choose.randrange(20)
                out[at:at] = out[at:end]
            case 5:
                del out[at : at + choose.choice([1, 1, 4, 8])]
            case 6 if len(out) >= 4:
                at = choose.randrange(len(out) // 4) * 4
                out[at : at + 4] = choose.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)])
            case _:  # a head of msgpack's that promises much
                out[at:at] = choose.choice(
                    [
                        b"\xdd\xff\xff\xff\xff",
                        b"\xdf\x00\x01\x00\x00",
                        b"\xcf" + b"\xff" * 8,
                        b"\x91" * 30,
                        b"\xc7\x01\x05",
                    ]
                )
    return bytes(out)


def mutated_frames(choose: random.Random, frames: list[bytes]) -> list[bytes]:
    out = list(frames)
    for _ in range(choose.choice([1, 1, 2])):
        at = choose.randrange(len(out)) if out else 0
        match choose.randrange(10):
            case 0:
                out.insert(at, choose.randbytes(choose.randrange(40)))
            case 1 if out:
                del out[at]
            case 2 if out:
                other = choose.randrange(len(out))
                out[at], out[other] = out[other], out[at]
            case _ if out:
                out[at] = mutate(choose, out[at])
    return out


def survives(attempt: Callable[[random.Random], Any], seed: int, *, allowed: tuple[type[Exception], ...]) -> int:
    """How many of many attempts gave a value; the others must have raised what is allowed. Memory and time bounded."""
    choose = random.Random(seed)
    taken = 0
    began = time.monotonic()
    for number in range(TRIES):
        state = choose.getstate()
        tracemalloc.start()
        try:
            attempt(choose)
            taken += 1
        except allowed:
            pass
        except BaseException as error:
            error.add_note(f"attempt {number}, state {hash(state)}")
            raise
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 36 << 20
    assert time.monotonic() - began < 60 + TRIES / 100  # a hang, not a measurement
    return taken


def deeply(value: Any) -> None:
    """Do with a value what whoever gets it may do: show it, and compare it."""
    assert repr(value)
    assert value == value  # by recursion


@pytest.mark.parametrize("seed", range(3))
def test_broken_headers(seed: int) -> None:
    headers = [m.encode(example) for example in EXAMPLES]

    def attempt(choose: random.Random) -> None:
        message, _ = m.decode([mutate(choose, choose.choice(headers))])
        deeply(message)
        match message:
            case m.Assign(_, items):
                for item in items:
                    FileAssignment.from_wire(item)
            case m.Declared(schema, _, _) | m.Welcome(schema, _):
                deeply(Schema.from_wire(schema))
            case m.Broken(error) | m.Failed(_, error) | m.Refused(error):
                assert str(from_wire(error)) is not None
            case m.Attach(options=options):
                job_options(**options)

    allowed = (RemoteProtocolError, OptionError, OptionTypeError)
    assert survives(attempt, seed, allowed=allowed) > 0


def test_broken_chunks() -> None:
    """Header, columns, weights: through all that the server does with them before it commits."""
    frames = a_chunk()

    def attempt(choose: random.Random) -> None:
        broken = mutated_frames(choose, frames)
        if choose.random() < 0.5 and broken:
            broken[0] = frames[0]  # so that the columns are looked at
        message, body = m.decode(broken)
        if isinstance(message, m.Chunk):
            for part, run in decode_chunk(message, [memoryview(frame) for frame in body], DECLARED):
                assert part.rows == (0 if run is None else run.hi - run.lo)
                if run is not None:
                    taken = run.columns.slice(run.lo, run.hi)
                    assert taken.rows == part.rows
                    assert int(run.sizes[run.lo : run.hi].sum()) == taken.nbytes
                    taken.take(np.arange(taken.rows)[::-1])

    assert survives(attempt, 1, allowed=(RemoteProtocolError,)) > 0


def test_broken_columns() -> None:
    _, *frames, _ = a_chunk()

    def attempt(choose: random.Random) -> None:
        rows = 6 if choose.random() < 0.8 else choose.choice([0, 5, 7, 1 << 31, 1 << 62, (1 << 64) - 1])
        columns = Columns.from_frames(SLOTS, rows, mutated_frames(choose, frames))
        assert columns.sample_bytes().sum() == columns.nbytes
        assert len(columns.samples()) == rows

    assert survives(attempt, 2, allowed=(RemoteProtocolError,)) > 0


def test_broken_declarations() -> None:
    wire = msgpack.packb(DECLARED.to_wire())

    def attempt(choose: random.Random) -> None:
        try:
            value = msgpack.unpackb(mutate(choose, wire), strict_map_key=False)
        except Exception:
            raise RemoteProtocolError from None
        schema = Schema.from_wire(value)
        assert Schema.from_wire(schema.to_wire()) == schema

    assert survives(attempt, 3, allowed=(RemoteProtocolError,)) > 0


def test_the_unbroken_chunk_is_taken() -> None:
    header, *body = a_chunk()
    message, frames = m.decode([header, *body])
    assert isinstance(message, m.Chunk)
    found = list(decode_chunk(message, [memoryview(frame) for frame in frames], DECLARED))
    assert [(part.file, part.rows) for part, _ in found] == [(7, 4), (8, 2), (9, 0)]
    first = found[0][1]
    assert first is not None
    assert first.sample_indices[:4].tolist() == [100, 102, 103, 104]
    assert first.columns.rows == 6

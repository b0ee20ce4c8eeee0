"""Frames come back as they were, and none of them takes more memory than a peer may have."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import OptionError, RemoteProtocolError
from pydp2.transport.compression import MAX_INFLATED_BYTES, MIN_FRAME_BYTES, FrameCompressor, FrameInflater

zstandard = pytest.importorskip("zstandard")
LIMIT = 256 << 20
WORDS = np.repeat(np.arange(5000, dtype=np.int32), 7)


def columns(seed: int, count: int) -> list[np.ndarray]:
    """``count`` columns of all kinds: words, offsets, floats, bytes, empty ones."""
    chosen, draw = random.Random(seed), np.random.default_rng(seed)
    made: list[Callable[[int], np.ndarray]] = [
        lambda n: draw.integers(0, 30_000, n, dtype=np.int32),
        lambda n: np.cumsum(draw.integers(0, 9, n)),
        lambda n: draw.random(n, dtype=np.float32),
        lambda n: draw.integers(0, 256, n, dtype=np.uint8),
        lambda n: np.zeros(n, np.int64),
    ]
    return [chosen.choice(made)(chosen.choice([0, 1, 100, 4000, 300_000])) for _ in range(count)]


@pytest.fixture
def inflater() -> FrameInflater:
    return FrameInflater(LIMIT)


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The most bytes that Python had at a time, since the last call."""
    tracemalloc.start()

    def most() -> int:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        return found

    yield most
    tracemalloc.stop()


@given(st.integers(0, 1 << 30), st.integers(0, 6))
def test_columns_come_back_as_they_were(seed: int, count: int) -> None:
    frames = columns(seed, count)
    packed, sizes = FrameCompressor().compress(frames)
    back = FrameInflater(LIMIT).inflate([memoryview(each).cast("B") for each in packed], sizes or [0] * count)
    assert [bytes(each) for each in back] == [each.tobytes() for each in frames]
    assert sum(memoryview(each).nbytes for each in packed) <= sum(each.nbytes for each in frames)


def test_only_what_is_large_and_shrinks_is_compressed() -> None:
    noise = random.Random(1).randbytes(1 << 20)
    small = bytes(MIN_FRAME_BYTES - 1)
    packed, sizes = FrameCompressor().compress([noise, small, WORDS, b""])
    assert packed[0] is noise
    assert packed[1] is small
    assert len(packed[2]) < WORDS.nbytes / 4
    assert sizes == [0, 0, WORDS.nbytes, 0]
    assert FrameCompressor().compress([noise, small]) == ([noise, small], []), "no sizes where no frame is compressed"


def test_a_message_of_more_than_its_limit_goes_in_part_as_it_is(inflater: FrameInflater) -> None:
    half = bytes(MAX_INFLATED_BYTES // 2)
    packed, sizes = FrameCompressor().compress([half, half, WORDS, half])
    assert sizes == [len(half), len(half), 0, 0]
    assert sum(map(len, inflater.inflate([memoryview(each).cast("B") for each in packed], sizes))) > len(half) * 3
    many = [bytes(MIN_FRAME_BYTES)] * 1025
    assert FrameCompressor().compress(many) == (many, []), "a header has room for so many sizes"


def test_inflated_frames_are_writable_so_that_rows_can_stay_in_them(inflater: FrameInflater) -> None:
    packed, sizes = FrameCompressor().compress([WORDS])
    (frame,) = inflater.inflate(packed, sizes)
    assert not frame.readonly
    assert np.frombuffer(frame, np.uint8).ctypes.data % 8 == 0


def bomb(size: int, says: int | None = None) -> bytes:
    """Zeros that inflate to ``size`` bytes; the header of zstd says ``says`` (None: the truth)."""
    source = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    packed = bytearray(b"".join(source.compress(bytes(1 << 20)) for _ in range(size >> 20)) + source.flush())
    if says is not None:
        width, at = {0: 1, 1: 2, 2: 4, 3: 8}[packed[4] >> 6], 5 + (not packed[4] & 32)
        stored = says - 256 if width == 2 else says
        packed[at : at + width] = stored.to_bytes(width, "little")
        assert zstandard.frame_content_size(bytes(packed)) == says
    return bytes(packed)


@pytest.mark.parametrize("says", [None, 8192], ids=["and zstd knows", "and zstd says so too"])
def test_a_frame_that_inflates_to_more_than_its_peer_says_is_refused(
    says: int | None, inflater: FrameInflater, peak: Callable[[], int]
) -> None:
    packed = memoryview(bomb(1 << 30, says))
    assert len(packed) < 1 << 20
    peak()
    with pytest.raises(RemoteProtocolError, match=r"a frame of 8192 bytes|a frame that is not zstd"):
        inflater.inflate([packed], [8192])
    assert peak() < 1 << 20


def test_a_peer_that_says_too_much_is_refused_before_memory_is_allocated(
    inflater: FrameInflater, peak: Callable[[], int]
) -> None:
    packed = memoryview(bomb(1 << 20))
    peak()
    for sizes, why in (
        ([1 << 40], rf"a frame of {1 << 40} bytes, at most {LIMIT} are allowed"),
        ([LIMIT], rf"compressed frames of {LIMIT} bytes, at most {MAX_INFLATED_BYTES} are allowed"),
        ([MAX_INFLATED_BYTES], rf"a frame of {MAX_INFLATED_BYTES} bytes that zstd takes for one of {1 << 20}"),
        ([1 << 19], rf"a frame of {1 << 19} bytes that zstd takes for one of {1 << 20}"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            inflater.inflate([packed], sizes)
    with pytest.raises(RemoteProtocolError, match=f"compressed frames of {4096 << 20} bytes"):
        inflater.inflate([packed] * 4096, [1 << 20] * 4096)
    with pytest.raises(RemoteProtocolError, match="at most 1000 are allowed"):
        FrameInflater(1000).inflate([packed], [1 << 20])
    assert peak() < 1 << 20


def test_a_size_inside_the_frame_that_is_too_small_or_too_large_is_found(inflater: FrameInflater) -> None:
    for says in (1 << 19, 1 << 21):
        with pytest.raises(RemoteProtocolError, match=r"not zstd|another number"):
            inflater.inflate([memoryview(bomb(1 << 20, says))], [says])


def test_damaged_frames_are_errors_of_the_protocol_or_content_of_the_same_size(inflater: FrameInflater) -> None:
    chosen = random.Random(3)
    packed, sizes = FrameCompressor().compress([WORDS])
    refused = 0
    for _ in range(2000):
        damaged = bytearray(packed[0])
        for _ in range(chosen.randint(1, 4)):
            damaged[chosen.randrange(min(len(damaged), chosen.choice([12, 1 << 20])))] = chosen.randrange(256)
        if chosen.random() < 0.3:
            del damaged[chosen.randrange(len(damaged)) :]
        try:
            (found,) = inflater.inflate([memoryview(damaged)], sizes)
        except RemoteProtocolError:
            refused += 1
        else:
            assert len(found) == WORDS.nbytes
    assert refused > 500


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    makers: list[Callable[[], Any]] = [FrameCompressor, lambda: FrameInflater(1)]
    for make in makers:
        with pytest.raises(OptionError, match=r"zstd needs zstandard, .* not installed: pip install 'zstandard>="):
            make()

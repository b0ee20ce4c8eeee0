"""Compress frames for a slow connection, and inflate them at its other end, with zstd (the extra ``zstd``).

A peer says of each frame how large it was. That may be wrong, and a few bytes of zstd can say that they are terabytes:
so the sizes are checked, that of the peer and that inside the frame, before memory is allocated. Only this module
imports zstandard, and only when it needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydp2.errors import OptionError, RemoteProtocolError

CODEC = "zstd"
MIN_FRAME_BYTES = 4096
"""Frames below this go as they are: headers, and columns of few values."""
MAX_INFLATED_BYTES = 64 << 20
"""Bytes that the compressed frames of one message inflate to at most. What is larger goes as it is."""
_MAX_WINDOW = 8 << 20  # that a frame which was cut off can have zstd allocate; level 1 needs 512 KiB
_MAX_FRAMES = 1024  # of a message: its header has a size for each
_LEVEL = 1  # the one that keeps up with a fast network; 3 takes twice the time for a few percent
_WORTH = 8  # a frame goes as it is unless it shrinks by this part, so that the receiver has no work for little


class FrameCompressor:
    """Compresses the frames of messages. Raises OptionError if zstandard is not installed."""

    def __init__(self) -> None:
        self._compress = _library().ZstdCompressor(level=_LEVEL).compress

    def compress(self, frames: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Return ``frames`` with those compressed that get smaller by it, and of each its size in bytes before that, 0
        for one that goes as it is; no sizes at all if no frame is compressed."""
        out, sizes = [*frames], [0] * len(frames)
        if len(frames) > _MAX_FRAMES:
            return out, []
        left = MAX_INFLATED_BYTES
        for i, frame in enumerate(frames):
            size = memoryview(frame).nbytes
            if MIN_FRAME_BYTES <= size <= left and len(packed := self._compress(frame)) <= size - size // _WORTH:
                out[i], sizes[i] = packed, size
                left -= size
        return out, sizes if any(sizes) else []


class FrameInflater:
    """Inflates frames that a :class:`FrameCompressor` made, none to more than ``max_frame`` bytes. Raises OptionError
    if zstandard is not installed."""

    def __init__(self, max_frame: int) -> None:
        library = _library()
        self._max_frame = max_frame
        self._error = library.ZstdError
        self._content_size = library.frame_content_size
        self._open = library.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader

    def inflate(self, frames: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
        """Return ``frames`` as they were before they were compressed. ``sizes``: of each, as
        :meth:`FrameCompressor.compress` gives them. Raises RemoteProtocolError, before it allocates memory, if a size
        is above a limit or is not what the frame itself says."""
        largest, total = max(sizes, default=0), sum(sizes)
        if largest > self._max_frame:
            raise RemoteProtocolError(f"a frame of {largest} bytes, at most {self._max_frame} are allowed")
        if total > MAX_INFLATED_BYTES:
            raise RemoteProtocolError(f"compressed frames of {total} bytes, at most {MAX_INFLATED_BYTES} are allowed")
        return [self._inflated(frame, size) if size else frame for frame, size in zip(frames, sizes, strict=True)]

    def _inflated(self, frame: memoryview, size: int) -> memoryview:
        try:
            if (declared := self._content_size(frame)) != size:
                raise RemoteProtocolError(f"a frame of {size} bytes that zstd takes for one of {declared}")
            content = bytearray(size)  # not the bytes that the library would make: rows are kept in writable memory
            reader = self._open(frame)
            if reader.readinto(content) != size or reader.read(1):
                raise RemoteProtocolError(f"a frame of {size} bytes has another number of them")
        except self._error as error:
            raise RemoteProtocolError(f"a frame that is not zstd: {error}") from None
        return memoryview(content)


def _library() -> Any:
    try:
        import zstandard
    except ImportError:
        raise OptionError("zstd needs zstandard, which is not installed: pip install 'zstandard>=0.23'") from None
    return zstandard

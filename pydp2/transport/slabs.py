"""Carry frames through memory that two processes of one machine share; ZeroMQ carries only where they lie.

A slab is an unnamed file (``memfd``): it is gone with the last process that has it, however that one ended. The peer of
a hub makes it, whichever way the bytes go, and hands its descriptor over on a Unix socket beside the hub's own
(:mod:`.fd_passing`). The sender fills it (:class:`SlabWriter`), the other side reads it (:class:`SlabReader`).

A slab begins with one byte for each stretch that can be lent: the writer sets it before it says where the stretch is,
the reader clears it when nothing refers to the stretch any more. So nothing has to be sent to give memory back, and the
memory of a message that is thrown away unread comes back as well. What does not fit goes through the socket. One more
byte says that the reader has the slab mapped: before that, and where it never can, nothing is lent. Memory that was
used before is used first, lowest address first: fresh pages cost more than copying what goes into them.

Behind these bytes is the *progress word*: a number that the reader writes and the writer reads when it likes, without a
message, and also when the reader has died. The writer says in the same way that it has the slab mapped.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.errors import RemoteProtocolError
from pydp2.system.stdlib import fcntl, os
from pydp2.transport.address_space import map_memory

Bytes = npt.NDArray[np.uint8]
MIN_SLAB_BYTES = 128 * 1024
"""Number of bytes from which the frames of a message go through a slab: for fewer, finding a place for them and copying
them out at a trainer costs more than the socket does."""
TOKEN_BYTES = 16
"""Number of bytes of the token that names a slab."""
_MAX_LENT = 1024  # stretches that are lent at a time, at most
_MAPPED_FLAG = _MAX_LENT  # behind the bytes of these: the one that says that the reader has the slab
_WRITER_FLAG = _MAPPED_FLAG + 1  # and the one that says that the writer has it
_PROGRESS_OFFSET = _MAX_LENT + 8  # of the progress word, which is aligned: one store writes it
_PROGRESS_WORDS = slice(_PROGRESS_OFFSET, _PROGRESS_OFFSET + 8)
_DATA_OFFSET = mmap.ALLOCATIONGRANULARITY  # of the memory that can be lent; the bytes before it say what is lent
_ALIGN = 64
_MAX_SLAB_BYTES = 1 << 32
_REFERENCE_HEAD = struct.Struct("<IQ")  # which stretch, where it begins; then the length of each frame
# libzmq lays smaller frames side by side in a shared buffer: unaligned, and each pins all of it.
_MIN_OWN_FRAME = 1 << 16
_SEALS = 0
with contextlib.suppress(AttributeError):  # not every kernel has them, and where they are not there are no slabs
    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class DeferredFrames(Protocol):
    """Frames that are not there yet: they are made where they shall lie. Nothing else in a body has ``sizes``."""

    def sizes(self) -> list[int]:
        """Return the number of bytes of each frame."""
        ...

    def write(self, into: Sequence[Bytes]) -> None:
        """Make the frames, right after :meth:`sizes`, in memory of these sizes."""
        ...

    def frames(self) -> list[Any]:
        """Make the frames in memory of their own."""
        ...


def create_slab(size: int) -> int | None:
    """Return a descriptor of a new slab with room for ``size`` bytes; None where there are no slabs. Memory is used
    when it is first written to."""
    try:
        descriptor = os.memfd_create("pydp2", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):
        return None
    try:
        os.ftruncate(descriptor, _DATA_OFFSET + size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except (AttributeError, OSError):
        os.close(descriptor)
        return None
    return descriptor


def _slab_capacity(descriptor: int) -> int:
    """Return how many bytes of the slab ``descriptor`` can be lent. Raises RemoteProtocolError for any other file: a
    process that reads a file which is cut short meanwhile is ended by a signal."""
    try:
        seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
    except (AttributeError, OSError):
        raise RemoteProtocolError("a descriptor that is not a slab") from None
    if seals & _SEALS != _SEALS or not _DATA_OFFSET < size <= _DATA_OFFSET + _MAX_SLAB_BYTES:
        raise RemoteProtocolError("a slab that is not sealed, or of an impossible size")
    return size - _DATA_OFFSET


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class SlabWriter:
    """Side that lends. Closes ``descriptor``; raises RemoteProtocolError, OSError if it cannot be used."""

    def __init__(self, descriptor: int) -> None:
        try:
            size = _slab_capacity(descriptor)
            memory = map_memory(descriptor, _DATA_OFFSET + size)
        finally:
            os.close(descriptor)
        self._lent_flags = memoryview(memory)[: _WRITER_FLAG + 1]
        self._progress = memoryview(memory)[_PROGRESS_WORDS].cast("Q")
        self._memory = np.frombuffer(memory, np.uint8, size, _DATA_OFFSET)
        self._pid = os.getpid()
        self._lent_ranges: dict[int, tuple[int, int]] = {}  # stretches that are lent: where they begin and end
        self._free_numbers = list(range(_MAX_LENT))
        self._free_ranges: list[tuple[int, int]] = [(0, size)]  # in rising order, none touching the next
        self._lent_flags[_WRITER_FLAG] = 1

    def reserve(self, sizes: Sequence[int]) -> tuple[bytes, list[Bytes]] | None:
        """Return memory for frames of ``sizes``, and the reference by which the other side finds it, once filled. None:
        there is no room now, or the other side does not have the slab."""
        need = sum(map(_aligned, sizes))
        if os.getpid() != self._pid or not self._lent_flags[_MAPPED_FLAG]:  # in a fork the slab is the parent's
            return None
        self._reclaim()
        at = next((i for i, (begin, end) in enumerate(self._free_ranges) if end - begin >= need), None)
        if at is None or not need or not self._free_numbers:
            return None
        begin, end = self._free_ranges[at]
        self._free_ranges[at : at + 1] = [(begin + need, end)] if begin + need < end else []
        name = self._free_numbers.pop()
        self._lent_ranges[name] = (begin, begin + need)
        self._lent_flags[name] = 1
        into = []
        offset = begin
        for size in sizes:
            into.append(self._memory[offset : offset + size])
            offset += _aligned(size)
        return _REFERENCE_HEAD.pack(name, begin) + np.array(sizes, "<u8").tobytes(), into

    @property
    def progress(self) -> int:
        """Number that the reader wrote last, 0 before the first."""
        return self._progress[0]

    @property
    def lent_count(self) -> int:
        """Number of stretches that are lent."""
        self._reclaim()
        return len(self._lent_ranges)

    def _reclaim(self) -> None:
        """Take back the stretches that the reader has released."""
        back = [name for name in self._lent_ranges if not self._lent_flags[name]]
        if not back:
            return
        self._free_numbers += back
        free = sorted([*self._free_ranges, *(self._lent_ranges.pop(name) for name in back)])
        self._free_ranges = [free[0]]
        for begin, end in free[1:]:
            if begin == self._free_ranges[-1][1]:
                self._free_ranges[-1] = (self._free_ranges[-1][0], end)
            else:
                self._free_ranges.append((begin, end))


class SlabReader:
    """Side that borrows. Closes ``descriptor``; raises RemoteProtocolError, OSError if it cannot be used."""

    def __init__(self, descriptor: int) -> None:
        try:
            size = _slab_capacity(descriptor)
            self._lent_flags = memoryview(map_memory(descriptor, _DATA_OFFSET))
            self._memory = memoryview(map_memory(descriptor, size, prot=mmap.PROT_READ, offset=_DATA_OFFSET))
        finally:
            os.close(descriptor)
        self._lent_flags[_MAPPED_FLAG] = 1
        self._progress = self._lent_flags[_PROGRESS_WORDS].cast("Q")
        self._pid = os.getpid()
        self._views: dict[int, weakref.ref[Bytes]] = {}

    def write_progress(self, number: int) -> bool:
        """Write ``number``, below 2**64, as the progress word. Return True if the writer can read it: it has the slab
        mapped, and keeps it when this process dies."""
        self._progress[0] = number
        return bool(self._lent_flags[_WRITER_FLAG])

    def frames(self, reference: memoryview | bytes) -> list[memoryview]:
        """Return the frames that ``reference`` tells of, read-only. Their memory is given back
        when nothing refers to any.

        Raises RemoteProtocolError if they do not lie in the slab, or were told of before and are still in use.
        """
        counted = len(reference) - _REFERENCE_HEAD.size
        if counted <= 0 or counted % 8:
            raise RemoteProtocolError(f"a reference into a slab of {len(reference)} bytes")
        name, begin = _REFERENCE_HEAD.unpack_from(reference)
        sizes = [int(size) for size in np.frombuffer(reference, "<u8", offset=_REFERENCE_HEAD.size)]
        need = sum(map(_aligned, sizes))
        if begin % _ALIGN or not 0 < need <= len(self._memory) - begin:
            raise RemoteProtocolError(f"a reference to {need} bytes at {begin}, a slab has {len(self._memory)}")
        known = self._views.get(name)
        if not 0 <= name < _MAX_LENT or (known is not None and known() is not None):
            raise RemoteProtocolError(f"stretch {name} of a slab is lent a second time, or cannot be lent")
        # all views of it refer to this array, so it lives as long as they do
        stretch = np.frombuffer(self._memory[begin : begin + need], np.uint8)
        self._views[name] = weakref.ref(stretch, _releaser(self._lent_flags, name, self._pid))
        frames = []
        offset = 0
        for size in sizes:
            frames.append(stretch[offset : offset + size].data)
            offset += _aligned(size)
        return frames


def _releaser(lent: memoryview, number: int, owner: int) -> Any:
    """Return a callback for when nothing refers to a stretch any more; it gives the stretch back."""

    def give_back(_: object) -> None:
        if os.getpid() == owner:  # else a fork has dropped what it inherited, and the parent may still use it
            lent[number] = 0

    return give_back


# -- frames of messages ------------------------------------------------------------------------------------------------
def put_in_slab(writer: SlabWriter | None, body: Sequence[Any]) -> tuple[bytes | None, list[Any]]:
    """Put the frames ``body`` into a slab, if there is one with room, and return their reference. Otherwise return None
    and the frames themselves, deferred ones made."""
    if writer is None or not body:
        return None, plain_frames(body)
    sizes = [frame.sizes() if hasattr(frame, "sizes") else [memoryview(frame).nbytes] for frame in body]
    flat = [size for several in sizes for size in several]
    place = writer.reserve(flat) if sum(flat) >= MIN_SLAB_BYTES else None
    if place is None:
        return None, plain_frames(body)
    reference, into = place
    at = 0
    for frame, several in zip(body, sizes, strict=True):
        if hasattr(frame, "sizes"):
            frame.write(into[at : at + len(several)])
        elif several[0]:
            into[at][:] = _as_bytes(frame)
        at += len(several)
    return reference, []


def plain_frames(body: Sequence[Any]) -> list[Any]:
    """Return the frames ``body``, deferred ones made."""
    frames: list[Any] = []
    for frame in body:
        if hasattr(frame, "sizes"):
            frames += frame.frames()
        else:
            frames.append(frame)
    return frames


def message_frames(writer: SlabWriter | None, frames: Sequence[Any]) -> list[Any]:
    """Return the message ``frames`` as it is sent: its body in a slab, if there is one with room."""
    head, *body = frames
    reference, body = put_in_slab(writer, body)
    return [head, *body] if reference is None else [b"", reference, head]


def are_large(frames: Sequence[Any]) -> bool:
    """Return True if frames that are already made hold enough bytes to be worth a slab."""
    return sum(memoryview(frame).nbytes for frame in frames) >= MIN_SLAB_BYTES


def _as_bytes(frame: Any) -> Bytes:
    if isinstance(frame, np.ndarray):
        return np.ascontiguousarray(frame).reshape(-1).view(np.uint8)
    return np.frombuffer(frame, np.uint8)


# -- arrays of received frames -----------------------------------------------------------------------------------------
def is_in_slab(frame: memoryview) -> bool:
    """Return True if ``frame`` is one of :meth:`SlabReader.frames`."""
    return isinstance(frame.obj, np.ndarray)


def owned_arrays(frames: Sequence[memoryview]) -> list[Bytes]:
    """Return received raw frames as byte arrays that are aligned, writable and pin no memory but their own."""
    out = []
    for frame in frames:
        array = np.frombuffer(frame, np.uint8)
        if array.nbytes < _MIN_OWN_FRAME or array.ctypes.data % 8 or not array.flags.writeable:
            array = array.copy()
        out.append(array)
    return out


def array_views(frames: Sequence[memoryview]) -> list[Bytes]:
    """Return the frames as byte arrays for a short, read-only use: frames in shared memory stay there."""
    return [np.frombuffer(frame, np.uint8) if is_in_slab(frame) else owned_arrays([frame])[0] for frame in frames]

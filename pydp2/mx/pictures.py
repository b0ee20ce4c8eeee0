"""Turn the bytes of records into the numbers of a batch: decode, augment, finish; many at a time, in threads.

Threads, not processes: Pillow lets go of the interpreter while it decodes and resizes, and numpy while it converts, so
two threads do nearly what two processes would (docs/mxnet.md, "Speed"), and nothing has to be copied between them.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import BadSample, FormatError, OptionError
from pydp2.formats import pillow
from pydp2.formats.pillow import Picture
from pydp2.mx.augment import Augmentation, PictureError
from pydp2.mx.finish import Finish, Floats
from pydp2.mx.records import Record

T = TypeVar("T")
Decode = Callable[[bytes], NDArray[np.uint8]]
"""Function from the bytes of a picture to uint8 (height, width, channels), or (height, width) for one channel."""

_UNDER_WAY = 2  # batches: while the caller waits for one, the threads work on the next
_AT_ONCE = 8  # pictures that a thread takes at a time, because handing over costs time


class Pictures:
    """Decoder of the pictures of one provider.

    Args:
        decode: ``"image"``: what Pillow reads; ``"raw"``: uint8 of ``data_shape``; ``"auto"``: the first where Pillow
            is installed, else the second; or a function.
        augmentation: the changes to a picture.
        finish: the changes to its numbers.
    """

    def __init__(self, decode: str | Decode, augmentation: Augmentation, finish: Finish) -> None:
        self.shape = augmentation.data_shape
        self._augmentation = augmentation
        self._finish = finish
        self.mean: Floats | None = None
        """Of the shape of the data; subtracted from each picture."""
        if augmentation.samples_anew:
            pillow.need("turning, scaling, stretching, shearing and crops of other sizes")
        if decode == "image":
            pillow.need("decoding pictures")
        elif decode not in ("auto", "raw") and not callable(decode):
            raise OptionError(f'decode must be "auto", "image", "raw" or a function, got {decode!r}')
        self._raw = decode == "raw" or (decode == "auto" and not pillow.available())
        self._decode = decode if callable(decode) else None

    def fill(self, records: Sequence[Record], out: Floats) -> None:
        """Write the pictures of ``records`` into ``out`` (records, channels, height, width).

        Raises:
            FormatError: one cannot be decoded, or the function for it raised, which is then the cause.
            BadSample: one does not have the size or the channels that it needs.
        """
        for record, target in zip(records, out, strict=True):
            self._finish(self.augmented(record), record.chance, self.mean, target)

    def add(self, records: Sequence[Record]) -> NDArray[np.float64]:
        """Return the sum of the augmented pictures of ``records``, with the shape of the data. Raises as :meth:`fill`
        does."""
        total = np.zeros(self.shape)
        for record in records:
            total += self.augmented(record).transpose(2, 0, 1)
        return total

    def augmented(self, record: Record) -> Picture:
        """Return the picture of ``record``, decoded and augmented: uint8 (height, width, channels). Raises as
        :meth:`fill` does."""
        picture = self._decoded(record)
        try:
            return self._augmentation(picture, record.chance)
        except PictureError as exc:
            raise BadSample(
                f"{record.where}: {exc}",
                slot="data",
                expected=f"a picture for {self.shape}",
                got=f"{picture.shape[0]} x {picture.shape[1]} pixels",
            ) from exc

    def _decoded(self, record: Record) -> Picture:
        if self._raw:
            return self._plain(record)
        channels = self.shape[0]
        if self._decode is None:
            try:
                return pillow.decode(record.image, channels)
            except ValueError as exc:
                raise FormatError(
                    f'{record.where}: {exc} (decode="raw" is for bytes that are pixels)',
                    file=record.file,
                    offset=record.offset,
                ) from exc
        try:
            picture: Any = self._decode(record.image)
        except Exception as exc:
            raise FormatError(
                f"{record.where}: decode raised {type(exc).__name__}: {exc}", file=record.file, offset=record.offset
            ) from exc
        if isinstance(picture, np.ndarray) and picture.ndim == 2:
            picture = picture[:, :, None]
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (channels,):
            got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise BadSample(
                f"{record.where}: decode must give uint8 (height, width, {channels}), got {got}",
                slot="data",
                expected=f"uint8 (height, width, {channels})",
                got=got,
            )
        return picture

    def _plain(self, record: Record) -> Picture:
        if len(record.image) != math.prod(self.shape):
            raise BadSample(
                f"{record.where}: expected the {math.prod(self.shape)} bytes of {self.shape}, got {len(record.image)}; "
                "to decode pictures, pip install 'pillow>=10'",
                slot="data",
                expected=f"{math.prod(self.shape)} bytes",
                got=f"{len(record.image)}",
            )
        return np.frombuffer(record.image, np.uint8).reshape(self.shape).transpose(1, 2, 0)


def threads(wanted: int) -> int:
    """Return the number of threads to take: as many as wanted, up to half of the processors that this process may
    use, or two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(wanted, max(2, cores // 2))


def in_threads(
    batches: Iterable[T], parts: Callable[[T], Iterable[Callable[[], Any]]], count: int
) -> Generator[tuple[T, list[Any]], None, None]:
    """Yield ``batches`` in their order, each with the results of its ``parts`` in order, which ``count`` threads
    compute.

    The first exception of a part is raised instead of its batch. The threads end with the generator.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix="pydp2-mx-picture")
    under_way: deque[tuple[T, list[Future[Any]]]] = deque()
    try:
        for batch in batches:
            under_way.append((batch, [pool.submit(part) for part in parts(batch)]))
            if len(under_way) == _UNDER_WAY:
                first, futures = under_way.popleft()
                yield first, [future.result() for future in futures]
        while under_way:
            first, futures = under_way.popleft()
            yield first, [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)


def pieces(count: int) -> list[slice]:
    """Return slices of ``count`` pictures, each for one thread."""
    return [slice(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]

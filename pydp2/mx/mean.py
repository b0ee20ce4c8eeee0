"""Read the mean picture of a data set from a file, or compute it once and write it there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError, OptionError
from pydp2.formats.first_bytes import COUNT, described
from pydp2.formats.source import written_whole
from pydp2.mx.finish import Floats

_MAGIC = b"\x93NUMPY"


def mean_picture(
    path: str, shape: tuple[int, ...], sums: Callable[[], Generator[tuple[int, NDArray[np.float64]], None, None]]
) -> Floats:
    """Return the mean picture in ``path``, a ``.npy`` file, as float32. If the file does not exist, compute and write
    it.

    Args:
        path: the file.
        shape: (channels, height, width).
        sums: yields, for one group of pictures after the other, their number and their sum.

    Raises:
        FormatError: the file is no ``.npy`` file, or its array has another shape or is not of floats.
        OptionError: the mean is to be made, and there is no picture, or the path ends in ``.gz``.
        OSError: the file cannot be read; or not be written, which is tried before the pictures are read.
    """
    file = Path(path)
    if file.exists():
        return _read(file, shape)
    with contextlib.ExitStack() as stack:
        with _naming_file(file):
            beside = stack.enter_context(written_whole(file))
        count, total = 0, np.zeros(shape)
        for some, of in sums():
            count, total = count + some, total + of
        if not count:
            raise OptionError(f"mean_img={path!r} does not exist, and there are no pictures to compute it from")
        mean: Floats = (total / count).astype(np.float32)
        with _naming_file(file):
            with open(beside, "wb") as out:
                np.save(out, mean)
            stack.close()
    return mean


@contextlib.contextmanager
def _naming_file(file: Path) -> Iterator[None]:
    """Name ``file`` and the option in an OSError of the block."""
    try:
        yield
    except OSError as exc:
        raise OSError(exc.errno, f"mean_img cannot be written: {exc.strerror or exc}", str(file)) from exc


def _read(file: Path, shape: tuple[int, ...]) -> Floats:
    with open(file, "rb") as source:
        if not (head := source.read(COUNT)).startswith(_MAGIC):
            raise FormatError(
                f"{file}: expected a .npy file with a mean picture of floats {shape}, got "
                f"{described(head, len(_MAGIC))}; MXNet's .bin is not read, remove it to have the mean made anew",
                file=str(file),
            )
        source.seek(0)
        try:
            loaded: NDArray[Any] = np.load(source)
        except (ValueError, EOFError, OverflowError, MemoryError) as exc:  # numpy's text may advise to execute it
            raise FormatError(
                f"{file}: expected a mean picture of floats {shape}, got a damaged .npy file or one of something "
                "else; remove it to have the mean made anew",
                file=str(file),
            ) from exc
    if loaded.shape != shape or loaded.dtype.kind != "f":
        raise FormatError(
            f"{file}: expected a mean picture of floats {shape}, got {loaded.dtype.name} {loaded.shape}; remove the "
            "file to have it made anew",
            file=str(file),
        )
    return loaded.astype(np.float32)

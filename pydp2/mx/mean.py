"""The mean picture of a data set: read from a file, or computed once and written there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError, OptionError
from pydp2.mx.finish import Floats


def mean_picture(
    path: str, shape: tuple[int, ...], sums: Callable[[], Generator[tuple[int, NDArray[np.float64]], None, None]]
) -> Floats:
    """The mean picture in ``path``, a ``.npy`` file of float32; where there is none yet it is made and written.

    Args:
        path: the file.
        shape: (channels, height, width).
        sums: how many pictures, and their sum, for some of them after the other.

    Raises:
        FormatError: the file is no ``.npy`` file, or its array has another shape or is not of floats.
        OptionError: the mean is to be made, and there is no picture.
    """
    file = Path(path)
    if file.exists():
        return _read(file, shape)
    count, total = 0, np.zeros(shape)
    for some, of in sums():
        count, total = count + some, total + of
    if not count:
        raise OptionError(f"mean_img={path!r} does not exist, and there are no pictures to compute it from")
    mean: Floats = (total / count).astype(np.float32)
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(beside, "wb") as out:
            np.save(out, mean)
        beside.replace(file)  # whole or not at all, also where several programs make it
    finally:
        beside.unlink(missing_ok=True)
    return mean


def _read(file: Path, shape: tuple[int, ...]) -> Floats:
    try:
        loaded: Any = np.load(file)
    except (ValueError, EOFError) as exc:  # what numpy says of a file that it does not know, or would have to execute
        raise FormatError(f"{file}: expected a .npy file with the mean picture: {exc}", file=str(file)) from exc
    if not isinstance(loaded, np.ndarray) or loaded.shape != shape or loaded.dtype.kind != "f":
        got = f"{loaded.dtype.name} {loaded.shape}" if isinstance(loaded, np.ndarray) else "several arrays"
        raise FormatError(
            f"{file}: expected a mean picture of floats {shape}, got {got}; remove the file to have it made anew",
            file=str(file),
        )
    return loaded.astype(np.float32)

"""Encode and decode the header of MXNet before an image in a RecordIO file: its label or labels, and its number.

    u32 flag | f32 label | u64 id | u64 second id | flag times f32, further labels | image

All numbers are little-endian. If flag is 0, the header has the only label. Any other flag is the number of labels after
the header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError, OptionError

_HEAD = struct.Struct("<IfQQ")
SIZE = _HEAD.size


class IRHeader(NamedTuple):
    """Header of one record. ``flag``: 0, or the number of labels after the header. ``label``: a float for flag 0, else
    float32 ``(flag,)``. ``id``, ``id2``: numbers below 2**64."""

    flag: int
    label: float | NDArray[np.float32] | Sequence[float]
    id: int
    id2: int = 0


def pack(header: IRHeader, payload: bytes) -> bytes:
    """Return the record of ``payload`` with ``header``. The flag follows from the label: 0 for a number, else a count.

    Raises:
        OptionError: a label that is not a number or is beyond float32, no label, or an id beyond 64 bits.
    """
    several = np.ndim(header.label) > 0
    try:
        with np.errstate(over="raise"):
            labels = np.asarray(header.label, "<f4").reshape(-1) if several else np.empty(0, "<f4")
        label = 0.0 if several else float(header.label)  # type: ignore[arg-type]  # a number, as seen
        if several and not len(labels):
            raise OptionError("a record needs at least one label")
        return _HEAD.pack(len(labels), label, header.id, header.id2) + labels.tobytes() + payload
    except OptionError:
        raise
    except (struct.error, OverflowError, FloatingPointError, TypeError, ValueError) as error:
        raise OptionError(f"{header!r:.120} has no IRHeader: {error}") from None


def unpack(record: bytes) -> tuple[IRHeader, bytes]:
    """Return (header, image) of a record.

    Raises:
        FormatError: the record ends within the header or its labels.
    """
    if len(record) < SIZE:
        raise FormatError(f"an IRHeader needs {SIZE} bytes, the record has {len(record)}", offset=0)
    flag, label, number, second = _HEAD.unpack_from(record)
    if not flag:
        return IRHeader(0, label, number, second), record[SIZE:]
    end = SIZE + 4 * flag
    if end > len(record):
        raise FormatError(f"an IRHeader with {flag} labels needs {end} bytes, the record has {len(record)}", offset=0)
    labels = np.frombuffer(record, "<f4", flag, SIZE).astype(np.float32)
    return IRHeader(flag, labels, number, second), record[end:]

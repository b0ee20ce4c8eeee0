"""libsvm's text: a label and the entries of a sparse row that are not zero, one row a line.

    label index:value index:value … # a comment

Indices are whole numbers in any order. Whether the first column is 0 or 1 is a matter of the file, which does not tell;
what the lines of a file are stands in :mod:`.lines`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.formats.lines import NUMBER, lines, shown, wrong
from pydp2.formats.parts import WHOLE, Part
from pydp2.formats.source import PathOrFile, Source, create

_LABEL = re.compile(rb"[ \t]*(" + NUMBER.pattern + rb")(?=[ \t]|$)", re.IGNORECASE)
_ENTRY = re.compile(rb"[ \t]+(\d{1,18}):(" + NUMBER.pattern + rb")(?=[ \t]|$)", re.IGNORECASE)


class Row(NamedTuple):
    """A label, and the entries of a row: ``indices`` int64, ``values`` float32, both ``(entries,)``."""

    label: float
    indices: NDArray[np.int64]
    values: NDArray[np.float32]


def read(path: PathOrFile, *, part: Part = WHOLE, base: int = 0) -> Iterator[Row]:
    """The rows of a file, plain or gzip; ``base`` is the index of its first column, 0 or 1.

    Raises:
        FormatError: a line that is something else, an index below ``base``, a value that float32 cannot hold; names
            the line.
        OptionError: a part of a compressed file.
        OSError: the file cannot be read.
    """
    for source, offset, line in lines(path, part):
        text = line.partition(b"#")[0].rstrip()
        if text:
            yield _row(source, offset, text, base)


def write(path: PathOrFile, rows: Iterable[Row], *, base: int = 0) -> None:
    """Write rows; numbers with as many digits as it takes to read the same ones again."""
    file, ours = create(path)
    try:
        for label, indices, values in rows:
            entries = zip(indices.tolist(), np.asarray(values, np.float32).astype(str), strict=True)
            file.write(" ".join([_shortest(label), *(f"{i + base}:{_plain(v)}" for i, v in entries)]).encode() + b"\n")
    finally:
        if ours:
            file.close()


def _row(source: Source, offset: int, text: bytes, base: int) -> Row:
    found = _LABEL.match(text)
    if found is None:
        raise wrong(source, offset, f"expected a label, got {shown(text)}")
    label, at = float(found[1]), found.end()
    indices, values = array("q"), array("d")
    while (found := _ENTRY.match(text, at)) is not None:
        indices.append(int(found[1]))
        values.append(float(found[2]))
        at = found.end()
    if at != len(text):
        raise wrong(source, offset, f"expected index:value, got {shown(text[at:])}")
    places = np.array(indices, np.int64) - base
    if len(places) and places.min() < 0:
        raise wrong(source, offset, f"expected indices from {base}, got {int(places.min()) + base}")
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float64).astype(np.float32)
    if np.isinf(numbers).any() and b"inf" not in text.lower():
        raise wrong(source, offset, "expected values that float32 can hold, got a larger one")
    return Row(label, places, numbers)


def _shortest(number: Any) -> str:
    return _plain(repr(float(number)))


def _plain(text: str) -> str:
    return str(text).removesuffix(".0")

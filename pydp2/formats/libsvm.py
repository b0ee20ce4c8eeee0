"""libsvm's text: each line has a label and the entries of a sparse row that are not zero.

    label index:value index:value … # a comment

Indices are whole numbers in any order; each index occurs once in a row. Some files count columns from 0 and some from
1, and a file does not say which. :mod:`.lines` reads the lines.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pydp2.data.columns.batch import Csr
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import sparse_binary_vector, sparse_float_vector
from pydp2.errors import BadSample, FormatError, OptionError, bad_value
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.lines import NUMBER, good_only, lines, shown, too_large
from pydp2.formats.serving import LabelSlot, bad_record, flag, in_pieces, whole
from pydp2.formats.source import PathOrFile, create_file
from pydp2.providers import provider

_LABEL = re.compile(rb"[ \t]*(" + NUMBER.pattern + rb")(?=[ \t]|$)", re.IGNORECASE)
_ENTRY = re.compile(rb"[ \t]+(\d{1,18}):(" + NUMBER.pattern + rb")(?=[ \t]|$)", re.IGNORECASE)


_FAR = 10**18 - 1
"""Indices are below this number, so they have at most 18 digits, even if they count from 1."""


class Row(NamedTuple):
    """Row: a label, and the entries: ``indices`` int64, ``values`` float32, both ``(entries,)``."""

    label: float
    indices: NDArray[np.int64]
    values: NDArray[np.float32]


def read(path: PathOrFile, *, part: FilePart = WHOLE_FILE, base: int = 0) -> Iterator[Row]:
    """Yield the rows of a file, plain or gzip; ``base`` is the index of its first column, 0 or 1.

    Raises:
        FormatError: a line is not in this format, an index is below ``base`` or occurs twice in a row, a value is
            beyond float32, or a label is beyond float64. The text names the line.
        OptionError: ``part`` is a part of a compressed file, or ``base`` is another number.
        OSError: the file cannot be read.
    """
    return good_only(read_or_errors(path, part=part, base=base))


def read_or_errors(path: PathOrFile, *, part: FilePart = WHOLE_FILE, base: int = 0) -> Generator[Row | FormatError]:
    """Yield rows as :func:`read` does, and an error in place of each wrong row. The rows after it follow."""
    _check_base(base)
    for reader, offset, line in lines(path, part):
        text = line.partition(b"#")[0].rstrip()
        if text:
            try:
                row: Row | FormatError = _row(text, base)
            except ValueError as error:
                row = reader.error(offset, str(error))
            yield row


def write(path: PathOrFile, rows: Iterable[Row], *, base: int = 0) -> None:
    """Write rows, as gzip if the name ends in ``.gz``.

    Numbers have just enough digits that reading gives the same numbers again.

    Raises:
        OptionError: a row has another number of indices than of values, an index is below 0 or occurs twice in a row,
            or a value is beyond float32. The text names the row, from 0. The rows before it are in the file. Or
            ``base`` is neither 0 nor 1; no file is changed then.
    """
    _check_base(base)
    file, owned = create_file(path, gzipped=True)
    try:
        for number, (label, given, numbers) in enumerate(rows):
            indices, values = np.asarray(given), as_float32(numbers, number)
            if indices.shape != values.shape or indices.ndim != 1:
                raise OptionError(
                    f"row {number}: indices and values must be alike in number, got the shapes {indices.shape} and "
                    f"{values.shape}"
                )
            if indices.size and (indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= _FAR):
                raise OptionError(f"row {number}: indices must be whole numbers from 0, got {indices!r:.80}")
            if (double := _twice(indices)) is not None:
                raise OptionError(f"row {number}: the index {double} is there twice")
            entries = zip(indices.tolist(), values.astype(str), strict=True)
            file.write(" ".join([_shortest(label), *(f"{i + base}:{_plain(v)}" for i, v in entries)]).encode() + b"\n")
    finally:
        if owned:
            file.close()


def as_float32(values: ArrayLike, row: int) -> NDArray[np.float32]:
    """Return ``values`` of row ``row`` as the nearest float32. Raises OptionError: a value is out of range."""
    given = np.asarray(values)
    with np.errstate(over="ignore"):
        made = given.astype(np.float32)
    if (beyond := np.isinf(made) & ~np.isinf(given)).any():
        raise OptionError(f"row {row}: the value {given[beyond][0]} is beyond float32, which values in libsvm are")
    return made


def _check_base(base: Any) -> None:
    if not isinstance(base, int | np.integer) or base not in (0, 1):
        raise OptionError(f"base must be 0 or 1, the index of the first column, got {base!r:.80}")


def _twice(indices: NDArray[np.int64]) -> int | None:
    """Return an index that occurs twice, or None."""
    if (indices[1:] > indices[:-1]).all():  # as they mostly are
        return None
    ordered = np.sort(indices)
    same = ordered[1:] == ordered[:-1]
    return int(ordered[same.argmax()]) if same.any() else None


def _row(text: bytes, base: int) -> Row:
    """Return the row of a line. Raises ValueError that says what is wrong with it."""
    found = _LABEL.match(text)
    if found is None:
        raise ValueError(f"expected a label, got {shown(text.lstrip())}")
    label, at = float(found[1]), found.end()
    if too_large(found[1], label):
        raise ValueError(f"expected a label that float64 can hold, got {shown(found[1])}")
    indices, values = array("q"), array("d")
    while (found := _ENTRY.match(text, at)) is not None:
        indices.append(int(found[1]))
        values.append(float(found[2]))
        at = found.end()
    if at != len(text):
        raise ValueError(f"expected index:value, got {shown(text[at:].lstrip())}")
    columns = np.array(indices, np.int64)
    del indices  # a line may have millions of them
    columns -= base
    if len(columns) and columns.min() < 0:
        raise ValueError("expected indices from 1, got 0; base=0 says that columns count from 0")
    if (double := _twice(columns)) is not None:
        raise ValueError(f"expected each index once, got {double + base} twice")
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float64).astype(np.float32)
    if np.isinf(numbers).any():  # an error, unless the text itself has inf
        for entry, number in zip(text.split()[1:], numbers.tolist(), strict=True):
            if too_large(value := entry.partition(b":")[2], number):
                raise ValueError(f"expected values that float32 can hold, got {shown(value)}")
    return Row(label, columns, numbers)


def _shortest(number: Any) -> str:
    return _plain(repr(float(number)))


def _plain(text: str) -> str:
    return str(text).removesuffix(".0")


# -- the provider ------------------------------------------------------------------------------------------------------
_TOGETHER = 256


def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    dim: int,
    classes: int | Sequence[int] | None = None,
    base: int = 0,
    binary: bool = False,
) -> None:
    _check_base(base)
    whole("dim", dim, "the number of columns")
    settings.dim, settings.slot, settings.base, settings.binary = dim, LabelSlot(classes), base, flag("binary", binary)
    data = sparse_binary_vector(dim) if binary else sparse_float_vector(dim)
    settings.input_types = {"data": data, "label": settings.slot.type}


@provider(init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[ManySamples | BadSample]:
    """Serve the rows of libsvm files.

    Slots: ``data``, a sparse row, and ``label``.

    Arguments of the hook:
        dim: number of columns. You must give it, because a file has only entries that are not zero.
        classes: range of the label, which is then an integer, or a list of the labels such as ``[-1, 1]``, of which the
            integer is the position; without it the label is a dense vector of width 1.
        base: index of the first column in the files, 0 or 1.
        binary: True if all values are 1: the slot then has only indices, and another value is an error.
    """
    name, part = split_entry(filename)
    found = read_or_errors(name, part=part, base=settings.base)
    while some := list(islice(found, _TOGETHER)):
        labels, errors = settings.slot.values(np.array([row.label if isinstance(row, Row) else 0.0 for row in some]))
        errors |= _errors_of(some, settings)

        def piece(first: int, last: int, some: Sequence[Any] = some, labels: Any = labels) -> ManySamples:
            return rows(data=_as_csr(some[first:last], settings), label=labels[first:last])

        yield from in_pieces(len(some), errors, piece)


def _errors_of(some: Sequence[Row | FormatError], settings: Any) -> dict[int, BadSample]:
    """Return the errors of the rows in ``some`` whose line or entries are wrong, by position."""
    right = [row for row in some if isinstance(row, Row)]
    if len(right) == len(some):
        csr = _as_csr(right, settings)
        if csr.indices.max(initial=-1) < settings.dim and (not settings.binary or _are_ones(right)):
            return {}
    found = {i: _error_of(row, settings) for i, row in enumerate(some)}
    return {i: error for i, error in found.items() if error is not None}


def _are_ones(some: Sequence[Row]) -> bool:
    return all((row.values == 1).all() for row in some)


def _error_of(row: Row | FormatError, settings: Any) -> BadSample | None:
    """Return the error of a row with wrong entries, or of its line; None if they are right."""
    if isinstance(row, FormatError):
        return bad_record(row)
    dim = settings.dim
    if len(row.indices) and (most := int(row.indices.max())) >= dim:
        hint = "; base=1 says that columns count from 1" if most == dim and not settings.base else ""
        return bad_value("data", f"columns below dim={dim}", f"{most + settings.base}{hint}")
    if settings.binary and not _are_ones([row]):
        return bad_value("data", "values of 1, as binary=true says", f"{row.values[row.values != 1][0]:g}")
    return None


def _as_csr(some: Sequence[Row], settings: Any) -> Csr:
    edges = np.cumsum([0, *(len(row.indices) for row in some)])
    indices = np.concatenate([row.indices for row in some])
    values = None if settings.binary else np.concatenate([row.values for row in some])
    return Csr(edges, indices, values, (len(some), settings.dim))

"""CSV as MXNet's iterators read it: each line is a row of numbers between commas.

All rows have the same number of columns. A file has no quotes and no comments. With ``header`` its first line has
names. :mod:`.lines` reads the lines. :mod:`.csv` reads files with quotes, text and missing values.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import dense_vector
from pydp2.errors import BadSample, FormatError, OptionError, count_text
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.lines import BLOCK, NUMBER, TextReader, block_lines, good_only, lines, shown
from pydp2.formats.serving import LabelSlot, bad_record, flag, in_pieces, text, whole
from pydp2.formats.source import PathOrFile, create_file
from pydp2.providers import provider

Array = NDArray[Any]

_FLOATS, _INTS = ("f4", "f8"), ("i4", "i8")
_TOGETHER = 1 << 12  # numbers that are converted to text at a time
_SEPARATORS = (",", ";", "\t", "|", " ")  # that an error suggests
_INT = re.compile(rb"[+-]?\d{1,19}")


def read(
    path: PathOrFile,
    *,
    part: FilePart = WHOLE_FILE,
    dtype: DTypeLike = np.float32,
    columns: int | None = None,
    header: bool = False,
    separator: str = ",",
) -> Iterator[Array]:
    """Yield the rows of a file, some at a time: arrays ``(rows, columns)`` of ``dtype``.

    Args:
        path: the file, plain or gzip.
        part: the part of the file to read; a gzip file has no parts.
        dtype: float32, float64, int32 or int64.
        columns: number of columns that each row must have; default: as many as the first row.
        header: True if the first line of the file has names.
        separator: the character between two numbers.

    Raises:
        FormatError: a row has more or fewer columns, or a field is not a number of ``dtype``. The text names the line,
            and the column of the field.
        OptionError: another dtype or separator, or a part of a compressed file.
        OSError: the file cannot be read.
    """
    return good_only(read_or_errors(path, part=part, dtype=dtype, columns=columns, header=header, separator=separator))


def read_or_errors(
    path: PathOrFile,
    *,
    part: FilePart = WHOLE_FILE,
    dtype: DTypeLike = np.float32,
    columns: int | None = None,
    header: bool = False,
    separator: str = ",",
) -> Generator[Array | FormatError]:
    """Yield rows as :func:`read` does, and an error in place of each wrong row. The rows after it follow."""
    kind = _checked(np.dtype(dtype), separator)
    names = _first_line(path) if header else None
    with TextReader(path, part) as text:
        table = _Table(text, kind, separator, header, columns)
        for begin, block in text.blocks():
            rows = [row for row in block_lines(begin, block) if row[0] != names]
            if rows:
                yield from table.parsed(rows)


def count_columns(path: PathOrFile, *, separator: str = ",", header: bool = False) -> int:
    """Return the number of columns in the first row of a file; 0 for one without rows."""
    for _, _, line in lines(path):
        if not header:
            return line.count(separator.encode()) + 1
        header = False
    return 0


def write(path: PathOrFile, rows: ArrayLike | Iterator[ArrayLike], *, separator: str = ",") -> None:
    """Write rows, as gzip if the name ends in ``.gz``.

    ``rows`` is an array ``(rows, columns)``, or an iterator over such arrays. Numbers have just enough digits that
    reading gives the same numbers again; those of float16 have the digits of float32, as which they are read; a bool is
    0 or 1.

    Raises:
        OptionError: an array has another shape, or a dtype that is not numeric. The arrays before it are in the file.
            Or :func:`read` does not accept the separator; no file is changed then.
        OSError: the file cannot be written.
    """
    _check_separator(separator)
    file, owned = create_file(path, gzipped=True)
    try:
        for part in rows if isinstance(rows, Iterator) else (rows,):
            array = np.asarray(part)
            if array.ndim != 2:
                raise OptionError(f"rows must be an array (rows, columns), got the shape {array.shape}")
            if array.dtype.kind not in "fiub":
                raise OptionError(f"CSV holds numbers, got {array.dtype}")
            if array.dtype.kind == "b":
                array = array.view(np.uint8)
            if array.dtype == np.float16:  # its shortest texts are other numbers of float32
                array = array.astype(np.float32)
            step = max(1, _TOGETHER // max(1, array.shape[1]))
            for at in range(0, len(array) if array.size else 0, step):  # text needs many times the memory
                file.writelines(separator.join(row).encode() + b"\n" for row in array[at : at + step].astype(str))
    finally:
        if owned:
            file.close()


def _checked(dtype: np.dtype[Any], separator: str) -> np.dtype[Any]:
    if dtype.str[1:] not in _FLOATS + _INTS:
        raise OptionError(f"CSV is read as float32, float64, int32 or int64, got {dtype}")
    _check_separator(separator)
    return dtype


def _check_separator(separator: str) -> None:
    if len(separator) != 1 or not separator.isascii() or separator.isalnum() or separator in "+-.\r\n":
        raise OptionError(f"separator must be one sign that no number holds, got {separator!r}")


@dataclass
class _Table:
    """Table that is being read from ``text``: numbers of ``dtype`` between separators, in ``columns`` columns."""

    text: TextReader
    dtype: np.dtype[Any]
    separator: str
    header: bool
    columns: int | None

    def parsed(self, rows: list[tuple[int, bytes]]) -> Iterator[Array | FormatError]:
        """Yield ``rows``, pairs of offset and line, as arrays; in place of a wrong one its error."""
        array = self._array(rows)
        if array is not None:
            yield array
            return
        good: list[tuple[int, bytes]] = []
        for row in rows:
            wrong = self._error_of(*row)
            if wrong is None:
                good.append(row)
                continue
            if good:
                yield self._certain(good)
            good = []
            yield wrong
        if good:
            yield self._certain(good)

    def _certain(self, rows: list[tuple[int, bytes]]) -> Array:
        """Return ``rows``, none of which is wrong, as an array."""
        array = self._array(rows, checked=True)
        if array is None:  # numpy does not read what looks like numbers here
            raise self.text.error(rows[0][0], f"expected numbers of {self.dtype.name}, got {shown(rows[0][1])}")
        return array

    def _array(self, rows: list[tuple[int, bytes]], checked: bool = False) -> Array | None:
        """Return ``rows`` as an array; None if one of them may be wrong, and none was ``checked``."""
        kind, separator = self.dtype, self.separator
        try:
            if len(rows[0][1]) > BLOCK:
                wide = kind.type if kind.kind == "f" else np.int64
                pieces = [
                    _numbers([piece], separator, wide) for piece in _pieces(rows[0][1].decode("ascii"), separator)
                ]
                first, rest = np.concatenate(pieces, axis=1), rows[1:]
                parsed = np.concatenate([first, _numbers(_texts(rest), separator, wide)]) if rest else first
            else:
                parsed = _numbers(_texts(rows), separator, np.float64 if kind.kind == "f" else np.int64)
        except ValueError:
            return None
        with np.errstate(over="ignore"):
            array = parsed.astype(kind, copy=False)
        changed = np.isinf(array) if kind.kind == "f" else array != parsed
        # the text itself may have inf, so the slow search looks whether there is an error
        if not checked and ((self.columns is not None and array.shape[1] != self.columns) or changed.any()):
            return None
        self.columns = array.shape[1]
        return array

    def _error_of(self, offset: int, line: bytes) -> FormatError | None:
        """Return the error of a row, None if it is right. The first right row decides the number of columns."""
        at, count, sign = 0, 0, self.separator.encode()
        while at <= len(line):
            end = line.find(sign, at)
            end = len(line) if end < 0 else end
            field = line[at:end]
            if len(field) > BLOCK:
                return self.text.error(offset, f"column {count} must have at most {BLOCK} characters")
            if not _is_number(field, self.dtype):
                what = f"column {count} must be a number of {self.dtype.name}, got {shown(field)}"
                return self.text.error(offset, what + self._hint(offset, line, field))
            at, count = end + 1, count + 1
        self.columns = self.columns or count
        if count != self.columns:
            return self.text.error(offset, f"expected {count_text(self.columns, 'column')}, got {count}")
        return None

    def _hint(self, offset: int, line: bytes, field: bytes) -> str:
        """Return a hint where ``field`` of ``line`` is not a number."""
        if not field.strip():
            return "; write nan for a number that is missing"
        if field.strip()[:1] in (b'"', b"'"):
            return "; quotes are not read here: pydp2.formats.csv reads them, or write the numbers without them"
        fields = line.split(self.separator.encode())
        if len(fields) > 1 and _is_number(field.replace(b",", b".", 1), self.dtype):
            return "; a decimal number has a point here: write 1.5 for 1,5"
        for sign in _SEPARATORS if len(fields) == 1 else ():
            parts = field.strip().split(sign.encode())
            if len(parts) > 1 and all(_is_number(part, self.dtype) for part in parts):
                return f"; separator={sign!r} says what stands between two numbers"
        if self.dtype != np.float64 and _is_number(field, np.dtype(np.float64)):
            return "; dtype='float64' holds it"
        if (
            not self.header
            and self.text.is_first(offset)
            and not any(_is_number(field, self.dtype) for field in fields)
        ):
            return "; header=true says that the first line has names"
        return "; pydp2.formats.csv reads columns of text"


def _first_line(path: PathOrFile) -> int | None:
    """Return the offset of the first line of the whole file, in any part."""
    return next((offset for _, offset, _ in lines(path)), None)


def _texts(rows: list[tuple[int, bytes]]) -> list[str]:
    return [line.decode("ascii") for _, line in rows]


def _numbers(lines: list[str], separator: str, dtype: Any) -> Array:
    return np.loadtxt(lines, dtype, delimiter=separator, comments=None, ndmin=2)


def _pieces(line: str, separator: str) -> Iterator[str]:
    """Yield the pieces of a long line, cut at separators, because parsing needs many times the memory of the text."""
    begin = 0
    while len(line) - begin > BLOCK:
        cut = line.rfind(separator, begin, begin + BLOCK)
        if cut <= begin:
            raise ValueError(f"a field of more than {BLOCK} characters")
        yield line[begin:cut]
        begin = cut + 1
    yield line[begin:]


def _is_number(field: bytes, kind: np.dtype[Any]) -> bool:
    text = field.strip()
    if kind.kind != "f":
        return bool(_INT.fullmatch(text)) and np.iinfo(kind).min <= int(text) <= np.iinfo(kind).max
    if not NUMBER.fullmatch(text):
        return False
    with np.errstate(over="ignore"):
        return b"i" in text.lower() or not np.isinf(kind.type(float(text)))


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(  # noqa: PLR0913 - the arguments of the provider
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    label: int | None = None,
    classes: int | Sequence[int] | None = None,
    header: bool = False,
    separator: str = ",",
    dtype: str = "float32",
) -> None:
    _checked(_as_dtype(dtype), text("separator", separator))
    flag("header", header)
    column = 0 if label is None else whole("label", label, "the column of the label, from 0; -1 is the last")
    columns = _columns(file_list, separator, header) or max(1, column + 1, -column)  # without rows any label is allowed
    if not -columns <= column < columns:
        raise OptionError(f"label must be one of {count_text(columns, 'column')}, from 0, got {label}; -1 is the last")
    settings.options = {"header": header, "separator": separator, "dtype": dtype, "columns": columns}
    settings.label = None if label is None else label % columns
    if label is None and classes is not None:
        raise OptionError("classes is for the column that label chooses: give label too, such as label=-1 for the last")
    settings.slot = LabelSlot(classes, dtype=dtype)
    width = columns - (label is not None)
    settings.input_types = ({} if not width else {"data": dense_vector(width, dtype=dtype)}) | (
        {} if label is None else {"label": settings.slot.type}
    )


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        return np.dtype(text("dtype", dtype))
    except TypeError:  # text() raises it too, if dtype is not a str
        raise OptionError(f"dtype must be float32, float64, int32 or int64, got {dtype!r:.80}") from None


def _columns(file_list: Any, separator: str, header: bool) -> int:
    """Return the number of columns of the first row of all files; without rows, of the first line of names; or 0."""
    for names in (False, True) if header else (False,):
        seen = set()  # parts of one file come one after the other
        for entry in map(split_entry, file_list):
            if entry[0] not in seen and (
                count := count_columns(entry[0], separator=separator, header=header and not names)
            ):
                return count
            seen.add(entry[0])
    return 0


@provider(init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[ManySamples | BadSample]:
    """Serve the rows of CSV files.

    Slots: ``data``, all columns of a row except that of the label; with ``label`` also ``label``.

    Arguments of the hook:
        label: the column of the label, from 0; -1 is the last one.
        classes: range of the label, which is then an integer, or a list of the labels such as ``[-1, 1]``, of which the
            integer is the position; without it the label is a dense vector of width 1 and of ``dtype``.
        header, separator, dtype: as in :func:`read`.
    """
    name, part = split_entry(filename)
    for block in read_or_errors(name, part=part, **settings.options):
        if isinstance(block, FormatError):
            yield bad_record(block)
        else:
            yield from _labelled(block, settings.label, settings.slot)


def _labelled(block: Array, column: int | None, slot: LabelSlot) -> Iterator[ManySamples | BadSample]:
    """Yield the samples of ``block``, whose labels stand in ``column``."""
    if column is None:
        yield rows(data=block)
        return
    labels, errors = slot.values(block[:, column])
    data = np.delete(block, column, axis=1)
    named = {"label": labels} | ({"data": data} if data.shape[1] else {})
    yield from in_pieces(
        len(block), errors, lambda lo, hi: rows(**{name: values[lo:hi] for name, values in named.items()})
    )

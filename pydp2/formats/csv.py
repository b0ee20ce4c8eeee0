"""CSV with names of columns, quotes, text and missing values, read by pyarrow.

:mod:`.quoted_lines` cuts the file into blocks of whole records; pyarrow makes columns of a block. If it refuses a
block, the block is halved until the record that is to blame stands alone, and the others are read. So an error names
the byte of its record, and a bad record is one bad sample.

Types are those that ``types`` gives, else those of the first block of the first file: whole numbers, numbers, bools,
else text. They are looked at without pyarrow's reader, which starts a thread: the hook of a provider runs before
workers are forked. :mod:`.comma` reads files of nothing but numbers without pyarrow.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from pydp2.data.packers.arrow_values import pyarrow
from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.arrow_tables import chosen_names, first_table
from pydp2.formats.lines import MOST, good_only
from pydp2.formats.quoted_lines import RecordReader, is_blank
from pydp2.formats.serving import bad_record, flag, show_inferred, text
from pydp2.formats.source import Closable, PathOrFile
from pydp2.providers import provider

MISSING = ("", "NA", "N/A", "null", "NULL")
"""Fields that stand for a value that is missing, in a column that is not text."""
TEXT_BLOCK = 1 << 20
"""Number of bytes that are parsed at a time; the first ones of the first file also say the types."""
NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64")
_BOOLS = ("true", "false")
_SHOWN = 60


class Dialect:
    """How the fields of a file are written.

    Args:
        header: True if the first record has the names of the columns; without it they are ``f0``, ``f1`` and so on.
        separator: the sign between two fields.
        quotes: True if fields may be quoted.

    Raises:
        OptionError, OptionTypeError: an argument is something else.
    """

    def __init__(self, header: bool = True, separator: str = ",", quotes: bool = True) -> None:
        self.header, self.quotes = flag("header", header), flag("quotes", quotes)
        self.separator = text("separator", separator)
        if len(separator) != 1 or not separator.isascii() or separator.isalnum() or separator in '"\r\n.+-':
            raise OptionError(f"separator must be one sign that no number holds, got {separator!r:.80}")

    def fields(self, records: str) -> list[list[str]]:
        """Return the fields of each record that is not blank."""
        quoting: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        lines = io.StringIO(records, newline="")
        before = csv.field_size_limit(MOST)
        try:
            return [fields for fields in csv.reader(lines, delimiter=self.separator, quoting=quoting) if fields]
        except csv.Error as error:  # a NUL
            raise ValueError(str(error)) from None
        finally:
            csv.field_size_limit(before)


class Reader(Closable):
    """Open CSV file, plain, gzip or zstd; a context manager.

    Attributes:
        names: names of the columns, none for a file without records. An empty name is ``column_`` and its number.

    Raises:
        FormatError: the first record is damaged, or has a name twice.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, dialect: Dialect) -> None:
        self._path, self._dialect = path, dialect
        self._behind = 0  # where the first record of values may begin
        self.names: list[str] = []
        self._text = self._opened()
        try:
            self._read_names()
        except BaseException:
            self.close()
            raise

    def _opened(self) -> RecordReader:
        return RecordReader(self._path, self._dialect.separator.encode(), self._dialect.quotes)

    def _read_names(self) -> None:
        for offset, block in self._text.blocks(WHOLE_FILE, 0, TEXT_BLOCK):
            begin = 0
            for end in self._text.ends(block):
                if not is_blank(block[begin:end]):
                    self._name_columns(offset + begin, block[begin:end])
                    self._behind = offset + end if self._dialect.header else 0
                    self._restart()
                    return
                begin = end
        self._restart()

    def _name_columns(self, offset: int, record: bytes) -> None:
        try:
            (fields,) = self._dialect.fields(record.decode())
        except ValueError as error:
            raise self._text.error(offset, f"expected the names of columns: {error}") from None
        if not self._dialect.header:
            fields = [f"f{number}" for number in range(len(fields))]
        self.names = [name or f"column_{number}" for number, name in enumerate(fields)]
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise self._text.error(offset, f"columns must have different names, but {', '.join(twice)} occurs twice")

    def _restart(self) -> None:
        self._text.close()
        self._text = self._opened()

    def first_block(self) -> bytes:
        """Return the first records of the file, without names, about 1 MiB of them; then begin at the front again."""
        with contextlib.closing(self._blocks(WHOLE_FILE)) as blocks:
            _, block = next(blocks, (0, b""))
        self._restart()
        return block

    def _blocks(self, part: FilePart) -> Generator[tuple[int, bytes]]:
        yield from self._text.blocks(part, self._behind, TEXT_BLOCK)

    def batches(
        self, part: FilePart, start: int, types: Mapping[str, Any], columns: Sequence[str] | None
    ) -> Generator[Any]:
        """Yield the records of ``part`` from its record ``start`` on as RecordBatches of the ``columns`` (None for
        all), and a FormatError in place of each that is damaged. ``types``: the Arrow type of each column."""
        wanted = list(self.names if columns is None else columns)
        for offset, block in self._blocks(part):
            if start:
                count = self._count(block)
                if count <= start:
                    start -= count
                    continue
            for item in self._parsed(offset, block, types, wanted):
                count = 1 if isinstance(item, FormatError) else len(item)
                if start < count:
                    yield item.slice(start) if start else item
                start = max(0, start - count)

    def _count(self, block: bytes) -> int:
        """Return the number of records of a block, without making values of them."""
        first = self.names[:1]
        try:
            return len(self._table(block, dict.fromkeys(first, pyarrow().binary()), first))
        except ValueError:
            return len(self._spans(block))

    def _spans(self, block: bytes) -> list[tuple[int, int]]:
        """Return where each record that is not blank begins and ends."""
        ends = self._text.ends(block)
        spans = zip([0, *ends], ends, strict=False)
        return [(begin, end) for begin, end in spans if not is_blank(block[begin:end])]

    def _parsed(self, offset: int, block: bytes, types: Mapping[str, Any], columns: list[str]) -> Iterator[Any]:
        """Yield a block as one batch; if it is refused, as batches between its bad records and their errors."""
        try:
            batch = self._table(block, types, columns)
        except ValueError:
            spans = self._spans(block)
            yield from self._halves(offset, block, spans, types, columns)
            return
        if len(batch):
            yield batch

    def _halves(
        self, offset: int, block: bytes, spans: list[tuple[int, int]], types: Mapping[str, Any], columns: list[str]
    ) -> Iterator[Any]:
        begin, end = spans[0][0], spans[-1][1]
        try:
            batch = self._table(block[begin:end], types, columns)
        except ValueError as error:
            if len(spans) == 1:
                yield self._text.error(offset + begin, self._described(str(error), block[begin:end]))
                return
            middle = len(spans) // 2
            yield from self._halves(offset, block, spans[:middle], types, columns)
            yield from self._halves(offset, block, spans[middle:], types, columns)
            return
        yield batch

    def _table(self, block: bytes, types: Mapping[str, Any], columns: list[str]) -> Any:
        """Return records as a RecordBatch. Raises ValueError: one of them is wrong."""
        csv_of_arrow, pa = pyarrow("csv"), pyarrow()
        table = csv_of_arrow.read_csv(
            pa.BufferReader(block),
            csv_of_arrow.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self.names),
            csv_of_arrow.ParseOptions(
                delimiter=self._dialect.separator,
                quote_char='"' if self._dialect.quotes else False,
                newlines_in_values=self._dialect.quotes,
            ),
            csv_of_arrow.ConvertOptions(
                column_types=types, include_columns=columns, null_values=list(MISSING), strings_can_be_null=False
            ),
        ).combine_chunks()
        return (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]

    def _described(self, error: str, record: bytes) -> str:
        """Return what is wrong with a record that stands alone, by Arrow's words, with names of columns."""
        what = error.partition("Row #1: ")[2] or error
        number = error.partition("In CSV column #")[2].partition(":")[0]
        if number.isdigit() and int(number) < len(self.names):
            name = self.names[int(number)]
            what = f"column {name}: {what.removeprefix('CSV conversion ')}"
            if "UTF8" not in what:
                what += f'; types={{"{name}": …}} gives it another type'
        shown = record.decode(errors="backslashreplace").rstrip()
        return f"{what[:200]}; the record is {shown:.{_SHOWN}}"

    def close(self) -> None:
        """Close the file."""
        self._text.close()


def inferred_types(reader: Reader, dialect: Dialect, given: Mapping[str, Any], columns: Sequence[str] | None) -> Any:
    """Return the Arrow type of each column, by its name: what is ``given``, else what the fields of the first block
    are; text for columns that are not among ``columns``.

    Raises OptionError: there is no such column, or one without a given type has no value in the first block.
    """
    pa = pyarrow()
    for what, names in (("columns", columns or ()), ("types", given)):
        for name in names:
            if name not in reader.names:
                raise OptionError(f"{what} names the column {name}; the file has {', '.join(reader.names)}")
    wanted = [name for name in columns or reader.names if name not in given]
    fields: dict[str, list[str]] = {name: [] for name in wanted}
    if wanted:
        numbers = [reader.names.index(name) for name in wanted]
        block = reader.first_block().decode(errors="replace")
        with contextlib.suppress(ValueError):  # what is damaged is found where it is read
            for record in dialect.fields(block):
                if len(record) == len(reader.names):
                    for name, number in zip(wanted, numbers, strict=True):
                        fields[name].append(record[number])
    types = {name: _inferred(name, values) for name, values in fields.items()}
    return {name: given.get(name, types.get(name, pa.string())) for name in reader.names}


def _inferred(name: str, fields: list[str]) -> Any:
    pa = pyarrow()
    values = [field.strip() for field in fields if field.strip() not in MISSING]
    if not values:
        if not fields:
            return pa.string()
        raise OptionError(
            f'column {name} has no value in the first block: types={{"{name}": "float32"}} says what it is'
        )
    if any(value.lstrip("-")[:1] == "0" and value.lstrip("-")[1:2].isdigit() for value in values):
        return pa.string()  # as an int 007 would be 7
    texts = pa.array(values)
    for kind in (pa.int64(), pa.float64()):
        with contextlib.suppress(ValueError):
            texts.cast(kind)
            return kind
    return pa.bool_() if {value.lower() for value in values} <= set(_BOOLS) else pa.string()


def _named(kind: Any) -> str:
    """Return an Arrow type as it is named in the option ``types``."""
    return "text" if kind == pyarrow().string() else {"float": "float32", "double": "float64"}.get(str(kind), str(kind))


def checked_types(types: Any) -> dict[str, Any]:
    """Return the option ``types`` as Arrow types by column. Raises OptionTypeError, OptionError."""
    if types is None:
        return {}
    if not isinstance(types, Mapping) or not all(isinstance(name, str) for name in (*types, *types.values())):
        raise OptionTypeError(f'types must be a type for each column, such as {{"age": "float32"}}, got {types!r:.80}')
    for name, kind in types.items():
        if kind not in (*NUMBERS, "text"):
            raise OptionError(f"types: column {name} must be one of {', '.join(NUMBERS)} and text, got {kind!r:.80}")
    pa = pyarrow()
    return {name: pa.string() if kind == "text" else pa.type_for_alias(kind) for name, kind in types.items()}


def read(
    path: PathOrFile,
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    columns: Sequence[str] | None = None,
    types: Mapping[str, str] | None = None,
    header: bool = True,
    separator: str = ",",
    quotes: bool = True,
) -> Iterator[Any]:
    """Yield the records of a file, some at a time, as pyarrow RecordBatches.

    Args:
        path: the file, plain, gzip or zstd.
        start: index of the first record wanted, counted within the part. Values of those before it are not made.
        part: the part of the file to read; a compressed file has none.
        columns: names of the columns, in this order. Default: all.
        types: types of columns by name: names of numpy's dtypes, or ``text``. Default: what the first block has.
        header: True if the first record has the names of the columns, else they are ``f0``, ``f1`` and so on.
        separator: the sign between two fields.
        quotes: True if fields may be quoted. Without quotes, a part is found by seeking.

    Raises:
        FormatError: a record has more or fewer fields than there are columns, or a field is no value of its type. The
            text names the byte and the column.
        OptionError, OptionTypeError: an argument is wrong, or a compressed file is to be read in parts.
        ImportError: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    dialect, chosen, given = Dialect(header, separator, quotes), chosen_names(columns), checked_types(types)
    with Reader(path, dialect) as reader:
        if reader.names:
            known = inferred_types(reader, dialect, given, chosen)
            yield from good_only(reader.batches(part, start, known, chosen))


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(  # noqa: PLR0913 - the arguments of the provider
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    columns: Sequence[str] | None = None,
    types: Mapping[str, str] | None = None,
    nulls: Mapping[str, Any] | None = None,
    header: bool = True,
    separator: str = ",",
    quotes: bool = True,
) -> None:
    dialect = settings.dialect = Dialect(header, separator, quotes)
    given, chosen = checked_types(types), chosen_names(columns)
    pa = pyarrow()
    settings.types = {}

    def schema_of(file: str) -> tuple[Any, bool]:
        with Reader(file, dialect) as reader:
            has_rows = bool(reader.names) and bool(reader.first_block())
            if has_rows or not settings.types:
                settings.types = inferred_types(reader, dialect, given, chosen) if reader.names else {}
        return pa.schema(list(settings.types.items()) or [("data", pa.float32())]), has_rows

    settings.table = first_table(file_list, schema_of, chosen, nulls)
    settings.input_types = settings.table.types
    shown = {name: _named(settings.types[name]) for name in settings.table.types if name in settings.types}
    if not shown.keys() <= given.keys():
        show_inferred(settings.logger, "types", shown)


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int) -> Iterator[ManySamples | BadSample]:
    """Serve the records of CSV files: each column is a slot of its name.

    Arguments of the hook:
        columns: names of the columns to serve, in this order. Default: all.
        types: types of columns by name: names of numpy's dtypes, or ``text``; default: what the first block has.
        nulls: a value for the fields of a column that are missing. Without one, such a record is a bad sample.
        header, separator, quotes: as in :func:`read`.
    """
    name, part = split_entry(filename)
    with Reader(name, settings.dialect) as reader:
        if not reader.names:
            return
        schema = pyarrow().schema([(column, settings.types.get(column, pyarrow().string())) for column in reader.names])
        settings.table.check(name, schema)
        types = {column: settings.types.get(column, pyarrow().string()) for column in reader.names}
        with contextlib.closing(reader.batches(part, start, types, settings.table.columns)) as batches:
            for item in batches:
                if isinstance(item, FormatError):
                    yield bad_record(item)
                else:
                    yield from settings.table.samples(item)

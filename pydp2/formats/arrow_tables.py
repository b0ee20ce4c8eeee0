"""Common parts of the formats whose files hold tables of Arrow: parquet, arrow, csv.

:class:`TableSlots` are the columns that a provider serves: which there are, the slot of each, what stands for a null.
:mod:`pydp2.data.packers.arrow_values` knows Arrow's types and buffers. See docs/formats.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pydp2.data.packers.arrow_values import (
    as_arrow,
    decoded_dictionary,
    flattened_types,
    input_type,
    plain_values,
    pyarrow,
    table_columns,
    undecodable,
    without_views,
)
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import InputType, scalar
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, bad_value
from pydp2.file_parts import split_entry
from pydp2.formats.library_errors import errors_of
from pydp2.formats.serving import BLOCK, in_pieces

MAX_ROWS = 1 << 14
"""Most rows of a table that are decoded at a time."""
_CHUNK = 1 << 12  # rows that a worker sends together at most
_SHOWN = 8


def rows_of_block(row_bytes: float, kinds: Iterable[Any]) -> int:
    """Return how many rows are decoded at a time: rows of about ``row_bytes`` bytes, or more where the Arrow types
    ``kinds`` of the columns say so (values that are repeated take little room in a file)."""
    rows = max(1, min(MAX_ROWS, int(BLOCK / max(1, row_bytes, sum(map(_width, kinds))))))
    return rows - rows % _CHUNK if rows > _CHUNK else rows


def checked(file: str, batches: Generator[Any]) -> Iterator[Any]:
    """Yield ``batches``. Raise FormatError if a value is none of its type, such as text that is no UTF-8."""
    with contextlib.closing(batches):
        for batch in batches:
            with errors_of(file):
                batch.validate(full=True)
            yield batch


def chosen_names(columns: Any) -> tuple[str, ...] | None:
    """Return the option ``columns`` as a tuple of names; None: all. Raises OptionTypeError, OptionError."""
    if columns is None:
        return None
    if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
        raise OptionTypeError(f'columns must be a list of names, such as ["text", "label"], got {columns!r:.80}')
    if not columns or len(set(columns)) < len(columns):
        raise OptionError(f"columns must name each column once, got {columns!r:.80}")
    return tuple(columns)


def checked_nulls(nulls: Any) -> dict[str, Any]:
    """Return the option ``nulls``, a value for each column that may have nulls. Raises OptionTypeError."""
    if nulls is None:
        return {}
    if not isinstance(nulls, Mapping) or not all(isinstance(name, str) for name in nulls):
        raise OptionTypeError(
            f'nulls must be a value for each column that may have nulls, such as {{"age": -1}}, got {nulls!r:.80}'
        )
    return dict(nulls)


def column_types(schema: Any, columns: Sequence[str] | None, file: str) -> dict[str, Any]:
    """Return the Arrow type of each of the ``columns`` of a pyarrow Schema, in their order, by its name; a field of a
    struct is ``a.b``, and a alone means all its fields. ``columns``: None for all.

    Raises OptionError: there is no such column, or a name occurs twice.
    """
    types: dict[str, Any] = {}
    for name, kind in flattened_types(schema):
        if name in types:
            raise OptionError(f"{file}: columns must have different names, but {name} occurs twice")
        types[name] = kind
    if columns is None:
        return types
    found: dict[str, Any] = {}
    for choice in columns:
        same = {name: kind for name, kind in types.items() if name == choice or name.startswith(f"{choice}.")}
        if not same:
            raise OptionError(f"{file} has no column {choice}; it has {_listed(types)}")
        found |= same
    return found


def _width(kind: Any) -> int:
    """Return the bytes of a value of a type of fixed size; of others those of an offset."""
    if pyarrow().types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 4


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + ", …" * (len(known) > _SHOWN)


class TableSlots:
    """Columns that a provider serves, each in a slot of its name.

    Args:
        file: the file that decides about them; None: there is none, and a placeholder is declared.
        schema: the pyarrow Schema of the file.
        columns: names of the columns, None for all.
        nulls: values for nulls, by column.

    Attributes:
        columns: as given.
        types: the input type of each column, by its name.

    Raises:
        OptionError, OptionTypeError: there is no such column, no slot takes its type, or a value in ``nulls`` does not
            fit its column.
    """

    def __init__(self, file: str | None, schema: Any, columns: Sequence[str] | None, nulls: Mapping[str, Any]) -> None:
        self._file, self.columns = file, columns
        self._nulls = dict(nulls)
        self.types: dict[str, InputType] = {}
        if file is None:
            self.types = {"data": scalar()}
            return
        kinds = column_types(schema, columns, file)
        for name, kind in kinds.items():
            try:
                self.types[name] = input_type(kind)
            except OptionTypeError as error:
                raise OptionTypeError(
                    f"{file}, column {name}: {error}; columns=[…] serves the columns that it names alone"
                ) from None
        for name, value in self._nulls.items():
            if name not in kinds:
                raise OptionError(f"nulls names the column {name}; {file} has {_listed(kinds)}")
            self._fill_value(name, value, kinds[name])
        if not self.types:
            raise OptionError(f"{file} has no columns")

    def _fill_value(self, name: str, value: Any, kind: Any) -> Any:
        pa = pyarrow()
        try:
            scalar = pa.scalar(value, kind.value_type if pa.types.is_dictionary(kind) else kind)
        except (ValueError, TypeError, NotImplementedError, OverflowError):
            scalar = None
        if scalar is None or not scalar.is_valid:
            raise OptionError(f"nulls: the column {name} is {kind}, and {value!r:.80} is no value of it") from None
        return scalar

    def check(self, file: str, schema: Any) -> None:
        """Raise FormatError unless a file of ``schema`` has the same columns; it names both files."""
        try:
            found = {name: input_type(kind) for name, kind in column_types(schema, self.columns, file).items()}
        except (OptionError, OptionTypeError) as error:
            raise FormatError(f"{file} must have the columns of {self._file}: {error}", file=file) from None
        for name in self.types.keys() | found.keys():
            expected, got = self.types.get(name), found.get(name)
            if expected != got:
                raise FormatError(
                    f"{file} must have the columns of {self._file}: column {name} is {expected or 'absent'} there and "
                    f"{got or 'absent'} here; columns=[…] serves the columns that it names alone",
                    file=file,
                )

    def samples(self, batch: Any) -> Iterator[ManySamples | BadSample]:
        """Yield the samples of a RecordBatch of checked columns, and an error in place of each that has a null or text
        that is no UTF-8."""
        columns = self._filled(batch)
        values, errors = {}, dict[int, BadSample]()
        for name, column in columns.items():
            values[name], missing = plain_values(column)
            if missing is not None:
                for row in np.flatnonzero(missing).tolist():
                    errors.setdefault(row, _null_error(name, column[row].is_valid))
            undecoded = undecodable(values[name])
            if undecoded is not None:
                for row in np.flatnonzero(undecoded).tolist():
                    errors.setdefault(row, bad_value(name, "text in UTF-8", "other bytes"))
        if not errors:
            yield rows(**values)
            return

        def piece(lo: int, hi: int) -> ManySamples:
            return rows(**{name: column.slice(lo, hi - lo) for name, column in columns.items()})

        yield from in_pieces(len(batch), errors, piece)

    def _filled(self, batch: Any) -> dict[str, Any]:
        """Return the columns of the slots of a batch, with values in place of nulls that have one."""
        given = table_columns(batch) or {}
        columns = {name: given[name] for name in self.types}
        for name, value in self._nulls.items():
            column = columns[name]
            if column.null_count:
                if pyarrow().types.is_dictionary(column.type):
                    column = decoded_dictionary(column)
                column = without_views(column)  # Arrow has no kernel that fills views
                columns[name] = as_arrow(
                    pyarrow("compute").coalesce(column, self._fill_value(name, value, column.type))
                )
        return columns


def first_table(
    file_list: Iterable[str], schema_of: Callable[[str], tuple[Any, bool]], columns: Any, nulls: Any
) -> TableSlots:
    """Return the slots for the first file of a list that has a row, or else for the first file.

    ``schema_of(file)`` returns its pyarrow Schema, and True if it has a row. ``columns``, ``nulls``: the options of the
    provider. Raises what :class:`TableSlots` does.
    """
    chosen, given = chosen_names(columns), checked_nulls(nulls)
    first: tuple[str | None, Any] = None, None
    for file in dict.fromkeys(split_entry(entry)[0] for entry in file_list):  # parts of one file come one by one
        schema, has_rows = schema_of(file)
        if has_rows or first[0] is None:
            first = file, schema
        if has_rows:
            break
    return TableSlots(*first, chosen, given)


def _null_error(name: str, is_list: bool) -> BadSample:
    if is_list:
        return bad_value(name, "a list without nulls", "one with a null")
    return bad_value(name, "a value", f'null; nulls={{"{name}": …}} gives a default')


def table_hook(schema_of: Callable[[str], tuple[Any, bool]]) -> Callable[..., None]:
    """Return the init_hook of a provider of tables, whose slots are the columns. ``schema_of``: see
    :func:`first_table`."""

    def hook(
        settings: Any,
        *,
        file_list: Any,
        is_train: bool,
        input_order: Any,
        columns: Sequence[str] | None = None,
        nulls: Mapping[str, Any] | None = None,
    ) -> None:
        settings.table = first_table(file_list, schema_of, columns, nulls)
        settings.input_types = settings.table.types

    return hook

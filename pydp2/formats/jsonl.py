"""JSON Lines: each line is a JSON object, plain, gzip or zstd. :mod:`.line_blocks` reads the lines.

msgspec decodes lines into the declared fields alone: what is not served makes no Python object. The values of a field
become one array for a block of lines. If a line of a block is wrong, the block is decoded again line by line, which
finds the wrong ones and serves the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, islice
from typing import Any, TypedDict

from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.json_fields import JsonField, declared, inferred, msgspec_library, with_nulls
from pydp2.formats.line_blocks import LineBlocks
from pydp2.formats.lines import good_only
from pydp2.formats.serving import bad_record, chosen_types, show_inferred
from pydp2.formats.source import PathOrFile
from pydp2.providers import provider

FIRST = 100
"""Number of lines, at the beginning of the first file, that decide the types of fields."""

_ERRORS = (ValueError, OverflowError, RecursionError)  # of msgspec and numpy, for a line that is wrong


def read(
    path: PathOrFile, *, start: int = 0, part: FilePart = WHOLE_FILE, fields: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a dict for each line that is not blank, from line ``start`` of the part on.

    Args:
        path: the file, plain, gzip or zstd.
        start: number of lines to skip; blank ones do not count. They are counted and not decoded.
        part: the part of the file to read; a compressed file has no parts.
        fields: the keys to keep; others are not decoded. A key that a line does not have is not in its dict.

    Raises:
        FormatError: a line is no JSON object in UTF-8, or has more than 16 MiB; damaged compression. The text names the
            line.
        OptionError: ``part`` is a part of a compressed file, or msgspec (zstandard, for zstd) is not installed.
        OSError: the file cannot be read.
    """
    return good_only(read_or_errors(path, start=start, part=part, fields=fields))


def read_or_errors(
    path: PathOrFile, *, start: int = 0, part: FilePart = WHOLE_FILE, fields: Sequence[str] | None = None
) -> Generator[dict[str, Any] | FormatError]:
    """Yield dicts as :func:`read` does, and an error in place of each wrong line. The lines after it follow."""
    if fields is not None and (isinstance(fields, str) or not all(isinstance(name, str) for name in fields)):
        raise OptionTypeError(f"fields must be a list of names, got {fields!r:.80}")
    kept: Any = dict[str, Any]
    if fields is not None:
        typed_dict: Any = TypedDict  # called by a name that mypy does not know, because it looks for a declaration
        kept = typed_dict("Line", dict.fromkeys(fields, Any), total=False)
    decode = msgspec_library().json.Decoder(kept).decode
    with LineBlocks(path, part) as lines:
        for block in lines.blocks(start):
            for i, line in enumerate(block):
                if line and not line.isspace():
                    try:
                        record = decode(line)
                    except _ERRORS as error:
                        record = lines.error(i, _meaning(error, line))
                    yield record


def _meaning(error: Exception, line: bytes) -> str:
    """Return what is wrong with a line, and what helps."""
    said = str(error)
    if isinstance(error, RecursionError):
        said = "lists or objects are nested too deeply"
    elif isinstance(error, OverflowError):
        said = "an integer is beyond 64 bits; as float or text it can be served"
    elif "invalid character" in said and any(word in line for word in (b"NaN", b"Infinity")):
        said += "; JSON has no NaN and no Infinity: write null, and nulls= gives its value"
    elif "got `null`" in said or "missing required field" in said:
        said += "; nulls= gives a value for null and for a missing key"
    elif "got `array`" in said and line.lstrip().startswith(b"["):
        said += "; each line must be an object"
    return said


# -- the provider ------------------------------------------------------------------------------------------------------
class _Decoding:
    """The fields that are served, and how lines become samples.

    Raises:
        OptionError: one field is within another.
    """

    def __init__(self, fields: Sequence[JsonField]) -> None:
        paths = {tuple(field.name.split(".")): field for field in fields}
        struct, attributes = _struct(paths)
        self._decode = msgspec_library().json.Decoder(struct).decode
        self._columns = [(field, _getter(attributes[path])) for path, field in paths.items()]

    def samples(self, lines: LineBlocks, block: list[bytes]) -> Iterator[ManySamples | BadSample]:
        """Yield the samples of a block of lines, and an error in place of each wrong one."""
        try:
            together = self._rows(list(map(self._decode, filter(None, block))))
        except _ERRORS:
            yield from self._one_by_one(lines, block)
        else:
            yield together

    def _one_by_one(self, lines: LineBlocks, block: list[bytes]) -> Iterator[ManySamples | BadSample]:
        good: list[Any] = []
        for i, line in enumerate(block):
            if not line or line.isspace():
                continue
            try:
                record = self._decode(line)
                self._rows([record])
                good.append(record)
            except _ERRORS as error:
                if good:
                    yield self._rows(good)
                good = []
                yield bad_record(lines.error(i, _meaning(error, line)))
        if good:
            yield self._rows(good)

    def _rows(self, records: list[Any]) -> ManySamples:
        return rows(**{field.name: field.column(list(map(get, records))) for field, get in self._columns})


def _struct(paths: Mapping[tuple[str, ...], JsonField]) -> tuple[Any, dict[tuple[str, ...], list[str]]]:
    """Return a type of msgspec for an object with the values at ``paths``, and the attributes that lead to each."""
    members: list[tuple[Any, ...]] = []
    keys: dict[str, str] = {}
    attributes: dict[tuple[str, ...], list[str]] = {}
    for key, group in groupby(sorted(paths.items()), lambda item: item[0][0]):
        inner = {path[1:]: field for path, field in group}
        attribute = f"f{len(members)}"
        keys[attribute] = key
        may_miss = all(field.null for field in inner.values())
        if () in inner:
            if len(inner) > 1:
                raise OptionError(f"fields: {inner[()].name!r} is a field, so no field can be within it")
            value_type: Any = inner[()].value_type()
            attributes[(key,)] = [attribute]
        else:
            value_type, within = _struct(inner)
            attributes |= {(key, *path): [attribute, *names] for path, names in within.items()}
        members.append((attribute, value_type | None, None) if may_miss else (attribute, value_type))
    members.sort(key=len)  # those with a default come last
    return msgspec_library().defstruct("Line", members, rename=keys, gc=False), attributes


def _getter(attributes: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that gets a value of a decoded line; None if an object on the way is."""
    first = operator.attrgetter(attributes[0])
    if len(attributes) == 1:
        return first
    inner = _getter(attributes[1:])
    return lambda record: None if (value := first(record)) is None else inner(value)


def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    nulls: Mapping[str, Any] | None = None,
) -> None:
    served = chosen_types("field", fields, declared, lambda names: _inferred(file_list, names))
    if not isinstance(fields, Mapping):
        show_inferred(settings.logger, "fields", {field.name: field.type_text for field in served})
    settings.table = _Decoding(with_nulls(served, {} if nulls is None else nulls))
    settings.input_types = {field.name: field.slot for field in served}


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int) -> Iterator[ManySamples | BadSample]:
    """Serve the fields of JSON Lines files.

    Slots: one for each field, with its name.

    Arguments of the hook:
        fields: the fields to serve: a list of names, or a dict of their types. A name ``a.b`` is the key b of the
            object at key a. A type is "text", "bool" or a dtype of numpy; "int" is int64, "float" float32. With an "s"
            or "[]" behind it a value is a list, with "[N]" a list of N numbers. Default: all fields of the first lines.
        nulls: a dict of values by field, for null and for a missing key. Without it both are bad samples.
    """
    name, part = split_entry(filename)
    with LineBlocks(name, part) as lines:
        for block in lines.blocks(start):
            yield from settings.table.samples(lines, block)


def _inferred(file_list: Any, names: Sequence[str] | None) -> list[JsonField]:
    """Return the fields ``names``, or all, with the types that they have in the first file that has a line."""
    for path in dict.fromkeys(split_entry(entry)[0] for entry in file_list):
        with closing(read_or_errors(path)) as records:
            first = list(islice(records, FIRST))
        good = [record for record in first if not isinstance(record, FormatError)]
        if good:
            return inferred(good, names, path)
        if isinstance(wrong := next(iter(first), None), FormatError):
            raise wrong
    raise OptionError('no file has a line that could decide the slots: give fields={"NAME": "TYPE", …}')

"""TFRecord files of tf.train.Example, plain or gzip, without TensorFlow.

:mod:`.tfrecord_file` reads records, :mod:`.tf_example` the Examples in them. The lists of one feature of a block of
records become one array. If a record of a block is wrong, its records are decoded again one by one, which finds the
wrong ones and serves the others.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, Ragged, StringArray
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import (
    InputType,
    dense_vector,
    raw,
    raw_sequence,
    scalar,
    scalar_sequence,
    text,
    text_sequence,
)
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, count_text
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats import tf_example
from pydp2.formats.lines import good_only
from pydp2.formats.serving import bad_record, chosen_types, show_inferred
from pydp2.formats.source import PathOrFile
from pydp2.formats.tf_example import BYTES, FLOATS, INTEGERS
from pydp2.formats.tfrecord_file import RecordBlock, RecordFile
from pydp2.providers import provider

Places = Mapping[bytes, tuple[int, int]]
"""Position of the feature of each name in a record."""

_TYPE = re.compile(r"(bytes|text|int|float)(s|\[\]|\[([1-9]\d{0,8})\])?")
_KIND_OF = {"bytes": BYTES, "text": BYTES, "int": INTEGERS, "float": FLOATS}


def records(path: PathOrFile, *, start: int = 0, part: FilePart = WHOLE_FILE) -> Iterator[bytes]:
    """Yield the data of each record from record ``start`` of the part on, for what is no Example.

    Raises:
        FormatError: a checksum is wrong, or the file ends within a record.
        OptionError: ``part`` is a part of a gzip file.
        OSError: the file cannot be read.
    """
    return good_only(_records(path, start, part))


def _records(path: PathOrFile, start: int, part: FilePart) -> Generator[bytes | FormatError]:
    with RecordFile(path, part) as file:
        for block in file.blocks(start):
            yield from block


def read(
    path: PathOrFile, *, start: int = 0, part: FilePart = WHOLE_FILE, features: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a dict for each Example from record ``start`` of the part on: a list of bytes, or an array ``(values,)`` of
    float32 or int64, by the name of the feature.

    Args:
        path: the file, plain or gzip.
        start: number of records to skip; of them only lengths are read and checked.
        part: the part of the file to read: ranges of bytes; a gzip file has no parts.
        features: the features to decode, default all. One that a record does not have is not in its dict.

    Raises:
        FormatError: a checksum is wrong, the file ends within a record, or a record is no Example.
        OptionError: ``part`` is a part of a gzip file.
        OSError: the file cannot be read.
    """
    return good_only(_examples(path, start, part, features))


def _examples(
    path: PathOrFile, start: int, part: FilePart, features: Sequence[str] | None
) -> Generator[dict[str, Any] | FormatError]:
    kept = None if features is None else {name.encode() for name in features}
    with RecordFile(path, part) as file:
        for block in file.blocks(start):
            for i, data in enumerate(block):
                if isinstance(data, FormatError):
                    yield data
                    continue
                try:
                    found = tf_example.features_of(data)
                    named = found if kept is None else {name: found[name] for name in kept & found.keys()}
                    example = {name.decode(): _values(data, *place) for name, place in named.items()}
                except ValueError as error:
                    yield file.error(i, f"no Example: {error}")
                else:
                    yield example


def _values(data: bytes, start: int, stop: int) -> Any:
    kind = tf_example.kind_of(data, start, stop)
    if kind in (0, BYTES):
        return [bytes(value) for value in tf_example.strings_of(data, start, stop) or ()]
    decode = tf_example.floats if kind == FLOATS else tf_example.integers
    return decode([tf_example.numbers_of(data, start, stop, kind) or b""])[0]


# -- the provider ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Feature:
    """A feature that is served.

    Attributes:
        name: its name, also that of the slot.
        kind: "bytes", "text", "int" or "float".
        length: None: one value; 0: a list of any length; n: a list of n numbers.
    """

    name: str
    kind: str
    length: int | None

    @property
    def type_text(self) -> str:
        """Text from which :func:`_declared` makes its type."""
        return self.kind if self.length is None else f"{self.kind}[{self.length or ''}]"

    @property
    def slot(self) -> InputType:
        if self.kind in ("bytes", "text"):
            types = (raw, raw_sequence) if self.kind == "bytes" else (text, text_sequence)
            return types[self.length is not None]()
        dtype = "int64" if self.kind == "int" else "float32"
        if self.length is None:
            return scalar(dtype)
        return dense_vector(self.length, dtype=dtype) if self.length else scalar_sequence(dtype)

    def column(self, records: _Records) -> Any:
        """Return the values of the feature in records as ``rows`` takes them.

        Raises ValueError: it does not fit, or a record does not have it.
        """
        try:
            values, counts = self._values(records)
        except ValueError as error:
            raise ValueError(f"feature {self.name!r}: {error}") from None
        if self.length == 0:
            return Ragged(values, _edges(counts))
        wrong = counts != (self.length or 1)
        if wrong.any():
            raise ValueError(
                f"feature {self.name!r}: expected {count_text(self.length or 1, 'value')}, got "
                f'{counts[wrong.argmax()]}; the type "{self.kind}s" is for lists of any length'
            )
        return values.reshape(-1, self.length) if self.length else values

    def _values(self, records: _Records) -> tuple[Any, NDArray[np.int64]]:
        """Return the values of all records, and how many each has."""
        key, kind = self.name.encode(), _KIND_OF[self.kind]
        together = records.lists_of(key, kind)
        if together is not None and kind == BYTES:
            data, sizes = together
            return _joined(data, sizes, self.kind == "text"), np.ones(len(sizes), np.int64)
        return together or self._values_one_by_one(records.examples, key, kind)

    def _values_one_by_one(
        self, examples: Sequence[tuple[bytes, Places]], key: bytes, kind: int
    ) -> tuple[Any, NDArray[np.int64]]:
        lists: list[Any] = []
        for data, places in examples:
            place = places.get(key)
            one: Any = None
            if place is None:
                pass
            elif kind == BYTES:
                one = tf_example.strings_of(data, *place)
            else:
                one = tf_example.numbers_of(data, *place, kind)
            if one is None and self.length != 0:
                have = ", ".join(name.decode("utf-8", "backslashreplace") for name in sorted(places))
                raise ValueError(f"the record has no value of it; it has {have or 'no features':.200}")
            lists.append(one or b"")
        if kind == FLOATS:
            return tf_example.floats(lists)
        if kind == INTEGERS:
            return tf_example.integers(lists)
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        strings = [value for one in lists for value in one]
        sizes = np.fromiter(map(len, strings), np.int64, len(strings))
        return _joined(np.frombuffer(b"".join(strings), np.uint8), sizes, self.kind == "text"), counts


class _Records:
    """Records of a block, all of them right; ``examples``: each with the places of its features, found once."""

    def __init__(self, block: RecordBlock, only: slice = slice(None)) -> None:
        self._data, self._starts, self._stops = block.data, block.starts[only], block.stops[only]

    def lists_of(self, name: bytes, kind: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the values of a feature and how many each record has: see :func:`.tf_example.lists_of`."""
        return tf_example.lists_of(self._data, self._starts, self._stops, name, kind)

    @cached_property
    def examples(self) -> list[tuple[bytes, Places]]:
        pairs = zip(self._starts.tolist(), self._stops.tolist(), strict=True)
        records = [self._data[start:stop] for start, stop in pairs]
        return [(record, tf_example.features_of(record)) for record in records]


def _joined(data: NDArray[np.uint8], sizes: NDArray[np.int64], is_text: bool) -> BinaryArray | StringArray:
    return (StringArray if is_text else BinaryArray)(_edges(sizes), data)


def _edges(counts: NDArray[np.int64]) -> Any:
    return np.concatenate(([0], np.cumsum(counts)))


def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    features: Sequence[str] | Mapping[str, str] | None = None,
) -> None:
    served = chosen_types("feature", features, _declared, lambda names: _inferred(file_list, names))
    if not isinstance(features, Mapping):
        show_inferred(settings.logger, "features", {feature.name: feature.type_text for feature in served})
    settings.features = served
    settings.input_types = {feature.name: feature.slot for feature in served}


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int) -> Iterator[ManySamples | BadSample]:
    """Serve the features of Examples in TFRecord files.

    Slots: one for each feature, with its name.

    Arguments of the hook:
        features: the features to serve: a list of names, or a dict of their types: "bytes", "text", "int" or "float";
            with an "s" or "[]" behind it a value is a list, with "[N]" a list of N numbers. Default: all features of
            the first record, with the types that they have there: a feature with one value is no list.
    """
    name, part = split_entry(filename)
    with RecordFile(name, part) as file:
        for block in file.blocks(start):
            try:
                together = None if block.errors else _rows(settings.features, _Records(block))
            except ValueError:
                together = None
            if together is None:
                yield from _one_by_one(file, settings.features, block)
            else:
                yield together


def _one_by_one(
    file: RecordFile, features: Sequence[_Feature], block: RecordBlock
) -> Iterator[ManySamples | BadSample]:
    """Yield the right records, and an error in place of each wrong one."""
    for i in range(len(block)):
        if i in block.errors:
            yield bad_record(block.errors[i])
            continue
        try:
            alone = _rows(features, _Records(block, slice(i, i + 1)))
        except ValueError as error:
            yield bad_record(file.error(i, str(error)))
        else:
            yield alone


def _rows(features: Sequence[_Feature], records: _Records) -> ManySamples:
    """Return records as samples. Raises ValueError: one of them is wrong."""
    return rows(**{feature.name: feature.column(records) for feature in features})


def _declared(name: Any, kind: Any) -> _Feature:
    """Return the feature of an entry of ``features``."""
    if not isinstance(name, str) or not isinstance(kind, str):
        raise OptionTypeError(
            f"features must be a list of names, or a dict of types by name, got {kind!r:.40} of {name!r:.40}"
        )
    found = _TYPE.fullmatch(kind)
    if found is None or (found[3] and _KIND_OF[found[1]] == BYTES):
        raise OptionError(
            f"the type of feature {name!r} must be bytes, text, int or float, each with an s or [] for a list, [N] for "
            f"a list of N numbers; got {kind!r:.40}"
        )
    return _Feature(name, found[1], int(found[3] or 0) if found[2] else None)


def _inferred(file_list: Any, names: Sequence[str] | None) -> list[_Feature]:
    """Return the features ``names``, or all, with the types that they have in the first record of all files."""
    for path in dict.fromkeys(split_entry(entry)[0] for entry in file_list):
        with closing(_examples(path, 0, WHOLE_FILE, None)) as examples:
            for first in islice(examples, 1):
                if isinstance(first, FormatError):
                    raise first
                return [_typed(name, first, path) for name in (sorted(first) if names is None else names)]
    raise OptionError('no file has a record that could decide the slots: give features={"NAME": "TYPE", …}')


def _typed(name: str, record: Mapping[str, Any], path: str) -> _Feature:
    """Return a feature with the type that it has in ``record``."""
    if name not in record:
        near = get_close_matches(name, record, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        have = ", ".join(sorted(record))
        raise OptionError(f"{path}: no feature {name!r:.80} in its first record{hint}; it has {have:.200}")
    values = record[name]
    if isinstance(values, list) and not values:
        raise OptionError(f"{path}: the feature {name!r:.80} is empty in the first record: give its type in features=")
    kind = "bytes" if isinstance(values, list) else "int" if values.dtype == np.int64 else "float"
    return _declared(name, kind if len(values) == 1 else f"{kind}s")

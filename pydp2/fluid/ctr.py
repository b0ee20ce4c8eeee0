"""Read click logs, lines of text in two forms. The threads that read the files also make the batches."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import BadSample, OptionError, OptionTypeError, at_sample, count_text
from pydp2.fluid.files import Name, text_of
from pydp2.fluid.prefetching import InstanceQueue, PrefetchingReader, PutInstances
from pydp2.fluid.tensors import Instance, LoDTensor
from pydp2.formats.first_bytes import COUNT, looks_like
from pydp2.options.values import Choice, integer_from

_ID_RANGE = 1 << 63
_FLOAT_END = 2.0**128 - 2.0**103
"""The smallest number that float32 rounds to infinity."""
_ESCAPED = "surrogateescape"
Row = list[Any]
"""The columns of one line. Each is a list: one label, ids, or floats."""


@dataclass(frozen=True)
class SvmLine:
    """The form ``label id:slot id:slot …``. Columns: the ids of each of ``slots`` ([0] if the line has none), then the
    label: 1 if it is above 0, otherwise 0."""

    slots: tuple[str, ...]

    def row(self, line: str) -> Row:
        """Return the columns of ``line``. Raises ValueError that says what is wrong with it."""
        label, *pairs = line.split()
        ids: dict[str, list[int]] = {slot: [] for slot in self.slots}
        for pair in pairs:
            number, colon, slot = pair.partition(":")
            if not colon or not slot:
                raise ValueError(f"expected id:slot, got {pair!r:.80}")
            if slot in ids:
                ids[slot].append(_id(number))
        return [*(found or [0] for found in ids.values()), [int(_number(label) > 0)]]

    def tensors(self, rows: list[Row]) -> Instance:
        """Return the columns of ``rows`` as tensors: for each slot the ids, int64 (n, 1) with LoD, then the labels,
        int64 (lines, 1)."""
        *slots, labels = zip(*rows, strict=True)
        return (*map(_ids, slots), LoDTensor(np.array(labels, np.int64)))


@dataclass(frozen=True)
class CsvLine:
    """The form with blanks between groups, and commas between the values of a group. Group 0 is the label. Columns: the
    label, the ``dense`` groups, the ``sparse`` groups."""

    dense: tuple[int, ...]
    sparse: tuple[int, ...]

    def row(self, line: str) -> Row:
        """Return the columns of ``line``. Raises ValueError that says what is wrong with it."""
        groups = line.split()
        wanted = max(0, *self.dense, *self.sparse)
        if wanted >= len(groups):
            raise ValueError(f"expected at least {count_text(wanted + 1, 'group')}, got {len(groups)}")
        return [
            [_whole(groups[0], _ID_RANGE)],
            *([_number(value) for value in groups[i].split(",")] for i in self.dense),
            *([_id(value) for value in groups[i].split(",")] for i in self.sparse),
        ]

    def tensors(self, rows: list[Row]) -> Instance:
        """Return the columns of ``rows`` as tensors: labels, int64 (lines, 1); dense groups, float32 (lines, width);
        ids, int64 (n, 1) with LoD.

        Raises ValueError if the lines differ in the width of a dense group.
        """
        labels, *groups = zip(*rows, strict=True)
        dense, sparse = groups[: len(self.dense)], groups[len(self.dense) :]
        for i, group in zip(self.dense, dense, strict=True):
            widths = sorted({len(values) for values in group})
            if len(widths) > 1:
                raise ValueError(f"dense group {i} has lines of {widths[0]} and of {widths[1]} values in one batch")
        return (
            LoDTensor(np.array(labels, np.int64)),
            *(LoDTensor(np.array(group, np.float32)) for group in dense),
            *map(_ids, sparse),
        )


def _ids(lines: Sequence[list[int]]) -> LoDTensor:
    ends = np.cumsum([0, *map(len, lines)])
    flat: NDArray[np.int64] = np.array([number for ids in lines for number in ids], np.int64)
    return LoDTensor(flat.reshape(-1, 1), [ends])


def _id(text: str) -> int:
    """Return an id as int64 can hold it. An unsigned id from 2**63 on becomes the negative number with the same
    bits."""
    number = _whole(text, 2 * _ID_RANGE)
    return number - 2 * _ID_RANGE if number >= _ID_RANGE else number


def _whole(text: str, end: int) -> int:
    try:
        number = int(_plain(text))
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r:.80}") from None
    if not -_ID_RANGE <= number < end:
        raise ValueError(f"expected a number from -2**63 to below 2**{end.bit_length() - 1}, got {text!r:.80}")
    return number


def _number(text: str) -> float:
    try:
        number = float(_plain(text))
    except ValueError:
        raise ValueError(f"expected a number, got {text!r:.80}") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {text!r:.80}")
    if abs(number) >= _FLOAT_END:
        raise ValueError(f"expected a number that float32 holds, got {text!r:.80}")
    return number


def _plain(text: str) -> str:
    """Return ``text``. Raises ValueError for texts that only Python reads as numbers: ``1_0``, digits of other
    scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


class CtrReader(PrefetchingReader):
    """See :func:`ctr_reader`."""

    def __init__(
        self, files: Sequence[str], gzipped: bool, form: SvmLine | CsvLine, batch: int, threads: int, size: int
    ) -> None:
        super().__init__(size, "pydp2-ctr")
        threads = min(threads, len(files))
        self._dealt = [tuple(files[i::threads]) for i in range(threads)]
        self._gzipped, self._form, self._batch = gzipped, form, batch

    def _producers(self) -> Sequence[PutInstances]:
        return [_batches_of(files, self._gzipped, self._form, self._batch) for files in self._dealt]


def _batches_of(files: Sequence[str], gzipped: bool, form: SvmLine | CsvLine, size: int) -> PutInstances:
    def put_batches(queue: InstanceQueue) -> None:
        rows: list[Row] = []
        first = ("", 0)
        for name in files:
            with closing(_lines(name, gzipped)) as lines:
                for y, line in lines:
                    try:
                        rows.append(form.row(line))
                    except ValueError as error:
                        raise _bad(name, y, str(error)) from None
                    if len(rows) == 1:
                        first = (name, y)
                    if len(rows) == size:
                        queue.put(_tensors(form, rows, first))
                        rows = []
        if rows:
            queue.put(_tensors(form, rows, first))

    return put_batches


def _tensors(form: SvmLine | CsvLine, rows: list[Row], first: tuple[str, int]) -> Instance:
    try:
        return form.tensors(rows)
    except ValueError as error:
        raise _bad(*first, f"{error} ({count_text(len(rows), 'line')} from here on)") from None


def _lines(name: str, gzipped: bool) -> Generator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 0."""
    code = "utf-8-sig"  # skips a byte order mark, which some programs write
    with (gzip.open if gzipped else open)(name, "rt", encoding=code, errors=_ESCAPED) as file:
        y = 0
        while True:
            try:
                line = file.readline()
                if not line.isascii():
                    line.encode(errors=_ESCAPED).decode()  # bytes that are no text are an error of their line
            except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
                raise _bad(name, y, f"it cannot be read as text: {error}") from error
            if not line:
                return
            if line.strip():
                yield y, line
            y += 1


def _bad(name: str, y: int, what: str) -> BadSample:
    """Return the error of line ``y``. For the first line the text says what the file looks like, if that is no text."""
    known = ""
    if y == 0:
        with open(name, "rb") as file:
            known = looks_like(file.read(COUNT))
    return BadSample(at_sample(name, y, "", f"{what}; the file looks like {known}" if known else what))


def ctr_reader(  # noqa: PLR0913 - the arguments are Fluid's
    file_list: Name | Sequence[Name],
    *,
    batch_size: int,
    file_type: str = "plain",
    file_format: str = "svm",
    slots: Sequence[str | int] = (),
    dense_slot_index: Sequence[int] = (),
    sparse_slot_index: Sequence[int] = (),
    thread_num: int = 1,
    capacity: int = 64,
) -> CtrReader:
    """Return a reader of click logs; an instance is a batch of ``batch_size`` lines. The last batch of each thread may
    be smaller.

    ``file_type``: ``"plain"`` or ``"gzip"``. ``file_format="svm"``: lines ``label id:slot id:slot …``; an instance has
    the ids of each of ``slots``, in their order, int64 (n, 1) with LoD, [0] for a line without ids for the slot; then
    the labels, int64 (lines, 1), 1 for a label above 0, otherwise 0. ``"csv"``: groups, with blanks between them, of
    values, with commas between them; group 0 is the label. An instance has the labels, int64 (lines, 1), the groups of
    ``dense_slot_index``, float32 (lines, width), and the groups of ``sparse_slot_index``, int64 (n, 1) with LoD. Ids
    from 2**63 to below 2**64 become the int64 with the same bits. The reader divides the files among ``thread_num``
    threads, at most one thread for each file. At most ``capacity`` batches wait in the queue.

    Raises OptionError and OptionTypeError for invalid values. While reading it raises BadSample for an invalid line,
    with the file and the line (from 0), and OSError if a file cannot be read. See docs/fluid.md.
    """
    names = [file_list] if isinstance(file_list, str | os.PathLike) else file_list
    if not isinstance(names, Iterable):
        raise OptionTypeError(f"file_list must be a list of names, or one name, got {file_list!r:.80}")
    files = list(map(text_of, names))
    if not files:
        raise OptionError(f"file_list must be a list of at least one name, got {file_list!r:.80}")
    form = Choice(("svm", "csv"))("file_format", file_format)
    if form == "csv" and slots:
        raise OptionError(f"slots belong to file_format='svm', csv has groups; leave them out, got {slots!r:.80}")
    line = _svm(slots) if form == "svm" else _csv(dense_slot_index, sparse_slot_index)
    return CtrReader(
        files,
        Choice(("plain", "gzip"))("file_type", file_type) == "gzip",
        line,
        integer_from(1)("batch_size", batch_size),
        integer_from(1)("thread_num", thread_num),
        integer_from(1)("capacity", capacity),
    )


def _svm(slots: Sequence[str | int]) -> SvmLine:
    if not isinstance(slots, Sequence):
        raise OptionTypeError(f"slots must be a list of the wanted slots, got {slots!r:.80}")
    names = tuple(map(str, slots))
    if isinstance(slots, str) or not names or len(set(names)) < len(names):
        raise OptionError(f"slots must be a list of the wanted slots, each once, got {slots!r:.80}")
    return SvmLine(names)


def _csv(dense: Sequence[int], sparse: Sequence[int]) -> CsvLine:
    for name, given in (("dense_slot_index", dense), ("sparse_slot_index", sparse)):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise OptionTypeError(f"{name} must be a list of groups, got {given!r:.80}")
    check = integer_from(1)
    if not dense and not sparse:
        raise OptionError(
            "csv needs groups: name some in dense_slot_index or sparse_slot_index, from 1 (0 is the label)"
        )
    return CsvLine(
        tuple(check("dense_slot_index", i) for i in dense), tuple(check("sparse_slot_index", i) for i in sparse)
    )

"""Read the file of a block list: the samples that a service never delivers (docs/bad-data.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionError
from pydp2.options.file_list import FileList
from pydp2.system.file_bytes import read_named

Ints = NDArray[np.int64]
_MAX_BYTES = 1 << 32
_MAX_SAMPLES = 1 << 28  # an array of them has 2 GiB
_SAMPLES = re.compile(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", re.ASCII)
_FORM = "a line must be ENTRY, a tab, and the number of a sample or a range such as 10-20"


def read_block_list(path: str | os.PathLike[str], files: FileList) -> tuple[Ints, Ints]:
    """Return the samples that the block list at ``path`` names: numbers of entries of ``files``, and sample indices.

    Both are int64 of shape (samples,). A line of the UTF-8 text names an entry as ``files`` has it, and after a tab one
    sample or a range (both ends included). Blank lines, and lines that begin with ``#``, say nothing. If the list has
    the entry several times, the line holds for all of them. A sample may be named several times.

    Raises:
        OptionError: the file is missing, unreadable or not UTF-8, a line has another form, or names an entry that is
            not in ``files``. The text names file and line.
    """
    lines = [*_lines_of(os.fspath(path))]
    named = {entry for _, entry, _ in lines}
    numbers: dict[str, list[int]] = {}
    for number, entry in enumerate(files):
        if entry in named:
            numbers.setdefault(entry, []).append(number)
    found: list[tuple[int, int, int]] = []  # number of the entry, first and last sample
    total = 0
    for where, entry, samples in lines:
        if entry.startswith("#") and entry not in numbers:
            continue
        first, last = _range_of(where, entry, samples)
        if entry not in numbers:
            raise OptionError(
                f"{where}: the file list has no entry {entry!r}; write the entry as the list has it, or as it is in "
                "data.files if the list has a pattern"
            )
        found += ((number, first, last) for number in numbers[entry])
        total += (last - first + 1) * len(numbers[entry])
        if total > _MAX_SAMPLES:
            raise OptionError(
                f"{where}: a block list may name {_MAX_SAMPLES:,} samples, and up to here it names {total:,}; take "
                "entries that are not wanted at all out of the file list"
            )
    return _expanded(found)


def _expanded(ranges: list[tuple[int, int, int]]) -> tuple[Ints, Ints]:
    number, first, last = np.array(ranges, np.int64).reshape(-1, 3).T
    counts = last - first + 1
    before = np.cumsum(counts) - counts
    return np.repeat(number, counts), np.arange(int(counts.sum())) + np.repeat(first - before, counts)


def _lines_of(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each line of the file its place, its entry, and the text of its samples; both texts are those of the
    line itself if it has no tab."""
    try:
        text = read_named(source, _MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise OptionError(f"the block list {source} is missing; relative names are looked up in {Path.cwd()}") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"the block list {source} must be UTF-8: {error.reason}; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(f"the block list {source} cannot be read: {reason}") from None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            entry, _, samples = line.rpartition("\t")
            yield f"block list {source}, line {number}", entry or line, samples


def _range_of(where: str, entry: str, samples: str) -> tuple[int, int]:
    """Return the first and the last sample that a line names."""
    if (match := _SAMPLES.fullmatch(samples)) is None:
        have = f"{samples!r:.80} as its samples" if samples != entry else f"no tab: {entry!r:.80}"
        raise OptionError(f"{where}: {_FORM}; it has {have}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise OptionError(f"{where}: {_FORM}; it has {samples.strip()!r}, which ends before it begins")
    return first, last

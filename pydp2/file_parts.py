"""Name parts of one large file in a file list, and compute which bytes or rows belong to each.

An entry that ends in ``?part=3/12`` means part 3 of 12 of the file named before it; parts count from 0. Any other entry
is a whole file. If the name of a file itself ends like that, append ``?part=0/1``: only the last ending counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydp2.errors import OptionError, OptionTypeError

MAX_FILE_PARTS = 10**9 - 1
"""Number of parts that an entry can name at most."""

_PART_SUFFIX = re.compile(r"\?part=([0-9]{1,9})/([0-9]{1,9})\Z")


@dataclass(frozen=True)
class FilePart:
    """Part of a file.

    Attributes:
        index: number of the part, from 0 to ``count - 1``.
        count: number of parts that the file has.

    Raises:
        OptionError: there is no such part.
        OptionTypeError: ``index`` or ``count`` is not an integer.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if type(self.index) is not int or type(self.count) is not int:
            raise OptionTypeError(
                f"a part has two whole numbers, its index and the count of parts, got {self.index!r:.40} and "
                f"{self.count!r:.40}"
            )
        if self.count < 1 or not 0 <= self.index < self.count:
            raise OptionError(
                f"a part must be INDEX/COUNT with 0 <= INDEX < COUNT, got {self.index}/{self.count}; parts count from 0"
            )

    def range(self, total: int) -> tuple[int, int]:
        """Return the range ``[from, to)`` of ``total`` items, such as rows or bytes, that are in this part. Parts are
        disjoint, complete, in order, and their sizes differ by at most one."""
        return total * self.index // self.count, total * (self.index + 1) // self.count


WHOLE_FILE = FilePart(0, 1)


def split_entry(entry: str) -> tuple[str, FilePart]:
    """Return the file and the part that an entry of a file list names.

    Raises:
        OptionError: there is no such part, as in ``?part=12/12``.
    """
    found = _PART_SUFFIX.search(entry)
    if found is None:
        return entry, WHOLE_FILE
    try:
        return entry[: found.start()], FilePart(int(found[1]), int(found[2]))
    except OptionError as error:
        raise OptionError(f"{entry}: {error}; a file of that very name is written {entry}?part=0/1") from None


def file_of(entry: str) -> str:
    """Return the file that ``entry`` names, even if there is no such part of it."""
    found = _PART_SUFFIX.search(entry)
    return entry if found is None else entry[: found.start()]


def part_entries(path: str, count: int) -> Iterator[str]:
    """Yield the entries that name all ``count`` parts of the file ``path``; for one part its name, if that is enough.

    Raises:
        OptionError: ``count`` is 0 or above :data:`MAX_FILE_PARTS`, or ``path`` has a line feed, which would end the
            entry.
    """
    FilePart(0, count)
    if count > MAX_FILE_PARTS:
        raise OptionError(f"a file has at most {MAX_FILE_PARTS} parts, got {count}")
    if "\n" in path:
        raise OptionError(f"a line of a file list cannot hold the name {path!r}")
    if count == 1 and not _PART_SUFFIX.search(path):
        yield path
        return
    for index in range(count):
        yield f"{path}?part={index}/{count}"

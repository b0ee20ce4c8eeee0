"""Read the file list of a pass, and hold a million entries in one block of memory.

This module reads ``train.list`` (byte order mark, line ends, blank lines, comments, patterns, UTF-8). It does not keep
one string per entry: the text of all entries is in one buffer, and an entry becomes a ``str`` when it is accessed. It
does not interpret entries: ``process`` gets an entry as it is, be it a path, a URL or a key. So the file system is
accessed only for a line that may be a pattern or a comment.

See docs/semantics.md for the forms of a line.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import ListError, OptionTypeError, RemoteProtocolError, count_text
from pydp2.file_parts import file_of
from pydp2.system.file_bytes import read_named

MOST_BYTES = 1 << 32
"""Most bytes of a list: tens of millions of entries."""
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_UNUSUAL_FIRST, _UNUSUAL_LAST = (np.isin(np.arange(256), list(odd)) for odd in (b" \t#", b" \t"))
_NEWLINE, _RETURN, _NUL = 10, 13, 0
_BLANKS = b" \t"
_PART_MARK = b"?part="  # as in big.rec?part=3/12, which names a part of the file before it
_WILDCARD = re.compile(
    rb"[*\[]|\?(?![A-Za-z_]\w*=)"
)  # a ? before name= begins the query of a URL, or names a part of a file


class FileList(Sequence[str]):
    """Entries of a file list, in order, duplicates included.

    Behaves as a read-only sequence of ``str``. Make one with :meth:`read` or :meth:`of`; copying one between processes
    goes through :meth:`to_buffers` and :meth:`from_buffers`.

    Attributes:
        blob: the UTF-8 text of all entries without anything between them (a read-only buffer).
        offsets: int64, shape (entries + 1,), read-only; entry i is ``blob[offsets[i]:offsets[i + 1]]``.
        source: the path that was read, or None for a list made in Python.
    """

    __slots__ = ("_bounds", "blob", "offsets", "source")

    def __init__(self, blob: bytes | memoryview, offsets: NDArray[np.int64], source: str | None = None) -> None:
        self.blob = memoryview(blob).toreadonly()
        self.offsets = offsets.view()
        self.offsets.flags.writeable = False
        self._bounds = self.offsets.data  # indexing it gives a plain int, several times faster than an array's element
        self.source = source

    @classmethod
    def read(cls, path: str | os.PathLike[str], root: str | os.PathLike[str] = ".") -> FileList:
        """Read a list file. See :meth:`parse`. Raises ListError, also if the file is missing, a directory, or
        unreadable."""
        source = os.fspath(path)
        return cls.parse(_read_list(source), source, root)

    @classmethod
    def parse(cls, data: bytes, source: str, root: str | os.PathLike[str] = ".") -> FileList:
        """Return the list with the text ``data``, which was read at ``source``: UTF-8, one entry per line.

        A byte order mark before a line, a carriage return before the line feed, and empty lines are dropped. A line
        that is exactly the name of a file in ``root`` is an entry. From other lines, blanks at both ends are removed.
        Lines that begin with ``#`` are comments. A line with wildcards stands for the files that match it, sorted,
        without directories (``**``: any depth); if it has only ``?`` or ``[`` and matches nothing, or has ``://`` in
        it, it is an entry. All other lines are entries. An empty list gives a ``UserWarning``.

        Raises:
            ListError: the text is not UTF-8, or has a NUL byte; a pattern with ``*`` matches no file, or a pattern
                matches a file whose name is not UTF-8. The text names ``source`` and line.
        """
        _check_text(data, source)
        blob, offsets, starts = _split_lines(data)
        special = _unusual_lines(data, blob, offsets, starts)
        if len(special):
            blob, offsets = _expand_lines(
                blob, offsets, special, _UnusualLines(data, starts, source, os.fsencode(Path(root).absolute()))
            )
        if len(offsets) == 1:
            warnings.warn(f"the file list {source} is empty: a pass over it has no samples", UserWarning, stacklevel=2)
        return cls(blob, offsets, source)

    @classmethod
    def of(cls, entries: Iterable[str | os.PathLike[str]], root: str | os.PathLike[str] | None = None) -> FileList:
        """Return a list with the given entries, unchanged (paths become text). An empty list gives a ``UserWarning``.

        With ``root``, an entry with wildcards stands for the files that match it there, as a line of a list file does.
        An entry that is the name of a file, that has ``://`` in it, or that matches no file stays as it is: it may be a
        key, such as the text of a query.

        Raises:
            OptionTypeError: ``entries`` is one string (for the path of a list, see :meth:`read`) or a set, or an entry
                is neither ``str`` nor a path.
            ListError: an entry, or the name of a file that it matches, cannot be written as UTF-8.
        """
        if isinstance(entries, Mapping):
            raise OptionTypeError(
                f"a file list must be the path of one or a list of entries, got a {type(entries).__name__} with the "
                f"keys {list(entries)!r:.80}; choose one of its values"
            )
        if isinstance(entries, (str, bytes, os.PathLike)):
            raise OptionTypeError(
                f"a file list must be a path in a str or several entries, got one {type(entries).__name__}: "
                f"{entries!r:.80}"
            )
        if not isinstance(entries, Iterable):
            raise OptionTypeError(
                f"a file list must be the path of one or a list of entries, got {entries!r:.80} "
                f"({type(entries).__name__})"
            )
        if isinstance(entries, set | frozenset):  # the order of a set of texts differs from run to run
            raise OptionTypeError(
                f"a file list must have an order, got a {type(entries).__name__}, which has none; write sorted(…)"
            )
        texts = [_encode_entry(entry, i) for i, entry in enumerate(entries)]
        if root is not None:
            texts = _expand_entries(texts, os.fsencode(Path(root).absolute()))
        if not texts:
            warnings.warn("the file list is empty: a pass over it has no samples", UserWarning, stacklevel=2)
        return cls._of_texts(texts)

    @classmethod
    def matching(cls, pattern: str, root: str | os.PathLike[str]) -> FileList:
        """Return the list of the files in ``root`` that match ``pattern``, sorted by name.

        Raises:
            ListError: no file matches, or the name of one is not UTF-8.
        """
        folder = os.fsencode(Path(root).absolute())
        found = _matching_files(_encode_entry(pattern, 0), folder, f"the pattern {pattern}")
        if not found:
            raise ListError(
                f"no file matches {pattern!r}{_folders_hint(pattern, folder)}; patterns are looked up in "
                f"{os.fsdecode(folder)}, or where root= (--root) says{_name_hint(pattern)}"
            )
        return cls._of_texts(found)

    @classmethod
    def _of_texts(cls, texts: list[bytes]) -> FileList:
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return cls(b"".join(texts), offsets)

    @classmethod
    def joined(cls, lists: Sequence[FileList]) -> FileList:
        """Return one list with the entries of ``lists``, in this order."""
        lengths = [np.diff(each.offsets) for each in lists]
        offsets = np.zeros(sum(map(len, lists)) + 1, np.int64)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return cls(b"".join(each.blob for each in lists), offsets)

    def part(self, start: int, stop: int) -> FileList:
        """Return the entries from number ``start`` to below ``stop``. Their text is not copied."""
        edges = self.offsets[start : stop + 1]
        return FileList(self.blob[edges[0] : edges[-1]], edges - edges[0])

    @classmethod
    def from_buffers(cls, blob: bytes | memoryview, offsets: bytes | memoryview, source: str | None = None) -> FileList:
        """Return the list that :meth:`to_buffers` took apart. The buffers are used in place, not copied.

        Raises:
            RemoteProtocolError: the buffers are not valid.
        """
        text, bounds = memoryview(blob).cast("B"), memoryview(offsets).cast("B")
        if not bounds.nbytes or bounds.nbytes % 8:
            raise RemoteProtocolError(
                f"a file list needs offsets of 8 bytes each, at least one; got {bounds.nbytes} bytes"
            )
        edges = np.frombuffer(bounds, "<i8").astype(np.int64, copy=False)
        if edges[0] != 0 or edges[-1] != text.nbytes or (edges[1:] < edges[:-1]).any():
            raise RemoteProtocolError("the offsets of a file list must rise from 0 to the size of its text")
        try:
            str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"the text of a file list must be UTF-8: {error}") from None
        starts = edges[edges < text.nbytes]
        if (np.frombuffer(text, np.uint8)[starts] & 0xC0 == 0x80).any():
            raise RemoteProtocolError("an entry of a file list begins inside a character")
        return cls(text, edges, source)

    def to_buffers(self) -> tuple[bytes, bytes]:
        """Return the text of all entries, and their offsets as little-endian int64, for another process."""
        return bytes(self.blob), self.offsets.astype("<i8").tobytes()

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the entries and their order, and not on the source."""
        digest = hashlib.blake2b(digest_size=16, person=b"pydp2 list")
        digest.update(self.offsets.astype("<i8").tobytes())
        digest.update(self.blob)
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"the file list has {count_text(count, 'entry', 'entries')}, asked for number {index}")
        position = index % count
        return str(self.blob[self._bounds[position] : self._bounds[position + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        blob, start = self.blob, 0
        for end in self._bounds[1:]:
            yield str(blob[start:end], "utf-8")
            start = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FileList):
            return self.blob == other.blob and np.array_equal(self.offsets, other.offsets)
        if isinstance(other, list | tuple):
            return len(other) == len(self) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it equals lists, which have no hash either

    def __repr__(self) -> str:
        shown = ", ".join(repr(entry) for entry in self[:3])
        more = f", … {len(self) - 3} more" if len(self) > 3 else ""
        origin = f" from {self.source}" if self.source else ""
        return f"<FileList of {len(self)}{origin}: [{shown}{more}]>"


def _read_list(source: str) -> bytes:
    try:
        return read_named(source, MOST_BYTES)
    except FileNotFoundError:
        directory = Path.cwd()
        raise ListError(
            f"the file list {source} is missing; relative names are looked up in {directory}{_name_hint(source)}"
        ) from None
    except IsADirectoryError:
        raise ListError(
            f"the file list must be a file with one entry per line; {source} is a directory: write {Path(source, '*')} "
            f"in its place to have its files, or {Path(source, '**')} to have those of its folders as well"
        ) from None
    except ValueError:  # a NUL in the name itself
        raise ListError(f"the file list cannot have the name {source!r}") from None
    except OSError as error:
        raise ListError(f"the file list {source} cannot be read: {error.strerror or error}") from None


def _name_hint(name: str) -> str:
    """Return text about a part of ``name`` that a shell would expand and pydp2 does not, or ''."""
    if re.search(r"(^|/)~[^/]*/", name):
        return "; ~ stands for no folder here, os.path.expanduser(…) replaces it"
    if any("," in braces or ".." in braces for braces in re.findall(r"\{[^{}]*\}", name)):
        return "; braces are no wildcards here: write *, or a list of all names"
    return ""


def _check_text(data: bytes, source: str) -> None:
    if data.startswith(_UTF16_BOMS):
        raise ListError(f"the file list {source} must be UTF-8, it looks like UTF-16; save it as UTF-8")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ListError(
            f"the file list {source} must be UTF-8; line {line} has the byte 0x{data[error.start]:02x}, "
            f"{error.reason}; save the list as UTF-8{_data_file_hint(source)}"
        ) from None
    nul = data.find(_NUL)
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise ListError(f"the file list {source} must be text; line {line} has a NUL byte{_data_file_hint(source)}")


def _data_file_hint(source: str) -> str:
    return f"; if this is a file of data, its list is [{source!r}] in Python, or a file with its name in it"


def _split_lines(data: bytes) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Split the lines without a string for each: 1,000,000 entries take some 50 ms and little memory.

    Return the text of the entries, their offsets in it, and their offsets in ``data``.
    """
    mark = len(_BOM) if data.startswith(_BOM) else 0
    text = np.frombuffer(data, np.uint8)[mark:]
    feeds = np.flatnonzero(text == _NEWLINE)
    starts = np.concatenate(([0], feeds + 1))
    ends = np.concatenate((feeds, [len(text)]))
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    returns = ends[text[ends - 1] == _RETURN] - 1
    lengths = ends - starts
    lengths[text[ends - 1] == _RETURN] -= 1
    keep = np.ones(len(text), bool)
    keep[feeds] = False
    keep[returns] = False
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return text[keep].tobytes(), offsets, starts + mark


def _unusual_lines(
    data: bytes, blob: bytes, offsets: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers of the lines that may be something other than a plain entry. They are few, as a rule."""
    text = np.frombuffer(blob, np.uint8)
    odd = _UNUSUAL_FIRST[text[offsets[:-1]]] | _UNUSUAL_LAST[text[offsets[1:] - 1]]
    if b"*" in data or b"[" in data or data.count(b"?") != data.count(_PART_MARK):  # most ? in long lists name parts
        found = np.fromiter((match.start() for match in _WILDCARD.finditer(data)), np.int64)
        odd[np.searchsorted(starts, found, "right") - 1] = True
    if data.find(_BOM, len(_BOM)) >= 0:  # one list behind another
        found = np.fromiter((match.start() for match in re.finditer(_BOM, data)), np.int64)
        odd |= np.isin(starts, found)
    return np.flatnonzero(odd)


@dataclass(frozen=True)
class _UnusualLines:
    """Lines that may be no entries. ``starts``: offsets of the entries in ``data``, the text of ``source``."""

    data: bytes
    starts: NDArray[np.int64]
    source: str
    root: bytes

    def entries_of(self, number: int, line: bytes) -> list[bytes]:
        """Return the entries for which ``line`` stands. As a plain line it would be entry ``number``."""
        if line.startswith(_BOM) and not self._exists(line):
            line = line.removeprefix(_BOM)
            if not line:
                return []
        if b"://" in line:
            return [line.strip(_BLANKS)]
        if self._exists(line):
            return [line]
        entry = line.strip(_BLANKS)
        if entry != line and entry and self._exists(entry):
            return [entry]
        if not entry or entry.startswith(b"#"):
            return []
        if not _WILDCARD.search(entry):
            return [entry]
        found = _matching_files(entry, self.root, self._place_of(number))
        if not found and b"*" in entry:
            raise ListError(
                f"{self._place_of(number)}: no file matches {entry.decode()!r}"
                f"{_folders_hint(entry.decode(), self.root)}; patterns are looked up in {os.fsdecode(self.root)}"
                f"{_name_hint(entry.decode())}. If the line is not a pattern, give the entries as a list in Python"
            )
        return found or [entry]

    def _place_of(self, number: int) -> str:
        """Return text with the file and the number of the line that would be entry ``number``."""
        line = self.data.count(b"\n", 0, int(self.starts[number])) + 1
        return f"the file list {self.source}, line {line}"

    def _exists(self, entry: bytes) -> bool:
        return _names_file(entry, self.root)


def is_pattern(text: str) -> bool:
    """Return True if ``text`` has wildcards, and is no URL."""
    return "://" not in text and _WILDCARD.search(os.fsencode(text)) is not None


def _path_of(name: bytes, root: bytes) -> bytes:
    return name if name.startswith(b"/") else root + b"/" + name


def _names_file(entry: bytes, root: bytes) -> bool:
    """Return True if ``entry`` names a file, whole or a part of it."""
    if os.path.lexists(_path_of(entry, root)):
        return True
    name, part, _ = entry.rpartition(_PART_MARK)
    return bool(part and name) and os.path.lexists(_path_of(name, root))


def _matching_files(pattern: bytes, root: bytes, where: str) -> list[bytes]:
    """Return the sorted names of the files that match ``pattern``; directories are left out. If it ends in ``?part=``,
    so does each name.

    Raises:
        ListError: the name of a file is not UTF-8; the text begins with ``where``, the location of the pattern.
    """
    text = pattern.decode()
    files = file_of(text)
    part = text[len(files) :].encode()  # appended to each file
    matches = glob.iglob(files, root_dir=os.fsdecode(root), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute ones
    found = sorted(name for name in matches if not os.path.isdir(_path_of(os.fsencode(name), root)))  # noqa: PTH112  # there may be a million
    try:
        return [name.encode() + part for name in found]
    except UnicodeEncodeError as error:
        raise ListError(
            f"{where}: entries must be UTF-8, and {text!r} matches the file "
            f"{os.fsencode(error.object)!r}; rename it, or write a pattern that leaves it out"
        ) from None


def _folders_hint(pattern: str, root: bytes) -> str:
    """Return a remedy if ``pattern``, which matches no file, matches folders; '' if it matches nothing."""
    if next(glob.iglob(pattern, root_dir=os.fsdecode(root), recursive=True), None) is None:  # noqa: PTH207
        return ""
    return f", only folders: write {str(Path(pattern, '*'))!r} to have the files in them"


def _expand_entries(texts: list[bytes], root: bytes) -> list[bytes]:
    """Replace the entries of a Python list that are patterns by the files that match them."""
    expanded: list[bytes] = []
    for i, text in enumerate(texts):
        if b"://" in text or not _WILDCARD.search(text) or _names_file(text, root):
            expanded.append(text)
        else:
            expanded += _matching_files(text, root, f"entry {i} of the file list") or [text]
    return expanded


def _expand_lines(
    blob: bytes, offsets: NDArray[np.int64], special: NDArray[np.int64], lines: _UnusualLines
) -> tuple[bytes, NDArray[np.int64]]:
    """Replace the ``special`` lines by the entries for which they stand."""
    bounds = offsets.data
    pieces: list[bytes] = []
    counts = np.ones(len(offsets) - 1, np.int64)  # number of entries for each line
    sizes: list[int] = []  # bytes of the entries of special lines
    at = 0
    for i in special.tolist():
        pieces.append(blob[bounds[at] : bounds[i]])
        entries = lines.entries_of(i, blob[bounds[i] : bounds[i + 1]])
        pieces += entries
        sizes += map(len, entries)
        counts[i] = len(entries)
        at = i + 1
    pieces.append(blob[bounds[at] :])
    replaced = np.zeros(len(counts), np.bool_)
    replaced[special] = True
    lengths = np.repeat(np.diff(offsets), counts)
    lengths[np.repeat(replaced, counts)] = sizes
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return b"".join(pieces), edges


def _encode_entry(entry: object, position: int) -> bytes:
    text = os.fspath(entry) if isinstance(entry, os.PathLike) else entry
    if not isinstance(text, str):
        raise OptionTypeError(f"entry {position} of the file list must be a str, got {type(text).__name__} {text!r}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ListError(
            f"entry {position} of the file list cannot be written as UTF-8: {text!r} ({error.reason})"
        ) from None

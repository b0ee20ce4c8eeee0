"""Pictures in files of their own: a folder with a folder for each class, or a list with a path and a label in a line.

Folder, list and pictures may be remote files.

All pictures are one entry of a file list, so that a million of them are not a million entries: the entry is the folder
or the list, and ``?part=`` divides it. A process looks for the pictures once; forked workers share what the hook found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, StringArray
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import integer_value, raw, scalar, text
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, bad_value
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats import serving
from pydp2.formats.decoders import ImageDecoder, image_decoder
from pydp2.formats.folders import is_folder, read_whole
from pydp2.formats.lines import TextReader, shown
from pydp2.formats.lst import NO_PICTURE
from pydp2.providers import provider
from pydp2.remote import is_remote
from pydp2.remote.remote_file import open_ahead, remote_children, remote_files

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Endings of the files in a folder that are pictures, in small or capital letters; others are left out."""

Indices = NDArray[np.int64]
Classes = int | Sequence[str] | None
_LISTINGS = 8  # that a process keeps
_AHEAD = 8  # remote pictures
_LARGEST = 2**63


@dataclass(frozen=True, eq=False)
class Listing:
    """Pictures that a folder or a list names; ``len()``: their number.

    Attributes:
        name: the folder or the list.
        folder: folder that the paths are relative to.
        classes: names of the classes; None if labels are numbers.
        errors: number of a line -> its error.
    """

    name: str
    folder: str
    classes: tuple[str, ...] | None
    errors: dict[int, FormatError]
    _paths: bytes
    _edges: Indices  # of the paths
    _labels: Indices

    @classmethod
    def of(
        cls,
        name: str,
        folder: str,
        classes: tuple[str, ...] | None,
        entries: Iterable[tuple[bytes, int] | FormatError],
    ) -> Listing:
        """Return the listing of ``entries``, pairs of path and label."""
        paths, edges, labels, errors = bytearray(), [0], list[int](), dict[int, FormatError]()
        for entry in entries:
            if isinstance(entry, FormatError):
                errors[len(labels)] = entry
                entry = b"", 0
            paths += entry[0]
            edges.append(len(paths))
            labels.append(entry[1])
        return cls(name, folder, classes, errors, bytes(paths), np.array(edges, np.int64), np.array(labels, np.int64))

    def __len__(self) -> int:
        return len(self._labels)

    def path(self, number: int) -> str:
        """Return the path of a picture as the list has it, or below the folder."""
        return os.fsdecode(self._paths[self._edges[number] : self._edges[number + 1]])

    def samples(self, numbers: list[int], edges: Indices, data: NDArray[np.uint8]) -> ManySamples:
        """Return pictures as samples; their bytes are ``data[edges[i]:edges[i + 1]]``."""
        paths = [self._paths[self._edges[number] : self._edges[number + 1]] for number in numbers]
        path_edges = np.cumsum([0, *map(len, paths)], dtype=np.int64)
        return rows(
            image=BinaryArray(edges, data),
            label=self._labels[numbers],
            path=StringArray(path_edges, np.frombuffer(b"".join(paths), np.uint8)),
        )

    def label(self, number: int) -> int:
        """Return the label of a picture."""
        return int(self._labels[number])

    def read(self, number: int) -> bytes:
        """Return the bytes of a picture.

        Raises:
            FormatError: its line is wrong, or it has more than 1 GiB.
            BadSample: it cannot be opened.
        """
        path = self._file(number)
        try:
            return read_whole(os.fsdecode(path))
        except NO_PICTURE as error:
            raise self._unreadable(number, error) from None

    def read_into(self, number: int, memory: memoryview) -> int:
        """Read the bytes of a picture into ``memory`` and return how many they are; ``len(memory)`` if it may have
        more. Raises as :meth:`read`."""
        path = self._file(number)
        if b"://" in path:
            data = self.read(number)
            memory[: len(data)] = data[: len(memory)]
            return min(len(data), len(memory))
        try:
            descriptor = os.open(path, os.O_RDONLY)  # a file object takes as long as reading a picture
            try:
                done = 0
                while done < len(memory) and (count := os.readv(descriptor, [memory[done:]])):
                    done += count
            finally:
                os.close(descriptor)
        except NO_PICTURE as error:
            raise self._unreadable(number, error) from None
        return done

    def _file(self, number: int) -> bytes:
        if number in self.errors:
            raise self.errors[number]
        path = self._paths[self._edges[number] : self._edges[number + 1]]
        if b"://" in path:
            return path
        return os.path.join(os.fsencode(self.folder), path)  # noqa: PTH118  # a Path takes longer than the file

    def open_ahead(self, number: int) -> None:
        """Ask for a picture that will be read soon, if it is a remote file."""
        if number not in self.errors and b"://" in (path := self._file(number)):
            open_ahead(os.fsdecode(path))

    def _unreadable(self, number: int, error: Exception) -> BadSample:
        path = os.fsdecode(self._file(number))
        return bad_value("image", f"the picture {path}", getattr(error, "strerror", None) or str(error))


def listing(name: str, *, folder: str | None = None, classes: Classes = None) -> Listing:
    """Return the pictures that ``name`` names, a folder or a list.

    In a folder, each folder is a class, and the pictures in it and below are its samples, sorted by their paths. In a
    list, a line is a path, blanks or a tab, and a label; the path may have blanks inside.

    Args:
        name: the folder or the list.
        folder: folder that the paths in a list are relative to; default: that of the list.
        classes: the names of the classes, whose positions are the labels; default: those of the folders, sorted. In a
            list the labels are then names; without ``classes``, or with their number, they are whole numbers.

    Raises:
        FormatError: the folder has no folders, or no pictures, or a folder that is none of ``classes``.
        OSError: the folder, or the list, cannot be read.
    """
    if not is_folder(name):
        base = os.path.dirname(name) if folder is None else folder  # noqa: PTH120
        names = None if classes is None or isinstance(classes, int) else tuple(classes)
        return Listing.of(name, base, names, _lines(name, classes))
    found = _class_folders(name)
    known = found if classes is None or isinstance(classes, int) else tuple(classes)
    for folder_name in found:
        if folder_name not in known:
            text = f"the folder {folder_name!r} is none of the classes {_some(known)}"
            raise _error(name, f"{text}, which are the folders of the first entry unless classes names them")
    labels = {folder: known.index(folder) for folder in found}
    made = Listing.of(name, name, known, (_remote_files if is_remote(name) else _files)(name, labels))
    if not len(made):
        raise _error(name, f"expected pictures in its folders, got no file that ends in one of {', '.join(SUFFIXES)}")
    return made


def _class_folders(name: str) -> tuple[str, ...]:
    if is_remote(name):
        names = [url.rstrip("/").rpartition("/")[2] for url in remote_children(name) if url.endswith("/")]
        found = [folder for folder in names if not folder.startswith(".")]
    else:
        with os.scandir(name) as entries:
            found = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if not found:
        raise _error(name, "expected a folder for each class, got none; write the pictures and labels into a list")
    return tuple(sorted(found))


def _files(name: str, labels: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """Yield path and label of the pictures in the folders of ``labels``."""
    for folder, label in labels.items():
        for path in sorted(_below(os.path.join(name, folder), folder)):  # noqa: PTH118
            yield os.fsencode(path), label


def _remote_files(name: str, labels: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """Yield path and label as :func:`_files` does, in the same order."""
    root = f"{name.rstrip('/')}/"
    paths = sorted(url[len(root) :] for url in remote_files(root))
    for path in sorted(paths, key=lambda path: path.partition("/")[0]):
        folder, slash, _ = path.partition("/")
        if slash and folder in labels and path.lower().endswith(SUFFIXES):
            yield os.fsencode(path), labels[folder]


def _below(folder: str, name: str) -> Iterator[str]:
    """Yield the paths of the pictures in ``folder`` and all folders in it; ``name`` stands for it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{name}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if entry.is_symlink():  # it may lead to a ring
                    raise _error(entry.path, "expected pictures or folders, got a link to a folder")
                yield from _below(entry.path, path)
            elif entry.name.lower().endswith(SUFFIXES):
                yield path


def _lines(name: str, classes: Classes) -> Iterator[tuple[bytes, int] | FormatError]:
    label_of, meaning = _labels(classes)
    with TextReader(name) as reader:
        for offset, line in reader.lines():
            path, _, word = line.strip().replace(b"\t", b" ").rpartition(b" ")
            label = label_of(word)
            if not path:
                yield reader.error(offset, f"expected a path and a label, got {shown(line)}")
            elif label is None:
                yield reader.error(offset, f"expected a label, {meaning}, got {shown(word)}")
            else:
                yield line.strip()[: len(path)].rstrip(), label


def _labels(classes: Classes) -> tuple[Callable[[bytes], int | None], str]:
    """Return a function that gives the label for a word, None if it is none; and what words are labels."""
    if classes is None:
        return _whole_number, "a whole number of 64 bits"
    if isinstance(classes, int):
        return {b"%d" % i: i for i in range(classes)}.get, f"a class from 0 to {classes - 1}"
    return {name.encode(): i for i, name in enumerate(classes)}.get, f"one of the classes {_some(classes)}"


def _whole_number(word: bytes) -> int | None:
    if not word.removeprefix(b"-").isdigit() or len(word) > 20 or not -_LARGEST <= int(word) < _LARGEST:
        return None
    return int(word)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ", …" * (len(names) > 5)


def _error(name: str, what: str) -> FormatError:
    return FormatError(f"{name}: {what}", file=name)


def read(
    name: str | os.PathLike[str],
    *,
    start: int = 0,
    indices: Indices | None = None,
    part: FilePart = WHOLE_FILE,
    folder: str | None = None,
    classes: Classes = None,
) -> Iterator[dict[str, Any]]:
    """Yield pictures: dicts of ``image``, the bytes of a file, ``label``, an int, and ``path``, a text.

    Args:
        name: the folder or the list.
        start: index of the first picture that is wanted, counted within the part.
        indices: the pictures that are wanted, in rising order, counted within the part; default: all from ``start`` on.
        part: the part of the folder or list.
        folder, classes: see :func:`listing`.

    Raises:
        FormatError, OSError: as :func:`listing`; FormatError: a line is wrong.
        BadSample: a picture cannot be opened.
        OptionError: there is no such picture.
    """
    found = listing(os.fspath(name), folder=folder, classes=classes)
    for number in _numbers(found, part, start, indices):
        yield {"image": found.read(number), "label": found.label(number), "path": found.path(number)}


def _numbers(found: Listing, part: FilePart, start: int, indices: Indices | None) -> Sequence[int]:
    first, last = part.range(len(found))
    if indices is None:
        return range(first + start, last)
    numbers: list[int] = (np.asarray(indices, np.int64) + first).tolist()
    if numbers and not first <= numbers[0] <= numbers[-1] < last:
        raise OptionError(f"{found.name} has {last - first} pictures in this part, and no picture {indices[-1]}")
    return numbers


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    folder: str | None = None,
    classes: Classes = None,
    image: Mapping[str, Any] | None = None,
) -> None:
    names = [split_entry(entry)[0] for entry in file_list]
    settings.is_folder = bool(names) and is_folder(names[0])
    settings.first = names[0] if names else ""
    checked = _checked_classes(classes, settings.is_folder)
    if folder is not None and settings.is_folder:
        raise OptionError("folder is for the paths of a list, and the entries are folders: leave it out")
    base = None if folder is None else serving.text("folder", folder)
    if settings.is_folder and checked is None:
        checked = _class_folders(names[0])
    find: Callable[[str], Listing] = partial(listing, folder=base, classes=checked)
    settings.listing = lru_cache(_LISTINGS)(find)
    if names:
        settings.listing(names[0])  # workers that are forked have it then
    decoder: ImageDecoder | None = None if image is None else image_decoder(image)
    settings.decoder = decoder
    count = checked if checked is None or isinstance(checked, int) else len(checked)
    settings.input_types = {
        "image": raw() if decoder is None else decoder.type,
        "label": scalar("int64") if count is None else integer_value(count),
        "path": text(),
    }


def _checked_classes(classes: Any, of_folder: bool) -> int | tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, int) and not isinstance(classes, bool):
        if of_folder:
            raise OptionError(f"classes of a folder are names, in the order of their labels, got {classes}")
        if classes < 1:
            raise OptionError(f"classes must be at least 1, got {classes}")
        return classes
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise OptionTypeError(f'classes must be a list of names such as ["cat", "dog"], got {classes!r:.80}')
    if not classes or len(set(classes)) < len(classes):
        raise OptionError(f"classes must name each once, got {classes!r:.80}")
    return tuple(classes)


@provider(init_hook=_hook)
def process(
    settings: Any, filename: str, start: int = 0, indices: Indices | None = None
) -> Iterator[ManySamples | dict[str, Any] | BadSample]:
    """Serve the pictures of folders, or of lists.

    Slots: ``image``, the bytes of the file (:func:`pydp2.raw`), or with the argument ``image`` the picture as uint8
    (height, width, channels); ``label``; ``path``, a text.

    Arguments of the hook:
        folder: folder that the paths in a list are relative to; default: that of the list.
        classes: the names of the classes in the order of their labels; default: the folders of the first entry, sorted.
            For lists also their number; default: labels are any whole numbers, int64.
        image: a dict of the arguments of :class:`.decoders.ImageDecoder`, of which ``size`` must be given.
    """
    name, part = split_entry(filename)
    if is_folder(name) != settings.is_folder:
        kinds = ("a folder", "a list") if settings.is_folder else ("a list", "a folder")
        raise OptionError(f"{settings.first} is {kinds[0]} and {name} is {kinds[1]}: all entries must be alike")
    found: Listing = settings.listing(name)
    numbers = _numbers(found, part, start, indices)
    yield from _undecoded(found, numbers) if settings.decoder is None else _pictures(settings, found, numbers)


def _undecoded(found: Listing, numbers: Sequence[int]) -> Iterator[ManySamples | BadSample]:
    """Yield pictures as they are in their files, about a block of bytes at a time."""
    block = _Block(found)
    for number in _opened_ahead(found, numbers):
        added = block.add(number)
        if added is False and len(block):
            yield block.take()
            added = block.add(number)
        if added is True:
            continue
        if len(block):
            yield block.take()
        yield block.alone(number) if added is False else added
    if len(block):
        yield block.take()


def _opened_ahead(found: Listing, numbers: Sequence[int]) -> Iterator[int]:
    """Yield ``numbers``; the remote pictures that follow are under way."""
    for number in numbers[:_AHEAD]:
        found.open_ahead(number)
    for at, number in enumerate(numbers):
        yield number
        for following in numbers[at + _AHEAD : at + _AHEAD + 1]:
            found.open_ahead(following)


class _Block:
    """Pictures that were read behind each other into memory, which is used again after :meth:`take`."""

    def __init__(self, found: Listing) -> None:
        self._found = found
        self._memory = np.empty(serving.BLOCK, np.uint8)
        self._numbers: list[int] = []
        self._edges = [0]

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> bool | BadSample:
        """Read a picture. Return True, False if it may not fit behind the others, or its error."""
        room = self._memory[self._edges[-1] :].data
        try:
            size = self._found.read_into(number, room)
        except FormatError as error:
            return serving.bad_record(error)
        except BadSample as error:
            return error
        if size == len(room):
            return False
        self._numbers.append(number)
        self._edges.append(self._edges[-1] + size)
        return True

    def take(self) -> ManySamples:
        """Return the pictures, and begin anew."""
        edges, numbers = self._edges, self._numbers
        self._edges, self._numbers = [0], []
        return self._found.samples(numbers, np.array(edges, np.int64), self._memory[: edges[-1]])

    def alone(self, number: int) -> ManySamples | BadSample:
        """Return a picture in memory of its own, or its error."""
        data = _read(self._found, number)
        if isinstance(data, BadSample):
            return data
        return self._found.samples([number], np.array([0, len(data)]), np.frombuffer(data, np.uint8))


def _pictures(settings: Any, found: Listing, numbers: Sequence[int]) -> Iterator[dict[str, Any] | BadSample]:
    for number in _opened_ahead(found, numbers):
        data = _read(found, number)
        try:
            if isinstance(data, BadSample):
                raise data
            value = _decoded(settings, data, found.path(number))
        except BadSample as error:
            yield error
        else:
            yield {"image": value, "label": found.label(number), "path": found.path(number)}


def _read(found: Listing, number: int) -> bytes | BadSample:
    """Return the bytes of a picture, or its error."""
    try:
        return found.read(number)
    except FormatError as error:
        return serving.bad_record(error)
    except BadSample as error:
        return error


def _decoded(settings: Any, data: bytes, path: str) -> Any:
    try:
        return settings.decoder(data, settings.rng)
    except ValueError as error:
        raise BadSample(f"{path}: {error}", slot="image") from None

"""``.lst``, MXNet's list of images: each line has the id, the labels and the path of an image, between tabs."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.schema.input_types import integer_value
from pydp2.errors import BadSample, FormatError, OptionError, bad_value, count_text
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.folders import below, read_whole
from pydp2.formats.lines import NUMBER, good_only, lines, shown, too_large
from pydp2.formats.serving import BYTES, IDS, LabelSlot, as_steps, bad_record, text
from pydp2.formats.source import PathOrFile, create_file
from pydp2.providers import provider
from pydp2.remote import is_remote

_ID = re.compile(rb"\d{1,18}")
_BLANKS = b" "
NO_PICTURE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError)
"""Errors that one picture has alone. ValueError: its path has a NUL. Any other error may befall the next one too."""


class Entry(NamedTuple):
    """Entry of a list: the number of the image, from 0; at least one label; the path, without
    tabs, line breaks and blanks around it."""

    id: int
    labels: tuple[float, ...]
    path: str


def read(path: PathOrFile, *, part: FilePart = WHOLE_FILE) -> Iterator[Entry]:
    """Yield the entries of a list. Blanks around a field are left out, as MXNet's own tool does.

    Raises:
        FormatError: a line has fewer than three fields, an id or a label that is not a number, or a path that is empty
            or not UTF-8. The text names the line.
        OSError: the file cannot be read.
    """
    return good_only(read_or_errors(path, part=part))


def read_or_errors(path: PathOrFile, *, part: FilePart = WHOLE_FILE) -> Generator[Entry | FormatError]:
    """Yield entries as :func:`read` does, and an error in place of each wrong line. The entries after it follow."""
    for reader, offset, line in lines(path, part):
        try:
            entry: Entry | FormatError = _entry(line)
        except ValueError as error:
            entry = reader.error(offset, str(error))
        yield entry


def _entry(line: bytes) -> Entry:
    """Return the entry of a line. Raises ValueError that says what is wrong with it."""
    fields = [field.strip(_BLANKS) for field in line.split(b"\t")]
    if len(fields) < 3 or not fields[-1]:
        blanks = "; there are blanks where tabs belong" if len(fields) < 3 and b" " in line.strip() else ""
        raise ValueError(
            f"expected id, label and path between tabs, got {count_text(len(fields), 'field')}: {shown(line)}{blanks}"
        )
    number, *labels, path = fields
    if not _ID.fullmatch(number):
        raise ValueError(f"expected an id, a whole number from 0, got {shown(number)}")
    for field in labels:
        if not NUMBER.fullmatch(field):
            raise ValueError(f"expected a label, a number, got {shown(field)}")
        if too_large(field, float(field)):
            raise ValueError(f"expected a label that float64 can hold, got {shown(field)}")
    try:
        name = path.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the path must be UTF-8, got {shown(path)}") from None
    return Entry(int(number), tuple(map(float, labels)), name)


def write(path: PathOrFile, entries: Iterable[Entry]) -> None:
    """Write a list, as gzip if the name ends in ``.gz``.

    Raises:
        OptionError: an entry has an id that is not a whole number from 0 of at most 18 digits, no label, or a path that
            is empty, is not UTF-8, or has a tab, a line break or a blank around it. The entries before it are in the
            file.
    """
    file, owned = create_file(path, gzipped=True)
    try:
        for number, labels, name in entries:
            file.write(_line(number, labels, name))
    finally:
        if owned:
            file.close()


def _line(number: Any, labels: tuple[float, ...], name: str) -> bytes:
    """Return a line of a list. Raises OptionError: :func:`read` would not accept it."""
    if not labels or not name or name != name.strip(" ") or any(sign in name for sign in "\t\r\n"):
        raise OptionError(
            f"an entry needs a label and a path without tabs, line ends and blanks around it, got {name!r}"
        )
    if isinstance(number, str) or not _ID.fullmatch(str(number).encode()):
        raise OptionError(f"an id must be a whole number from 0 of at most 18 digits, got {number!r:.80}")
    try:
        return "\t".join([str(number), *(repr(float(label)) for label in labels), name]).encode() + b"\n"
    except UnicodeEncodeError:
        raise OptionError(f"the path must be UTF-8, got {name!r:.80}") from None


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    folder: str = "",
    label_width: int = 1,
    classes: int | Sequence[int] | None = None,
) -> None:
    settings.folder, settings.slot = text("folder", folder), LabelSlot(classes, label_width)
    settings.input_types = {"data": BYTES, "label": settings.slot.type, "id": integer_value(IDS)}


@provider(init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[dict[str, Any] | BadSample]:
    """Serve the images that a list names.

    Slots: ``data``, the bytes of the file as a sequence, ``label`` and ``id``.

    Arguments of the hook:
        folder: folder that the paths are relative to, or the URL of one. A relative folder, and the default, are
            relative to the working directory of the service.
        label_width: number of labels of each image.
        classes: range of the label, which is then an integer, or a list of the labels such as ``[-1, 1]``, of which the
            integer is the position; without it the label is a dense vector.
    """
    name, part = split_entry(filename)
    for entry in read_or_errors(name, part=part):
        try:
            yield bad_record(entry) if isinstance(entry, FormatError) else _sample(entry, settings)
        except BadSample as error:
            yield error


def _sample(entry: Entry, settings: Any) -> dict[str, Any]:
    """Return the sample of ``entry``. Raises BadSample: there is no such picture, or its labels are wrong."""
    label = settings.slot.value(np.array(entry.labels))
    path = entry.path if is_remote(entry.path) else below(settings.folder, entry.path)
    try:
        data = read_whole(path)
    except NO_PICTURE as error:
        is_relative = not is_remote(path) and not Path(path).is_absolute()
        where = f"; relative paths start at {Path.cwd()}, and folder says where below it" if is_relative else ""
        raise bad_value("data", f"the picture {path}", f"{getattr(error, 'strerror', None) or error}{where}") from None
    return {"data": as_steps(data), "label": label, "id": entry.id}

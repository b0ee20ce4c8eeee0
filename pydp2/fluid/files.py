"""Read one file: check its instances against the declared shapes, and find its format by the tag of its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.base import GeneratedReader
from pydp2.fluid.shapes import Shape, SlotShapes, slot_shapes
from pydp2.fluid.tensors import Instance, instance_of

Format = Callable[[str, tuple[Shape, ...]], Iterable[Any]]
"""``read(filename, shapes)`` returns the instances of a file, from the first one. It is a generator function, or a
class of readers."""
F = TypeVar("F", bound=Format)
Name = str | os.PathLike[str]

_FORMATS: dict[str, Format] = {}


def register_file_reader(tag: str, *, replace: bool = False) -> Callable[[F], F]:
    """Return a decorator for ``read(filename, shapes)``, the function that reads files whose name ends with ``.tag``.

    ``read`` returns an iterable of instances: lists or tuples of tensors and arrays, one for each slot. The thread that
    reads the file calls ``read`` and closes the iterable. ``shapes`` are the declared shapes. ``read`` can ignore them,
    because the file reader checks every instance against them. Raises OptionError for a tag with other characters than
    letters, digits, ``_`` and ``-``, and for a tag that is already registered, unless ``replace`` is True. The
    decorator raises OptionTypeError for an object that cannot be called. See docs/fluid.md.
    """
    if not isinstance(tag, str) or not re.fullmatch(r"[\w-]+", tag):
        raise OptionError(f"a tag must be a word of letters, digits, '_' or '-', got {tag!r:.80}")
    if tag in _FORMATS and not replace:
        raise OptionError(f"files with the tag {tag!r} have a reader already; give replace=True to take its place")

    def keep(read: F) -> F:
        if not callable(read):
            raise OptionTypeError(f"a file reader must be called with a filename and shapes, got {type(read).__name__}")
        _FORMATS[tag] = read
        return read

    return keep


def text_of(name: Any) -> str:
    """Return the name of a file as text. Raises OptionTypeError for a value that is neither text nor a path."""
    path = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(path, str):
        raise OptionTypeError(f"the name of a file must be text or a path, got {name!r:.80}")
    return path


def format_of(name: str) -> tuple[Format, str]:
    """Return the format of the file ``name``, and the path to call it with.

    The tag is the text after the last dot of the file's name. In ``tag:path``, with a registered ``tag``, it is given
    explicitly. Raises OptionError if the name has no dot, or if the tag is not registered.
    """
    tag, colon, path = name.partition(":")
    if colon and tag in _FORMATS:
        return _FORMATS[tag], path
    _, dot, tag = PurePath(name).name.rpartition(".")
    if not dot or not tag:
        raise OptionError(
            f"{name!r} is not a valid name: the text after the last dot selects the file reader, as in "
            "'data.recordio'; write 'recordio:data' for a file without an extension"
        )
    if tag not in _FORMATS:
        known = ", ".join(sorted(_FORMATS)) or "none"
        raise OptionError(f"no file reader is registered for {tag!r}, the tag of {name!r}; there are: {known}")
    return _FORMATS[tag], name


class FileReader(GeneratedReader):
    """A reader of one file. The tag of its name selects the format; the reader checks every instance against the
    declaration.

    ``shapes``: one shape for each slot; -1 matches any dimension. ``lod_levels``, ``dtypes``: the number of LoD levels
    and the dtype of each slot; None: not checked. Raises OptionError and OptionTypeError for invalid names and
    declarations. While reading it raises BadSample with file, instance, slot, expected and actual value; errors of the
    file (OSError, FormatError) are raised unchanged. See docs/fluid.md.
    """

    def __init__(
        self,
        filename: Name,
        shapes: Sequence[Sequence[int]],
        lod_levels: Sequence[int] | None = None,
        dtypes: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.filename = text_of(filename)
        format_of(self.filename)  # so that a bad name is an error here, not at the first read
        self._declared = slot_shapes(shapes, lod_levels, dtypes)

    def _instances(self) -> Iterator[Instance]:
        return instances_of(self.filename, self._declared)


def instances_of(filename: str, slots: SlotShapes) -> Generator[Instance]:
    """Yield the checked instances of one file. The file is open until the generator ends."""
    read, path = format_of(filename)
    made = read(path, slots.shapes)
    items = iter(made)
    try:
        for y, values in enumerate(items):
            yield slots.check(instance_of(values, f"file {path}: its reader"), path, y)
    finally:
        for opened in (items, made):
            close = getattr(opened, "close", None)
            if close is not None:
                close()

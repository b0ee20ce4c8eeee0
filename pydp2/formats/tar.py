"""WebDataset: samples in tar archives. Members one after the other with the same key are one sample.

The key of a member is its name up to the first dot of the last part of its path, as the package webdataset has it; what
is behind the dot, in small letters, is the extension. :mod:`.tar_headers` reads the headers.

Names are only names here: nothing is written to a disk, so ``../a.jpg`` and ``/a.jpg`` have the keys ``../a`` and
``/a``. Members without an extension, hidden ones such as ``._a.jpg``, and ``__name__`` are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, StringArray
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import InputType, raw, text
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, bad_value
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats import serving
from pydp2.formats.decoders import ArrayDecoder, Decoder, ImageDecoder, IntDecoder, JsonDecoder, image_decoder
from pydp2.formats.source import LIMIT, PathOrFile
from pydp2.formats.tar_headers import Archive
from pydp2.providers import provider
from pydp2.remote import RemoteFile, is_remote

KEY = "key"
"""Name of the slot of the key."""

KINDS = ("image", "int", "text", "json", "array")
"""Kinds as which members can be decoded."""

Indices = NDArray[np.int64]
_META = re.compile(rb"__[^/]*__(?:/|$)")
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt", "ckpt", "joblib")
_KEY_TAKEN = "the name of the slot of the key"
_LARGE = 1 << 15  # bytes of a sample
_INDEXES = 64  # of archives, that a process keeps: 8 bytes for each sample


class Sample(NamedTuple):
    """Position of a sample in its archive.

    Attributes:
        key: its key.
        begin: offset of the first header.
        end: offset behind the last byte of its last member.
        members: extension -> (offset, size).
        repeated: an extension that it has twice; empty if there is none.
    """

    key: bytes
    begin: int
    end: int
    members: dict[bytes, tuple[int, int]]
    repeated: bytes


def samples(archive: Archive, at: int = 0) -> Iterator[Sample]:
    """Yield the samples of ``archive`` from the header at ``at`` on. Raises FormatError as :meth:`Archive.members`."""
    key: bytes | None = None
    begin = end = 0
    members: dict[bytes, tuple[int, int]] = {}
    repeated = b""
    for name, first, offset, size in archive.members(at):
        base = name.rfind(b"/") + 1
        dot = name.find(b".", base)
        if dot <= base or (name.startswith(b"__") and _META.match(name)):
            continue
        if name[:dot] != key:
            if key is not None:
                yield Sample(key, begin, end, members, repeated)
            key, begin, members, repeated = name[:dot], first, {}, b""
        extension = name[dot + 1 :].lower()
        if extension in members:
            repeated = extension
        members[extension] = offset, size
        end = offset + size
    if key is not None:
        yield Sample(key, begin, end, members, repeated)


def read(
    path: PathOrFile,
    *,
    start: int = 0,
    indices: Indices | None = None,
    part: FilePart = WHOLE_FILE,
    limit: int = LIMIT,
) -> Iterator[dict[str, Any]]:
    """Yield the samples of an archive: dicts of ``key``, a text, and the bytes of each extension.

    Args:
        path: the archive, plain or gzip.
        start: index of the first sample that is wanted, counted within the part.
        indices: the samples that are wanted, in rising order, counted within the part; default: all from ``start`` on.
        part: the part of the archive; a gzip file has no parts.
        limit: most bytes of a sample in a gzip file.

    Raises:
        FormatError: the archive is damaged or cut, has a member that is no regular file, or a sample has an extension
            twice, the extension ``key``, or a name that is not UTF-8.
        OptionError: a part of a gzip file.
        OSError: the file cannot be read.
    """
    with Archive(path, limit=limit) as archive:
        for sample in wanted(archive, path, part, start, indices):
            yield _record(archive, sample)
            archive.release(sample.end)


def _record(archive: Archive, sample: Sample) -> dict[str, Any]:
    if sample.repeated or KEY.encode() in sample.members:
        what = f"the extension {sample.repeated!r} twice" if sample.repeated else f"the extension {KEY!r}, {_KEY_TAKEN}"
        raise archive.error(f"the sample {sample.key!r} has {what}", sample.begin)
    try:
        record: dict[str, Any] = {KEY: sample.key.decode()}
        for extension, (offset, size) in sample.members.items():
            record[extension.decode()] = archive.read(offset, offset + size)
    except UnicodeDecodeError:
        raise archive.error(f"the name of the sample {sample.key!r} is not UTF-8", sample.begin) from None
    return record


def wanted(
    archive: Archive, path: PathOrFile, part: FilePart, start: int, indices: Indices | None
) -> Generator[Sample]:
    """Yield the samples of a part from ``start`` on, or those with ``indices``.

    From a plain file their offsets come from an index of all headers, unless all samples are wanted. Gzip is read from
    its beginning.
    """
    if archive.compressed:
        if part.count > 1:
            raise OptionError(f"{archive.name} is gzip, which cannot be read in parts: name it whole, or decompress it")
        yield from _sequential(archive, start, indices)
        return
    if part.count == 1 and not start and indices is None:
        yield from samples(archive)
        return
    offsets = _offsets_of(archive, path)
    first, last = part.range(len(offsets))
    numbers = np.arange(first + start, last) if indices is None else first + np.asarray(indices, np.int64)
    if len(numbers) and not first <= numbers[0] <= numbers[-1] < last:
        raise OptionError(
            f"{archive.name} has {last - first} samples in this part, and no sample {numbers[-1] - first}"
        )
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if len(run):
            yield from islice(samples(archive, int(offsets[run[0]])), len(run))


def _sequential(archive: Archive, start: int, indices: Indices | None) -> Iterator[Sample]:
    chosen = None if indices is None else iter(indices.tolist())
    following = start if chosen is None else next(chosen, None)
    for number, sample in enumerate(samples(archive)):
        if following is None:
            return
        if number < following:
            archive.release(sample.end)
            continue
        yield sample
        following = number + 1 if chosen is None else next(chosen, None)


def _offsets_of(archive: Archive, path: PathOrFile) -> Indices:
    if not isinstance(path, str | os.PathLike):
        return _offsets(archive)
    if is_remote(os.fspath(path)):
        with RemoteFile(os.fspath(path)) as file:
            return _kept_offsets(os.fspath(path), file.size, file.version)
    status = os.stat(path)  # noqa: PTH116  # path may be a text
    return _kept_offsets(os.fspath(path), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(_INDEXES)
def _kept_offsets(path: str, *identity: object) -> Indices:
    """Return the offsets of the samples of the file that ``path`` is while it has this ``identity``: size, time and
    inode, or the version of a remote file."""
    with Archive(path) as archive:
        return _offsets(archive)


def _offsets(archive: Archive) -> Indices:
    return np.fromiter((sample.begin for sample in samples(archive)), np.int64)


# -- the provider ------------------------------------------------------------------------------------------------------
class Column(NamedTuple):
    """Slot of an extension: its name, its type, and its decoder; None for the bytes or text as they are."""

    extension: bytes
    name: str
    type: InputType
    is_text: bool
    decoder: Decoder | None


def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    extensions: Sequence[str] | None = None,
    decode: Mapping[str, str] | None = None,
    image: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
) -> None:
    settings.limit = serving.whole("limit", limit)
    kinds = _checked_kinds(decode)
    has_images = "image" in kinds.values()
    if image is not None and not has_images:
        raise OptionError('image is for pictures: write decode={"jpg": "image"} too')
    images = image_decoder(image) if has_images else None
    origin, first = _first_record(file_list, settings.limit)
    names = _checked_extensions(extensions, first, origin)
    if unknown := [name for name in kinds if name not in names]:
        raise OptionError(f"decode names the extension {unknown[0]!r}, samples have {', '.join(names) or 'none'}")
    settings.columns = [_column(name, kinds.get(name, "raw"), images, first, origin) for name in names]
    settings.one_by_one = has_images
    settings.input_types = {KEY: text()} | {column.name: column.type for column in settings.columns}


def _checked_kinds(decode: Any) -> dict[str, str]:
    if decode is None:
        return {}
    if not isinstance(decode, Mapping):
        raise OptionTypeError(f'decode must be a dict such as {{"jpg": "image"}}, got {decode!r:.80}')
    for name, kind in decode.items():
        if kind not in KINDS:
            raise OptionError(f"decode must be one of {', '.join(KINDS)}, got {kind!r:.40} for {name!r}")
        if str(name).rpartition(".")[2] in _PICKLES:
            raise OptionError(
                f"{name!r} is a pickle, which may run any code, and is never unpickled here: without decode, the slot "
                "has its bytes"
            )
    return dict(decode)


def _checked_extensions(extensions: Any, first: dict[str, Any], origin: str) -> list[str]:
    """Return the extensions that become slots."""
    names = [name for name in first if name != KEY]
    if extensions is None:
        return names
    if not isinstance(extensions, list | tuple) or not all(isinstance(name, str) for name in extensions):
        raise OptionTypeError(f'extensions must be a list such as ["jpg", "cls"], got {extensions!r:.80}')
    for name in extensions:
        if first and name not in names:
            raise OptionError(f"{origin}: its first sample has no {name!r}, it has {', '.join(names)}")
    if KEY in extensions or len(set(extensions)) < len(extensions):
        raise OptionError(f"extensions must name each once, and not {KEY!r}, got {extensions!r:.80}")
    return list(extensions)


def _first_record(file_list: Any, limit: int) -> tuple[str, dict[str, Any]]:
    """Return the first sample of all files, and its file."""
    for name in dict.fromkeys(split_entry(entry)[0] for entry in file_list):
        for record in read(name, limit=limit):
            return name, record
    return "", {}


def _column(name: str, kind: str, images: ImageDecoder | None, first: dict[str, Any], origin: str) -> Column:
    simple: dict[str, Decoder | None] = {"image": images, "int": IntDecoder(), "json": JsonDecoder()}
    decoder = simple.get(kind)
    if kind == "array":
        try:
            decoder = ArrayDecoder(first[name]) if first else None
        except ValueError as error:
            raise FormatError(f"{origin}: {name} of its first sample: {error}", file=origin) from None
    declared = decoder.type if decoder is not None else text() if kind == "text" else raw()
    return Column(name.encode(), name, declared, declared == text(), decoder)


@provider(init_hook=_hook)
def process(
    settings: Any, filename: str, start: int = 0, indices: Indices | None = None
) -> Iterator[ManySamples | dict[str, Any] | BadSample]:
    """Serve the samples of tar archives (WebDataset).

    Slots: ``key``, a text, and one of each extension of the first sample: its bytes (:func:`pydp2.raw`), or what
    ``decode`` says.

    Arguments of the hook:
        extensions: the extensions that become slots; default: all of the first sample. The bytes of others are not
            read, and so are those of extensions that only later samples have.
        decode: extension -> kind. "image": a picture, uint8 (height, width, channels). "int": int64.
            "text": a text. "json": a text that is checked to be JSON. "array": an array of numpy, with the shape and
            dtype of the first one.
        image: a dict of the arguments of :class:`.decoders.ImageDecoder`, of which ``size`` must be given.
        limit: most bytes of a sample in a gzip file.
    """
    name, part = split_entry(filename)
    with Archive(name, limit=settings.limit) as archive:
        for some in _neighbours(wanted(archive, name, part, start, indices)):
            if settings.one_by_one or some[-1].end - some[0].begin > _LARGE * len(some):
                for sample in some:
                    yield _value(archive, sample, settings)
                    archive.release(sample.end)
            else:
                yield from _block(archive, some, settings)
                archive.release(some[-1].end)


def _neighbours(found: Iterator[Sample]) -> Iterator[list[Sample]]:
    """Yield samples that lie together, about a block of bytes of them at a time."""
    some: list[Sample] = []
    for sample in found:
        if some and sample.end - some[0].begin > serving.BLOCK:
            yield some
            some = []
        some.append(sample)
    if some:
        yield some


def _value(archive: Archive, sample: Sample, settings: Any) -> dict[str, Any] | BadSample:
    """Return the sample as a dict of values, or its error."""
    columns: list[Column] = settings.columns
    try:
        _check_members(sample, columns)
        values: dict[str, Any] = {KEY: _as_text(sample.key)}
        for column in columns:
            at, size = sample.members[column.extension]
            value = archive.read(at, at + size)
            if column.decoder is not None:
                value = _decoded(column, sample, value, settings)
            values[column.name] = _as_text(value) if column.is_text else value
    except BadSample as error:
        return error
    return values


def _block(archive: Archive, some: list[Sample], settings: Any) -> Iterator[ManySamples | BadSample]:
    """Yield the samples ``some`` as rows, and the error of each bad one in its place; all bytes are read at once."""
    columns: list[Column] = settings.columns
    first = some[0].begin
    view = memoryview(archive.read(first, some[-1].end))
    errors: dict[int, BadSample] = {}
    good: list[Sample] = []
    values: list[list[Any]] = [[] for _ in columns]
    for i, sample in enumerate(some):
        try:
            _check_members(sample, columns)
            row = []
            for column in columns:
                at, size = sample.members[column.extension]
                data = view[at - first : at - first + size]
                row.append(data if column.decoder is None else _decoded(column, sample, bytes(data), settings))
        except BadSample as error:
            errors[i] = error
            continue
        good.append(sample)
        for value, column_values in zip(row, values, strict=True):
            column_values.append(value)
    made: dict[str, Any] = {KEY: _strings([sample.key for sample in good], is_text=True)}
    for column, column_values in zip(columns, values, strict=True):
        if column.decoder is None or column.is_text:
            made[column.name] = _strings(column_values, is_text=column.is_text)
        else:
            made[column.name] = np.array(column_values, column.type.element_dtype)
    if not errors:
        yield rows(**made)
        return
    before = np.cumsum([i not in errors for i in range(-1, len(some))]) - 1  # number of good samples before each
    yield from serving.in_pieces(
        len(some), errors, lambda lo, hi: rows(**{name: v[before[lo] : before[hi]] for name, v in made.items()})
    )


def _check_members(sample: Sample, columns: list[Column]) -> None:
    """Raise BadSample: ``sample`` has an extension twice, or lacks one."""
    if not sample.repeated and all(column.extension in sample.members for column in columns):
        return
    key = _shown(sample.key)
    if sample.repeated:
        raise BadSample(f"{key}: the extension {_shown(sample.repeated)!r} comes twice", slot="all slots")
    absent = next(column.name for column in columns if column.extension not in sample.members)
    raise bad_value(
        absent,
        "a member with this extension, as the first sample has it",
        f"{', '.join(map(_shown, sample.members))} of {key!r}",
        remedy="; the members of a sample must lie together: pack with tar --sort=name",
    )


def _decoded(column: Column, sample: Sample, data: bytes, settings: Any) -> Any:
    """Return the value of a member. Raises BadSample: it cannot be decoded."""
    assert column.decoder is not None
    try:
        return column.decoder(data, settings.rng)
    except ValueError as error:
        raise BadSample(f"{_shown(sample.key)}.{column.name}: {error}", slot=column.name) from None


def _strings(strings: Sequence[bytes | memoryview], *, is_text: bool) -> Any:
    edges = np.cumsum([0, *map(len, strings)], dtype=np.int64)
    data = np.frombuffer(b"".join(strings), np.uint8)
    return StringArray(edges, data) if is_text else BinaryArray(edges, data)


def _as_text(data: bytes) -> str | bytes:
    """Return ``data`` as a text; as it is if it is not UTF-8, which makes its sample bad."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")

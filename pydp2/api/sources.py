"""Resolve what to serve: a list, a provider, its args. ``define_py_data_sources2`` makes one object of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

from pydp2.data.columns.block_list import BlockList
from pydp2.errors import ListError, OptionError, OptionTypeError, sendable
from pydp2.options.block_list import read_block_list
from pydp2.options.file_list import MOST_BYTES, FileList, is_pattern
from pydp2.options.service_spec import MAX_SOURCES, SourceTerms
from pydp2.options.tables import check_keywords, takes
from pydp2.options.values import folder_path
from pydp2.protocol.plain_data import encode_plain
from pydp2.providers import Provider, address_of
from pydp2.providers.source_providers import naming_source
from pydp2.providers.suffixes import is_data, provider_of
from pydp2.remote import (
    has_remote,
    is_remote,
    is_remote_pattern,
    list_remote,
    read_remote,
    shown_url,
    without_query,
)
from pydp2.transport.key_files import is_connection_file
from pydp2.transport.service_address import without_token

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_MAX_NAMES_BYTES = 16 << 10  # of all names together, which travel in one header


@dataclass(frozen=True)
class Source:
    """Train or test side of a configuration: a list with its provider. It is accepted wherever a list is.

    ``files``: path of a list, or the entries themselves; ``provider``: its address; ``args``: keywords for the hook.
    """

    files: Files
    provider: str
    args: Mapping[str, Any] = field(default_factory=dict)
    is_train: bool = True


@dataclass(frozen=True)
class ResolvedSource:
    """Resolved input of ``launch``, ``check`` and ``peek``; ``root`` is absolute."""

    files: FileList
    provider: str | Provider
    args: dict[str, Any]
    is_train: bool
    root: Path


Sources = Files | Source | Mapping[str, Files | Source]
"""What a service can read: a list, or several by the names of their sources."""


@dataclass(frozen=True)
class ResolvedSources:
    """Resolved input of a service: its sources by name ("" for one without), and ``files``, those of all of them."""

    by_name: dict[str, ResolvedSource]
    files: FileList
    root: Path

    def to_terms(self) -> tuple[SourceTerms, ...]:
        """Return the terms of the sources. Raises AddressError, OptionError or OptionTypeError for a provider or
        arguments that cannot be sent to workers."""
        terms, first = [], 0
        for name, source in self.by_name.items():
            with naming_source(name):
                provider, args = address_of(source.provider), encode_plain(source.args)
            terms.append(
                SourceTerms(name=name, first_file=first, provider=provider, args=args, is_train=source.is_train)
            )
            first += len(source.files)
        return tuple(terms)


def resolve_sources(
    files: Sources,
    provider: str | Provider | None,
    args: Mapping[str, Any] | None,
    is_train: bool | None,
    root: str | os.PathLike[str] | None,
) -> ResolvedSources:
    """Read the lists of one or several sources. The arguments are those of :func:`resolve_source`; a :class:`Source` in
    a dict of sources has its own. Raises OptionTypeError, OptionError, ListError."""
    if not isinstance(files, Mapping):
        source = resolve_source(files, provider, args, is_train, root)
        return ResolvedSources({"": source}, source.files, source.root)
    _check_names(files)
    if all(isinstance(given, Source) for given in files.values()) and (provider, args, is_train) != (None, None, None):
        raise OptionError(
            "provider, args and is_train are for sources that are plain lists, and each of these is a Source, which "
            "has its own; leave them out"
        )
    by_name = {}
    for name, given in files.items():
        with naming_source(name):
            own = (None, None, None) if isinstance(given, Source) else (provider, args, is_train)
            source = by_name[name] = resolve_source(given, *own, root)
            if not len(source.files):
                raise ListError("the file list is empty; leave the source out")
    joined = FileList.joined([source.files for source in by_name.values()])
    return ResolvedSources(by_name, joined, next(iter(by_name.values())).root)


def _check_names(sources: Mapping[Any, Any]) -> None:
    """Raise OptionError or OptionTypeError unless the keys of ``sources`` can be the names of sources."""
    if not 0 < len(sources) <= MAX_SOURCES:
        raise OptionError(f"a service has from 1 to {MAX_SOURCES} sources, got {len(sources)}")
    for name in sources:
        if not isinstance(name, str):
            raise OptionTypeError(f"the name of a source must be a str, got {name!r:.80} ({type(name).__name__})")
        if not name or sendable(name) != name:
            raise OptionError(f"the name of a source must be a text that UTF-8 can hold, and not empty, got {name!r}")
    if (size := sum(len(name.encode()) for name in sources)) > _MAX_NAMES_BYTES:
        raise OptionError(
            f"the names of all sources may have {_MAX_NAMES_BYTES} bytes together, and have {size}; shorten them"
        )


def resolve_source(
    files: Files | Source,
    provider: str | Provider | None,
    args: Mapping[str, Any] | None,
    is_train: bool | None,
    root: str | os.PathLike[str] | None,
) -> ResolvedSource:
    """Read the list, and fill in the values of a :class:`Source` and the defaults.

    With ``root``, the path of the list is relative to it. Without a provider the suffix of the entries chooses one of
    :mod:`pydp2.formats`. Raises OptionTypeError, OptionError, ListError.
    """
    if isinstance(files, Source):
        provider = provider or files.provider
        args = files.args if args is None else args
        is_train = files.is_train if is_train is None else is_train
        files = files.files
    if isinstance(files, Mapping):
        raise OptionTypeError(
            f"one source is needed here, and this is a dict with {', '.join(map(repr, files)):.80}; choose one of its "
            "values"
        )
    if isinstance(files, str | os.PathLike) and (service := _service_of(os.fspath(files), provider is not None)):
        raise OptionTypeError(service)
    if not isinstance(is_train, bool | None):
        raise OptionTypeError(f"is_train must be True or False, got {is_train!r:.80} ({type(is_train).__name__})")
    home = resolve_root(root)
    if isinstance(files, str | os.PathLike) and (
        is_remote_data(os.fspath(files)) or (provider is None and is_data(os.fspath(files), str(home)))
    ):
        files = [files]  # a file of data itself, or a pattern of remote files, in place of a list
    listed = _read_or_match(files, root, home) if isinstance(files, str | os.PathLike) else FileList.of(files, home)
    listed = _with_remote_files(listed)
    if provider is None:
        provider = provider_of(listed, str(home))
    return ResolvedSource(listed, provider, _keywords(args), is_train is not False, home)


def list_files(files: Files, root: str | os.PathLike[str] | None = None) -> FileList:
    """Return the entries of a list, with the files that its patterns match, also those of remote files.

    Args:
        files: path of a list, a pattern, the URL of remote files, or the entries themselves.
        root: folder in which the list and local patterns are looked up; default: the working directory.

    Raises:
        ListError: the list cannot be read, or a pattern matches nothing. OptionError, OptionTypeError: an argument is
            not valid. StoreError: a store does not list its files (docs/remote.md).
    """
    return resolve_source(files, "", None, None, root).files


def resolve_block_list(path: str | None, files: FileList) -> BlockList:
    """Return the block list in the file ``path``, for the list ``files``; an empty one for None. Raises OptionError."""
    return BlockList() if path is None else BlockList.of_samples(*read_block_list(path, files))


def names_data(files: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> bool:
    """Return True if ``files`` needs no provider to be known as data: a pattern, a file of a known format, or a folder
    of Hugging Face below ``root``."""
    text = os.fspath(files)
    if "://" in text:
        return is_remote_data(text)
    return is_pattern(text) or is_data(text, os.fspath(root or ""))


def is_remote_data(text: str) -> bool:
    """Return True if ``text`` is a pattern of URLs, the URL of a folder (which ends in ``/``), or that of a file that
    is data by its suffix."""
    return is_remote(text) and (is_remote_pattern(text) or without_query(text).endswith("/") or is_data(text))


def resolve_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the working directory of workers. Raises OptionTypeError, OptionError."""
    home = (Path.cwd() if root is None or root == "" else Path(folder_path("root", root))).resolve()
    if not home.is_dir():
        raise OptionError(f"root must be a folder, where entries and provider are looked up, got {str(root)!r}")
    return home


def _service_of(files: str, has_provider: bool) -> str:
    """Return a remedy if ``files`` names a running service in place of a list, otherwise ''."""
    shown = without_token(files) if "://" in files else files
    call = (
        f"a list of files is needed; pydp2.connect({shown!r}, …) gives its stream, and pydp2.mix(…, address=…) mixes "
        "its sources"
    )
    if is_remote(files):
        return ""
    if "://" in files and not has_provider:
        return f"{shown} is the address of a service: {call}"
    try:
        is_file = is_connection_file(Path(files))
    except (OSError, ValueError):
        is_file = False
    return f"{files} is the connection file of a service: {call}" if is_file else ""


def _read_or_match(files: str | os.PathLike[str], root: str | os.PathLike[str] | None, home: Path) -> FileList:
    """Return the list at the path ``files``, or the files that match it if it is a pattern."""
    path = Path(files)
    if is_remote(text := os.fspath(files)):
        return _read_remote_list(text, home)
    if "://" in text and not path.exists():
        raise ListError(f"a file list must be a file, and {text} is a URL; its own list is [{text!r}] in Python")
    path = home / path if root is not None and not path.is_absolute() else path
    if is_pattern(os.fspath(files)) and not os.path.lexists(path):
        return FileList.matching(os.fspath(files), home)
    return FileList.read(path, home)


def _read_remote_list(url: str, home: Path) -> FileList:
    shown = shown_url(url)
    try:
        data = read_remote(url, MOST_BYTES)
    except FileNotFoundError as error:
        raise ListError(
            f"the file list {shown} is missing: {error}; if it is a folder of data, its URL must end in /"
        ) from None
    return FileList.parse(data, shown, home)


def _with_remote_files(files: FileList) -> FileList:
    """Return ``files`` with remote files in place of each pattern of them. Raises ListError, StoreError."""
    if not has_remote(files, files.blob):
        return files
    patterns = list(dict.fromkeys(entry for entry in files if is_remote_pattern(entry)))
    if not patterns:
        return files
    found = list_remote(patterns)
    for pattern in patterns:
        if not found[pattern]:
            raise ListError(f"no remote file matches {shown_url(pattern)}; look whether bucket and folder are right")
    entries: list[str] = []
    for entry in files:
        entries += found.get(entry) or [entry]
    listed = FileList.of(entries)
    return FileList(listed.blob, listed.offsets, files.source)


def _keywords(args: Mapping[str, Any] | None) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise OptionTypeError(f"args must be a dict of keywords for the init_hook, got {type(args).__name__}")
    for key in args:
        if not isinstance(key, str):
            raise OptionTypeError(f"args must have names as keys, got the key {key!r:.80} ({type(key).__name__})")
    return dict(sorted(args.items()))  # keywords have no order of their own


@takes()
def define_py_data_sources2(
    train_list: Files | None,
    test_list: Files | None,
    module: str | Sequence[str],
    obj: str | Sequence[str],
    args: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    **others: Never,
) -> tuple[Source | None, Source | None]:
    """Return the train and the test source; None for a side without a list. See docs/semantics.md, PD-54.

    ``module``, ``obj`` and ``args`` hold for both sides, or are 2-element lists or tuples (train, test). Lists are
    paths or Python lists of entries. Raises OptionError when both lists are None, OptionTypeError for a missing name.
    """
    check_keywords(define_py_data_sources2, others)
    if train_list is None and test_list is None:
        raise OptionError("define_py_data_sources2 needs train_list or test_list, but both are None")
    if module is None or obj is None:
        raise OptionTypeError("define_py_data_sources2 needs module and obj: where process is defined, and its name")
    modules, objects, arguments = _pair(module), _pair(obj), _pair(args)
    sides: list[Source | None] = []
    for i, files in enumerate((train_list, test_list)):
        if files is None:
            sides.append(None)
            continue
        given = arguments[i]
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise OptionTypeError(
                f"args must be a dict of keywords for the init_hook, got {type(given).__name__}; nothing is unpickled"
            )
        sides.append(Source(files, f"{modules[i]}:{objects[i]}", given, i == 0))
    return sides[0], sides[1]


def _pair(value: Any) -> tuple[Any, Any]:
    if isinstance(value, list | tuple) and len(value) == 2:
        return value[0], value[1]
    return value, value

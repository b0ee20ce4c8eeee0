"""Add file and sample to the text of an error, in the same form in workers and in ``samples()``.

Samples are counted from 0 in the order of their yields.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydp2.errors import (
    BadSample,
    OptionError,
    ProviderError,
    RemoteError,
    at_sample,
    builtin_name_of_mixed,
    fields,
    from_user,
    provider_error,
)
from pydp2.file_parts import file_of, split_entry

_COMPILED = "pydp2/data/native/_packing.pyx"  # file name in frames of compiled code, in every installation
_OWN_FILES = (str(Path(__file__).resolve().parents[1]) + "/", _COMPILED, importlib.__file__, "<frozen importlib")

_NO_FILE_ERRNOS = (errno.ENOENT, errno.ENAMETOOLONG)
_LOOKS_LIKE_DATA = re.compile(r"[\s;,{}\"|]|^[-+.\deE]+$")  # matches a line of data, and hardly any name of a file
_LINES = 1000  # lines of a list that are looked up as files; a file of data may have millions, which are not files

E = TypeVar("E", bound=RemoteError)


def with_location(error: E, filename: str, sample_index: int) -> E:
    """Return an error of the class of ``error``, found at yield ``sample_index`` of ``filename``, with this location in
    front of its text.

    A bad sample reads "file X, sample y, slot NAME: expected …, got …".
    """
    at = f"file {filename}, sample {sample_index}"
    if isinstance(error, BadSample):
        return type(error)(at_sample(filename, sample_index, error.slot, mismatch_text(error)), **fields(error))
    if isinstance(error, ProviderError):  # its class may be one made for a builtin exception
        return provider_error(f"{at}: {error}", builtin_name_of_mixed(error))  # type: ignore[return-value]
    return type(error)(f"{at}: {error}", **fields(error))


def user_error(error: BaseException, filename: str, sample_index: int, file_list: Sequence[str] = ()) -> ProviderError:
    """Return an error for the user's ``error``, raised while ``process`` was to yield sample ``sample_index`` of
    ``filename``, with its traceback.

    ``file_list``: the file list, for hints about it.
    """
    if isinstance(error, ProviderError):  # pydp2 itself raised it about process()
        return with_location(error, filename, sample_index)
    what = f"file {filename}, sample {sample_index}: process raised {type(error).__name__}"
    return from_user(what + remedy(error, file_list, filename), error, count_own_frames(error))


def remedy(error: BaseException, file_list: Sequence[str] = (), entry: str = "") -> str:
    """Return a remedy for ``error`` of the user's code, to append to a message; '' if none is known. ``file_list``: the
    file list; ``entry``: the entry of it that ``process`` was to read."""
    return next(filter(None, (find(error, file_list, entry) for find in _REMEDIES)), "")


def _for_part_of_a_file(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    """Say how an entry is taken apart that names a part of a file."""
    named = _named_part(error, entry)
    if not named:
        return ""
    name, part = split_entry(named)
    return (
        f"; {named!r} names part {part.index} of {part.count} of the file {name!r}: take it apart with "
        "name, part = pydp2.file_parts.split_entry(filename), see docs/formats.md"
    )


def _for_data_in_place_of_a_list(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    """Say how a file of data is listed, if ``entry`` or the first line looks like a line of data, and no line is a
    file."""
    source, missing = getattr(file_list, "source", None), _missing_file(error)
    if source and missing in (file_list[0], entry) and _LOOKS_LIKE_DATA.search(missing) and not _has_file(file_list):
        return f"; {source} looks like a file of data, not like a list of files: in Python its list is [{source!r}]"
    return ""


def _for_pattern(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    if entry and _missing_file(error) == entry and set("*?[") & set(entry):
        return f"; no file matched this pattern when the list was read, in {Path.cwd()} or where root= (--root) says"
    return ""


def _for_directory(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    if isinstance(error, IsADirectoryError) and isinstance(error.filename, str):
        return f"; it is a directory: write {Path(error.filename, '*')} into the list to have its files"
    return ""


def _for_relative_path(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    missing = error.filename if isinstance(error, FileNotFoundError) else None
    if isinstance(missing, str) and not Path(missing).is_absolute():
        return f"; relative paths start at {Path.cwd()}, or where root= (--root) says"
    return ""


def _for_names_of_paddle(error: BaseException, file_list: Sequence[str], entry: str) -> str:
    """Say what to import in place of a module of the first PaddlePaddle."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "paddle":
        lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
        if any("paddle.trainer" in line for line in lines):
            return "; the names of PyDataProvider2 are in pydp2: write from pydp2 import *"
    return ""


_REMEDIES: tuple[Callable[[BaseException, Sequence[str], str], str], ...] = (
    _for_part_of_a_file,
    _for_data_in_place_of_a_list,
    _for_pattern,
    _for_directory,
    _for_relative_path,
    _for_names_of_paddle,
)
"""Remedies for mistakes that are often made, of which the first that fits is given."""


def _missing_file(error: BaseException) -> Any:
    """Return the file that ``error`` did not find, as the user's code gave it; None for another error."""
    return error.filename if isinstance(error, OSError) and error.errno in _NO_FILE_ERRNOS else None


def _named_part(error: BaseException, entry: str) -> str:
    """Return the entry with a part that the user's code has used as the name of a file, according to ``error``; '' if
    there is none."""
    if not isinstance(error, OSError):
        return ""
    filename = error.filename if isinstance(error.filename, str) else ""
    for name in (filename, entry):
        if file_of(name) != name and name in (filename, *str(error).split("'"), *str(error).split()):
            with contextlib.suppress(OptionError):  # there is no such part
                split_entry(name)
                return name
    return ""


def _has_file(file_list: Sequence[str]) -> bool:
    """Return True if one of the first lines of ``file_list`` is a file, or names a part of one. Then it is a list of
    files, even if other lines look like data."""
    names = map(file_of, file_list[:_LINES])
    return any(name and os.path.lexists(name) for name in names)


def count_own_frames(error: BaseException) -> int:
    """Return the number of frames at the head of the traceback that belong to pydp2 or to the import system, and that
    help no user."""
    count, frame = 0, error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            return count
        count, frame = count + 1, frame.tb_next
    return count


def mismatch_text(error: BadSample) -> str:
    """Return the text without the name of the slot: the mismatch, and the remedy if there is one."""
    if not error.expected:
        return str(error)
    mismatch = f"expected {error.expected}, got {error.got}"
    remedy = str(error).removeprefix(f"{error.slot}: {mismatch}")
    return mismatch if remedy == str(error) else mismatch + remedy

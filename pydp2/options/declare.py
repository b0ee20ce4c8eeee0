"""Declare options: fields of a dataclass with a check and a help text, and the forms of their values."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from pydp2.errors import OptionTypeError
from pydp2.options.values import Check, number_of_bytes, or_none, value_text

Whole: TypeAlias = int | np.integer[Any]
Number: TypeAlias = float | np.integer[Any] | np.floating[Any]
Bytes: TypeAlias = int | np.integer[Any] | str
"""A number of bytes, or a text such as ``"2GiB"``."""
FilePath: TypeAlias = str | os.PathLike[str]


def option(check: Check, text: str, default: Any = MISSING, *, is_size: bool = False) -> Any:
    """Return the field of an option with its ``check`` and its help."""
    return field(default=default, metadata={"check": check, "help": text, "is_size": is_size})


def size_option(text: str, default: int | None = None) -> Any:
    """Return the field of an option in bytes; without a ``default`` it may be None."""
    return option(or_none(number_of_bytes) if default is None else number_of_bytes, text, default, is_size=True)


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base class of options that are checked when they are made; :func:`service_options` and :func:`job_options` also
    convert their values."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            plain = f.metadata["check"](f.name, value)
            if type(plain) is not type(value) or plain != value:
                raise OptionTypeError(f"{f.name} must be given as {plain!r}, got {value_text(value)}")

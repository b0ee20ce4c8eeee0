"""Where something went wrong: the one wording for file and sample, used by workers and by ``samples()`` alike.

Samples are counted from 0 in the order of their yields.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TypeVar

from pydp2.errors import (
    BadSample,
    ProviderError,
    RemoteError,
    at_sample,
    builtin_name_of_mixed,
    from_user,
    provider_error,
)

_COMPILED = "pydp2/inputs/_compiled.pyx"  # what frames of compiled code call their file, wherever it is installed
_OURS = (str(Path(__file__).resolve().parents[1]) + "/", _COMPILED, importlib.__file__, "<frozen importlib")

E = TypeVar("E", bound=RemoteError)


def place(error: E, filename: str, y: int) -> E:
    """``error``, found at yield ``y`` of ``filename``, with its place in front of its text; of the same class.

    A bad sample reads "file X, sample y, slot NAME: expected …, got …".
    """
    at = f"file {filename}, sample {y}"
    if isinstance(error, BadSample):
        text = at_sample(filename, y, error.slot, finding(error))
        return BadSample(text, slot=error.slot, expected=error.expected, got=error.got)  # type: ignore[return-value]
    if isinstance(error, ProviderError):  # its class may be one made for a builtin exception
        return provider_error(f"{at}: {error}", builtin_name_of_mixed(error))  # type: ignore[return-value]
    return type(error)(f"{at}: {error}")


def raised(error: BaseException, filename: str, y: int) -> ProviderError:
    """The user's ``error``, raised while ``process`` was to yield sample ``y`` of ``filename``, with its traceback."""
    if isinstance(error, ProviderError):  # our own words about what process did, not the user's exception
        return place(error, filename, y)
    what = f"file {filename}, sample {y}: process raised {type(error).__name__}"
    return from_user(what + where_paths_start(error), error, own_frames(error))


def where_paths_start(error: BaseException) -> str:
    """For a file that is not found under a relative path, where such paths start, to append to a message; else ''."""
    if (
        isinstance(error, FileNotFoundError)
        and isinstance(error.filename, str)
        and not Path(error.filename).is_absolute()
    ):
        return f"; relative paths start at {Path.cwd()}, or where root= (--root) says"
    return ""


def own_frames(error: BaseException) -> int:
    """How many frames at the head of the traceback are ours or the import system's: no user wants to read those."""
    count, frame = 0, error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_OURS):
            return count
        count, frame = count + 1, frame.tb_next
    return count


def finding(error: BadSample) -> str:
    """What is wrong with the value."""
    return f"expected {error.expected}, got {error.got}" if error.expected else str(error)

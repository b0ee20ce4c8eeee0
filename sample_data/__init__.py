"""Where the sample sets lie, in a checkout (``sample_data/``) and in an installation (package ``pydp2_samples``).

Only finding is done here: each set's folder holds its files, its lists, its provider and a README with its source.
"""

from __future__ import annotations

import difflib
from pathlib import Path

__all__ = ["files", "names", "path"]

_HERE = Path(__file__).resolve().parent
_FOLDERS = {
    "digits": "digits",
    "mnist": "seeds/mnist",
    "nested": "nested",
    "sentiment": "seeds/sentiment",
    "sequence": "sequence",
    "sparse": "sparse",
}


def names() -> tuple[str, ...]:
    """The names of the sets, in alphabetical order."""
    return tuple(_FOLDERS)


def path(name: str) -> Path:
    """The folder of the set ``name``, absolute. It is the working directory that the set's lists are written for.

    Raises ValueError, with the nearest name, when there is no such set.
    """
    if name not in _FOLDERS:
        near = difflib.get_close_matches(name, _FOLDERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FOLDERS)}"
        raise ValueError(f"need the name of a sample set, have {name!r}: {hint}")
    return _HERE / _FOLDERS[name]


def files(name: str, side: str = "train") -> list[str]:
    """The entries of ``train.list`` (or, with ``side="test"``, of ``test.list``) of a set as absolute paths.

    With these a set can be read from any working directory. Raises FileNotFoundError when the set has no such side.
    """
    folder = path(name)
    listed = (folder / f"{side}.list").read_text(encoding="utf-8")
    return [str(folder / entry) for entry in listed.splitlines()]

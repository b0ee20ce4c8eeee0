"""The sources of a configuration: what ``define_py_data_sources2`` made of lists, modules, objects and args."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydp2.errors import OptionError, OptionTypeError

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Source:
    """One side of a training configuration; accepted wherever a list is. It brings its provider along.

    ``files``: path of a list, or the entries themselves; ``provider``: its address; ``args``: keywords for the hook.
    """

    files: Files
    provider: str
    args: Mapping[str, Any] = field(default_factory=dict)
    is_train: bool = True


def define_py_data_sources2(
    train_list: Files | None,
    test_list: Files | None,
    module: str | Sequence[str],
    obj: str | Sequence[str],
    args: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
) -> tuple[Source | None, Source | None]:
    """The train and the test source; None for a side without a list. See docs/semantics.md, PD-54.

    ``module``, ``obj`` and ``args`` hold for both sides, or are 2-element lists or tuples (train, test). Lists are
    paths or Python lists of entries. Raises OptionError when both lists are None, OptionTypeError for a missing name.
    """
    if train_list is None and test_list is None:
        raise OptionError("define_py_data_sources2 needs train_list or test_list, both are None")
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

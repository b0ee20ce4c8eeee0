"""Explain why an ``init_hook`` cannot take its arguments: the user's ``args``, or those of pydp2."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

GIVEN_BY_PYDP2 = ("file_list", "is_train", "input_order")
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OTHER_NAMES = {
    "separator": ("delimiter", "sep", "delim"),
    "header": ("skip_header", "skiprows", "skip_rows", "has_header", "names"),
    "label": ("label_column", "label_col", "target", "target_column", "y"),
    "label_column": ("label", "column"),
    "label_width": ("num_labels", "n_labels"),
    "classes": ("num_classes", "n_classes", "nclasses", "num_class", "class_names"),
    "dim": ("n_features", "num_features", "features", "dimension", "input_dim", "columns"),
    "base": ("zero_based", "one_based", "index_base", "indexing_mode", "offset"),
    "folder": ("root", "path_root", "dir", "directory", "prefix", "path"),
    "scale": ("factor", "normalize", "normalise"),
    "labels": ("label_file", "label", "targets"),
    "dtype": ("type", "data_type"),
}
"""Arguments of the ready-made providers, with their names in other libraries."""


def wrong_arguments(signature: inspect.Signature, given: Iterable[str], name: str, reason: str) -> str:
    """Return the text of the error for the hook of the provider ``name``, whose ``signature`` does not bind ``given``
    for ``reason``."""
    taken = list(signature.parameters.values())[1:]  # without settings
    names = [parameter.name for parameter in taken if parameter.kind in _KEYWORD]
    args = [argument for argument in given if argument not in GIVEN_BY_PYDP2]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken)
    user_names = [name for name in names if name not in GIVEN_BY_PYDP2]
    unknown = [] if takes_any else [argument for argument in args if argument not in names]
    needed = [
        parameter.name
        for parameter in taken
        if parameter.name in user_names and parameter.default is inspect.Parameter.empty
    ]
    absent = [name for name in needed if name not in args]
    if not takes_any and not set(GIVEN_BY_PYDP2) <= set(names):
        return (
            f"the init_hook of {name} cannot be called: {reason}; pydp2 passes settings, {', '.join(GIVEN_BY_PYDP2)} "
            f"and args ({', '.join(sorted(args)) or 'none'}): accept the arguments that it does not need with **kwargs"
        )
    if unknown:
        return f"{name} has no argument {unknown[0]!r}{_near(unknown[0], user_names)}; {_known(user_names)}"
    if absent:
        others = [argument for argument in args if argument not in names]
        have = f", args have {', '.join(map(repr, others))}" if others else ""
        return (
            f"{name} needs the argument {absent[0]!r}{have}: write args={{{absent[0]!r}: …}}, or --args {absent[0]}=… "
            f"on the command line; {_known(user_names)}"
        )
    return f"the init_hook of {name} cannot be called: {reason}; {_known(user_names)}"


def _near(name: str, known: list[str]) -> str:
    import difflib

    found = [option for option in known if name.lower() in _OTHER_NAMES.get(option, ())]
    found += difflib.get_close_matches(name, known, 1, 0.6)
    return f", did you mean {found[0]!r}?" if found else ""


def _known(names: list[str]) -> str:
    return f"it takes {', '.join(names)}" if names else "it takes no arguments"

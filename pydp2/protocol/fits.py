"""What a stream depends on, and how two of them differ: a state is only good where all of it is the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

CODE = ("provider_source", "args")
"""What may differ on request: changed code that still yields the same samples."""


def differences(then: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str] = ()) -> list[str]:
    """What differs, in words, but for the names in ``allow``. Raises ValueError when that names what it may not."""
    wrong = set(allow) - set(CODE)
    if wrong:
        raise ValueError(f"allow may name {', '.join(CODE)}, got {', '.join(sorted(wrong))}")
    names = [*now, *(name for name in then if name not in now)]
    return [
        f"{name} was {_short(then.get(name))}, is {_short(now.get(name))}"
        for name in names
        if then.get(name) != now.get(name) and name not in allow
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

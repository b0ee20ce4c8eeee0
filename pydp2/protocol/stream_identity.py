"""Compare all that two streams depend on, because a state is only good where all of it is the same; and check
the numbers in a state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydp2.protocol.messages import INT_LIMIT

CODE_FIELDS = ("provider_source", "args")
"""Fields that may differ on request: changed code that still yields the same samples."""


def differences(then: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str] = ()) -> list[str]:
    """Return the differences in words, without those named in ``allow``. Raises ValueError if ``allow`` has another
    name than :data:`CODE_FIELDS`."""
    wrong = set(allow) - set(CODE_FIELDS)
    if wrong:
        raise ValueError(f"allow may name {', '.join(CODE_FIELDS)}, got {', '.join(sorted(wrong))}")
    names = [*now, *(name for name in then if name not in now)]
    return [
        f"{name} was {_shortened(then.get(name))}, is {_shortened(now.get(name))}"
        for name in names
        if then.get(name) != now.get(name) and name not in allow
    ]


def check_int(value: Any, low: int = 0, limit: int = INT_LIMIT) -> int:
    """Return ``value`` if it is a number from ``low`` to below ``limit``; raise ValueError otherwise."""
    if type(value) is not int or not low <= value < limit:
        raise ValueError(f"{value!r:.40} where a number is needed")
    return value


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

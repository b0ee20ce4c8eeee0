"""Compare stream identities, because a state is valid only for a stream with the same one, and check the values in a
state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydp2.errors import OptionError, OptionTypeError, StateMismatch
from pydp2.protocol.messages import INT_LIMIT

CODE_FIELDS = ("provider_source", "args")
"""Fields that may differ on request, for changed code that still yields the same samples."""
OF_SOURCES = ("list", "provider_source", "args", "is_train")
"""Fields that have a value for each source, by name, if the sources have names."""
BLOCK_LIST = "block_list"
"""Field that may differ on request between two passes, because it decides which samples a pass has."""
WEIGHTS = "weights"
"""Field that may differ on request: the weights of a mixture from here on."""
_ALLOWED = (*CODE_FIELDS, BLOCK_LIST, WEIGHTS)


def check_allow(allow: Any) -> None:
    """Raise OptionError if ``allow`` has the name of a field that may not differ, OptionTypeError if it is not a
    collection of names."""
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise OptionTypeError(
            f'allow must have the names of what may differ, such as allow=["provider_source"], got {allow!r:.80} '
            f"({type(allow).__name__})"
        )
    for name in allow:
        if name not in _ALLOWED:
            raise OptionError(f"allow may name {', '.join(map(repr, _ALLOWED))}, got {name!r:.80}")


def differences(then: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str] = ()) -> list[str]:
    """Return texts with the differences, without those named in ``allow``."""
    texts: list[str] = []
    for name in _names_of_both(now, then):
        was, value = then.get(name), now.get(name)
        if was == value or name in allow:
            continue
        if name in OF_SOURCES and isinstance(was, Mapping) and isinstance(value, Mapping):
            texts += (
                f"{name} of source {source!r} was {_shortened(was.get(source))}, is {_shortened(value.get(source))}"
                for source in _names_of_both(value, was)
                if was.get(source) != value.get(source)
            )
        else:
            texts.append(f"{name} was {_shortened(was)}, is {_shortened(value)}")
    return texts


def allow_hint(then: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str]) -> str:
    """Return a hint about ``allow``, to append to the differences; "" if it would not remove any."""
    names = [name for name in CODE_FIELDS if then.get(name) != now.get(name)]
    hint = ""
    if set(names) - set(allow):
        quoted = ", ".join(f'"{name}"' for name in names)
        hint = f"; for changed code that yields the same samples pass allow=[{quoted}]"
    if BLOCK_LIST not in allow and then.get(BLOCK_LIST) != now.get(BLOCK_LIST):
        hint += f'; a state from between two passes loads with another block list by allow=["{BLOCK_LIST}"]'
    if WEIGHTS not in allow and then.get(WEIGHTS) != now.get(WEIGHTS):
        hint += f'; allow=["{WEIGHTS}"] goes on with the other weights'
    return hint


def check_int(value: Any, low: int = 0, limit: int = INT_LIMIT) -> int:
    """Return ``value`` if it is a number from ``low`` to below ``limit``; raise ValueError otherwise."""
    if type(value) is not int or not low <= value < limit:
        raise ValueError(f"{value!r:.40} where a number is needed")
    return value


def check_bool(value: Any) -> bool:
    """Return ``value`` if it is True or False; raise ValueError otherwise."""
    if type(value) is not bool:
        raise ValueError(f"{value!r:.40} where true or false is needed")
    return value


def damaged(field: str, error: Exception) -> StateMismatch:
    """Return the error for a state whose ``field`` cannot be used, because of ``error``."""
    if isinstance(error, OptionError):
        return StateMismatch(str(error))
    if isinstance(error, KeyError):
        return StateMismatch(f"the state cannot be read: {field} lacks {error}: it is damaged")
    return StateMismatch(f"the state cannot be read: {field}: {error}: it is damaged")


def _names_of_both(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [*first, *(name for name in second if name not in first)]


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

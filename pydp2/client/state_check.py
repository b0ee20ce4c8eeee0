"""Check that a state is what ``state_dict()`` returned: plain data, with the digest that it was given.

A state comes from a checkpoint, and a checkpoint may be damaged, or a program may have changed it. Everything that a
stream or a service would do with such a state has to be ruled out before: so first its form is checked
(:func:`check_plain`), then its fields by those who know them, and at last its digest, which tells of any other change.
What the stream depends on (``fits``) is not in the digest, because it is compared with that of the present stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydp2.errors import OptionError, StateMismatch

_MAX_DEPTH = 64  # of dicts and lists: a mixture of mixtures is a few levels deep
_MAX_NODES = 1 << 23  # values in all: a list that holds itself many times over ends
_MAX_INT = 1 << 64
_TEXT_SHOWN = 40  # characters of a key
_OUTSIDE = ("fits", "digest", "sources")


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with its digest."""
    return {**state, "digest": _digest(state)}


def check_seal(state: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless ``state`` has the digest that :func:`seal` gave it. It must be plain."""
    try:
        found = _digest(state)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise damaged("sources", error) from None
    if state.get("digest") != found:
        raise StateMismatch(
            "the state is not what state_dict() returned: its digest is another one, so a value was changed, and it is "
            "damaged; load the state as it was saved"
        )


def check_state(state: Any) -> None:
    """Raise StateMismatch unless ``state`` is plain data with the digest of its content."""
    check_plain(state)
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a state must be what state_dict() returned, got {type(state).__name__}")
    check_seal(state)


def check_version(version: int, readable: int) -> None:
    """Raise StateMismatch unless ``version`` of a state is the one that is ``readable``."""
    if version != readable:
        writer = "a newer" if version > readable else "an older"
        raise StateMismatch(
            f"the state has version {version}, this pydp2 reads version {readable}: it was written by {writer} "
            "release; use that one"
        )


def check_plain(state: Any) -> None:
    """Raise StateMismatch, naming the place, unless ``state`` consists of dicts with texts as keys, lists, texts, and
    numbers of at most 64 bits, not too deep."""
    level: list[tuple[str, Any]] = [("state", state)]
    count = 0
    for _ in range(_MAX_DEPTH):
        items: list[tuple[str, Any]] = []
        for place, value in level:
            if isinstance(value, Mapping):
                _check_keys(place, value)
                items += ((f"{place}[{key!r:.{_TEXT_SHOWN}}]", item) for key, item in value.items())
            elif isinstance(value, list | tuple):
                items += ((f"{place}[{at}]", item) for at, item in enumerate(value))
            else:
                _check_value(place, value)
        count += len(items)
        if count > _MAX_NODES:
            raise StateMismatch(f"the state has more than {_MAX_NODES} values: it is damaged")
        if not items:
            return
        level = items
    raise StateMismatch(f"{level[0][0]:.200} is nested more than {_MAX_DEPTH} deep: the state is damaged")


def _check_keys(place: str, value: Mapping[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str) or not _is_text(key):
            raise StateMismatch(
                f"{place:.200} has a key of type {type(key).__name__} that is no text: the state is damaged"
            )


def _check_value(place: str, value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not _is_text(value):
            raise StateMismatch(f"{place:.200} is a text with half a character (a surrogate): the state is damaged")
    elif isinstance(value, int):
        if not -_MAX_INT < value < _MAX_INT:
            raise StateMismatch(f"{place:.200} is a number of {value.bit_length()} bits: the state is damaged")
    elif not isinstance(value, float):
        raise StateMismatch(
            f"{place:.200} must be plain data (a text, number, list or dict), got {type(value).__name__}; save the "
            "state as state_dict() returns it, as JSON for example"
        )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def damaged(field: str, error: Exception) -> StateMismatch:
    """Return the error for a state whose ``field`` cannot be used, because of ``error``."""
    if isinstance(error, OptionError):
        return StateMismatch(str(error))
    if isinstance(error, KeyError):
        return StateMismatch(f"the state cannot be read: {field} lacks {error}: it is damaged")
    return StateMismatch(f"the state cannot be read: {field}: {error}: it is damaged")


def _digest(state: Mapping[str, Any]) -> str:
    content: dict[str, Any] = {name: value for name, value in state.items() if name not in _OUTSIDE}
    if "sources" in state:  # each has a digest of its own
        content["sources"] = [[source["offset"], source["state"].get("digest")] for source in state["sources"]]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=8).hexdigest()

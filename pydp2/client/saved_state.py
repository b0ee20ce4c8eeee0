"""Wrap the position of a stream as the state that ``state_dict()`` returns, and check what comes back.

A state comes from a checkpoint, and a checkpoint may be damaged, or a program may have changed it. A stream or a
service must never act on such a state, so all of it is checked before: first its form (:func:`check_plain`), then the
stream identity, then its fields, each by the class that has it, and at last its digest, which shows any other change.
The stream identity is not in the digest, because it is compared with that of the present stream. The data are small,
JSON-able and versioned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pydp2.data.columns import sample_set
from pydp2.errors import ProtocolError, StateMismatch
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.stream_identity import BLOCK_LIST, WEIGHTS, allow_hint, check_allow, damaged, differences

VERSION = 3
"""Version of states. Version 1 had no checksums of the files of its pool; 2 had other names of fields."""
_MAX_DEPTH = 64  # of dicts and lists
_MAX_NODES = 1 << 23  # values in all: ends the walk over a list that contains itself many times
_MAX_INT = 1 << 64
_TEXT_SHOWN = 40  # characters of a key
_OUTSIDE = ("stream_identity", "digest")
# A program may ask for a state after each batch of a tail, and the pool of the snapshot point is the same in all.
_text = lru_cache(maxsize=2)(sample_set.set_to_text)


def _opened(state: Any, identity: Mapping[str, Any], allow: Collection[str] = ()) -> Mapping[str, Any]:
    """Return ``state`` if it is one of the stream with this ``identity``; its other fields and its digest are not
    checked. Raises StateMismatch, naming what differs; OptionError or OptionTypeError if ``allow`` has a wrong name."""
    check_plain(state)
    if not isinstance(state, Mapping) or type(state.get("version")) is not int:
        raise StateMismatch("a state must be what state_dict() returned")
    check_version(state["version"])
    check_allow(allow)  # before the comparison, which would blame the state
    if not isinstance(state.get("stream_identity"), Mapping):
        raise damaged("stream_identity", ValueError("it is no object"))
    then = state["stream_identity"]
    if differs := differences(then, identity, allow):
        raise StateMismatch(
            "the state was saved for another stream: "
            + "; ".join(differs)
            + "; use the values that it was saved with"
            + allow_hint(then, identity, allow)
        )
    return state


def save_stream_state(position: StreamState, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``position`` as a state for a trainer's checkpoint, of a service's stream with this ``identity``."""
    return seal({"version": VERSION, "stream_identity": dict(identity), **position.to_dict(_text)})


def load_stream_state(state: Any, identity: Mapping[str, Any], allow: Collection[str] = ()) -> StreamState:
    """Return the position of a state that :func:`save_stream_state` made. Raises StateMismatch, naming what differs, if
    it is of another stream, and naming the field, if it is damaged; OptionError or OptionTypeError if ``allow`` has a
    wrong name."""
    position = StreamState.from_dict(_opened(state, identity, allow), sample_set.set_from_text)
    then = state["stream_identity"]
    if then.get(BLOCK_LIST) != identity.get(BLOCK_LIST):
        _check_between_passes(position)
    if then.get(WEIGHTS) != identity.get(WEIGHTS):  # the weights that were set belong to those of then
        kept = {name: value for name, value in position.buckets.items() if name != WEIGHTS}
        position = replace(position, buckets=kept)
    _check_sendable(position)
    check_seal(state)
    return position


def _check_between_passes(position: StreamState) -> None:
    """Raise StateMismatch if ``position`` lies inside a pass, whose samples another block list would change."""
    if position.batch or position.acknowledged_ahead:
        raise StateMismatch(
            f"the state is from the middle of pass {position.pass_id}, and another block list would give this pass "
            "other samples; load it with the block_list of then and change that after the pass, load a state from "
            "between two passes, or begin a pass with set_epoch()"
        )


def of_stream(state: Any) -> Any:
    """Return the state of the stream in a state of a loader, or ``state`` itself if it is a state of a client. Raises
    StateMismatch if it is neither."""
    if not isinstance(state, Mapping) or "stream" not in state:
        return state
    try:
        found = json.loads(state["stream"])
    except (TypeError, ValueError, RecursionError) as error:
        raise StateMismatch(f"the state cannot be read: stream is no JSON text ({error}): it is damaged") from None
    if not isinstance(found, Mapping) or any(state.get(name) != found.get(name) for name in ("pass", "batch")):
        raise StateMismatch("the state cannot be read: stream, pass and batch do not agree: it is damaged")
    return found


def beginning_of_pass(state: Mapping[str, Any], pass_id: int, bounds: Sequence[int] | None) -> dict[str, Any]:
    """Return the state at the beginning of pass ``pass_id``, for the stream of ``state``. ``bounds``: those of its
    buckets, if they are known."""
    position = StreamState(pass_id, buckets={} if bounds is None else {"bounds": list(bounds)})
    envelope = {name: state[name] for name in ("version", "stream_identity") if name in state}
    return seal({**envelope, **position.to_dict(_text)})


def _check_sendable(position: StreamState) -> None:
    """Raise StateMismatch unless this position fits into a message to the service."""
    largest = m.INT_LIMIT - 1
    message, _ = position.to_wire(largest, largest)
    try:
        m.decode([m.encode(message)])
    except ProtocolError as error:
        parts = {
            "point": message.snapshot,
            "acknowledged_ahead": message.acknowledged_ahead,
            "buckets": message.buckets,
        }
        field = max(parts, key=lambda name: len(repr(parts[name])))
        raise damaged(field, ValueError(f"it is larger than a service takes ({error})")) from None


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with its digest."""
    return {**state, "digest": _digest(state)}


def check_seal(state: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless ``state``, which must be plain data, has the digest that :func:`seal` gave it."""
    if state.get("digest") != _digest(state):
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


def check_version(version: int) -> None:
    """Raise StateMismatch unless ``version`` of a state is the one that this release reads."""
    if version != VERSION:
        writer = "a newer" if version > VERSION else "an older"
        raise StateMismatch(
            f"the state has version {version}, this pydp2 reads version {VERSION}: it was written by {writer} "
            "release; load it with that release, or begin a pass with set_epoch() in place of the state"
        )


def check_plain(state: Any) -> None:
    """Raise StateMismatch, naming the value, unless ``state`` consists of dicts with texts as keys, lists, texts, and
    numbers of at most 64 bits, and is not nested too deep."""
    level: list[tuple[str, Any]] = [("state", state)]
    count = 0
    for _ in range(_MAX_DEPTH):
        items: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, Mapping):
                _check_keys(path, value)
                items += ((f"{path}[{key!r:.{_TEXT_SHOWN}}]", item) for key, item in value.items())
            elif isinstance(value, list | tuple):
                items += ((f"{path}[{at}]", item) for at, item in enumerate(value))
            else:
                _check_value(path, value)
        count += len(items)
        if count > _MAX_NODES:
            raise StateMismatch(f"the state has more than {_MAX_NODES} values: it is damaged")
        if not items:
            return
        level = items
    raise StateMismatch(f"{level[0][0]:.200} is nested more than {_MAX_DEPTH} deep: the state is damaged")


def _check_keys(path: str, value: Mapping[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str) or not _is_text(key):
            raise StateMismatch(
                f"{path:.200} has a key of type {type(key).__name__} that is no text: the state is damaged"
            )


def _check_value(path: str, value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not _is_text(value):
            raise StateMismatch(f"{path:.200} is a text with half a character (a surrogate): the state is damaged")
    elif isinstance(value, int):
        if not -_MAX_INT < value < _MAX_INT:
            raise StateMismatch(f"{path:.200} is a number of {value.bit_length()} bits: the state is damaged")
    elif not isinstance(value, float):
        raise StateMismatch(
            f"{path:.200} must be plain data (a text, number, list or dict), got {type(value).__name__}; save the "
            "state as state_dict() returns it, as JSON for example"
        )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(state: Mapping[str, Any]) -> str:
    content: dict[str, Any] = {name: value for name, value in state.items() if name not in _OUTSIDE}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=8).hexdigest()

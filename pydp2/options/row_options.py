"""Check the options of a job that mixes or packs its rows: plain dicts, as mix() and pack_sequences() make them
(docs/mixing.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pydp2.errors import OptionError, OptionTypeError
from pydp2.options.values import Check, Choice, flag, integer_from, or_none, slot_name_or_index, value_text
from pydp2.protocol.exact_weights import exact_weight

STOPPING_STRATEGIES = ("all_exhausted_without_replacement", "first_exhausted", "all_exhausted", "cycle_forever")
BATCHING_METHODS = ("random", "per_stream")
STRATEGIES = ("bfd_split", "bfd", "wrapped")
_MAX_POINTS = 1000  # of a schedule: states and messages have all of them


def pack_option(name: str, value: Any) -> dict[str, Any] | None:
    """Return the options of packed rows with their defaults. Raises OptionError, OptionTypeError."""
    if value is None:
        return None
    plain = _checked(name, value, _PACK)
    for needed in ("slots", "length"):
        if needed not in value:
            raise OptionError(f"{name} needs {needed!r}; pack_sequences() makes these options")
    if both := {*plain["slots"]} & {*plain["ragged"]}:
        raise OptionError(f"a slot is packed or comes as Ragged, not both, got {min(both, key=str)!r} twice")
    if plain["strategy"] != "wrapped" and plain["last_row"] != "pad":
        raise OptionError(
            f'last_row={plain["last_row"]!r} needs strategy="wrapped": with {plain["strategy"]!r} any row may have '
            "padding"
        )
    return plain


def mix_option(name: str, value: Any) -> dict[str, Any] | None:
    """Return the options of a mixture with their defaults. Raises OptionError, OptionTypeError."""
    if value is None:
        return None
    plain = _checked(name, value, _MIX)
    if not plain["points"]:
        raise OptionError(f"{name} needs weights from step 0 on; mix() makes these options")
    names = [*plain["points"][0][1]]
    for step, weights in plain["points"]:
        if [*weights] != names:
            raise OptionError(
                f"the weights of a mixture must name the same sources in each step, got {', '.join(names)} in step "
                f"{plain['points'][0][0]}, and {', '.join(weights)} in step {step}"
            )
    unknown = [source for source in plain["max_passes"] if source not in names]
    if unknown:
        raise OptionError(f"max_passes names {unknown[0]!r}, and the sources are {', '.join(names)}")
    if plain["max_passes"] and plain["stopping_strategy"] not in ("all_exhausted", "cycle_forever"):
        raise OptionError(
            'max_passes needs stopping_strategy="all_exhausted" or "cycle_forever": with '
            f"{plain['stopping_strategy']!r} each source is read once in a pass"
        )
    if plain["weight_by"] is not None and plain["batching_method"] == "per_stream":
        raise OptionError('weight_by needs batching_method="random", which draws rows and not batches')
    return plain


def _checked(name: str, value: Any, known: Mapping[str, tuple[Check, Any]]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionTypeError(f"{name} must be a dict of options, got {value_text(value)}")
    for key in value:
        if key not in known:
            raise OptionTypeError(f"{name} has no option {key!r:.80}; known here: {', '.join(known)}")
    return {key: check(key, value.get(key, default)) for key, (check, default) in known.items()}


def _slots(name: str, value: Any) -> list[str | int]:
    listed = [value] if isinstance(value, str | int) else value
    if not isinstance(listed, list | tuple) or not listed:
        raise OptionError(f"{name} must name at least one slot, got {value_text(value)}")
    slots = [slot_name_or_index(name, slot) for slot in listed]
    if len({*slots}) < len(slots):
        raise OptionError(f"{name} must name each slot once, got {value_text(value)}")
    return slots


def _more_slots(name: str, value: Any) -> list[str | int]:
    return _slots(name, value) if isinstance(value, str | int) or value else []


def _points(name: str, value: Any) -> list[list[Any]]:
    """Return pairs of a step and the weights by source, by step."""
    if not isinstance(value, list | tuple) or len(value) > _MAX_POINTS:
        raise OptionTypeError(
            f"a schedule of weights must be a list of (step, weights), at most {_MAX_POINTS}, got {value_text(value)}"
        )
    points: list[list[Any]] = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2 or not isinstance(point[1], Mapping):
            raise OptionTypeError(f"a schedule of weights must be a list of (step, weights), got {value_text(point)}")
        step = integer_from(0)("step", point[0])
        weights = {_source(source): exact_weight(weight) for source, weight in point[1].items()}
        if not weights or not any(Fraction(weight) for weight in weights.values()):
            raise OptionError(f"a mixture needs at least one source with a weight above 0, got none in step {step}")
        if points and step <= points[-1][0]:
            raise OptionError(f"the steps of a schedule must rise, got {points[-1][0]} and then {step}")
        points.append([step, weights])
    if points and points[0][0]:
        raise OptionError(f"a schedule of weights must begin with step 0, got {points[0][0]}")
    return points


def _source(name: Any) -> str:
    if not isinstance(name, str):
        raise OptionTypeError(f"a source must be named by a text, got {value_text(name)}")
    return name


def _passes(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise OptionTypeError(f"{name} must be a dict of source: number of passes, got {value_text(value)}")
    return {_source(source): integer_from(1)(name, passes) for source, passes in value.items()}


def _choice(allowed: Sequence[str]) -> Callable[[str, Any], Any]:
    return Choice(tuple(allowed))


_PACK: Mapping[str, tuple[Check, Any]] = {
    "slots": (_slots, None),
    "ragged": (_more_slots, ()),
    "length": (integer_from(1), 1),
    "strategy": (_choice(STRATEGIES), "bfd_split"),
    "last_row": (_choice(("pad", "drop")), "pad"),
    "pad_token": (integer_from(0), 0),
    "draw": (integer_from(1), 64),
    "balance": (or_none(_choice(("tokens", "attention"))), None),
}
_MIX: Mapping[str, tuple[Check, Any]] = {
    "points": (_points, ()),
    "linear": (flag, False),
    "stopping_strategy": (_choice(STOPPING_STRATEGIES), STOPPING_STRATEGIES[0]),
    "batching_method": (_choice(BATCHING_METHODS), "random"),
    "max_passes": (_passes, {}),
    "weight_by": (or_none(slot_name_or_index), None),
}

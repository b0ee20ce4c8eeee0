"""Check the values of the arguments of ``@provider``.

The same checks serve attributes that the init_hook sets, because the hook may overwrite most arguments;
docs/semantics.md says what the arguments *mean* for a pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from numbers import Integral, Number
from typing import Any, TypedDict

import numpy as np

from pydp2.data.schema.input_types import InputType
from pydp2.errors import OptionError, OptionTypeError

InputTypes = Sequence[InputType] | Mapping[str, InputType]
"""Type of ``input_types``: slots by position, or by name."""

_LARGEST = (1 << 62) - 1  # largest number in messages between processes
_TRUE_WORDS, _FALSE_WORDS = ("t", "true", "on"), ("f", "false", "off")


class CacheType(IntEnum):
    """Kind of cache that keeps samples between passes. ``CACHE_PASS_ON_DISK`` keeps them for later runs too. Both
    together, as in ``CACHE_PASS_IN_MEM | CACHE_PASS_ON_DISK``, write the samples to the disk that do not fit into
    memory."""

    NO_CACHE = 0
    CACHE_PASS_IN_MEM = 1
    CACHE_PASS_ON_DISK = 2
    CACHE_PASS_IN_MEM_THEN_DISK = 3


class LegacyKeywords(TypedDict, total=False):
    """Old names of arguments of ``@provider``, for type checkers."""

    slots: InputTypes


class ProviderKeywords(LegacyKeywords, total=False):
    """Arguments of ``@provider`` as keywords, for type checkers; a test compares them with its signature."""

    input_types: InputTypes | None
    should_shuffle: bool | float | str | None
    pool_size: int
    min_pool_size: int
    can_over_batch_size: bool
    calc_batch_size: Callable[[list[Any]], int] | None
    cache: CacheType | int
    check: bool
    check_fail_continue: bool
    init_hook: Callable[..., object] | None


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """Arguments of ``@provider``, checked when made. See :func:`pydp2.providers.decorator.provider` for each.

    Raises:
        OptionTypeError: an argument is of a wrong type.
        OptionError: an argument has a value that is not valid.
    """

    input_types: InputTypes | None = None
    slots: InputTypes | None = None
    should_shuffle: bool | None = None
    pool_size: int = -1
    min_pool_size: int = -1
    can_over_batch_size: bool = True
    calc_batch_size: Callable[[list[Any]], int] | None = None
    cache: CacheType = CacheType.NO_CACHE
    check: bool = False
    check_fail_continue: bool = False
    init_hook: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        for name in ("input_types", "slots"):
            if getattr(self, name) is not None:
                check_types(name, getattr(self, name))
        check_pool_weight("pool_size", self.pool_size)
        check_pool_weight("min_pool_size", self.min_pool_size)
        check_cache(self.cache)
        for name in ("can_over_batch_size", "check", "check_fail_continue"):
            check_flag(name, getattr(self, name))
        if self.should_shuffle is not None:
            check_flag("should_shuffle", self.should_shuffle)
        for name in ("calc_batch_size", "init_hook"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise OptionTypeError(f"{name} must be a function or None, got {_shown(getattr(self, name))}")


ARGUMENTS = tuple(f.name for f in fields(ProviderOptions) if f.name != "slots")
"""Names of the arguments of ``@provider``, without the legacy name."""


def check_types(name: str, value: Any) -> InputTypes:
    """Return ``value`` as a declaration of slots: a list, tuple or dict of at least one InputType."""
    if isinstance(value, InputType):
        raise OptionTypeError(
            f"{name} must be a list, tuple or dict of input types, got one; write {name}=[…] around it"
        )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise OptionTypeError(f"{name} must have names as keys, got the key {_shown(key)}")
            try:
                key.encode()
            except UnicodeEncodeError:  # no message between processes could have the name
                raise OptionError(
                    f"{name} must have names without lone surrogates, which UTF-8 cannot write, got {key!r:.80}; "
                    "rename it"
                ) from None
        slots = list(value.items())
    elif isinstance(value, list | tuple):
        slots = [(f"position {i}", slot) for i, slot in enumerate(value)]
    else:
        raise OptionTypeError(f"{name} must be a list, tuple or dict of input types, got {_shown(value)}")
    for label, slot in slots:
        if not isinstance(slot, InputType):
            remedy = "; call it, as in dense_vector(64)" if callable(slot) else ""
            raise OptionTypeError(f"{name} must hold input types, got {_shown(slot)} for {label}{remedy}")
    if not slots:
        raise OptionError(f"{name} must declare at least one slot, got none")
    return value  # type: ignore[no-any-return]  # checked above


def check_pool_weight(name: str, value: Any) -> int:
    """Return ``value`` as pool_size or min_pool_size: a weight, or -1 for no bound. A pool of 0
    could never hold a sample."""
    low = 1 if name == "pool_size" else 0
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise OptionTypeError(f"{name} must be a whole number, got {_shown(value)}")
    weight = int(value)
    if weight != -1 and weight < low:
        raise OptionError(f"{name} must be at least {low}, or -1 for no bound, got {weight}")
    if weight > _LARGEST:
        raise OptionError(f"{name} must be at most {_LARGEST}, or -1 for no bound, got {weight}")
    return weight


def check_flag(name: str, value: Any) -> bool:
    """Return ``value`` as a flag. Other truthy values are refused, because ``"false"`` is one of them."""
    if not isinstance(value, bool | np.bool_):
        raise OptionTypeError(f"{name} must be True or False, got {_shown(value)}")
    return bool(value)


def check_cache(value: Any) -> CacheType:
    """Return ``value`` as a :class:`CacheType`; its number is accepted as well."""
    try:
        return CacheType(value)
    except ValueError:
        known = ", ".join(f"CacheType.{kind.name}" for kind in CacheType)
        raise OptionError(f"cache must be one of {known}, got {_shown(value)}") from None


def check_calc_batch_size(value: Any) -> Callable[[list[Any]], int] | None:
    """Return ``value`` as calc_batch_size: a function or None. Anything else is ignored with a warning, as in
    PyDataProvider2."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]  # its results are checked at every call
    warnings.warn(f"calc_batch_size must be a function, got {_shown(value)}: ignored", UserWarning, stacklevel=3)
    return None


def normalise_shuffle(value: Any) -> bool | None:
    """Return ``should_shuffle`` as given to ``@provider``: True, False, or None for "in training only".

    Words are ``t``, ``true``, ``on`` and ``f``, ``false``, ``off`` in any letter case; numbers equal to 1 or 0 count as
    well. Anything else gives a ``UserWarning`` and counts as None.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value.lower() in _TRUE_WORDS:
            return True
        if value.lower() in _FALSE_WORDS:
            return False
    elif isinstance(value, Number | np.bool_) and value in (0, 1):
        return bool(value)
    warnings.warn(
        f"should_shuffle={value!r:.80} must be None, True, False, 1, 0 or one of the words "
        f"{', '.join(_TRUE_WORDS + _FALSE_WORDS)} (in any letter case): taken as None, that is, shuffled in training "
        "only",
        UserWarning,
        stacklevel=3,
    )
    return None


def check_names(given: Mapping[str, Any]) -> None:
    """Raise OptionTypeError for arguments that ``@provider`` does not have, naming the nearest one that it has."""
    for name in given:
        import difflib

        near = difflib.get_close_matches(name, ARGUMENTS, 1, 0.6)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise OptionTypeError(f"@provider has no argument {name!r}{hint}; it takes {', '.join(ARGUMENTS)}")


def _shown(value: object) -> str:
    return f"{value!r:.80} ({type(value).__name__})"

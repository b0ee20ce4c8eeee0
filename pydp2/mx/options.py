"""Check that the values of options have their declared types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field
from numbers import Integral, Real
from typing import Any

import numpy as np

from pydp2.errors import OptionError, OptionTypeError
from pydp2.options.values import value_text


def flag(name: str, value: Any) -> bool:
    """Return True or False; 1 and 0 are allowed too, as in programs for MXNet. Raises OptionTypeError for any other
    value."""
    if not isinstance(value, bool | np.bool_ | Integral) or value not in (0, 1):
        raise OptionTypeError(f"{name} must be True or False, got {value_text(value)}")
    return bool(value)


def number(name: str, value: Any) -> float:
    """Return a number as float. Raises OptionTypeError for any other value, OptionError for a number that a float
    cannot hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number, got {value_text(value)}")
    try:
        return float(value)
    except OverflowError:
        raise OptionError(f"{name} must be a number that a float can hold") from None


def typed(options: object, fields: Iterable[Field[Any]]) -> None:
    """Check each of the ``fields`` of ``options`` that is declared as bool, int or float.

    Raises:
        OptionTypeError: another kind of value.
        OptionError: a number that is not finite.
    """
    for field in fields:
        value = getattr(options, field.name)
        match field.type:
            case "bool":
                flag(field.name, value)
            case "int" if isinstance(value, bool) or not isinstance(value, Integral):
                raise OptionTypeError(f"{field.name} must be a whole number, got {value_text(value)}")
            case "int" | "float":
                if not math.isfinite(number(field.name, value)):
                    raise OptionError(f"{field.name} must be a finite number, got {value}")

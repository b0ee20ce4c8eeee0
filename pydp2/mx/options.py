"""Check that the values of options are of the kinds that they are declared to be."""

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
    """True or False; also 1 or 0, as programs for MXNet have it. Raises OptionTypeError for anything else."""
    if not isinstance(value, bool | np.bool_ | Integral) or value not in (0, 1):
        raise OptionTypeError(f"{name} must be True or False, got {value_text(value)}")
    return bool(value)


def number(name: str, value: Any) -> float:
    """A number. Raises OptionTypeError for anything else, OptionError for one that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number, got {value_text(value)}")
    try:
        return float(value)
    except OverflowError:
        raise OptionError(f"{name} must be a number that a float can hold") from None


def typed(options: object, fields: Iterable[Field[Any]]) -> None:
    """Look at every one of the ``fields`` of ``options`` that is declared as bool, int or float.

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

"""Whether the values of options are of the kinds that they are declared to be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field
from numbers import Integral, Real
from typing import Any

from pydp2.errors import OptionError, OptionTypeError
from pydp2.values import flag


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
            case "int" | "float":
                kind, what = (Integral, "a whole number") if field.type == "int" else (Real, "a number")
                if isinstance(value, bool) or not isinstance(value, kind):
                    raise OptionTypeError(f"{field.name} must be {what}, got {value!r}")
                if not math.isfinite(value):
                    raise OptionError(f"{field.name} must be a finite number, got {value}")

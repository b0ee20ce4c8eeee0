"""Hold the functions that make values of a framework of a batch, for :meth:`pydp2.Batch.to`.

A batch is at home far below the adapters of frameworks, which import it. So it looks here, and who knows an adapter
puts its function here. This module imports nothing, because ``import pydp2`` does so and takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

converters: dict[str, Callable[..., Any]] = {}
"""Functions that convert a batch, by the name of the framework."""

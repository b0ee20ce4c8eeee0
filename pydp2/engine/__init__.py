"""Where workers run. An engine starts, watches and ends processes; neither samples nor the ledger pass through it."""

from pydp2.engine.base import TEMPLATE, Engine, EngineLost, Exited, Note, Started

__all__ = ["TEMPLATE", "Engine", "EngineLost", "Exited", "Note", "Started"]

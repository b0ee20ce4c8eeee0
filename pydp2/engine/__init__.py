"""Where workers run. An engine starts, watches and ends processes; neither samples nor the ledger pass through it."""

from pydp2.engine.base import Engine, EngineLost, Exited, Note, Started

__all__ = ["Engine", "EngineLost", "Exited", "Note", "Started"]

"""Run workers. An engine starts, watches and ends processes; it handles neither samples nor the ledger."""

from pydp2.host.engine.base import ZYGOTE, Engine, EngineLost, EngineNote, Exited, NoEngine, Started

__all__ = ["ZYGOTE", "Engine", "EngineLost", "EngineNote", "Exited", "NoEngine", "Started"]

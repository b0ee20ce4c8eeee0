"""Run a trainer's end: its connection, its stream of batches, its position in the stream."""

from pydp2.client.client import Client, Pass
from pydp2.client.connection import Target, ask_stats

__all__ = ["Client", "Pass", "Target", "ask_stats"]

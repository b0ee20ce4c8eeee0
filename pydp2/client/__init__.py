"""A trainer's end: its connection, its stream of batches, its position in it."""

from pydp2.client.connection import ask_stats
from pydp2.client.stream import Client, Pass

__all__ = ["Client", "Pass", "ask_stats"]

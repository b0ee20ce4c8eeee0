"""Run a trainer's end: its connection, its stream of batches, its position in the stream."""

from pydp2.client.client import Client
from pydp2.client.connection import Target, ask_stats
from pydp2.client.pass_iterator import Pass

__all__ = ["Client", "Pass", "Target", "ask_stats"]

"""Run a trainer's end: its connection, its stream of batches, its position in the stream."""

from pydp2.client.client import Client
from pydp2.client.connection import Target, ask_samples, ask_stats
from pydp2.client.pass_iterator import Pass
from pydp2.client.stream import Stream

__all__ = ["Client", "Pass", "Stream", "Target", "ask_samples", "ask_stats"]

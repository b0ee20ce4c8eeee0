"""Count what happens while a service runs, and interpret the counts."""

from pydp2.metrics.bottleneck import bottleneck_of
from pydp2.metrics.process_memory import private_bytes, resident_bytes
from pydp2.metrics.rates import RateCounter

__all__ = ["RateCounter", "bottleneck_of", "private_bytes", "resident_bytes"]

"""What is counted while a service runs, and what the counts say."""

from pydp2.metrics.memory import resident, without_shared_memory
from pydp2.metrics.rates import Rates
from pydp2.metrics.verdict import bottleneck

__all__ = ["Rates", "bottleneck", "resident", "without_shared_memory"]

"""What is counted while a service runs, and what the counts say."""

from pydp2.metrics.advice import Advice, Measured, Slot, advise, shares
from pydp2.metrics.memory import resident, without_shared_memory
from pydp2.metrics.rates import Rates
from pydp2.metrics.verdict import bottleneck

__all__ = ["Advice", "Measured", "Rates", "Slot", "advise", "bottleneck", "resident", "shares", "without_shared_memory"]

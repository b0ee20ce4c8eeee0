"""Count what happens while a service runs, and interpret the counts."""

from pydp2.metrics.bottleneck import bottleneck_of
from pydp2.metrics.process_memory import private_bytes, resident_bytes
from pydp2.metrics.rates import RateCounter
from pydp2.metrics.scaling import ScalingAdvisor, Totals

__all__ = ["RateCounter", "ScalingAdvisor", "Totals", "bottleneck_of", "private_bytes", "resident_bytes"]

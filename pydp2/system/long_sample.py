"""Find the sample that takes long, in the statistics of a service. Pure: no clock, no IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LONG_SECONDS = 5.0  # of a sample from which on it is named


def long_sample(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return the worker, the file and the seconds of the sample that takes longest, as text; "" if none takes long.
    ``workers``: their statistics."""
    longest = max(workers, key=lambda worker: worker["sample_seconds"], default=None)
    if longest is None or longest["sample_seconds"] < _LONG_SECONDS:
        return ""
    return (
        f"worker {longest['worker']} is at sample {longest['sample']} of {longest['file']} for "
        f"{longest['sample_seconds']:.0f} s"
    )

"""The strategies that tests of samples and columns share, as a fixture."""

from __future__ import annotations

from ..sample_cases import some as some

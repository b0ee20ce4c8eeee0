"""Measure pydp2 beside its peers, and pydp2 alone: ``python -m benchmarks --help``. Not installed.

Start at docs/benchmarks.md. The interpreters of peers import ``single_run``, ``job``, ``prepared``, ``consumer``,
``latency``, ``processes`` and ``peers``. These modules import numpy and the peer, and never pydp2.
"""

"""pydp2 measured beside its peers, and figures of its own: ``python -m benchmarks --help``. Not installed.

Start at docs/benchmarks.md. What peers' interpreters import (``one``, ``job``, ``prepared``, ``consumer``,
``latency``, ``processes`` and ``peers``) imports numpy and the peer, and never pydp2.
"""

"""Figures about pydp2, measured side by side: ``python -m benchmarks``. Not installed, not part of the tests."""

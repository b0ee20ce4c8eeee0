"""Measure the ready-made providers beside the libraries that read the same files: ``python -m benchmarks formats``."""

"""Inspect lists and providers without training: check, peek, replay, and bench with its advice."""

"""Looks at lists and providers without training: check, peek, replay, bench and what to change."""

"""Keeps the worker processes of a service: how many there are, what they send, and what they may not do."""

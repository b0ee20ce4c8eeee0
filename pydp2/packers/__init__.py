"""Turns the samples that a provider yields into columns, and checks them."""

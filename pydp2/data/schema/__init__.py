"""Describe what a provider declares: its input types, its slots, its options."""

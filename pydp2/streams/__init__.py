"""Open streams of mixed and packed rows, which the service makes (docs/mixing.md)."""

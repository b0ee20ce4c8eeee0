"""Keep the worker processes of a service: their number, their messages and their limits."""

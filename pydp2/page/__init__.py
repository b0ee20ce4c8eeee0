"""Show a running service in a browser: who waits for whom, since when, and what to change (docs/watching.md)."""

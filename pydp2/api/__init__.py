"""Define what users call: load, launch, connect, sources, check, peek. ``pydp2`` re-exports them."""

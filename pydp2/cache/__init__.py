"""A source of files for later passes: what workers read once is kept. Never touches order."""

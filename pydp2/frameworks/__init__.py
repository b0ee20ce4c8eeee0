"""Feed the trainers of a framework: the loader that all adapters share, and one service for the ranks of a machine."""

"""Keep rows of samples in memory, of one process or of several, until they are batched."""

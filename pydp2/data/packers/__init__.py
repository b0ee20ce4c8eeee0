"""Turn the samples that a provider yields into columns, and check them."""

"""Make streams of other streams: mixtures by weight, sequences packed into rows of a fixed length."""

"""Hold samples as columns, one array per field of a slot; batches are columns that a user gets."""

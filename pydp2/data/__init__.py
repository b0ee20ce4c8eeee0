"""Keep samples as arrays: their declared types, columns and batches, packing, the memory in which rows wait."""

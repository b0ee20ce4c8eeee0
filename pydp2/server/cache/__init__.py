"""Keep the samples that workers read once, as a source of files for later passes. This never touches the order."""

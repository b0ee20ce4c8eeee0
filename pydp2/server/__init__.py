"""Serve batches: ledger, credit and worker pool (pure: events in, actions out), and the loop that joins them to the
wire."""

"""Serve batches: ledger, credit and worker pool (pure: events in, actions out), and the loop that connects them with
sockets and processes."""

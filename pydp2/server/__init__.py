"""The service: ledger, credit, coordinator (pure: events in, actions out), and the loop that joins them to the wire."""

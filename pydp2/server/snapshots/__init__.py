"""Writes down where each job stands, so that a service can go on after its process was killed (docs/order.md,
"State")."""

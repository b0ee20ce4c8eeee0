"""Write snapshots of all jobs, so that a service can continue after its process was killed (docs/order.md, "State")."""

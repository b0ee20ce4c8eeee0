"""Jobs of a service and their trainers: what they agree on, the batches of a pass, and who gets which."""

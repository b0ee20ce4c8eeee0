"""Talk to clients: let them in, route their messages to jobs, send batches, and share what jobs have in common."""

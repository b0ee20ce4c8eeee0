"""Run the workers of one machine: what they may not do, what they print, and the agent that joins them to a service on
another host (docs/hosts.md)."""

"""Join the workers of this machine to a service on another host (docs/hosts.md)."""

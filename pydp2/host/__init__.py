"""Run the workers of one machine: what they may not do, and what they print."""

"""Run the workers of one machine: start and end their processes, check limits, label their output."""

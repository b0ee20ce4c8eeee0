"""Define the release of pydp2, which must be the same on all hosts of a service."""

RELEASE = "0.1.0"

"""Name the release of pydp2: hosts of one service have the same."""

RELEASE = "0.1.0"

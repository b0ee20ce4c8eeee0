"""Programs of a user's."""

from tests.runs import program

__all__ = ["program"]

"""What never ends fails its test; programs can be started."""

import pytest

from ..runs import no_hang, program

__all__ = ["no_hang", "program"]


@pytest.fixture(autouse=True)
def _no_hang(no_hang: None) -> None:
    """For every test here."""

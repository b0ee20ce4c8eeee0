"""What tests of remote files share: a web server, and a fetch process with a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.remote import remote_file
from pydp2.remote.owner import FetchOptions, FetchOwner

from .http_store import HttpStore, http_store


@pytest.fixture
def store() -> Iterator[HttpStore]:
    with http_store() as running:
        yield running


@pytest.fixture
def fetching(tmp_path: Path) -> Iterator[FetchOwner]:
    """A fetch process that this process reads through, with the cache in ``tmp_path / "cache"``."""
    owner = FetchOwner(FetchOptions(str(tmp_path / "cache"), timeout=20.0))
    remote_file.use_fetch_process(owner.address)
    try:
        yield owner
    finally:
        remote_file.use_fetch_process("")
        owner.close()

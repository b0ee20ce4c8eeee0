"""Look at samples of a batch that a trainer has now, without attaching one."""

from __future__ import annotations

import os

from pydp2.api.access import find_target
from pydp2.client.connection import ask_samples
from pydp2.data.columns.batch import Batch


def samples_in_flight(
    address: str | os.PathLike[str] | None, job: str, count: int, key: str | os.PathLike[str] | None = None
) -> Batch | None:
    """Return the first ``count`` rows of a batch that a trainer of ``job`` has now, None if there are none that could
    be shown: no batch is under way, or its rows stay on another host. ``address``, ``key``: as for
    :func:`pydp2.connect`. Raises OptionError if there is no such job, ServiceUnreachable if no service answers."""
    return ask_samples(find_target(address, key, "trainer"), job, count)

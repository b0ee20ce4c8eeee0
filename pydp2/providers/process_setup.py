"""Start a provider by its address, in a process that is there to run it: a worker, or a benchmark
of the provider alone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydp2.errors import Error, from_user
from pydp2.providers.address import resolve
from pydp2.providers.error_location import count_own_frames
from pydp2.providers.global_random import prepared_random, running
from pydp2.providers.import_progress import shown_imports
from pydp2.providers.program_state import ProgramState
from pydp2.providers.started_provider import StartedProvider


def set_up_process(root: str, path: Iterable[str], program: ProgramState | None) -> None:
    """Let this process work in ``root``, look for modules there and then in ``path``, and have what it can have of
    ``program``, the one that serves the provider."""
    os.chdir(root)
    sys.path[:] = [root, *(entry for entry in path if entry != root)]
    if program is not None:
        program.apply()


def start_by_address(
    address: str,
    *,
    args: Mapping[str, Any],
    is_train: bool,
    input_order: Sequence[str],
    file_list: Sequence[str],
    program: ProgramState | None,
) -> StartedProvider:
    """Return the provider at ``address`` with its hook run. ``input_order``: empty for the provider's own. Log to
    stderr, unless the module has set up logging. Warn of globals that are others than in ``program``.

    Raises an error of ours, whatever went wrong: as :func:`resolve` and :meth:`Provider.start` do, or ProviderError.
    """
    try:
        with running(prepared_random()):  # the module is imported here, unless that was done before
            found = resolve(address)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        if program is not None:
            program.warn_of_changes(found)
        return found.start(args=args, is_train=is_train, input_order=list(input_order) or None, file_list=file_list)
    except Error:
        raise
    except BaseException as error:
        raise from_user(f"provider {address} cannot be started", error, count_own_frames(error)) from None


def import_by_address(address: str, show: Callable[[str], None]) -> None:
    """Import the module of the provider at ``address``; ``show`` is called with the module that takes the time.

    Raises an error of ours, whatever went wrong, as :func:`start_by_address` does.
    """
    try:
        with running(prepared_random()), shown_imports(show):  # what the module draws is the same in all workers
            resolve(address)
    except Error:
        raise
    except BaseException as error:
        raise from_user(f"provider {address} cannot be started", error, count_own_frames(error)) from None

"""Start a provider by its address, in a process that only runs it: a worker, or a benchmark of the provider."""

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
    """Set the working directory to ``root`` and ``sys.path`` to ``root`` and ``path``, and apply ``program``, the state
    of the program that serves the provider."""
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
    """Return the provider at ``address``, started. ``input_order``: empty for the provider's own. Log to stderr, unless
    the module has set up logging. Warn of globals that differ from those of ``program``.

    Raises only :class:`~pydp2.Error`: those of :func:`resolve` and :meth:`Provider.start`, and ProviderError for all
    other exceptions.
    """
    try:
        with running(prepared_random()):  # imports the module, unless that was done before
            found = resolve(address)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        if program is not None:
            program.warn_of_changes(address, found)
        return found.start(args=args, is_train=is_train, input_order=list(input_order) or None, file_list=file_list)
    except Error:
        raise
    except BaseException as error:
        raise from_user(f"provider {address} cannot be started", error, count_own_frames(error)) from None


def import_by_address(address: str, show: Callable[[str], None]) -> None:
    """Import the module of the provider at ``address``; meanwhile call ``show`` with texts that name the module that is
    being imported.

    Raises only :class:`~pydp2.Error`, as :func:`start_by_address` does.
    """
    try:
        with running(prepared_random()), shown_imports(show):  # the module draws the same numbers in all workers
            resolve(address)
    except Error:
        raise
    except BaseException as error:
        raise from_user(f"provider {address} cannot be started", error, count_own_frames(error)) from None

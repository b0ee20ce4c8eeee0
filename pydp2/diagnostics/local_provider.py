"""Start a provider in this process, as a worker would start it: for ``check``, ``peek`` and pdb."""

from __future__ import annotations

import contextlib
import os
import sys
from bdb import BdbQuit
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydp2.api.sources import Files, ResolvedSource, Source, resolve_source
from pydp2.host.worker.gil import require_gil
from pydp2.protocol import plain_data
from pydp2.providers import Provider, StartedProvider, resolve
from pydp2.providers.global_random import prepared_random, running

NOT_THEIRS = (KeyboardInterrupt, GeneratorExit, BdbQuit)
"""What passes through the user's code without being an error of it."""


@contextlib.contextmanager
def foreground(
    files: Files | Source,
    provider: str | Provider | None,
    *,
    args: Mapping[str, Any] | None,
    is_train: bool | None,
    root: str | os.PathLike[str] | None,
    input_order: Sequence[str] | None,
) -> Iterator[tuple[ResolvedSource, StartedProvider]]:
    """Give the source, and the provider after its hook. Inside the context, working directory and ``sys.path`` are
    those of a worker.

    Raises what ``launch`` raises for a list, a provider or args that cannot be.
    """
    require_gil()
    served = resolve_source(files, provider, args, is_train, root)
    # over the bytes that would travel: what a worker cannot be told is refused here too
    keywords = plain_data.decode_plain(plain_data.encode_plain(served.args))
    path = list(sys.path)
    with contextlib.chdir(served.root):
        home = str(served.root)
        sys.path[:] = [home, *(entry for entry in path if entry != home)]
        try:
            with running(prepared_random()):  # as in a worker
                found = served.provider if isinstance(served.provider, Provider) else resolve(served.provider)
            started = found.start(
                args=keywords, is_train=served.is_train, input_order=input_order, file_list=served.files
            )
            yield served, started
        finally:
            sys.path[:] = path

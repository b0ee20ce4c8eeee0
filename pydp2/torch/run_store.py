"""Use a store of torch.distributed as the store of a run: that of torchrun, or that of the default process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch.distributed as dist

from pydp2.errors import ServiceUnreachable
from pydp2.frameworks.run_store import RunStore
from pydp2.frameworks.shared_service import START_SECONDS

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_ABSENT = "-"  # text that no key has; where compare_set() finds nothing to compare it with, it returns it


class TorchStore:
    """Store of a run in a store of torch, which ``open_store`` returns when it is first needed. ``endpoint``: as in
    :class:`.RunStore`."""

    def __init__(self, open_store: Callable[[], Any], endpoint: str = "") -> None:
        self.endpoint = endpoint
        self._open_store = open_store

    @cached_property
    def _store(self) -> Any:
        return self._open_store()

    def put(self, key: str, text: str) -> None:
        """Store ``text`` in place of an earlier text of ``key``."""
        self._ask(lambda store: store.set(key, text))

    def take(self, key: str) -> str | None:
        """Return the text of ``key``, None if there is none."""
        found: bytes = self._ask(lambda store: store.compare_set(key, _ABSENT, _ABSENT))  # get() would wait for it
        return None if found == _ABSENT.encode() else found.decode()

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._store)
        except RuntimeError as error:  # torch.distributed.DistError is one
            raise ServiceUnreachable(
                f"the store of torch.distributed at {self.endpoint or 'the process group'} must answer, and it does "
                f"not: {str(error).splitlines()[0]:.200}; look whether rank 0 and its torchrun still run"
            ) from None


def store_of_run(environ: Mapping[str, str]) -> RunStore | None:
    """Return the store that all ranks reach: that of torchrun if it has one, else that of the default process group;
    None if there is neither. It connects when it is first used."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    endpoint = f"{host}:{port}" if host and port.isdecimal() else ""
    if environ.get(_AGENT_STORE) == str(True) and endpoint:  # a connection of its own: no other thread waits for it
        return TorchStore(
            lambda: dist.TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=START_SECONDS)
            ),
            endpoint,
        )
    if dist.is_available() and dist.is_initialized():
        return TorchStore(dist.distributed_c10d._get_default_store, endpoint)
    return None

"""Use the key-value store of jax.distributed as the store of a run."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.distributed import global_state  # the store has no public name

from pydp2.errors import ServiceUnreachable
from pydp2.frameworks.run_store import RunStore


class JaxStore:
    """Store of a run at the coordinator of jax.distributed. ``endpoint``: where all processes reach it."""

    def __init__(self) -> None:
        self._client: Any = global_state.client
        self.endpoint = global_state.coordinator_address or ""

    def put(self, key: str, text: str) -> None:
        """Store ``text`` in place of an earlier text of ``key``."""
        try:
            self._client.key_value_set(key, text, allow_overwrite=True)
        except jax.errors.JaxRuntimeError as error:
            raise _unreachable(error) from None

    def take(self, key: str) -> str | None:
        """Return the text of ``key``, None if there is none."""
        try:
            return str(self._client.key_value_try_get(key))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise _unreachable(error) from None


def store_of_run() -> RunStore | None:
    """Return the store of jax.distributed, None if it is not initialized."""
    return JaxStore() if jax.distributed.is_initialized() else None


def _unreachable(error: Exception) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"the store of jax.distributed must answer, and it does not: {str(error).splitlines()[0]:.200}; look whether "
        "the coordinator, process 0, still runs"
    )

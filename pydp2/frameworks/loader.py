"""Iterate over a client in the values of a framework, some of them ahead, with the state of the batch in hand."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from pydp2.api.service import Service
from pydp2.client import Client
from pydp2.columns.batch import Batch
from pydp2.errors import Error
from pydp2.frameworks.shared_service import StartedService

T = TypeVar("T")
_END_SECONDS = 30.0
"""Seconds that the rank which has the service waits at its end for ranks that still read."""
_END_POLL_SECONDS = 0.05


class FrameworkLoader(Generic[T]):
    """Loader of a framework over ``client``: one iteration is one pass, and gives ``convert(batch)`` of each batch.

    ``ahead``: values that are converted before they are asked for, so that a copy to a device which ``convert`` has
    begun goes on during a step. The state is that of the value which was returned last. See docs/frameworks.md.
    """

    def __init__(self, client: Client, convert: Callable[[Batch], T], *, ahead: int = 0) -> None:
        self.client = client
        self._convert = convert
        self._ahead = ahead
        self._in_hand: Batch | None = None

    @property
    def batch_size(self) -> int:
        """Weight of a batch of this rank."""
        return self.client.batch_size

    @property
    def batch(self) -> Batch | None:
        """Batch whose value was returned last, with its ``pass_id``, ``index`` and ``padding``; None between passes."""
        return self._in_hand

    def __iter__(self) -> Iterator[T]:
        batches = iter(self.client)
        try:
            yield from self._values(batches)
        finally:
            batches.close()  # type: ignore[attr-defined]  # it is a Pass

    def _values(self, batches: Iterator[Batch]) -> Iterator[T]:
        ready: deque[tuple[Batch, T]] = deque()
        for batch in batches:
            ready.append((batch, self._convert(batch)))
            if len(ready) > self._ahead:
                self._in_hand, value = ready.popleft()
                yield value
        while ready:
            self._in_hand, value = ready.popleft()
            yield value
        self._in_hand = None

    def __len__(self) -> int:
        return len(self.client)

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the value that was returned last; see :meth:`pydp2.Client.state_dict`."""
        return self.client.state_dict(after=self._in_hand)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was taken; see :meth:`pydp2.Client.load_state_dict`."""
        self.client.load_state_dict(state)
        self._in_hand = None

    def close(self) -> None:
        """Leave the job. The service ends with the loader that started it, once the other ranks have left."""
        owner = self.client.owner
        self.client.close()
        if isinstance(owner, StartedService):
            await_others(owner.service)
            owner.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def await_others(service: Service) -> None:
    """Wait until no trainer reads from ``service``, or for so long."""
    deadline = time.monotonic() + _END_SECONDS
    with suppress(Error):
        while time.monotonic() < deadline and _has_trainers(service.stats()):
            time.sleep(_END_POLL_SECONDS)


def _has_trainers(stats: Mapping[str, Any]) -> bool:
    return any(job["attached"] for job in stats["jobs"].values())

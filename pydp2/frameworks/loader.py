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
from pydp2.errors import ClientUseError, Error
from pydp2.frameworks.shared_service import StartedService

T = TypeVar("T")
V = TypeVar("V")
_PLACES = 1024  # values that a framework reads ahead, at most
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
        self._taken, self._reads_ahead = 0, False
        self._places: dict[int, _Place] = {}  # by number of values; other threads may add some meanwhile

    @property
    def batch_size(self) -> int:
        """Weight of a batch of this rank."""
        return self.client.batch_size

    @property
    def batch(self) -> Batch | None:
        """Batch whose value was returned last, with its ``pass_id``, ``index`` and ``padding``; None between passes."""
        return self._in_hand

    def __iter__(self) -> Iterator[T]:
        return self.iterate(self._convert)

    def iterate(self, convert: Callable[[Batch], V], *, reads_ahead: bool = False) -> Iterator[V]:
        """Give ``convert(batch)`` of each batch of the next pass, in place of what this loader makes of it.

        ``reads_ahead``: the caller is a framework that may take values before the loop that trains does.
        """
        batches = iter(self.client)
        self._reads_ahead = reads_ahead
        self._places.clear()
        self._taken = 0
        try:
            yield from self._values(batches, convert)
        finally:
            batches.close()  # type: ignore[attr-defined]  # it is a Pass

    def _values(self, batches: Iterator[Batch], convert: Callable[[Batch], V]) -> Iterator[V]:
        ready: deque[tuple[Batch, V]] = deque()
        for batch in batches:
            ready.append((batch, convert(batch)))
            if len(ready) > self._ahead:
                yield self._take(ready)
        while ready:
            yield self._take(ready)
        self._in_hand = None

    def _take(self, ready: deque[tuple[Batch, V]]) -> V:
        self._in_hand, value = ready.popleft()
        self._taken += 1
        self._places[self._taken] = _Place(self._in_hand)
        self._places.pop(self._taken - _PLACES, None)
        return value

    def __len__(self) -> int:
        return len(self.client)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value that was returned last; see :meth:`pydp2.Client.state_dict`.

        ``taken``: how many values of the last iteration were used. Give it where a framework reads ahead of the loop
        that trains, by 1,024 values at most. Raises ClientUseError if that many were not returned, or more since.
        """
        if taken is None:
            if self._reads_ahead and self._in_hand is not None:
                raise ClientUseError(
                    "a framework reads ahead of the training loop, so only the loop knows how far it is; give "
                    "state_dict(taken=…) the number of batches that it has taken in this pass"
                )
            return self.client.state_dict(after=self._in_hand)
        place: Any = self._places.get(taken)
        if place is None:
            raise ClientUseError(
                f"the place behind value {taken} is not known: {self._taken} values of this iteration were returned, "
                f"and the places behind the last {_PLACES} are kept"
            )
        return self.client.state_dict(after=place)

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


class _Place:
    """Place behind a batch, without its arrays."""

    def __init__(self, batch: Batch) -> None:
        self.pass_id, self.index, self._resume = batch.pass_id, batch.index, batch._resume


def await_others(service: Service) -> None:
    """Wait until no trainer reads from ``service``, or for so long."""
    deadline = time.monotonic() + _END_SECONDS
    with suppress(Error):
        while time.monotonic() < deadline and _has_trainers(service.stats()):
            time.sleep(_END_POLL_SECONDS)


def _has_trainers(stats: Mapping[str, Any]) -> bool:
    return any(job["attached"] for job in stats["jobs"].values())

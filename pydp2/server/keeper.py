"""Keeps what the jobs of a service need to go on: when it is written down, and how they are brought back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgpack

from pydp2.errors import StateMismatch
from pydp2.protocol.fits import differences
from pydp2.server.desk import Desk
from pydp2.server.kept import Kept
from pydp2.server.statedir import StateDir


class Keeper:
    """Of the state directory ``path`` (None: nothing is kept), written every ``every`` seconds. Raises OptionError,
    StateMismatch."""

    def __init__(self, path: str | None, log: Callable[[str, str], None], every: float) -> None:
        self._every = every
        self._path = path
        self._state = None if path is None else StateDir(path, log)
        self._found: list[Any] = []
        self._begun = False  # until then nothing is written over what was found
        self._at = 0.0
        if self._state is not None:
            self._state.check()
            self._found = self._state.read()

    @property
    def durable(self) -> bool:
        """Whether the service can go on when it is started again."""
        return self._state is not None

    def bring_back(self, files: int, opens: Callable[[Kept], Desk], now: float) -> None:
        """Open the desk of each job that was written down. Raises StateMismatch where a stream would be another."""
        assert self._state is not None
        for plain in self._found:
            kept = Kept.from_plain(plain, files)
            desk = opens(kept)
            if wrong := differences(kept.fits, _plain(desk.fits)):
                raise StateMismatch(
                    f"state_dir={self._path!r} was written for another stream of job {kept.name!r}: "
                    f"{'; '.join(wrong)}; start the service with what it was started with, or give another directory"
                )
            desk.team.restore(kept, now, last=self._state.whole)
        self._found = []
        self._begun = True

    def keep(self, desks: Iterable[Desk], now: float, *, wait: bool = False) -> None:
        """Write down how ``desks`` stand, if it is time, or (``wait``) before this returns."""
        if self._state is None or not self._begun or not (wait or now - self._at >= self._every):
            return
        self._at = now
        jobs = [desk.team.kept(desk.options, desk.fits).to_plain() for desk in desks]
        self._state.write(jobs, wait=wait)

    def close(self) -> None:
        """Write what is due."""
        if self._state is not None:
            self._state.close()


def _plain(fits: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of a file."""
    plain: dict[str, Any] = msgpack.unpackb(msgpack.packb(fits))
    return plain

"""A store in memory that fails as a plan says, for schedules without a network."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

from pydp2.remote.store import Failure, ObjectInfo, RequestFailed, Response


class FakeStore:
    """Store of ``files``, also as ``bodies``. A share of ``faults`` of its requests fails in some way, drawn with
    ``seed``."""

    def __init__(self, files: dict[str, bytes], seed: int = 0, faults: float = 0.0) -> None:
        self.bodies, self._faults = files, faults
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.requests: list[tuple[str, int, int]] = []
        self.renewals = 0

    def _draw(self) -> float:
        with self._lock:
            return self._random.random()

    def head(self, url: str) -> ObjectInfo:
        self._fail()
        return self._info(url)

    def read(self, url: str, start: int, stop: int, version: str | None) -> Response:
        with self._lock:
            self.requests.append((url, start, stop))
        self._fail()
        info = self._info(url)
        if version is not None and version != info.version:
            raise RequestFailed(Failure.CHANGED, "412")
        if start >= info.size:
            raise RequestFailed(Failure.EMPTY, "416")
        if self._faults and self._draw() < 0.1:  # a server that does not know ranges
            start, stop = 0, info.size
        return Response(info, start, self._chunks(self.bodies[url][start:stop]))

    def _chunks(self, body: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(body):
            count = 1 + int(self._draw() * 300_000)
            if self._faults and self._draw() < self._faults / 4:
                if self._draw() < 0.5:
                    return  # a body that is too short
                raise RequestFailed(Failure.BUSY, "reset")
            yield body[at : at + count]
            at += count

    def _fail(self) -> None:
        if self._faults and self._draw() < self._faults:
            failure = Failure.DENIED if self._draw() < 0.02 else Failure.BUSY
            raise RequestFailed(failure, "503")

    def _info(self, url: str) -> ObjectInfo:
        if url not in self.bodies:
            raise RequestFailed(Failure.MISSING, "no such file")
        body = self.bodies[url]
        return ObjectInfo(len(body), f"{hash(body)}")

    def files(self, folder: str) -> Iterator[list[str]]:
        self._fail()
        yield [url for url in self.bodies if url.startswith(folder)]

    def children(self, folder: str) -> list[str]:
        self._fail()
        rests = [url[len(folder) :].partition("/") for url in self.bodies if url.startswith(folder)]
        return sorted({f"{folder}{name}{slash}" for name, slash, _ in rests})

    def renew(self) -> None:
        self.renewals += 1

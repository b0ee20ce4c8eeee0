"""Fetch remote files for all workers of a machine: each block once, ahead of those who read in order.

Theory of operation
-------------------
A *session* is one open file of one reader, with a thread of its own, which waits for requests or for blocks. Sessions
of one URL share a :class:`_RemoteFile`. Blocks are fetched by a few threads, which take *runs* (neighbouring blocks of
one file, one request) from a queue: first those that a reader waits for, then those ahead of it.

What can happen: a store is busy, slow, or away for minutes; a response ends early; the file changes; a reader dies; the
disk is full; another process fetches the same block.

* A run goes on behind the last whole block that arrived, so slow stores make progress with every request. It fails only
  if nothing arrived for ``timeout`` seconds, or at an answer that will stay the same (:class:`.Failure`).
* A service reads one version of a file: the first that it saw. Each request names it, and each response must have it.
  So a change is an error that names both versions, and no reader gets parts of two.
* A full disk is waited for like a store that is away: what the cache can do without is removed, and somebody else may
  make room, too.
* Refused credentials are read again a few times, because another program may just have renewed them.
* A reader that has died closes its session. Runs of a file without sessions are dropped.
* A session protects the blocks of its last answers from being removed.

What stays true: each block is fetched once per machine as long as it is kept; at most ``ahead_bytes`` are under way or
waiting in the queue without a reader that waits for them; memory is that of one chunk for each thread.
"""

from __future__ import annotations

import errno
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from pydp2.remote.object_cache import BLOCK, CachedFile, ObjectCache
from pydp2.remote.retries import FIRST_SECONDS, TIMEOUT_SECONDS, Retries
from pydp2.remote.store import Failure, ObjectInfo, RequestFailed, Store
from pydp2.remote.urls import shown_url, store_name
from pydp2.remote.wire import HELD_RANGES

T = TypeVar("T")
_RUN = 8  # blocks of one request at most
_FIRST_WINDOW, _LARGEST_WINDOW = 2, 32  # blocks that are fetched ahead of a reader in order
_GRANTED = 64  # blocks that an answer gives at most, unless more were asked for
_SHORTEST_WAIT = 1.0  # seconds
_NO_ANSWER = "no answer yet"
_OPENING = 4096  # files that may be opened at the same time
_ANSWER_SECONDS, _MOST_ANSWERS = 60.0, 100_000  # that absent files and listed folders stay so
_RENEWALS = 3  # times that refused credentials are read again
_LOCK_SECONDS = 0.02  # between two looks whether another process has fetched a block
_NEEDED, _AHEAD, _END = 0, 1, 2


@dataclass(frozen=True)
class FetchLimits:
    """Limits of a fetcher. ``timeout``: seconds without progress after which a request fails; ``first_delay``: seconds
    before the first retry; ``threads``: number of requests at the same time; ``ahead_bytes``: bytes that may be
    requested before a reader waits for them."""

    timeout: float = TIMEOUT_SECONDS
    first_delay: float = FIRST_SECONDS
    threads: int = 16
    ahead_bytes: int = 128 << 20


class Counters:
    """Numbers since the start, to which several threads add. ``hits``: blocks that were here when a reader asked for
    them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes = self.hits = self.retries = 0

    def add(self, *, requests: int = 0, nbytes: int = 0, hits: int = 0, retries: int = 0) -> None:
        """Add to the numbers."""
        with self._lock:
            self.requests += requests
            self.bytes += nbytes
            self.hits += hits
            self.retries += retries


class Waits:
    """Stores that do not answer now, with the reasons. Several threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[object, tuple[str, str, float]] = {}

    def note(self, request: object, store: str, reason: str, since: float) -> None:
        """Note that ``request`` is waiting for ``store`` since ``since``."""
        with self._lock:
            self._reasons[request] = (store, reason, since)

    def clear(self, request: object) -> None:
        """Note that ``request`` has ended or makes progress."""
        with self._lock:
            self._reasons.pop(request, None)

    def oldest(self, now: float) -> tuple[str, str, float] | None:
        """Return store, reason and beginning of the oldest wait; None if nothing waits for a second or longer."""
        with self._lock:
            wait = min(self._reasons.values(), key=lambda wait: wait[2], default=None)
        return wait if wait is not None and now - wait[2] >= _SHORTEST_WAIT else None


class _Recent(Generic[T]):
    """Answers about folders that hold for a minute: each worker that opens one asks the same. Several threads use
    it."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, T]] = {}

    def get(self, url: str) -> T | None:
        """Return the answer for ``url``, None if there is none that holds."""
        until, answer = self._answers.get(url, (0.0, None))
        return answer if time.monotonic() < until else None

    def put(self, url: str, answer: T) -> None:
        """Note ``answer`` for ``url``."""
        if len(self._answers) > _MOST_ANSWERS:
            self._answers.clear()
        self._answers[url] = time.monotonic() + _ANSWER_SECONDS, answer


class CannotRead(Exception):
    """A remote file cannot be read; ``failure`` says why, the text is for the user."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


class _RemoteFile:
    """Remote file that at least one session has open."""

    def __init__(self, cached: CachedFile, store: Store) -> None:
        self.cached, self.store = cached, store
        self.changed = threading.Condition()
        self.requested: set[int] = set()  # blocks in the queue, or that a thread is fetching
        self.failed: dict[int, CannotRead] = {}  # blocks that a reader has not been told of
        self.sessions: set[Session] = set()


class Session:
    """Open remote file of one reader; :meth:`Fetcher.open` makes it. One thread uses it.

    ``path``: where its blocks lie; ``info``: its size and version.
    """

    def __init__(self, fetcher: Fetcher, file: _RemoteFile) -> None:
        self._fetcher, self._file = fetcher, file
        self.held: deque[range] = deque(maxlen=HELD_RANGES)
        self._streams: deque[tuple[int, int]] = deque([(0, 2 * _FIRST_WINDOW)], HELD_RANGES)
        """Blocks at which a reader in order goes on, and how many blocks are requested from there on."""
        self.path, self.info = file.cached.path, file.cached.info

    def begin(self, on_wait: Callable[[], None]) -> tuple[int, int]:
        """Wait for the first block, and return the range of bytes that is here. Raises CannotRead."""
        self._fetcher.begin(self._file)
        return self.need(0, 1, on_wait) if self.info.size else (0, 0)

    def need(self, offset: int, length: int, on_wait: Callable[[], None]) -> tuple[int, int]:
        """Wait for the block of ``offset``, and return the range of bytes from there on that is here; it stays until
        the next call. ``on_wait`` is called every second while this waits, and ends the wait by an exception.

        Raises CannotRead.
        """
        size = self.info.size
        if offset >= size:
            return size, size
        first, last = offset // BLOCK, (min(offset + length, size) - 1) // BLOCK
        window = _FIRST_WINDOW
        for stream in self._streams:
            if first <= stream[0] <= last + 1:
                window = min(stream[1] * 2, _LARGEST_WINDOW)
                self._streams.remove(stream)
                break
        self._streams.append((last + 1, window))
        end = min(max(last + 1, first + window), self._file.cached.blocks)
        held = self._fetcher.wait_for(self._file, self, range(first, last + 1), range(last + 1, end), on_wait)
        return held.start * BLOCK, min(held.stop * BLOCK, size)

    def need_all(self, on_wait: Callable[[], None]) -> None:
        """Wait until the whole file is here. Raises CannotRead."""
        blocks, at = self._file.cached.blocks, 0
        self.held.append(range(blocks))
        while at < blocks:
            window = range(at, min(at + _LARGEST_WINDOW, blocks))
            at = self._fetcher.wait_for(self._file, self, window, range(0), on_wait, hold=False).stop

    def close(self) -> None:
        """Close the file for this reader."""
        self._fetcher.end_session(self._file, self)


class Fetcher:
    """Fetcher into ``cache``. ``open_store``: returns the store of a URL. :meth:`close` ends its threads."""

    def __init__(
        self, cache: ObjectCache, open_store: Callable[[str], Store], limits: FetchLimits = FetchLimits()
    ) -> None:
        self._cache, self._limits = cache, limits
        self._open_store = open_store
        self.counters, self.waits = Counters(), Waits()
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._versions: dict[str, ObjectInfo] = {}  # the only version of each URL that this process reads
        self._absent, self._refused, self._listed = _Recent[CannotRead](), _Recent[CannotRead](), _Recent[list[str]]()
        self._files: dict[str, _RemoteFile] = {}
        self._opening = [threading.Lock() for _ in range(_OPENING)]
        self._queue: queue.PriorityQueue[tuple[int, int, _RemoteFile | None, range]] = queue.PriorityQueue()
        self._numbers = count()
        self._ahead = 0  # blocks that were requested before a reader waited for them
        self._ahead_lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._fetch, name=f"pydp2-fetch-{number}", daemon=True)
            for number in range(limits.threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads; requests under way are given up."""
        self._ended.set()
        for _ in self._threads:
            self._queue.put((_END, next(self._numbers), None, range(0)))
        for thread in self._threads:
            thread.join()
        with self._lock:
            for file in [*self._files.values()]:
                self._drop(file)

    # -- readers -----------------------------------------------------------------------------------------------------
    def open(self, url: str) -> Session:
        """Open ``url`` for a reader. Raises CannotRead."""
        with self._opening[hash(url) % _OPENING]:  # readers that open a file at the same time make one request
            with self._lock:
                file = self._files.get(url)
                if file is not None:
                    return self._begin_session(file)
            if (missing := self._absent.get(url)) is not None:
                raise missing
            try:
                file = self._opened(url)
            except CannotRead as error:
                if error.failure is Failure.MISSING:
                    self._absent.put(url, error)
                raise
            with self._lock:
                self._files[url] = file
                return self._begin_session(file)

    def files(self, folder: str) -> Iterator[list[str]]:
        """Yield the URLs of all files below ``folder``, a page at a time. Raises CannotRead."""
        store = self._store_of(folder)

        def pages() -> Iterator[list[str]]:
            for page in store.files(folder):
                self._note_wait(folder)  # names flow
                yield page

        yield from self._attempt(folder, lambda: [*pages()])

    def children(self, folder: str) -> list[str]:
        """Return the URLs of files and folders in ``folder``. Raises CannotRead."""
        with self._opening[hash(folder) % _OPENING]:
            if (found := self._listed.get(folder)) is None:
                store = self._store_of(folder)
                found = self._attempt(folder, lambda: store.children(folder))
                self._listed.put(folder, found)
        return found

    def info(self, url: str) -> ObjectInfo:
        """Return size and version of ``url``, those that its readers get. Raises CannotRead; for a minute at once if
        the same store has refused another file, whose reader is a program with credentials of its own."""
        store, name = self._store_of(url), _store_key(url)
        with self._opening[hash(url) % _OPENING]:
            if (info := self._versions.get(url)) is None:
                if (refused := self._refused.get(name)) is not None:
                    raise refused
                try:
                    info = self._versions[url] = self._attempt(url, lambda: self._head(store, url), renewals=0)
                except CannotRead as error:
                    if error.failure in (Failure.DENIED, Failure.REFUSED):
                        self._refused.put(name, error)
                    raise
        return info

    def _begin_session(self, file: _RemoteFile) -> Session:
        session = Session(self, file)
        file.sessions.add(session)
        return session

    def begin(self, file: _RemoteFile) -> None:
        """Request the last block of ``file``, where formats with an index have it."""
        last = file.cached.blocks - 1
        if last > 0:
            with file.changed:
                self._request(file, range(0), range(last, last + 1))

    def end_session(self, file: _RemoteFile, session: Session) -> None:
        """End ``session``, and close the file if it was the last one."""
        with self._lock:
            file.sessions.discard(session)
            if not file.sessions and not file.requested:
                self._drop(file)

    def _drop(self, file: _RemoteFile) -> None:
        """Close a file without sessions and requests; the lock is held."""
        if self._files.get(file.cached.url) is file:
            del self._files[file.cached.url]
            self._cache.close(file.cached)

    def wait_for(
        self,
        file: _RemoteFile,
        session: Session,
        needed: range,
        ahead: range,
        on_wait: Callable[[], None],
        *,
        hold: bool = True,
    ) -> range:
        """Wait for the first block of ``needed``, request all of it and of ``ahead``, and return the blocks from there
        on that are here. Raises CannotRead."""
        first, told = needed.start, time.monotonic()
        with file.changed:
            if file.cached.has(first):
                self.counters.add(hits=1)
            while True:
                self._request(file, needed, ahead)
                if file.cached.has(first):
                    break
                if (failed := file.failed.pop(first, None)) is not None:
                    raise failed
                file.changed.wait(1.0)
                if time.monotonic() - told >= 1.0:
                    told = time.monotonic()
                    on_wait()
            last = first
            end = max(needed.stop, ahead.stop)
            while last + 1 < min(max(end, first + _GRANTED), file.cached.blocks) and file.cached.has(last + 1):
                last += 1
            held = range(first, last + 1)
            if hold:
                session.held.append(held)
            return held

    # -- requests ----------------------------------------------------------------------------------------------------
    def _request(self, file: _RemoteFile, needed: range, ahead: range) -> None:
        """Put the blocks of ``needed`` and ``ahead`` that are neither here nor requested into the queue. The file's
        lock is held. A short run at the end of ``ahead`` waits until it is longer."""
        for run in self._missing(file, needed):
            self._put(file, run, _NEEDED)
        for run in self._missing(file, ahead):
            if len(run) < min(_RUN, len(ahead)) and run.stop == ahead.stop < file.cached.blocks:
                return
            if not self._count_ahead(len(run)):
                return
            self._put(file, run, _AHEAD)

    def _count_ahead(self, blocks: int) -> bool:
        """Count blocks that are requested ahead, or no longer (a negative number). Return False if they would be too
        many."""
        with self._ahead_lock:
            if blocks > 0 and (self._ahead + blocks) * BLOCK > self._limits.ahead_bytes:
                return False
            self._ahead += blocks
            return True

    def _missing(self, file: _RemoteFile, blocks: range) -> Iterator[range]:
        """Yield the runs in ``blocks`` that are to be requested."""
        start: int | None = None
        for block in blocks:
            is_missing = block not in file.requested and block not in file.failed and not file.cached.has(block)
            if start is not None and (not is_missing or block - start == _RUN):
                yield range(start, block)
                start = None
            if is_missing and start is None:
                start = block
        if start is not None:
            yield range(start, blocks.stop)

    def _put(self, file: _RemoteFile, run: range, priority: int) -> None:
        file.requested.update(run)
        self._queue.put((priority, next(self._numbers), file, run))

    def _fetch(self) -> None:
        """Fetch runs until the fetcher is closed."""
        while True:
            priority, _, file, run = self._queue.get()
            if file is None:
                return
            if self._ended.is_set():
                continue
            failed: CannotRead | None = None
            try:
                if file.sessions:
                    self._fetch_run(file, run)
            except CannotRead as error:
                failed = error
            except OSError as error:
                failed = _cannot_write(error)
            self._end_run(file, run, priority, failed)

    def _end_run(self, file: _RemoteFile, run: range, priority: int, failed: CannotRead | None) -> None:
        with file.changed:
            file.requested.difference_update(run)
            if priority == _AHEAD:  # if it failed, whoever needs it requests it anew
                self._count_ahead(-len(run))
            elif failed is not None:
                file.failed |= {block: failed for block in run if not file.cached.has(block)}
            file.changed.notify_all()
        with self._lock:
            if not file.sessions and not file.requested:
                self._drop(file)

    def _fetch_run(self, file: _RemoteFile, run: range) -> None:
        """Fetch the blocks of ``run`` that are not here. Raises CannotRead, and OSError of the disk."""
        while not file.cached.try_lock(run[0], run[-1]):  # another process fetches some of them
            if self._ended.wait(_LOCK_SECONDS) or not file.sessions:
                return
        try:
            missing = [block for block in run if not file.cached.has(block)]
            if missing:
                self._make_room(sum(map(file.cached.size_of, missing)))
                position = missing[0]

                def attempt() -> bool:
                    nonlocal position
                    before = position
                    try:
                        for block in self._blocks(file, position, missing[-1]):
                            position = block + 1
                            self._note_wait(file.cached.url)  # bytes flow
                            with file.changed:
                                file.changed.notify_all()
                    except RequestFailed:
                        if position > before:
                            return False  # the next request goes on behind it
                        raise
                    except OSError as error:
                        raise self._disk_failure(error) from None
                    return position > missing[-1]

                while file.sessions and not self._attempt(file.cached.url, attempt, lambda: bool(file.sessions)):
                    pass
        finally:
            file.cached.unlock(run[0], run[-1])

    def _blocks(self, file: _RemoteFile, first: int, last: int) -> Iterator[int]:
        """Request blocks ``first`` to ``last``, write them, and yield the number of each that is complete. Raises
        RequestFailed, and OSError of the disk."""
        cached = file.cached
        start, stop = first * BLOCK, min((last + 1) * BLOCK, cached.info.size)
        self.counters.add(requests=1)
        response = file.store.read(cached.url, start, stop, cached.info.version)
        if response.info != cached.info:
            raise RequestFailed(Failure.CHANGED, f"the answer is of {_version_text(response.info)}")
        at, block, checksum = response.start, first, 0
        for chunk in response.chunks:
            self.counters.add(nbytes=len(chunk))
            data = memoryview(chunk)[max(0, start - at) :]  # a store without ranges sends the whole file
            at += len(chunk) - len(data)
            while data and block <= last:
                end = block * BLOCK + cached.size_of(block)
                piece = data[: end - at]
                checksum = cached.write(at, piece, checksum)
                at, data = at + len(piece), data[len(piece) :]
                if at == end:
                    cached.finish(block, checksum)
                    yield block
                    block, checksum = block + 1, 0
            if block > last or self._ended.is_set():
                return
        raise RequestFailed(Failure.BUSY, f"the answer ended before byte {stop}")

    def _make_room(self, count: int) -> None:
        """Make room in the cache for ``count`` bytes: what nobody has open goes first, then what no session holds."""
        excess = self._cache.add(count)
        if excess <= 0:
            return
        with self._lock:  # no file is closed meanwhile
            for file in self._files.values():
                with file.changed:  # no session gets blocks meanwhile
                    held = [blocks for session in file.sessions for blocks in session.held]
                    freed = file.cached.trim(file.requested.union(*held))
                self._cache.add(-freed)
                excess -= freed
                if excess <= 0:
                    break

    # -- first requests and retries --------------------------------------------------------------------------------
    def _opened(self, url: str) -> _RemoteFile:
        """Return a new file for ``url``; its version is known afterwards. Raises CannotRead."""
        store = self._store_of(url)
        info = self._versions.get(url)
        first: bytes | None = None
        if info is None:
            if self._cache.knows(url):
                info = self._attempt(url, lambda: self._head(store, url))
            else:
                info, first = self._attempt(url, lambda: self._first_block(store, url))
            self._versions[url] = info
        try:
            return _RemoteFile(self._attempt(url, lambda: self._stored(url, info, first)), store)
        except OSError as error:
            raise _cannot_write(error) from None

    def _stored(self, url: str, info: ObjectInfo, first: bytes | None) -> CachedFile:
        """Return the file of the cache, with its first block if it is given. Raises RequestFailed: the disk is full;
        OSError."""
        try:
            cached = self._cache.open(url, info)
            try:
                if first is not None and not cached.has(0):
                    self._make_room(len(first))
                    cached.put(0, first)
            except BaseException:
                self._cache.close(cached)
                raise
        except OSError as error:
            raise self._disk_failure(error) from None
        return cached

    def _disk_failure(self, error: OSError) -> Exception:
        """Return what to raise for ``error`` of the disk: if it is full, a failure that is tried again, after the cache
        has made room."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        self._cache.shrink()
        self._make_room(0)
        return RequestFailed(Failure.BUSY, f"the disk of {self._cache.folder} is full, where the copies are kept")

    def _head(self, store: Store, url: str) -> ObjectInfo:
        self.counters.add(requests=1)
        return store.head(url)

    def _first_block(self, store: Store, url: str) -> tuple[ObjectInfo, bytes | None]:
        """Return size, version and the first block of ``url``: with one request for a small file."""
        try:
            self.counters.add(requests=1)
            response = store.read(url, 0, BLOCK, None)
        except RequestFailed as error:
            if error.failure is not Failure.EMPTY:
                raise
            return self._head(store, url), None
        size = min(BLOCK, response.info.size)
        data = bytearray()
        for chunk in response.chunks:
            data += chunk
            if len(data) >= size:
                break
        self.counters.add(nbytes=len(data))
        if len(data) < size:
            raise RequestFailed(Failure.BUSY, f"the answer ended before byte {size}")
        return response.info, bytes(data[:size]) if size else None

    def _store_of(self, url: str) -> Store:
        name = _store_key(url)
        with self._lock:
            if name not in self._stores:
                try:
                    self._stores[name] = self._open_store(url)
                except RequestFailed as error:
                    raise CannotRead(error.failure, error.reason) from None
            return self._stores[name]

    def _attempt(
        self,
        url: str,
        request: Callable[[], T],
        is_wanted: Callable[[], bool] = lambda: True,
        renewals: int = _RENEWALS,
    ) -> T:
        """Return the result of ``request``, which is made again as long as the store is busy and ``is_wanted``, and
        ``renewals`` times with credentials that are read again. Raises CannotRead."""
        retries = Retries(self._limits.timeout, self._limits.first_delay)
        key = threading.get_ident()  # a thread makes one request at a time
        try:
            while True:
                if not retries.failures:
                    self._note_wait(url)
                try:
                    return request()
                except RequestFailed as error:
                    now = time.monotonic()
                    if error.failure is Failure.DENIED and renewals:
                        renewals -= 1
                        self._store_of(url).renew()
                    elif error.failure is not Failure.BUSY:
                        raise self._cannot_read(url, error) from None
                    delay = retries.delay(now, random.random())
                    if delay is None:
                        waited = f"{retries.seconds(now):.0f} s of {retries.failures} attempts"
                        raise CannotRead(
                            Failure.BUSY,
                            f"{shown_url(url)} cannot be read: {store_name(url)} gives nothing for {waited} "
                            f"(remote_timeout), the last failure was: {error.reason}",
                        ) from None
                    self.counters.add(retries=1)
                    if error.failure is Failure.BUSY:
                        self.waits.note(key, store_name(url), error.reason, now - retries.seconds(now))
                    if self._ended.wait(delay) or not is_wanted():
                        raise CannotRead(Failure.BUSY, "nobody waits for it any more") from None
        finally:
            self.waits.clear(key)

    def _note_wait(self, url: str) -> None:
        """Note that this thread waits for the store of ``url`` from now on."""
        self.waits.note(threading.get_ident(), store_name(url), _NO_ANSWER, time.monotonic())

    def _cannot_read(self, url: str, error: RequestFailed) -> CannotRead:
        shown = shown_url(url)
        match error.failure:
            case Failure.MISSING:
                text = f"{shown} does not exist: {error.reason}"
            case Failure.CHANGED:
                text = self._changed(url)
            case _:
                text = f"{shown} cannot be read: {store_name(url)} {error.reason}"
        return CannotRead(error.failure, text)

    def _changed(self, url: str) -> str:
        """Return the text for a file that has changed, with both versions."""
        known = self._versions.get(url)
        try:
            now = _version_text(self._head(self._store_of(url), url))
        except (RequestFailed, CannotRead) as error:
            now = f"something else ({error})"
        before = "unknown" if known is None else _version_text(known)
        return (
            f"{shown_url(url)} has changed while it is read: it was {before}, and is {now}; a service reads one "
            "version of each file, so start it again"
        )


def _store_key(url: str) -> str:
    """Return the part of ``url`` that all files of a store have."""
    return "/".join(url.split("/", 3)[:3])


def _cannot_write(error: OSError) -> CannotRead:
    return CannotRead(Failure.REFUSED, f"the cache of remote files cannot be written: {error}")


def _version_text(info: ObjectInfo) -> str:
    return f"version {info.version} of {info.size} bytes"

"""Run the fetch process: it fetches remote files for the workers of a machine, and lists those of a pattern. It is
started as ``python -m pydp2.remote.fetch_process``.

It has the libraries of the stores, their threads and connections. No worker is forked from it, and no other process
loads these libraries; most of them do not survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pydp2.remote.fetch_status import FetchStatus
from pydp2.remote.fetcher import CannotRead, Fetcher, FetchLimits, Session
from pydp2.remote.object_cache import ObjectCache
from pydp2.remote.stores import open_store
from pydp2.remote.urls import split_pattern
from pydp2.remote.wire import Channel
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import write_event

_PAGE = 1000  # URLs of a message
_STATUS_SECONDS = 0.2
_NOTICE_SECONDS = 2.0  # that a store must be silent before it is reported


def main() -> int:
    """Serve readers until the standard input is closed, by the process that started this one or by its end."""
    given = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with it
    listener = socket.socket(fileno=given["listener"])
    status = FetchStatus(mmap.mmap(given["status"], 0))
    os.close(given["status"])
    cache = ObjectCache(Path(given["folder"]), given["size"])
    fetcher = Fetcher(cache, open_store, FetchLimits(timeout=given["timeout"]))
    threading.Thread(target=_accept, args=(listener, fetcher), name="pydp2-accept", daemon=True).start()
    threading.Thread(target=_show, args=(fetcher, status), name="pydp2-status", daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # threads may be in a request for a minute


def _accept(listener: socket.socket, fetcher: Fetcher) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(Channel(connection), fetcher), daemon=True).start()


def _serve(channel: Channel, fetcher: Fetcher) -> None:
    """Answer the requests of one connection."""
    session: Session | None = None
    try:
        while True:
            request = channel.receive()
            try:
                if "open" in request:
                    session = _opened(request["open"], channel, fetcher)
                elif "list" in request:
                    _list(request["list"], channel, fetcher)
                elif "children" in request:
                    _send_urls(fetcher.children(request["children"]), channel)
                elif "version" in request:
                    info = fetcher.info(request["version"])
                    channel.send({"size": info.size, "version": info.version})
                elif session is not None and "need" in request:
                    offset, length = request["need"]
                    channel.send({"range": session.need(offset, length, _notifier(channel))})
                elif session is not None:
                    session.need_all(_notifier(channel))
                    channel.send({"range": (0, session.info.size)})
            except CannotRead as error:
                channel.send({"failure": error.failure.value, "text": str(error)})
    except (EOFError, OSError):  # the reader has closed its file, or has died
        pass
    finally:
        if session is not None:
            session.close()
        channel.close()


def _opened(url: str, channel: Channel, fetcher: Fetcher) -> Session:
    """Open ``url``, and answer. The answer may take as long as the store; meanwhile the reader gets notices."""
    done = threading.Event()

    def notify() -> None:
        with contextlib.suppress(OSError):  # the reader has died
            while not done.wait(1.0):
                _notifier(channel)()

    notices = threading.Thread(target=notify, daemon=True)
    notices.start()
    try:
        session = fetcher.open(url)
    finally:
        done.set()
        notices.join()
    try:
        size = session.info.size
        held = session.begin(_notifier(channel))
        channel.send({"path": str(session.path), "size": size, "version": session.info.version, "range": held})
    except BaseException:
        session.close()
        raise
    return session


def _notifier(channel: Channel) -> Callable[[], None]:
    """Return a function that tells the reader that this process still works for it. It raises OSError if the reader has
    died."""
    return lambda: channel.send({"waits": True})


def _list(pattern: str, channel: Channel, fetcher: Fetcher) -> None:
    wanted = split_pattern(pattern)
    for page in fetcher.files(wanted.folder):
        channel.send({"urls": [url for url in page if wanted.matches(url)]})
    channel.send({"end": True})


def _send_urls(urls: list[str], channel: Channel) -> None:
    for at in range(0, len(urls), _PAGE):
        channel.send({"urls": urls[at : at + _PAGE]})
    channel.send({"end": True})


def _show(fetcher: Fetcher, status: FetchStatus) -> None:
    """Write what the fetcher does into shared memory, and report waits of some seconds."""
    reported: tuple[str, float] | None = None  # store and beginning of the wait that was reported
    while True:
        time.sleep(_STATUS_SECONDS)
        now = time.monotonic()
        wait = fetcher.waits.oldest(now)
        status.write(fetcher.counters, wait)
        if wait is not None and now - wait[2] > _NOTICE_SECONDS and reported is None:
            reported = wait[0], wait[2]
            text = f"waits for {wait[0]}: {wait[1]}; it tries again until it has an answer"
            write_event(text, LogEvent.STORE_SILENT, file=wait[0])
        elif wait is None and reported is not None:
            text = f"{reported[0]} answers again, after {now - reported[1]:.0f} s"
            write_event(text, LogEvent.STORE_ANSWERS, file=reported[0])
            reported = None


if __name__ == "__main__":
    sys.exit(main())

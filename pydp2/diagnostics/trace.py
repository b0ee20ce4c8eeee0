"""Record a trace of a service in Chrome's trace format: what its workers, its server and its trainers did, and when.

The format is that of ``chrome://tracing`` and Perfetto (ui.perfetto.dev): each process of the service is one there, and
each span a "complete" event. docs/watching.md, "A trace", has the table of their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydp2.api.access import find_target
from pydp2.api.service import require_allowed_process
from pydp2.client.connection import ask_stats, ask_trace
from pydp2.errors import OptionError
from pydp2.options.values import seconds_from
from pydp2.protocol.spans import MAX_SECONDS, MIN_SECONDS, SpanKind, Spans

_EVENTS: dict[SpanKind, tuple[str, int]] = {
    SpanKind.GENERATOR: ("generator", 0),
    SpanKind.PACK: ("check and pack", 0),
    SpanKind.SEND: ("send", 0),
    SpanKind.SEND_MEANWHILE: ("send", 1),
    SpanKind.IDLE: ("idle", 0),
    SpanKind.STORE: ("store", 2),
    SpanKind.RECEIVE: ("receive chunks", 0),
    SpanKind.CUT: ("merge and cut", 0),
    SpanKind.DELIVER: ("send batches", 0),
    SpanKind.OTHER: ("other", 0),
    SpanKind.WAIT: ("wait", 0),
    SpanKind.GATHER: ("gather", 0),
    SpanKind.STEP: ("step", 0),
    SpanKind.GATHER_AHEAD: ("gather ahead", 1),
    SpanKind.UNREPORTED: ("no report", 0),
}
"""Names of spans, and the number of the thread that they are shown in."""
_THREADS = {
    "server": ("loop",),
    "worker": ("main", "sent while the generator runs", "waits for a store"),
    "trainer": ("training loop", "look-ahead"),
}
_NUMBERS = {"worker": ("file", "sample"), "trainer": ("pass", "batch"), "server": ("", "")}


def trace(
    address: str | os.PathLike[str] | None = None,
    *,
    seconds: float = 10.0,
    key: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Record for ``seconds`` what the processes of the service at ``address`` do, and return that in Chrome's trace
    format, for ``json.dump``. Perfetto and ``chrome://tracing`` show it. See docs/watching.md, "A trace".

    Args:
        address: the address that the service printed, or the path of its connection file; default: the file that the
            environment variable ``PYDP2_CONNECTION`` names.
        seconds: length of the trace, from 0.001 to 300. The call takes up to 2 seconds longer while a process is in a
            long call of your code.
        key: folder with the keys of this process, for an address with ``?key=…``. The role ``observer`` is enough.

    Raises:
        OptionError: the address, the keys or ``seconds`` are not valid, or another trace is being recorded.
        ServiceUnreachable: no service answers.
    """
    require_allowed_process()
    if (length := seconds_from(MIN_SECONDS)("seconds", seconds)) > MAX_SECONDS:
        raise OptionError(f"seconds must be at most {MAX_SECONDS}, got {length:g}; record several traces")
    target = find_target(address, key, "observer", "trainer")
    ask_stats(target)  # where no service answers, this says so in seconds, and not after the time of the trace
    return to_chrome(*ask_trace(target, length))


def to_chrome(about: Mapping[str, Any], spans: Sequence[Spans]) -> dict[str, Any]:
    """Return ``spans`` of the sources that ``about`` has, in Chrome's trace format. All times are in microseconds since
    the begin of the trace."""
    events = list[dict[str, Any]]()
    for number, (source, own) in enumerate(zip(about["sources"], spans, strict=True), 1):
        events += _metadata(number, source)
        events += _events(number, source, own, about)
    lost = sum(source["lost"] for source in about["sources"])
    length = (about["ended_ns"] - about["began_ns"]) / 1e9
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"seconds": length, "lost_spans": lost}}


def _metadata(process: int, source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events that name a process and its threads."""
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": _source_name(source)}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for thread, name in enumerate(_THREADS[source["kind"]]):
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _source_name(source: Mapping[str, Any]) -> str:
    place = f"process {source['pid']}" + (f" on {source['host']}" if source.get("host") else "")
    match source["kind"]:
        case "worker":
            return f"{'spare ' * source['is_spare']}worker {source['worker']} ({place})"
        case "trainer":
            return f"trainer {source['number']} of job {source['job']} ({place})"
    return f"server ({place})"


def _events(
    process: int, source: Mapping[str, Any], spans: Spans, about: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    began, ended, files = about["began_ns"], about["ended_ns"], about["files"]
    first_name, second_name = _NUMBERS[source["kind"]]
    for kind, start, end, first, second in spans.tolist():
        name, thread = _EVENTS[SpanKind(kind)]
        start, end = max(start, began), min(end, ended)
        args: dict[str, Any] = {}
        if first >= 0:
            args[first_name] = files.get(str(first), first) if first_name == "file" else first
        if second >= 0:
            args[second_name] = second
        place = {"pid": process, "tid": thread, "ts": (start - began) / 1000, "dur": max(0, end - start) / 1000}
        yield {"ph": "X", "cat": source["kind"], "name": name, **place} | ({"args": args} if args else {})

"""Have a service count the samples of its files, without a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pydp2.client.connection import Connection, Target, ask_stats, connect_once, parse_welcome
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import RemoteProtocolError, ServiceUnreachable, from_wire
from pydp2.protocol import messages as m
from pydp2.system.stdlib import time

_JOB = "count"
_CONNECT_SECONDS = 10.0
_PROGRESS_SECONDS = 0.2  # seconds between two looks at how far it has come
_LOOK_SECONDS = 0.01  # between two looks whether the service knows what is remembered
_PATIENCE = 600.0  # seconds that the service may look for what is remembered


def count_samples(
    target: Target, options: Mapping[str, Any], *, again: bool, progress: Callable[[dict[str, Any]], object]
) -> Schema:
    """Read the files of the service ``target`` that are not counted to their ends (``again``: all files), in a job with
    ``options``. Return what its provider declares.

    ``progress`` is called about five times a second with the statistics of the service.

    Raises:
        ServiceUnreachable: the service does not answer. ServiceLost: it ended.
        Error: why a file cannot be read, as in a pass.
    """
    _await_counts(target)
    attach = m.Attach(
        m.WIRE_VERSION, _JOB, 0, 1, os.urandom(8).hex(), dict(options), os.getpid(),
        counting="all" if again else "missing",
    )  # fmt: skip
    connection, answer, _ = connect_once(target, attach, time.monotonic() + _CONNECT_SECONDS)
    try:
        schema = Schema.from_wire(parse_welcome(answer).schema)
        connection.send(m.BeginPass(1, 0, 0, 1, {}, 0, [], ""))
        while not _is_over(connection):
            progress(ask_stats(target))
        connection.send(m.Detach(1, 0))
    finally:
        connection.close()
    return schema


def _await_counts(target: Target) -> None:
    deadline = time.monotonic() + _PATIENCE
    while ask_stats(target).get("counts", {}).get("loading"):
        if time.monotonic() > deadline:
            raise ServiceUnreachable(
                f"the service at {target.name} has looked for counts on its disk for {_PATIENCE:g} s; check the disk "
                "of cache_dir, and those of the files"
            )
        time.sleep(_LOOK_SECONDS)


def _is_over(connection: Connection) -> bool:
    """Wait a moment. Return True if the pass is over. Raises the error that ended it."""
    received = connection.receive(time.monotonic() + _PROGRESS_SECONDS)
    match received:
        case None:
            return False
        case (m.PassEnd(), _):
            return True
        case (m.Failed(error=error), _):
            raise from_wire(error)
    raise RemoteProtocolError(f"{type(received[0]).__name__} while samples are counted")

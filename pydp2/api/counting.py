"""Count the samples of a list ahead, so that ``len(client)`` is known from the start (docs/caching.md, "Counts")."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from pydp2.api.service import launch
from pydp2.api.sources import Files, Source, resolve_block_list, resolve_source
from pydp2.client.connection import Connection, Target, ask_stats, connect_once, parse_welcome
from pydp2.client.length import PassLength
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError, RemoteProtocolError, ServiceUnreachable, from_wire
from pydp2.options.job_options import JobKeywords
from pydp2.options.service_options import ServiceKeywords
from pydp2.options.tables import (
    JOB_OPTIONS,
    SERVICE_OPTIONS,
    check_keywords,
    job_options,
    place_options,
    service_options,
    takes,
)
from pydp2.options.values import MAX_CYCLE
from pydp2.protocol import messages as m
from pydp2.providers import Provider, address_of
from pydp2.server.cache.counts import CountsLoaded, CountStore
from pydp2.server.cache.disk_messages import CacheSource
from pydp2.server.cache.folder import default_folder
from pydp2.system.stdlib import time

_FILES_PER_WORKER = 4  # files that are read in turns
_JOB = "count"
_CONNECT_SECONDS = 10.0
_PROGRESS_SECONDS = 0.2  # seconds between two calls of ``progress``
_LOOK_SECONDS = 0.01  # seconds between two checks whether the service has loaded the remembered counts
_PATIENCE = 600.0  # seconds that the service may take to load the remembered counts


@dataclass(frozen=True)
class FileCount:
    """Count of one entry of a list: samples as they are delivered, dropped ones, and the weight of those delivered.

    ``early``: the file ended before its data did (``on_error="skip"``). ``samples`` is None if the file could not be
    remembered, because it changed while it was read.
    """

    file: str
    samples: int | None
    dropped: int = 0
    weight: int = 0
    early: bool = False


@dataclass(frozen=True)
class ListCount:
    """Counts of a list. ``read``: number of files that were read for it; the others were counted before.

    ``plain``: every sample weighs 1, so the number of batches follows from that of samples.
    """

    files: list[FileCount]
    read: int
    plain: bool

    @property
    def samples(self) -> int:
        """Number of samples of all files."""
        return sum(file.samples or 0 for file in self.files)

    @property
    def missing(self) -> list[str]:
        """Files that are not counted."""
        return [file.file for file in self.files if file.samples is None]

    @takes(JOB_OPTIONS)
    def batches(self, *, rank: int = 0, world_size: int = 1, **options: Unpack[JobKeywords]) -> int:
        """Return the number of batches that ``rank`` gets in a pass of a job with ``options``, as ``len(client)`` does.

        Args:
            rank, world_size, options: as for :func:`pydp2.connect`; ``batch_size`` is needed.

        Raises:
            TypeError: the number does not follow from the counts; the message says why.
            OptionError, OptionTypeError: an argument is not valid.
        """
        check_keywords(self.batches, options)
        place = place_options("count", rank, world_size)
        length = PassLength(asdict(job_options(**options)), place.rank, place.world_size)
        weight = sum(file.weight for file in self.files)
        length.learn(
            {
                "files": len(self.files),
                "counted": len(self.files) - len(self.missing),
                "samples": self.samples,
                "weight": weight,
                "plain": self.plain,
                "loading": False,
                "key": "remembered",
            }
        )
        if (known := length.exact) is None:
            raise TypeError(length.reason())
        return known

    def plain_data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        sums = {name: sum(getattr(file, name) for file in self.files) for name in ("dropped", "weight")}
        return {
            "samples": self.samples,
            **sums,
            "plain": self.plain,
            "read": self.read,
            "missing": len(self.missing),
            "files": [asdict(file) for file in self.files],
        }


@takes(SERVICE_OPTIONS)
def count(
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    again: bool = False,
    progress: Callable[[int, int, int], object] = lambda counted, files, samples: None,
    **options: Unpack[ServiceKeywords],
) -> ListCount:
    """Read the files of a list to their ends, in parallel, and remember how many samples each has.

    Services with the same provider, ``args``, ``root`` and ``cache_dir`` then know ``len(client)`` from the start.
    Files that are counted already are not read.

    Args:
        files, provider, args, is_train, root: as for :func:`pydp2.launch`.
        again: also read the files that are counted already.
        progress: called about five times a second with the number of counted files, of all files, and of counted
            samples.
        options: those of :func:`pydp2.launch`; ``workers`` is the number of processes that read, 0 means the default.

    Raises:
        OptionError: the provider is not in a file, so pydp2 could not notice when it changes, or ``remember_counts`` is
            False. Also the errors of :func:`pydp2.launch` and of a pass; the counts up to then are remembered.
    """
    check_keywords(count, options)
    served = resolve_source(files, provider, args, is_train, root)
    chosen = service_options(**options)
    if not chosen.remember_counts:
        raise OptionError("count remembers what it counts, got remember_counts=False; leave it out, or make it True")
    folder = Path(options.get("cache_dir") or default_folder()).absolute()
    if options.get("workers") == 0:  # the option of a service whose workers are on other hosts
        del options["workers"]
    with launch(files, provider, args=args, is_train=is_train, root=root, **options) as service:

        def show(figures: dict[str, Any]) -> None:
            counts = figures["counts"]
            progress(counts["counted"], counts["files"], counts["samples"])

        workers = len(service.stats()["workers"])
        turns = min(max(16, _FILES_PER_WORKER * workers), MAX_CYCLE)
        job = job_options(batch_size=1, order="relaxed", shuffle=False, interleave=turns)
        schema = _count_samples(service._target, asdict(job), again=again, progress=show)
        counts = service.stats()["counts"]
    if not counts["key"]:
        raise OptionError(
            "counts of samples can be remembered for a provider in a file only, because pydp2 could not notice when "
            "another one changes; put process into a module"
        )
    source = CacheSource(
        counts["key"], address_of(served.provider), served.files, str(served.root), schema.slots, schema.weighted
    )
    block_list = resolve_block_list(chosen.block_list, served.files)
    with closing(CountStore(folder, source, block_list)) as store:
        return _listed(source, store.find(), counts["read"])


def _listed(source: CacheSource, found: CountsLoaded, read: int) -> ListCount:
    rows = dict(zip(found.files.tolist(), found.counts.tolist(), strict=True))
    listed = []
    for number, file in enumerate(source.files):
        samples, dropped, weight, _, early = rows.get(number, (None, 0, 0, True, False))
        listed.append(FileCount(file, samples, dropped, weight, early))
    return ListCount(listed, read, bool(found.counts["plain"].all()))


def _count_samples(
    target: Target, options: Mapping[str, Any], *, again: bool, progress: Callable[[dict[str, Any]], object]
) -> Schema:
    """Read the files of the service ``target`` that are not counted yet (``again``: all files) to their ends, in a job
    with ``options``. Return the schema of its provider.

    ``progress`` is called about five times a second with the statistics of the service.

    Raises:
        ServiceUnreachable: the service does not answer. ServiceLost: it ended.
        Error: a file cannot be read, as in a pass.
    """
    _await_counts(target)
    attach = m.Attach(
        m.WIRE_VERSION,
        _JOB,
        0,
        1,
        os.urandom(8).hex(),
        dict(options),
        os.getpid(),
        counting="all" if again else "missing",
    )
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

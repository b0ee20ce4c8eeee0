"""Define the options of a service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from pydp2.options.declare import Bytes, CheckedOptions, FilePath, Number, Whole, option, size_option
from pydp2.options.values import (
    Choice,
    bind_address,
    error_budget,
    file_path,
    flag,
    folder_path,
    host_and_port,
    host_name,
    integer_from,
    or_no_limit,
    or_none,
    seconds,
    slot_names,
)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(CheckedOptions):
    """Options of a service, beside its list, provider, ``args`` and ``is_train``. Frozen, checked when made."""

    workers: int | None = option(
        or_none(integer_from(0)),
        "number of worker processes; 0: only other hosts run workers; default: one per core that this process may use",
        None,
    )
    start: str = option(
        Choice(("auto", "spawn")),
        "auto: import the provider once for all workers, if possible; spawn: each worker imports it for itself",
        "auto",
    )
    memory_limit: int | None = size_option(
        "bytes for the cache in memory and for reading ahead; default: a quarter of the memory"
    )
    worker_memory: int | None = size_option(
        "bytes that a worker process may occupy before a new one replaces it; default: no limit"
    )
    sample_timeout: float | None = option(
        or_no_limit(seconds), "seconds that the provider may take for one sample; default: no limit", None
    )
    on_error: str = option(
        Choice(("raise", "skip")),
        "when process raises an exception, raise: end the pass with it; skip: report it and leave out the rest of "
        "that file",
        "raise",
    )
    error_budget: float | None = option(
        or_none(error_budget),
        "how many samples may be dropped and files cut short in a pass before it fails: a number such as 100, or a "
        "share of the samples such as 0.01; default: no limit",
        None,
    )
    quarantine: str | None = option(
        or_none(file_path), "file in which dropped samples and files cut short are recorded; default: none", None
    )
    on_changed: str = option(
        Choice(("raise", "warn")),
        "when a file yields other samples as it is read again, raise: end the pass with an error; warn: warn and go on",
        "raise",
    )
    block_list: str | None = option(
        or_none(file_path), "file that names samples which are never delivered; default: none", None
    )
    state_dir: str | None = option(
        or_none(folder_path),
        "directory in which the service saves its state, to continue after a restart; default: none",
        None,
    )
    cache_dir: str | None = option(
        or_none(folder_path), "directory of the cache on disk; default: $XDG_CACHE_HOME/pydp2 or ~/.cache/pydp2", None
    )
    cache_size: int | None = size_option("maximum bytes of the cache on disk; default: half of the free space there")
    remember_counts: bool = option(
        flag, "remember in cache_dir how many samples each file has, so that later runs know the length of a pass", True
    )
    remote_cache: str | None = option(
        or_none(folder_path),
        "directory of the copies of remote files; default: $XDG_CACHE_HOME/pydp2/remote or ~/.cache/pydp2/remote",
        None,
    )
    remote_cache_size: int | None = size_option(
        "maximum bytes of the copies of remote files; default: half of the free space there"
    )
    remote_timeout: float = option(
        seconds, "seconds without an answer of a store after which reading a remote file fails", 900.0
    )
    bind: str | None = option(
        or_none(bind_address),
        "address of the service, ipc://PATH or tcp://HOST:PORT; default: one that only this machine reaches",
        None,
    )
    connection: str | None = option(
        or_none(file_path),
        "file for the address of the service and fresh keys of this run; trainers on other hosts connect with it; "
        "default: none",
        None,
    )
    keys: str | None = option(
        or_none(folder_path),
        "folder with the keys of the service and of those that it lets in, made by pydp2 keys new; default: none",
        None,
    )
    worker_bind: str | None = option(
        or_none(bind_address),
        "address that workers on other hosts connect to, tcp://HOST:PORT; default: the host of bind and the port after "
        "its port",
        None,
    )
    advertise: str | None = option(
        or_none(host_name),
        "name or IP address by which other hosts reach this one; default: that of bind, or the name of this host",
        None,
    )
    metrics: str | None = option(
        or_none(host_and_port),
        "HOST:PORT at which Prometheus finds /metrics, and others /healthz and /readyz; default: none",
        None,
    )
    page: str | None = option(
        or_none(host_and_port),
        "HOST:PORT at which a browser shows the service, 127.0.0.1:0 for any free port of this machine; default: none",
        None,
    )
    page_samples: bool = option(flag, "whether the page shows samples of the batches", False)
    input_order: tuple[str, ...] | None = option(
        or_none(slot_names),
        "order of the slots in a batch, if input_types is a dict; default: the order of the dict",
        None,
    )


class ServiceKeywords(TypedDict, total=False):
    """Keywords of a service for type checkers: those of :class:`ServiceOptions`, in every form that is accepted."""

    workers: Whole | None
    start: Literal["auto", "spawn"]
    memory_limit: Bytes | None
    worker_memory: Bytes | None
    sample_timeout: Number | None
    on_error: Literal["raise", "skip"]
    error_budget: Number | None
    quarantine: FilePath | None
    on_changed: Literal["raise", "warn"]
    block_list: FilePath | None
    state_dir: FilePath | None
    cache_dir: FilePath | None
    cache_size: Bytes | None
    remember_counts: bool
    remote_cache: FilePath | None
    remote_cache_size: Bytes | None
    remote_timeout: Number
    bind: str | None
    connection: FilePath | None
    keys: FilePath | None
    worker_bind: str | None
    advertise: str | None
    metrics: str | None
    page: str | None
    page_samples: bool
    input_order: list[str] | tuple[str, ...] | None

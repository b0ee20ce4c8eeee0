"""Options: their names, defaults and values, and the TOML file that holds a whole run.

The one place that knows which options there are and where each belongs: :data:`SERVICE_OPTIONS` are given to
``launch``, ``load`` or ``serve``, :data:`JOB_OPTIONS` to ``connect`` or ``load``. In Python, in TOML and as a flag an
option has one name; an unknown or misplaced one is an error that names the right one. :class:`ServiceKeywords` and
:class:`JobKeywords` say the same to type checkers and editors; a test holds them equal to the tables. What an option
*does* is decided elsewhere: see docs/semantics.md. A configuration file::

    root = "../sample_data/digits"      # relative to this file; default: the folder of this file
    provider = "digits_provider.process"

    [args]                              # keyword arguments of the init_hook
    [train]
    list = "train.list"                 # relative to root
    [test]
    list = "test.list"
    [service]
    workers = 2
    [job]
    batch_size = 128
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import numpy as np

from pydp2.errors import Error, OptionError, OptionTypeError
from pydp2.options.values import (
    MAX_CYCLE,
    Check,
    Choice,
    bind_address,
    bucket_bounds,
    did_you_mean,
    error_budget,
    file_path,
    flag,
    flag_or_none,
    folder_path,
    host_and_port,
    host_name,
    integer_from,
    names_text,
    number_of_bytes,
    or_no_limit,
    or_none,
    seconds,
    seconds_from,
    slot_name_or_index,
    slot_names,
    value_text,
)
from pydp2.system.file_bytes import read_named

_F = TypeVar("_F", bound=Callable[..., Any])

Whole: TypeAlias = int | np.integer[Any]
Number: TypeAlias = float | np.integer[Any] | np.floating[Any]
Bytes: TypeAlias = int | np.integer[Any] | str
"""A number of bytes, or a text such as ``"2GiB"``."""
FilePath: TypeAlias = str | os.PathLike[str]
WORLD_LIMIT = 65_536
"""Trainers of a job, at most."""
_NAME_LIMIT = 100


def _option(check: Check, text: str, default: Any = MISSING, *, is_size: bool = False) -> Any:
    return field(default=default, metadata={"check": check, "help": text, "is_size": is_size})


def _size_option(text: str, default: int | None = None) -> Any:
    """Return the field of an option in bytes; without a ``default`` it may be None."""
    return _option(or_none(number_of_bytes) if default is None else number_of_bytes, text, default, is_size=True)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Check themselves when made; :func:`service_options` and :func:`job_options` also convert."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            plain = f.metadata["check"](f.name, value)
            if type(plain) is not type(value) or plain != value:
                raise OptionTypeError(f"{f.name} must be given as {plain!r}, got {value_text(value)}")


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(_Options):
    """Options of a service, beside its list, provider, ``args`` and ``is_train``. Frozen, checked when made."""

    workers: int | None = _option(
        or_none(integer_from(0)),
        "number of worker processes; 0: only other hosts run workers; default: one per core that this process may use",
        None,
    )
    start: str = _option(
        Choice(("auto", "spawn")),
        "auto: import the provider once for all workers, if possible; spawn: each worker imports it for itself",
        "auto",
    )
    memory_limit: int | None = _size_option(
        "bytes for the cache in memory and for reading ahead; default: a quarter of the memory"
    )
    worker_memory: int | None = _size_option(
        "bytes that a worker process may occupy before a new one replaces it; default: no limit"
    )
    sample_timeout: float | None = _option(
        or_no_limit(seconds), "seconds that the provider may take for one sample; default: no limit", None
    )
    on_error: str = _option(
        Choice(("raise", "skip")),
        "when process raises an exception, raise: end the pass with it; skip: report it and leave out the rest of "
        "that file",
        "raise",
    )
    error_budget: float | None = _option(
        or_none(error_budget),
        "how many samples may be dropped and files cut short in a pass before it fails: a number such as 100, or a "
        "share of the samples such as 0.01; default: no limit",
        None,
    )
    quarantine: str | None = _option(
        or_none(file_path), "file in which dropped samples and files cut short are recorded; default: none", None
    )
    on_changed: str = _option(
        Choice(("raise", "warn")),
        "when a file yields other samples as it is read again, raise: end the pass with an error; warn: warn and go on",
        "raise",
    )
    state_dir: str | None = _option(
        or_none(folder_path),
        "directory in which the service saves its state, to continue after a restart; default: none",
        None,
    )
    cache_dir: str | None = _option(
        or_none(folder_path), "directory of the cache on disk; default: $XDG_CACHE_HOME/pydp2 or ~/.cache/pydp2", None
    )
    cache_size: int | None = _size_option("maximum bytes of the cache on disk; default: half of the free space there")
    remember_counts: bool = _option(
        flag, "remember in cache_dir how many samples each file has, so that later runs know the length of a pass", True
    )
    bind: str | None = _option(
        or_none(bind_address),
        "address of the service, ipc://PATH or tcp://HOST:PORT; default: one that only this machine reaches",
        None,
    )
    connection: str | None = _option(
        or_none(file_path),
        "file for the address of the service and fresh keys of this run; trainers on other hosts connect with it; "
        "default: none",
        None,
    )
    keys: str | None = _option(
        or_none(folder_path),
        "folder with the keys of the service and of those that it lets in, made by pydp2 keys new; default: none",
        None,
    )
    worker_bind: str | None = _option(
        or_none(bind_address),
        "address that workers on other hosts connect to, tcp://HOST:PORT; default: the host of bind and the port after "
        "its port",
        None,
    )
    advertise: str | None = _option(
        or_none(host_name),
        "name or IP address by which other hosts reach this one; default: that of bind, or the name of this host",
        None,
    )
    metrics: str | None = _option(
        or_none(host_and_port),
        "HOST:PORT at which Prometheus finds /metrics, and others /healthz and /readyz; default: none",
        None,
    )
    input_order: tuple[str, ...] | None = _option(
        or_none(slot_names),
        "order of the slots in a batch, if input_types is a dict; default: the order of the dict",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(_Options):
    """Options of a job: how its passes are shuffled and cut into batches. Frozen, checked when made."""

    batch_size: int = _option(
        integer_from(1), "weight of a batch; the number of its samples, unless the provider weighs them"
    )
    seed: int = _option(integer_from(0, 1 << 64), "seed of the random order of files and samples", 0)
    shuffle: bool | None = _option(flag_or_none, "shuffle files and samples; default: what the provider says", None)
    order: str = _option(
        Choice(("strict", "relaxed")),
        "strict: the seed and the data alone decide the order; relaxed: samples come as they are ready, each once",
        "strict",
    )
    interleave: int = _option(integer_from(1, MAX_CYCLE + 1), "number of files that a shuffled pass reads in turn", 16)
    pool_bytes: int = _size_option("maximum bytes of samples in the pool; another value can change the order", 1 << 30)
    last_batch: str = _option(
        Choice(("keep", "drop", "pad")),
        "what to do with a last batch smaller than batch_size; pad fills it up to that size",
        "keep",
    )
    prefetch: int = _option(
        integer_from(1, 1 << 32),
        "number of batches that are sent to a trainer in advance; more if batches are small",
        2,
    )
    prefetch_bytes: int = _size_option(
        "maximum bytes of batches that a trainer has been sent and not used; two batches are always allowed", 64 << 20
    )
    bucket_by: str | int | None = _option(
        or_none(slot_name_or_index),
        "name or number of a slot of sequences, text or bytes; each batch then holds samples of similar length in it",
        None,
    )
    bucket_bounds: tuple[int, ...] | None = _option(
        or_none(bucket_bounds),
        "maximum sequence length of each bucket; default: computed from the samples that fill the pool first",
        None,
    )
    num_buckets: int | None = _option(
        or_none(integer_from(2, 1001)), "maximum number of buckets, if bucket_bounds are computed; default: 8", None
    )
    share: str = _option(
        Choice(("ranks", "dynamic")),
        "ranks: trainers get batches in turn, by rank; dynamic: each batch goes to the trainer that asks first",
        "ranks",
    )
    lease: float = _option(
        seconds_from(0.1),  # a trainer that waits speaks four times in it
        "seconds without a sign of life after which another trainer can take over a trainer's rank and batches",
        30.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("bucket_bounds", "num_buckets") if getattr(self, name) is not None]
        if given and self.bucket_by is None:
            raise OptionError(f"{given[0]} needs bucket_by, the slot whose length it is about")
        if len(given) == 2:
            raise OptionError(
                "bucket_bounds and num_buckets cannot both be given: bounds say how many buckets there are"
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
    state_dir: FilePath | None
    cache_dir: FilePath | None
    cache_size: Bytes | None
    remember_counts: bool
    bind: str | None
    connection: FilePath | None
    keys: FilePath | None
    worker_bind: str | None
    advertise: str | None
    metrics: str | None
    input_order: list[str] | tuple[str, ...] | None


class JobChoices(TypedDict, total=False):
    """Keywords of a job for type checkers: those of :class:`JobOptions` but ``batch_size``, in every accepted form."""

    seed: Whole
    shuffle: bool | None
    order: Literal["strict", "relaxed"]
    interleave: Whole
    pool_bytes: Bytes
    last_batch: Literal["keep", "drop", "pad"]
    prefetch: Whole
    prefetch_bytes: Bytes
    bucket_by: str | Whole | None
    bucket_bounds: list[int] | tuple[int, ...] | None
    num_buckets: Whole | None
    share: Literal["ranks", "dynamic"]
    lease: Number


class JobKeywords(JobChoices):
    """Keywords of a job for type checkers, with the required ``batch_size``."""

    batch_size: Whole


class LoadChoices(ServiceKeywords, JobChoices):
    """Keywords of a service and its job for type checkers, but ``batch_size``."""


class LoadKeywords(ServiceKeywords, JobKeywords):
    """Keywords of a service and its job for type checkers, with the required ``batch_size``."""


class Option(NamedTuple):
    """One line of a table of options. ``required`` ones have no default; ``kind`` is the declared type as text;
    ``is_size``: the value is a number of bytes, or a text such as ``"2GiB"``."""

    help: str
    default: Any
    required: bool
    kind: str
    check: Check
    choices: tuple[str, ...]
    is_size: bool


def _table(options: type[_Options]) -> dict[str, Option]:
    def option(declared: Field[Any]) -> Option:
        meta, missing = declared.metadata, declared.default is MISSING
        return Option(
            help=meta["help"],
            default=None if missing else declared.default,
            required=missing,
            kind=str(declared.type),
            check=meta["check"],
            choices=getattr(meta["check"], "allowed", ()),
            is_size=meta["is_size"],
        )

    return {declared.name: option(declared) for declared in fields(options)}


SERVICE_OPTIONS: Mapping[str, Option] = _table(ServiceOptions)
JOB_OPTIONS: Mapping[str, Option] = _table(JobOptions)
_FORMS: Mapping[str, Any] = {**ServiceKeywords.__annotations__, **JobKeywords.__annotations__}
SERVICE_ARGUMENTS = ("list", "provider", "args", "is_train")
"""Arguments that say what a service reads; in Python and in TOML they stand outside the table of its options."""
_NOT_OF_SERVICE = {*JOB_OPTIONS, "job", "rank", "world_size"}
_NOT_OF_JOB = {*SERVICE_OPTIONS, *SERVICE_ARGUMENTS}
PROVIDER_OPTIONS = (
    "input_types", "should_shuffle", "pool_size", "min_pool_size", "can_over_batch_size", "calc_batch_size", "cache",
    "check", "check_fail_continue", "init_hook",
)  # fmt: skip
"""Arguments of ``@provider(...)``, the decorator of ``process``; a test keeps them equal to its signature."""
_LAST, _WORKERS, _READY, _POOL = 'last_batch="drop"', "workers=4", "prefetch=2", "pool_size=4096"
_TURNS = "interleave=16"
_PASSES = "the number of passes is that of your loops over the client: for epoch in range(10): for batch in data: …"
_ORDER = "nothing samples here: the order is drawn from seed=, and shuffle=False turns it off"
_SEED = "seed=7"
_COLUMNS = "a batch is made of the columns that input_types declare, so leave it out; sequences have Ragged.pad()"
_TRANSFORM = "process(settings, filename) makes the samples: call it there, before yield; the workers run it"
_DEVICE = (
    "batches are numpy arrays, so leave it out; pydp2.torch.loader has device=, pydp2.jax.loader sharding=, "
    "pydp2.paddle.loader place="
)
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    # torch.utils.data.DataLoader
    "drop_last": ("last_batch", _LAST),
    "num_workers": ("workers", _WORKERS),
    "prefetch_factor": ("prefetch", _READY),
    "generator": ("seed", _SEED),
    "worker_init_fn": ("init_hook", "init_hook=function"),
    "multiprocessing_context": ("start", 'start="spawn"'),
    "timeout": ("sample_timeout", "sample_timeout=60, for one sample (and connect() has timeout=, for the service)"),
    "collate_fn": ("", _COLUMNS),
    "pin_memory": ("", "batches are numpy arrays, so leave it out; pydp2.torch.loader has it"),
    "sampler": ("", _ORDER),
    "batch_sampler": ("", _ORDER),
    "persistent_workers": ("", "workers live as long as the service, so leave it out"),
    "shuffle_seed": ("seed", _SEED),
    "pin_memory_device": ("", "batches are numpy arrays, so leave it out; pydp2.torch.loader has device="),
    "device": ("", _DEVICE),
    "dtype": ("", 'a slot has its dtype, as dense_vector(784, dtype="uint8") in input_types'),
    "transform": ("", _TRANSFORM),
    "target_transform": ("", _TRANSFORM),
    "transforms": ("", _TRANSFORM),
    "dataset": ("", "the data are a list of files and a provider, the first two arguments of load() and launch()"),
    # tf.data
    "drop_remainder": ("last_batch", _LAST),
    "buffer_size": ("pool_size", f"{_POOL}, for samples to draw from; batches made ready ahead are prefetch"),
    "num_parallel_calls": ("workers", _WORKERS),
    "cycle_length": ("interleave", _TURNS),
    "deterministic": ("order", 'order="relaxed", in place of deterministic=False'),
    "reshuffle_each_iteration": ("", "each pass has an order of its own, drawn from seed=, so leave it out"),
    "map": ("", _TRANSFORM),
    "map_func": ("", _TRANSFORM),
    "filter": ("", "leave a sample out in process, with if and no yield"),
    "repeat": ("", _PASSES),
    # Grain
    "transformations": ("", _TRANSFORM),
    "operations": ("", _TRANSFORM),
    "worker_count": ("workers", _WORKERS),
    "worker_buffer_size": ("prefetch", _READY),
    "num_epochs": ("", _PASSES),
    "shard_index": ("", "connect() has rank=0, world_size=4"),
    "shard_count": ("", "connect() has rank=0, world_size=4"),
    "batch_fn": ("", _COLUMNS),
    # of several
    "shuffle_buffer_size": ("pool_size", _POOL),
    "window_size": ("pool_size", _POOL),
    "epochs": ("", _PASSES),
    "num_shards": ("", "connect() has rank=0, world_size=4"),
}
"""Names of options in other loaders, each with the option of pydp2 ("": none) and what to write in its place."""


def check_options(
    given: Collection[str], allowed_here: Collection[str], allowed_there: Collection[str] = (), where_there: str = ""
) -> None:
    """Refuse names that are unknown, or that belong somewhere else.

    Args:
        given: names, or a mapping by name.
        allowed_here: names that may be given here.
        allowed_there: names that are right at ``where_there`` (as ``"connect() or load()"``), but not here.

    Raises:
        OptionTypeError: says where the first wrong name belongs, or suggests the nearest right one.
    """
    for name in given:
        if name in allowed_here:
            continue
        for names, where in ((allowed_there, where_there), (PROVIDER_OPTIONS, "@provider(...), beside process")):
            if name in names:
                raise OptionTypeError(f"{name} is not an option here: it belongs to {where}")
        homes = dict.fromkeys(PROVIDER_OPTIONS, "@provider(...), beside process")
        homes |= dict.fromkeys(allowed_there, where_there)
        near = elsewhere(name, allowed_here, homes)
        near = near or did_you_mean(name, [*allowed_here, *allowed_there, *PROVIDER_OPTIONS])
        near = near or f"; known here: {', '.join(sorted(allowed_here))}"
        raise OptionTypeError(f"there is no option {name!r}{near}")


def elsewhere(name: str, allowed_here: Collection[str], homes: Mapping[str, str]) -> str:
    """Return what to write in place of ``name``, an option of another loader, to append to a message; '' if none is.

    ``homes``: where options belong that may not be given here.
    """
    option, words = ELSEWHERE.get(name, ("", ""))
    if not words:
        return ""
    home = "" if option in allowed_here else homes.get(option, "")
    return f": {'write ' if option else ''}{words}{' in ' if home else ''}{home.removeprefix('in ')}"


def takes(*tables: Mapping[str, Option], also: Collection[str] = ()) -> Callable[[_F], _F]:
    """Have ``inspect.signature`` and ``help`` show the options of ``tables``, with defaults, in place of ``**options``.

    What the decorated function takes stays the same. An option that it names itself keeps the default it has there.
    ``also``: names that it takes in ``**options`` beside those of the tables, for :func:`check_keywords`.
    """
    options = {name: option for table in tables for name, option in table.items()}

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.required else option.default,
                annotation=_FORMS[name].__forward_arg__,
            )
            for name, option in options.items()
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        function._keywords = {*(each.name for each in own if each.name != "self"), *options, *also}  # type: ignore[attr-defined]
        return function

    return decorate


def check_keywords(function: Callable[..., Any], given: Collection[str]) -> None:
    """Refuse keywords in the ``**options`` of ``function``, which :func:`takes` decorates, that no option has.

    The function calls this itself: a decorator that did would be one more frame for each warning about the caller.

    Raises:
        OptionTypeError: suggests the nearest of all keywords that the function takes, its own parameters included.
    """
    known: Collection[str] = function._keywords  # type: ignore[attr-defined]
    if "batch_size" not in known and "workers" not in known:
        check_options(given, known, {*SERVICE_OPTIONS, *JOB_OPTIONS}, "load()")
    elif "batch_size" not in known:
        check_options(given, known, _NOT_OF_SERVICE, "connect() or load()")
    elif "workers" not in known:
        check_options(given, known, _NOT_OF_JOB, "launch(), load() or serve")
    else:
        check_options(given, known)


def service_options(**given: Any) -> ServiceOptions:
    """Return :class:`ServiceOptions` from what a user gave: sizes as text, lists, NumPy integers.

    Raises:
        OptionTypeError: unknown, misplaced or of a wrong type.
        OptionError: a value that cannot be.
    """
    check_options(given, SERVICE_OPTIONS, _NOT_OF_SERVICE, "connect() or load()")
    return ServiceOptions(**_checked(ServiceOptions, given))


def job_options(**given: Any) -> JobOptions:
    """Return :class:`JobOptions` from what a user gave; ``batch_size`` is needed. Raises what
    :func:`service_options` raises."""
    check_options(given, JOB_OPTIONS, _NOT_OF_JOB, "launch(), load() or serve")
    if "batch_size" not in given:
        raise OptionTypeError("batch_size is needed, as in batch_size=128")
    return JobOptions(**_checked(JobOptions, given))


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a job in ``given``, and all others, which a service checks."""
    of_job = {name: value for name, value in given.items() if name in JOB_OPTIONS}
    return of_job, {name: value for name, value in given.items() if name not in JOB_OPTIONS}


def place_options(job: Any, rank: Any, world_size: Any) -> tuple[str, int, int]:
    """Return the name of a trainer's job, its rank, and the number of ranks.

    Raises:
        OptionTypeError: a name that is no text, or numbers that are none.
        OptionError: an empty or long name, more than 65,536 ranks, or a rank that is not below ``world_size``.
    """
    if not isinstance(job, str):
        raise OptionTypeError(f"job must be a text, got {value_text(job)}")
    if not 0 < len(job) <= _NAME_LIMIT or not job.isprintable():
        raise OptionError(f"job must be a name of 1 to {_NAME_LIMIT} printable characters, got {value_text(job)}")
    world_size = integer_from(1, None)("world_size", world_size)
    if world_size > WORLD_LIMIT:
        raise OptionError(f"world_size must be at most {WORLD_LIMIT}: no job has more trainers; got {world_size}")
    rank = integer_from(0, None)("rank", rank)
    if rank >= world_size:
        raise OptionError(f"rank must be below world_size, got rank={rank}, world_size={world_size}")
    return job, rank, world_size


def _checked(options: type[_Options], given: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: f.metadata["check"](f.name, given[f.name]) for f in fields(options) if f.name in given}


@dataclass(frozen=True)
class Config:
    """One side of a configuration file, everything resolved and checked.

    ``root`` becomes the working directory of the workers and stands first on their ``sys.path``, so the provider is
    found there, and so are the entries of the list: they are handed to ``process`` as they are written.

    Attributes:
        root: absolute path of a folder.
        list: absolute path of the list file (whether it exists is found out when it is read).
        provider: its address.
        args: keyword arguments of the init_hook.
        is_train: True for the train side.
        service: arguments for :func:`service_options`, valid and in plain form.
        job: arguments for :func:`job_options`, likewise; ``batch_size`` may be missing.
    """

    root: Path
    list: Path
    provider: str
    args: dict[str, Any]
    is_train: bool
    service: dict[str, Any]
    job: dict[str, Any]


_SIDES = ("train", "test")
_TOP = {"root": str, "provider": str, "args": dict, "train": dict, "test": dict, "service": dict, "job": dict}


def load_config(path: str | Path, side: str = "train") -> Config:
    """Read one side, ``"train"`` or ``"test"``, of a configuration file; the module's docstring shows one.

    Raises:
        OptionTypeError: a key is unknown, misplaced or of a wrong type; names the file and the nearest right key.
        OptionError: the file is missing or no TOML, a value cannot be, or this side is missing.
    """
    if side not in _SIDES:
        raise OptionError(f"side must be {names_text(_SIDES)}, got {side!r}")
    file = Path(path)
    document = _document(file)
    try:
        return _config(file, document, side)
    except Error as error:
        raise type(error)(f"{file}: {error}") from None


def _document(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_named(file, 16 << 20).decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{file}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{file}: a configuration must be UTF-8: {error.reason}") from None
    except RecursionError:
        raise OptionError(f"{file}: tables and lists are nested too deep to be read; write fewer levels") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"the configuration {file} cannot be read: {reason}") from None


def _config(file: Path, document: dict[str, Any], side: str) -> Config:
    for key, value in document.items():
        _check_key(key, _TOP, "at the top of the file")
        if not isinstance(value, _TOP[key]):
            form = f"a table, written [{key}]" if _TOP[key] is dict else "a text"
            raise OptionTypeError(f"{key} must be {form}, got {value_text(value)}")
    for name in _SIDES:
        for key in document.get(name, {}):
            _check_key(key, ("list",), f"in [{name}]")
    tables: dict[str, dict[str, Any]] = {}
    for name, options in (("service", ServiceOptions), ("job", JobOptions)):
        given = document.get(name, {})
        for key in given:
            _check_key(key, [f.name for f in fields(options)], f"in [{name}]")
        tables[name] = _checked(options, given)
    root = (file.parent / document.get("root", ".")).resolve()
    if not root.is_dir():
        raise OptionError(f"root must be a folder, relative to this file, got {document['root']!r}: no folder {root}")
    if not document.get("provider"):
        raise OptionError('provider is needed, as in provider = "my_module.process"')
    listed = document.get(side, {}).get("list")
    if not (isinstance(listed, str) and listed):
        kind = OptionError if listed in (None, "") else OptionTypeError
        raise kind(f'the {side} side needs list = "…" in [{side}], got {value_text(listed)}')
    args = document.get("args", {})
    return Config(root, root / listed, document["provider"], args, side == "train", **tables)


def _check_key(key: str, allowed: Collection[str], place: str) -> None:
    """Refuse an unknown key; say which table has it, or which key comes nearest."""
    if key in allowed:
        return
    homes = dict.fromkeys(PROVIDER_OPTIONS, "in @provider(...), beside process")
    homes |= dict.fromkeys(_TOP, "at the top") | {"list": "in [train] and [test]"}
    homes |= dict.fromkeys(SERVICE_OPTIONS, "in [service]") | dict.fromkeys(JOB_OPTIONS, "in [job]")
    if key in homes:
        raise OptionTypeError(f"{key} cannot stand {place}: it belongs {homes[key]}")
    near = elsewhere(key, allowed, homes) or did_you_mean(key, list(allowed)) or did_you_mean(key, homes)
    raise OptionTypeError(f"there is no key {key!r} {place}{near}; known there: {', '.join(sorted(allowed))}")

"""Define the tables of the options of a service and of a job, and the errors for names that are in neither.

Only this module knows where each option belongs: :data:`SERVICE_OPTIONS` are given to ``launch``, ``load`` or
``serve``, :data:`JOB_OPTIONS` to ``connect`` or ``load``. In Python, in TOML and as a flag an option has one name; for
an unknown or misplaced one, the error names the right one. :class:`.ServiceKeywords` and :class:`.JobKeywords` are the
same tables for type checkers and editors; a test compares them. For the effects of options, see docs/semantics.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple, TypeVar

from pydp2.errors import OptionError, OptionTypeError
from pydp2.options.declare import CheckedOptions
from pydp2.options.job_options import JobChoices, JobKeywords, JobOptions
from pydp2.options.service_options import ServiceKeywords, ServiceOptions
from pydp2.options.values import Check, did_you_mean, integer_from, value_text
from pydp2.protocol.trainer_numbers import TrainerNumbers

_F = TypeVar("_F", bound=Callable[..., Any])

WORLD_LIMIT = 65_536
"""Largest number of trainers of a job."""
_NAME_LIMIT = 100


class LoadChoices(ServiceKeywords, JobChoices):
    """Keywords of a service and its job for type checkers, without ``batch_size``."""


class LoadKeywords(ServiceKeywords, JobKeywords):
    """Keywords of a service and its job for type checkers, with the required ``batch_size``."""


class Option(NamedTuple):
    """One line of a table of options. ``required``: it has no default; ``kind``: the declared type as text;
    ``is_size``: the value is a number of bytes, or a text such as ``"2GiB"``."""

    help: str
    default: Any
    required: bool
    kind: str
    check: Check
    choices: tuple[str, ...]
    is_size: bool


def _table(options: type[CheckedOptions]) -> dict[str, Option]:
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
"""Arguments that name the data of a service; in Python and in TOML they are not in the table of its options."""
_NOT_OF_SERVICE = {*JOB_OPTIONS, "job", "rank", "world_size", "share_along"}
_NOT_OF_JOB = {*SERVICE_OPTIONS, *SERVICE_ARGUMENTS}
PROVIDER_OPTIONS = (
    "input_types",
    "should_shuffle",
    "pool_size",
    "min_pool_size",
    "can_over_batch_size",
    "calc_batch_size",
    "cache",
    "check",
    "check_fail_continue",
    "init_hook",
)
"""Arguments of ``@provider(...)``, the decorator of ``process``; a test compares them with its signature."""
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
    # several libraries
    "shuffle_buffer_size": ("pool_size", _POOL),
    "window_size": ("pool_size", _POOL),
    "epochs": ("", _PASSES),
    "num_shards": ("", "connect() has rank=0, world_size=4"),
}
"""Names of options in other loaders, mapped to the option of pydp2 ("": none) and a text with what to write instead."""


def check_options(
    given: Collection[str], allowed_here: Collection[str], allowed_there: Collection[str] = (), where_there: str = ""
) -> None:
    """Raise OptionTypeError for names that are unknown, or that belong somewhere else.

    Args:
        given: names, or a mapping by name.
        allowed_here: names that may be given here.
        allowed_there: names that are right in ``where_there`` (such as ``"connect() or load()"``), but not here.

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
    """Return a remedy for ``name`` if it is an option of another loader, as text to append to a message; '' if not.

    ``homes``: text for each option that may not be given here, which says where it belongs.
    """
    option, words = ELSEWHERE.get(name, ("", ""))
    if not words:
        return ""
    home = "" if option in allowed_here else homes.get(option, "")
    return f": {'write ' if option else ''}{words}{' in ' if home else ''}{home.removeprefix('in ')}"


def takes(*tables: Mapping[str, Option], also: Collection[str] = ()) -> Callable[[_F], _F]:
    """Return a decorator. ``inspect.signature`` and ``help`` of the decorated function show the options of ``tables``,
    with defaults, in place of ``**options``.

    The decorated function takes the same arguments as before. An option that is one of its own parameters keeps the
    default of that. ``also``: names that it takes in ``**options`` beside those of the tables, for
    :func:`check_keywords`.
    """
    options = {name: option for table in tables for name, option in table.items()}

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
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
        function._keywords = {*(parameter.name for parameter in own if parameter.name != "self"), *options, *also}  # type: ignore[attr-defined]
        return function

    return decorate


def check_keywords(function: Callable[..., Any], given: Collection[str]) -> None:
    """Raise OptionTypeError for unknown keywords in the ``**options`` of ``function``, which :func:`takes` decorates.

    The function calls this itself: in a decorator, it would add a frame to the stack level of every warning.

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
    """Return :class:`ServiceOptions` from the values of a user, such as sizes as text, lists, or NumPy integers.

    Raises:
        OptionTypeError: an option is unknown, misplaced or of a wrong type.
        OptionError: a value is not valid.
    """
    check_options(given, SERVICE_OPTIONS, _NOT_OF_SERVICE, "connect() or load()")
    return ServiceOptions(**checked(ServiceOptions, given))


def job_options(**given: Any) -> JobOptions:
    """Return :class:`JobOptions` from the values of a user; ``batch_size`` is needed. Raises the errors of
    :func:`service_options`."""
    check_options(given, JOB_OPTIONS, _NOT_OF_JOB, "launch(), load() or serve")
    if "batch_size" not in given:
        raise OptionTypeError("batch_size is needed, as in batch_size=128")
    return JobOptions(**checked(JobOptions, given))


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job options in ``given``, and all others, which a service checks."""
    of_job = {name: value for name, value in given.items() if name in JOB_OPTIONS}
    return of_job, {name: value for name, value in given.items() if name not in JOB_OPTIONS}


class TrainerPlace(NamedTuple):
    """Place of a trainer: the name of its job, its rank, the number of ranks, and ``(k, K)``: it is number k of the K
    peers of its rank."""

    job: str = "default"
    rank: int = 0
    world_size: int = 1
    share_along: tuple[int, int] = (0, 1)

    @property
    def numbers(self) -> TrainerNumbers:
        """Numbers of the trainers of its job."""
        return TrainerNumbers(self.world_size, self.share_along[1])

    @property
    def number(self) -> int:
        """Number of the trainer among them."""
        return self.numbers.of(self.rank, self.share_along[0])


def place_options(job: Any, rank: Any, world_size: Any, share_along: Any = None) -> TrainerPlace:
    """Return the place of a trainer, checked. Without ``share_along``, each rank has one trainer.

    Raises:
        OptionTypeError: ``job`` is not a text, ``rank`` or ``world_size`` is not an integer, or ``share_along`` is no
            pair of integers.
        OptionError: the name is empty or too long, there are more than 65,536 trainers, ``rank`` is not below
            ``world_size``, or the first number of ``share_along`` not below its second one.
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
    return TrainerPlace(job, rank, world_size, _peer_options(share_along, world_size))


def _peer_options(share_along: Any, world_size: int) -> tuple[int, int]:
    """Return which peer of its rank a trainer is, and the number of peers."""
    if share_along is None:
        return 0, 1
    if not isinstance(share_along, tuple | list) or len(share_along) != 2:
        raise OptionTypeError(
            "share_along must be a pair (k, K): this trainer is number k of the K trainers that get the same batches; "
            f"got {value_text(share_along)}"
        )
    peers = integer_from(1, None)("the second number of share_along", share_along[1])
    peer = integer_from(0, None)("the first number of share_along", share_along[0])
    if peer >= peers:
        raise OptionError(f"in share_along=(k, K) k must be below K, got ({peer}, {peers})")
    if world_size * peers > WORLD_LIMIT:
        raise OptionError(
            f"world_size={world_size} ranks with {peers} peers each are more than {WORLD_LIMIT}, and no job has more "
            "trainers; lower one of the two"
        )
    return peer, peers


def checked(options: type[CheckedOptions], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in ``given`` that belong to ``options``, checked and converted."""
    return {f.name: f.metadata["check"](f.name, given[f.name]) for f in fields(options) if f.name in given}

"""Define the options of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pydp2.errors import OptionError
from pydp2.options.declare import Bytes, CheckedOptions, Number, Whole, option, size_option
from pydp2.options.row_options import mix_option, pack_option
from pydp2.options.values import (
    MAX_CYCLE,
    Choice,
    bucket_bounds,
    flag,
    flag_or_none,
    integer_from,
    or_none,
    seconds_from,
    slot_name_or_index,
)


@dataclass(frozen=True, kw_only=True)
class JobOptions(CheckedOptions):
    """Options of a job: how its passes are shuffled and cut into batches. Frozen, checked when made."""

    batch_size: int = option(
        integer_from(1), "weight of a batch; the number of its samples, unless the provider weighs them"
    )
    seed: int = option(integer_from(0, 1 << 64), "seed of the random order of files and samples", 0)
    shuffle: bool | None = option(flag_or_none, "shuffle files and samples; default: what the provider says", None)
    order: str = option(
        Choice(("strict", "relaxed")),
        "strict: the seed and the data alone decide the order; relaxed: samples come as they are ready, each once",
        "strict",
    )
    interleave: int = option(integer_from(1, MAX_CYCLE + 1), "number of files that a shuffled pass reads in turn", 16)
    pool_bytes: int = size_option("maximum bytes of samples in the pool; another value can change the order", 1 << 30)
    last_batch: str = option(
        Choice(("keep", "drop", "pad")),
        "what to do with a last batch smaller than batch_size; pad fills it up to that size",
        "keep",
    )
    prefetch: int = option(
        integer_from(1, 1 << 32),
        "number of batches that are sent to a trainer in advance; more if batches are small",
        2,
    )
    prefetch_bytes: int = size_option(
        "maximum bytes of batches that a trainer has been sent and not used; two batches are always allowed", 64 << 20
    )
    bucket_by: str | int | None = option(
        or_none(slot_name_or_index),
        "name or number of a slot of sequences, text or bytes; each batch then holds samples of similar length in it",
        None,
    )
    bucket_bounds: tuple[int, ...] | None = option(
        or_none(bucket_bounds),
        "maximum sequence length of each bucket; default: computed from the samples that fill the pool first",
        None,
    )
    num_buckets: int | None = option(
        or_none(integer_from(2, 1001)), "maximum number of buckets, if bucket_bounds are computed; default: 8", None
    )
    mix: Mapping[str, Any] | None = option(
        mix_option,
        "weights and rules by which rows of several sources are mixed; mix() makes it",
        None,
    )
    pack: Mapping[str, Any] | None = option(
        pack_option, "slots and length of rows that sequences are packed into; pack_sequences() makes it", None
    )
    share: str = option(
        Choice(("ranks", "dynamic")),
        "ranks: trainers get batches in turn, by rank; dynamic: each batch goes to the trainer that asks first",
        "ranks",
    )
    origin: bool = option(
        flag, "batch.origin says from which sample of which list entry each row of a batch comes", False
    )
    lease: float = option(
        seconds_from(0.1),  # a waiting trainer sends four signs of life per lease
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
        if self.mix is not None or self.pack is not None:
            self._check_derived("mixed" if self.pack is None else "packed")

    def _check_derived(self, what: str) -> None:
        """Raise OptionError for options that do not suit rows that are mixed or packed."""
        for name, wrong, remedy in (
            ("order", "relaxed", 'leave order out: rows have one order, that of order="strict"'),
            ("share", "dynamic", "share it by ranks, with rank and world_size"),
        ):
            if getattr(self, name) == wrong:
                raise OptionError(f'{name}="{wrong}" has no order that rows could be {what} in; {remedy}')
        if self.bucket_by is not None:
            raise OptionError(f"bucket_by cannot be used where rows are {what}; leave it out, or read one list alone")


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
    mix: Mapping[str, Any] | None
    pack: Mapping[str, Any] | None
    share: Literal["ranks", "dynamic"]
    origin: bool
    lease: Number


class JobKeywords(JobChoices):
    """Keywords of a job for type checkers, with the required ``batch_size``."""

    batch_size: Whole

"""Pack several batches into one message, to save the fixed cost of a message for each batch.

The first batch has a complete head. The others have only numbers, so a batch that carries more (a snapshot point, new
early-end records, batches acknowledged ahead) begins a new message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.messages import INT_LIMIT, BatchHead

MAX_BATCHES = 64
"""Largest number of batches in one message."""
MAX_PACK_BYTES = 256 * 1024
"""Largest number of bytes of several batches in one message: a program that keeps one keeps the memory of all."""
BATCH_COST = 1024
"""Number of bytes that a batch counts beside its columns, for its records in server and client."""
BUCKET_OF_BATCH = ("longest", "group_longest")
"""Keys of :attr:`BatchHead.bucket` that belong to one batch; the others are those of its pass."""
_FIELDS_OF_FOLLOWING = 10  # fields of a batch behind the first: seven numbers, the position behind it, its bounds


def can_follow(head: BatchHead, first: BatchHead) -> bool:
    """Return True if the batch of ``head``, which is sent next, can go into the message of ``first``."""
    plain = not (head.snapshot or head.early_end_frames or head.acknowledged_ahead or first.acknowledged_ahead)
    if not plain or head.request_id != first.request_id or head.has_origins != first.has_origins:
        return False
    return head.bucket == first.bucket or bucket_of_pass(head) == bucket_of_pass(first)


def bucket_of_pass(head: BatchHead) -> dict[str, Any]:
    """Return the fields of ``head`` about the buckets of its pass; {} without buckets."""
    return {key: value for key, value in head.bucket.items() if key not in BUCKET_OF_BATCH}


def pack_heads(heads: Sequence[BatchHead]) -> BatchHead:
    """Return the first of ``heads`` with the others packed into it."""
    first, *others = heads
    more = [
        [
            head.batch_index,
            head.rows,
            head.size,
            head.pool_weight,
            head.padding,
            head.tail_consumed,
            head.position_after,
            head.checksum_records,
            *(head.bucket.get(key, 0) for key in BUCKET_OF_BATCH),
        ]
        for head in others
    ]
    return replace(first, following=more) if more else first


def unpack_head(head: BatchHead) -> list[BatchHead]:
    """Return the heads that :func:`pack_heads` packed. Raises RemoteProtocolError for invalid batches."""
    if not head.following:
        return [head]
    if len(head.following) >= MAX_BATCHES:
        raise RemoteProtocolError(
            f"BatchHead: {len(head.following) + 1} batches in a message, at most {MAX_BATCHES} are allowed"
        )
    first = replace(head, following=[])
    heads = [first]
    for numbers in head.following:
        plain = isinstance(numbers, list) and [type(number) for number in numbers] == [int] * _FIELDS_OF_FOLLOWING
        if not plain or not 0 <= min(numbers) <= max(numbers) < INT_LIMIT:
            raise RemoteProtocolError(
                f"BatchHead: a batch that comes with another has {_FIELDS_OF_FOLLOWING} numbers from 0 on"
            )
        index, rows, size, pool_weight, padding, tail_consumed, after, records, *bounds = numbers
        bucket = head.bucket | dict(zip(BUCKET_OF_BATCH, bounds, strict=True)) if head.bucket else {}
        heads.append(
            BatchHead(
                head.request_id,
                index,
                rows,
                size,
                pool_weight,
                padding,
                tail_consumed,
                after,
                [],
                {},
                0,
                bucket,
                checksum_records=records,
                has_origins=head.has_origins,
            )
        )
    return heads

"""Several batches in one message: what they cost whatever their size, sender and receiver pay once.

The first is announced in full. Those behind it are plain numbers, so that what begins with more than that (a point, new
facts, batches used out of turn) begins a message of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.messages import INT_LIMIT, BatchHead

MOST = 64
"""Batches in one message."""
PACK_BYTES = 256 * 1024
"""What several in one message have at most: whoever keeps one of them keeps their memory."""
BATCH_COST = 1024
"""Bytes that a batch counts beside its columns: what is known of it, however small it is."""
_PLAIN = 8  # of a batch behind the first: index, rows, size, pool_weight, padding, gone, after, longest


def goes_with(head: BatchHead, first: BatchHead) -> bool:
    """Whether ``head``, the batch that is sent next, can come in the message of ``first``."""
    plain = not (head.saved or head.facts or head.beyond or first.beyond)
    return plain and head.run == first.run and _common(head) == _common(first)


def _common(head: BatchHead) -> dict[str, object]:
    return {key: value for key, value in head.bucket.items() if key != "longest"}


def packed(heads: Sequence[BatchHead]) -> BatchHead:
    """One message for ``heads``, of which all others go with the first."""
    first, *others = heads
    more = [
        [
            each.index, each.rows, each.size, each.pool_weight, each.padding, each.gone, each.after,
            each.bucket.get("longest", 0),
        ]
        for each in others
    ]  # fmt: skip
    return replace(first, more=more) if more else first


def unpacked(head: BatchHead) -> list[BatchHead]:
    """Inverse of :func:`packed`. Raises RemoteProtocolError for what cannot be batches."""
    if not head.more:
        return [head]
    if len(head.more) >= MOST:
        raise RemoteProtocolError(f"BatchHead: {len(head.more) + 1} batches in a message, at most {MOST} are allowed")
    first = replace(head, more=[])
    heads = [first]
    for numbers in head.more:
        plain = isinstance(numbers, list) and [type(number) for number in numbers] == [int] * _PLAIN
        if not plain or not 0 <= min(numbers) <= max(numbers) < INT_LIMIT:
            raise RemoteProtocolError(f"BatchHead: a batch that comes with another has {_PLAIN} numbers from 0 on")
        index, rows, size, pool_weight, padding, gone, after, longest = numbers
        bucket = head.bucket | {"longest": longest} if head.bucket else {}
        heads.append(BatchHead(head.run, index, rows, size, pool_weight, padding, gone, after, [], {}, 0, bucket))
    return heads

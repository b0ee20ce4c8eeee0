"""The order of a pass, said once more: one process, plain lists, one sample at a time, no state that is kept.

Written from the rules of the order alone and never from the code it judges; it shares with that code the name of a
random word and nothing else. Slow and short on purpose: whoever changes a rule changes it here by hand as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Literal

from numpy.random import Philox

TURNS = (16, 23, 32, 45, 64)

SNAPSHOT = 1024


@dataclass(frozen=True)
class Row:
    """One accepted sample."""

    weight: int = 1
    size: int = 8  # bytes of its columns
    length: int = 0  # of the sequence that buckets go by


@dataclass(frozen=True)
class File:
    """What a file's generator does: ``None`` stands for a sample that was dropped, a dropped sample in the sample
    indices. ``blocked``: sample indices that the user does not want."""

    items: Sequence[Row | None] = ()
    raises: bool = False
    blocked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Options:
    batch_size: int = 4
    seed: int = 0
    shuffle: bool = True
    pool_size: int = -1
    min_pool_size: int = -1
    interleave: int = 16
    pool_bytes: int = 1 << 30
    can_over: bool = True
    last_batch: Literal["keep", "drop", "pad"] = "keep"
    cached: bool = False  # the provider asks for CACHE_PASS_IN_MEM
    skip: bool = False  # on_error="skip"
    buckets: int = 0  # 0: none; else so many, at most
    bounds: tuple[int, ...] | None = None  # of buckets; None: from the first fill
    group: int = 1  # batches in a row from one bucket
    error_budget: float | None = None


@dataclass
class Expected:
    """A pass: batches as lists of (file, y), with the weight of the pool when each was cut, and how it ended."""

    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    pool_weights: list[int] = field(default_factory=list)
    padding: int = 0
    error: tuple[str, int, int] | None = None
    bounds: tuple[int, ...] | None = None  # of buckets
    # dropped samples, and where files ended early, which a merge alone does not see
    losses: list[tuple[int, int]] = field(default_factory=list, compare=False)


class Refusal(Exception):
    """The pass ends here with an error: what kind, in which file, at which sample index."""


def words(seed: int, pass_id: int, purpose: str, n: int | None = None) -> Callable[[], int]:
    name = f"1|{seed}|{pass_id}|{purpose}" + ("" if n is None else f"|{n}")
    bits = Philox(key=int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little"))
    return lambda: int(bits.random_raw())


def permutation(seed: int, pass_id: int, purpose: str, count: int, n: int | None = None) -> list[int]:
    word = words(seed, pass_id, purpose, n)
    drawn = [word() for _ in range(count)]
    return sorted(range(count), key=drawn.__getitem__)


Sample = tuple[int, int, Row]


def merged(files: Sequence[File], options: Options, pass_id: int, losses: list[tuple[int, int]]) -> Iterator[Sample]:
    """Samples in the order in which the files of the cycle give them up; ``losses`` grows as they are met."""
    good = 0

    def lose(number: int, y: int) -> None:
        losses.append((number, y))
        budget = options.error_budget
        if isinstance(budget, float):  # a share, but never fewer than ten
            budget = max(10, budget * (good + len(losses)))
        if budget is not None and len(losses) > budget:
            raise Refusal("budget", number, y)

    order = permutation(options.seed, pass_id, "files", len(files)) if options.shuffle else list(range(len(files)))
    waiting = deque(order)
    cycle_files: deque[list[int]] = deque()  # [file, sample index], the file of the cycle whose turn it is first
    for _ in range(min(options.interleave if options.shuffle else 1, len(order))):
        cycle_files.append([waiting.popleft(), 0])
    while cycle_files:
        cycle_file = cycle_files[0]
        turn = TURNS[words(options.seed, pass_id, "turn", cycle_file[0])() * len(TURNS) >> 64]
        taken = 0
        while not options.shuffle or taken < turn:
            number, y = cycle_file
            file = files[number]
            if y < len(file.items):
                cycle_file[1] += 1
                row = file.items[y]
                if y in file.blocked:
                    pass
                elif row is not None:
                    taken += 1
                    good += 1
                    yield number, y, row
                else:
                    lose(number, y)
                continue
            if file.raises and not options.skip:
                raise Refusal("raised", number, y)
            if file.raises:
                lose(number, y)
            if not waiting:
                cycle_files.popleft()
                break
            cycle_file[:] = [waiting.popleft(), 0]
        else:
            cycle_files.rotate(-1)


def expect(
    files: Sequence[File], options: Options, pass_id: int = 0, bounds: tuple[int, ...] | None = None
) -> Expected:
    """The batches of one pass; ``bounds``: automatic ones that an earlier pass has drawn."""
    found = Expected()
    if options.buckets:
        found.bounds = options.bounds or bounds
        try:
            _bucketed(files, options, pass_id, found)
        except Refusal as refusal:
            found.error = refusal.args
        return found
    try:
        for weight, batch in _batches(files, options, pass_id, found.losses):
            total = sum(row.weight for _, _, row in batch)
            names = [(number, y) for number, y, _ in batch]
            # Only a batch that ran out of samples can be the last one, and only that is too small for good.
            found.batches.append(names)
            found.pool_weights.append(weight)
            last = weight == total and total < options.batch_size
            if last and options.last_batch == "drop":
                found.batches.pop()
                found.pool_weights.pop()
            if last and options.last_batch == "pad" and total:
                found.padding = _pad(names, batch, options)
    except Refusal as refusal:
        found.error = refusal.args
    return found


def _pad(names: list[tuple[int, int]], batch: list[Sample], options: Options) -> int:
    total, i = sum(row.weight for _, _, row in batch), 0
    while total < options.batch_size:
        names.append(names[i])
        total += batch[i % len(batch)][2].weight
        i += 1
    return i


def _levels(options: Options, pass_id: int) -> tuple[float, float]:
    b = options.batch_size
    most = inf if options.pool_size == -1 else max(options.pool_size, b)
    least = most if options.min_pool_size == -1 else min(options.min_pool_size, most)
    if options.shuffle and options.cached and pass_id >= 1:
        most = least = inf
    if not options.shuffle and options.pool_size == options.min_pool_size == -1:
        most = least = b
    return least, most


def _batches(
    files: Sequence[File], options: Options, pass_id: int, losses: list[tuple[int, int]]
) -> Iterator[tuple[int, list[Sample]]]:
    b = options.batch_size
    least, most = _levels(options, pass_id)
    source = merged(files, options, pass_id, losses)
    pool: list[Sample] = []
    weight = size = picked = n = 0
    ended = False
    while not ended:
        level = min(most, max(least, b) + n * b)
        while weight < level and (size < options.pool_bytes or weight < b):
            sample = next(source, None)
            if sample is None:
                ended = True
                break
            number, y, row = sample
            if row.size > options.pool_bytes or (row.weight > b and not options.can_over):
                raise Refusal("too large", number, y)
            pool.append(sample)
            weight += row.weight
            size += row.size
        if ended:
            break
        batch = _cut(pool, words(options.seed, pass_id, "pick", n) if options.shuffle else None, options)
        yield weight, batch
        weight -= sum(row.weight for _, _, row in batch)
        size -= sum(row.size for _, _, row in batch)
        n += 1
        picked += len(batch)
        if picked >= max(SNAPSHOT, len(pool) // 4):
            picked = 0
            pool.sort(key=lambda s: s[:2])
    pool.sort(key=lambda s: s[:2])
    if options.shuffle:
        pool = [pool[i] for i in permutation(options.seed, pass_id, "tail", len(pool))]
    while pool:
        batch = _cut(pool, None, options)
        yield weight, batch
        weight -= sum(row.weight for _, _, row in batch)


def _cut(pool: list[Sample], word: Callable[[], int] | None, options: Options) -> list[Sample]:
    """One batch out of ``pool``: by random words, or from its front."""
    batch: list[Sample] = []
    total = 0
    while pool and total < options.batch_size:
        i = 0 if word is None else word() * len(pool) >> 64
        if not options.can_over and total + pool[i][2].weight > options.batch_size:
            break  # the refused sample stays where it was
        if word is not None:
            pool[i], pool[-1] = pool[-1], pool[i]
            i = -1
        batch.append(pool.pop(i))
        total += batch[-1][2].weight
    return batch


def _weight(samples: Sequence[Sample]) -> int:
    return sum(row.weight for _, _, row in samples)


def _quantiles(samples: list[Sample], options: Options) -> tuple[int, ...]:
    """Bounds such that a part of the weight, in equal steps, is not longer than each."""
    bounds = set()
    for i in range(1, options.buckets):
        short = 0
        for _, _, row in sorted(samples, key=lambda s: s[2].length):
            short += row.weight
            if short and short * options.buckets >= i * _weight(samples):
                bounds.add(max(1, row.length))
                break
    return tuple(sorted(bounds))


def _bucketed(files: Sequence[File], options: Options, pass_id: int, found: Expected) -> None:
    """The batches of one pass with buckets, into ``found``."""
    b, g = options.batch_size, options.group
    least, most = _levels(options, pass_id)
    source = merged(files, options, pass_id, found.losses)
    lots: list[list[Sample]] = [[]]
    n = picked = 0
    turn: int | None = None
    ended = False

    def put(samples: list[Sample]) -> None:
        for sample in samples:
            longer = [bound for bound in found.bounds or () if sample[2].length > bound]
            lots[len(longer)].append(sample)

    def settle() -> None:
        everything = lots[0]
        if found.bounds is None:
            found.bounds = _quantiles(everything, options)
        lots[:] = [[] for _ in range(len(found.bounds) + 1)]
        put(everything)

    def sure(lot: list[Sample], batches: int) -> bool:
        """Whether the lot gives so many batches, however the picks fall: each may exceed by its last sample."""
        waste = sorted((row.weight for _, _, row in lot), reverse=True)[: batches - 1]
        if _weight(lot) < batches * b:
            return False
        return not options.can_over or _weight(lot) - sum(waste) > batches * (b - 1)

    if found.bounds is not None:
        settle()
    while True:
        level = min(most, max(least, b) + n * b)
        if n == 0 and options.bounds is None:
            level = max(level, options.buckets * g * b)
        left = g - n % g
        if left == g:
            turn = None
        while not ended:
            everything = [sample for lot in lots for sample in lot]
            weight, size = _weight(everything), sum(row.size for _, _, row in everything)
            if weight >= level or (size >= options.pool_bytes and weight >= b):
                if found.bounds is None:
                    settle()
                if turn is not None and _weight(lots[turn]) >= b:
                    break
                if any(sure(lot, left) for lot in lots):
                    break
                if size >= options.pool_bytes and any(_weight(lot) >= b for lot in lots):
                    break
            sample = next(source, None)
            if sample is None:
                ended = True
                if found.bounds is None:
                    settle()
                for k, lot in enumerate(lots):
                    lot.sort(key=lambda s: s[:2])
                    if options.shuffle:
                        lot[:] = [lot[i] for i in permutation(options.seed, pass_id, "tail", len(lot), k)]
                break
            number, y, row = sample
            if row.size > options.pool_bytes or (row.weight > b and not options.can_over):
                raise Refusal("too large", number, y)
            put([sample])
        if not any(lots):
            return
        weight = sum(_weight(lot) for lot in lots)
        if turn is None or _weight(lots[turn]) < b:
            some = [k for k, lot in enumerate(lots) if sure(lot, left)]
            some = some or [k for k, lot in enumerate(lots) if _weight(lot) >= b]
            some = some or [k for k, lot in enumerate(lots) if lot]
            if options.shuffle:
                tickets = [k for k in some for _ in range(_weight(lots[k]))]
                word = words(options.seed, pass_id, "bucket", n)()
                turn = tickets[word * len(tickets) >> 64] if tickets else some[0]
            else:
                turn = min(some, key=lambda k: lots[k][0][:2])
        picks = words(options.seed, pass_id, "pick", n) if options.shuffle and not ended else None
        batch = _cut(lots[turn], picks, options)
        names = [sample[:2] for sample in batch]
        if ended and _weight(batch) < b and not lots[turn]:
            if options.last_batch == "drop":
                continue
            if options.last_batch == "pad" and _weight(batch):
                found.padding += _pad(names, batch, options)
        found.batches.append(names)
        found.pool_weights.append(weight)
        n += 1
        picked += len(batch)
        if not ended and picked >= max(SNAPSHOT, sum(map(len, lots)) // 4):
            picked = 0
            for lot in lots:
                lot.sort(key=lambda s: s[:2])

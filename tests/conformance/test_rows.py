"""A provider that yields many samples at once against one that yields them singly: the same batches, bit by bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import pydp2

from ..runs import processes

CODE = """
import numpy as np
import pydp2


def hook(settings, how, bad=0, **kwargs):
    settings.how, settings.bad = how, bad
    settings.input_types = dict(
        number=integer_value(1 << 40), image=dense_vector(12, dtype="uint8", shape=(3, 4)),
        words=integer_value_sequence(60), marks=sparse_float_vector(40), parts=integer_value_sub_sequence(9),
    )


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def columns(who, bad):
    # what the samples with these numbers are
    lengths, subs = who % 5, who % 3
    p, q = starts(lengths), starts(subs)
    inside = np.arange(p[-1]) - np.repeat(p[:-1], lengths)
    image = (who[:, None, None] + np.arange(12).reshape(3, 4)) % 251
    number, words = who.copy(), inside % 7 + np.repeat(who % 50, lengths)
    if bad:
        number[who % bad == 4] = -1
        image[who % bad == 3, 1, 1] = 256
        words[words == 51] = 60
    steps = starts(np.repeat(1 + who % 2, subs))
    return dict(
        number=number, image=image, words=pydp2.Ragged(words, p),
        marks=pydp2.Csr(p, inside.astype("i4"), np.repeat(who % 17, lengths).astype("f4") / 4, (len(who), 40)),
        parts=pydp2.Ragged(np.repeat(np.repeat(who % 9, subs), np.diff(steps)), steps[q], steps),
    )


@provider(init_hook=hook, pool_size=800{arguments})
def process(settings, filename):
    first, count = map(int, filename.split("+"))
    dice = np.random.default_rng(first)
    at = 0
    while at < count:
        size = count if settings.how == "whole" else int(dice.choice([1, 2, 9, 300]))
        who = np.arange(first + at, first + min(at + size, count))
        together = pydp2.rows(**columns(who, settings.bad))
        if settings.how == "singly" or (settings.how == "mixed" and dice.random() < 0.3):
            yield from together.samples(False)
        else:
            yield together
        at += size
"""
FILES = [f"{1_000_000 * n}+{[0, 1, 40, 500, 900][n % 5]}" for n in range(10)]
Batches = list[list[Any]]


def sign(batch: pydp2.Batch) -> list[Any]:
    """Everything in a batch that can differ."""
    arrays: list[Any] = [batch.pass_id, batch.index, len(batch), batch.size, batch.pool_weight, batch.bucket]
    for value in batch:
        todo = [value]
        while todo:
            each = todo.pop()
            if isinstance(each, np.ndarray):
                arrays += [each.dtype.str, each.shape, each.tobytes()]
            elif each is not None and not isinstance(each, tuple):
                todo += vars(each).values()
    return arrays


def stream(
    address: str, how: str, passes: int = 2, keep: bool = False, **options: Any
) -> tuple[Batches, list[str], str]:
    """The batches of some passes, a state after each (if they are to be kept), and what ended them."""
    args = {"how": how, **options.pop("args", {})}
    seen: Batches = []
    states: list[str] = []
    with pydp2.load(FILES, address, args=args, **{"batch_size": 32, "seed": 3, "workers": 2} | options) as data:
        try:
            for _ in range(passes):
                for batch in data:
                    seen.append(sign(batch))
                    if keep:
                        states.append(json.dumps(data.state_dict()))
        except pydp2.errors.BadSample as error:
            return seen, states, str(error)
    return seen, states, ""


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a pool": ("", {}),
    "little memory": ("", {"memory_limit": "1100KB"}),
    "in order": (", should_shuffle=False", {}),
    "weights": (", calc_batch_size=lambda s: len(s[2])", {}),
    "buckets": ("", {"bucket_by": "words", "bucket_bounds": [1, 3]}),
    "bad samples": (", check=True, check_fail_continue=True", {"args": {"bad": 50}}),
    "a bad sample": ("", {"args": {"bad": 500}}),
    "the cache": (", cache=CacheType.CACHE_PASS_IN_MEM", {}),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=pytest.mark.slow if each in ("little memory", "in order") else ()) for each in KINDS],
)
def test_the_stream_is_the_same(kind: str, provider_file: Callable[..., str]) -> None:
    arguments, options = KINDS[kind]
    address = provider_file(CODE.replace("{arguments}", arguments))
    singly, _, ended = stream(address, "singly", **options)
    assert bool(ended) == (kind == "a bad sample")
    assert len(singly) > 50 or ended
    for how in ("mixed", "whole"):
        found, _, error = stream(address, how, **options)
        assert error == ended
        assert found == singly


@pytest.mark.parametrize("kind", ["a pool", pytest.param("weights", marks=pytest.mark.slow), "bad samples", "buckets"])
def test_states_go_on_in_either_form(kind: str, provider_file: Callable[..., str]) -> None:
    """How many samples come at once is not part of a stream."""
    arguments, options = KINDS[kind]
    address = provider_file(CODE.replace("{arguments}", arguments))
    whole, states, _ = stream(address, "mixed", keep=True, **options)
    options = {"batch_size": 32, "seed": 3, "workers": 2, "args": {}} | options
    dice = Random(kind)
    for how in ("whole", "mixed"):
        args = {"how": how, **options["args"]}
        with pydp2.load(FILES, address, **options | {"args": args}) as data:
            for at in dice.sample(range(len(states) - 1), 4):
                data.load_state_dict(json.loads(states[at]), allow=("args",))
                found: Batches = []
                while len(found) < 12 and at + 1 + len(found) < len(whole):
                    for batch in data:
                        found.append(sign(batch))
                        if len(found) == 12:
                            break
                assert found == whole[at + 1 : at + 1 + len(found)]


@pytest.mark.parametrize(
    "kind", ["a pool", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bad samples", "weights"))]
)
def test_workers_that_are_killed_change_nothing(kind: str, provider_file: Callable[..., str]) -> None:
    arguments, options = KINDS[kind]
    address = provider_file(CODE.replace("{arguments}", arguments))
    singly, _, _ = stream(address, "singly", **options)
    dice, kills, found = Random(kind), 0, []
    args = {"how": "mixed", **options.get("args", {})}
    job = {"batch_size": 32, "seed": 3, "workers": 2, "memory_limit": "1100KB"} | options | {"args": args}
    with pydp2.load(FILES, address, **job) as data:
        for _ in range(2):
            for batch in data:
                found.append(sign(batch))
                if batch.index % 16 == 8 and (living := processes("pydp2-worker")):
                    with contextlib.suppress(ProcessLookupError):  # killed before, and only now cleared away
                        os.kill(dice.choice(living), signal.SIGKILL)
                        kills += 1
    assert kills > 5
    assert found == singly


def test_ranks_share_them_as_they_share_others(provider_file: Callable[..., str]) -> None:
    address = provider_file(CODE.replace("{arguments}", ""))
    seen = []
    for how in ("singly", "mixed"):
        with pydp2.launch(FILES, address, args={"how": how}, workers=2) as service:
            ranks = [
                service.connect(batch_size=32, seed=3, rank=rank, world_size=2, last_batch="drop") for rank in range(2)
            ]
            with contextlib.ExitStack() as stack:
                iterators = [iter(stack.enter_context(rank)) for rank in ranks]
                both: list[Batches] = [[], []]
                for pair in zip(*iterators, strict=True):
                    for batches, batch in zip(both, pair, strict=True):
                        batches.append(sign(batch))
                seen.append(both)
    assert len(seen[0][0]) > 20
    assert seen[0] == seen[1]


DEADLY = """
import os, time
import numpy as np
import pydp2

@provider(input_types=[integer_value(1000)]{arguments})
def process(settings, filename):
    yield pydp2.rows(np.arange(100))
    yield 100
    {does}
    yield pydp2.rows(np.arange(101, 200))
"""


@pytest.mark.parametrize(
    ("does", "arguments", "options", "words"),
    [
        ("os._exit(3)", "", {}, "file b, sample 101"),
        ("time.sleep(1000)", "", {"sample_timeout": 0.5}, "file b, sample 101"),
        ("raise KeyError(5)", "", {}, "file b, sample 101"),
        ("pass", ", calc_batch_size=lambda s: os._exit(3) if s[0] == 77 else 1", {},
         "file b, sample 77"),
    ],
)  # fmt: skip
def test_who_is_to_blame_is_told_by_the_sample(
    does: str, arguments: str, options: dict[str, Any], words: str, provider_file: Callable[..., str]
) -> None:
    """Between blocks it is the next one's first; inside of one, the sample whose weight is asked for."""
    address = provider_file(DEADLY.replace("{does}", does).replace("{arguments}", arguments))
    with (
        pydp2.load(["b"], address, batch_size=10, workers=1, shuffle=False, **options) as data,
        pytest.raises(pydp2.errors.Error) as caught,
    ):
        for _ in data:
            pass
    assert words in str(caught.value)


BUFFER = """
import numpy as np
import pydp2

@provider(input_types=[dense_vector(4), integer_value(100000)])
def process(settings, filename):
    dense, number = np.zeros((500, 4), np.float32), np.zeros(500, np.int32)
    for at in range(0, 5000, 500):
        number[:] = int(filename) * 5000 + at + np.arange(500)
        dense[:] = number[:, None]
        yield pydp2.rows(dense, number)
"""


def test_one_buffer_may_be_filled_again_and_again(provider_file: Callable[..., str]) -> None:
    """All of a block has been packed before the next one is asked for, also where files take turns for lack of room."""
    files = [str(n) for n in range(4)]
    address = provider_file(BUFFER)
    with pydp2.load(files, address, batch_size=64, workers=1, memory_limit="1100KB", seed=2, interleave=4) as data:
        seen = []
        for batch in data:
            assert (batch[0] == batch[1][:, None]).all()
            seen += batch[1].tolist()
    assert sorted(seen) == list(range(20000))

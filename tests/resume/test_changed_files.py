"""A state is compared with what its files give when they are read again: nothing goes on in silence with others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.data.columns import sample_set
from pydp2.errors import NotRepeatable, StateMismatch
from pydp2.order.random_bits import permutation
from pydp2.order.snapshot import decode_checksums, decode_samples

from ..provider_code import lines as lines_of_file

ROWS = [90, 400, 1, 270, 5, 320, 164, 30, 1, 500, 133, 280, 77, 310]
DECLARED = "@provider(input_types=[integer_value(100000)], "
READ = """
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield int(line)
"""
WIDE = lines_of_file("pool_size=150", slot="dense_vector(400)", sample='np.full(400, int(line), "f")')
LENGTHS = lines_of_file(
    "pool_size=150", slot="integer_value_sequence(100000)", sample="[int(line)] * (1 + int(line) % 7)"
)
MANY = """
import numpy as np
import pydp2
@provider(input_types={"value": integer_value(100000)}, pool_size=150)
def process(settings, filename):
    with open(filename) as lines:
        values = [int(line) for line in lines]
    yield from ({"value": each} for each in values[:3])
    if values[3:]:
        yield pydp2.rows(value=np.array(values[3:]))
"""
PROVIDERS = {
    "bounded pool": DECLARED + "pool_size=150)" + READ,
    "whole pass": DECLARED + "pool_size=-1)" + READ,
    "growing pool": DECLARED + "pool_size=-1, min_pool_size=64)" + READ,
    "unshuffled": DECLARED + "pool_size=150, should_shuffle=False)" + READ,
    "weighted": DECLARED + "pool_size=300, calc_batch_size=lambda s: 1 + s[0] % 3)" + READ,
    "dropping": DECLARED.replace("100000", "9005") + "pool_size=150, check=True, check_fail_continue=True)" + READ,
    "in memory": DECLARED + "pool_size=150, cache=CacheType.CACHE_PASS_IN_MEM)" + READ,
    "on disk": DECLARED + "pool_size=150, cache=CacheType.CACHE_PASS_ON_DISK)" + READ,
    "wide": WIDE,
    "buckets": LENGTHS,
    "many": MANY,
}


def lines(file: int, changed: int = -1) -> list[int]:
    """The samples of a file; in place of sample ``changed`` another one."""
    return [1000 * file + i + (500 if i == changed else 0) for i in range(ROWS[file])]


def options_of(kind: str, tmp_path: Path) -> dict[str, Any]:
    more: dict[str, Any] = {"bucket_by": 0, "num_buckets": 3} if kind == "buckets" else {}
    return {"batch_size": 16, "seed": 5, "workers": 2, "cache_dir": str(tmp_path / "cache"), **more}


def plain(batch: pydp2.Batch) -> list[Any]:
    value = batch[0]
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return [float(each) for each in value[:, 0]]
    return [*(value if isinstance(value, np.ndarray) else value.pad()[0]).tolist()]


def pool_of(state: dict[str, Any]) -> tuple[dict[int, list[int]], set[int]]:
    """The samples that a state needs of its pool, by file, and the files that are still open."""
    point = state["point"]
    files, indices = decode_samples(sample_set.set_from_text(point["pool"]))
    if point["ended"] and point["offset"]:
        order = np.arange(len(files))
        if state["stream_identity"]["shuffle"]:
            order = permutation(state["stream_identity"]["seed"], state["pass"], "tail", len(files))
        rest = np.sort(order[point["offset"] :])
        files, indices = files[rest], indices[rest]
    found: dict[int, list[int]] = {}
    for file, y in zip(files.tolist(), indices.tolist(), strict=True):
        found.setdefault(file, []).append(y)
    return found, {lane[0] for lane in point["lanes"]}


@pytest.fixture
def stopped(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]], tmp_path: Path
) -> Callable[[str, int], tuple[dict[str, Any], list[Any], Callable[..., pydp2.Client]]]:
    """``stopped(kind, pass_id)``: a state in the middle of that pass, what follows, and how to load the same again."""

    def one(kind: str, pass_id: int) -> tuple[dict[str, Any], list[Any], Callable[..., pydp2.Client]]:
        address = provider_file(PROVIDERS[kind])
        files = text_files([lines(file) for file in range(len(ROWS))])
        options = options_of(kind, tmp_path)

        def load(**more: Any) -> pydp2.Client:
            return pydp2.load(files, address, **{**options, **more})

        with load() as data:
            for _ in range(pass_id):
                list(data)
            seen, states = [], []
            for batch in data:
                seen.append(plain(batch))
                states.append(json.dumps(data.state_dict()))
        at = next(i for i, text in enumerate(states) if json.loads(text)["point"]) + 2
        return json.loads(states[at]), seen[at + 1 :], load

    return one


CACHED = ("in memory", "on disk")
"""Kinds that read nothing in a second pass."""


@pytest.mark.parametrize(
    ("kind", "pass_id"),
    [
        pytest.param(kind, pass_id, marks=pytest.mark.slow if pass_id and kind not in CACHED else ())
        for kind in PROVIDERS
        for pass_id in (0, 1)
    ],
)
def test_a_file_of_the_pool_that_gives_other_samples_than_before_ends_the_pass_before_any_batch(
    kind: str, pass_id: int, stopped: Callable[..., Any], text_files: Callable[..., list[str]]
) -> None:
    state, rest, load = stopped(kind, pass_id)
    with load() as data:
        data.load_state_dict(state)
        assert [plain(batch) for batch in data] == rest
    pool, open_files = pool_of(state)
    ended = [file for file in pool if file not in open_files]
    assert ended
    # a sample of the pool of a file that has ended, one that is gone, one of a file that is still read
    changes = {
        (ended[0], pool[ended[0]][-1]),
        (ended[-1], 0),
        *((file, pool[file][0]) for file in pool if file in open_files),
    }
    for file, y in sorted(changes)[:3]:
        files = text_files([lines(each, y if each == file else -1) for each in range(len(ROWS))])
        with load() as data:
            data.load_state_dict(state)
            with pytest.raises(NotRepeatable, match=files[file]):
                next(iter(data))
    text_files([lines(each) for each in range(len(ROWS))])


SINCE = ["bounded pool", "unshuffled", "weighted", "dropping", "in memory", "on disk", "wide", "many"]
LIKE_BOUNDED = ("unshuffled", "weighted", "wide")


@pytest.mark.parametrize(
    ("kind", "since"),
    [
        pytest.param(kind, since, marks=pytest.mark.slow if kind in LIKE_BOUNDED else ())
        for kind in SINCE
        for since in ("the beginning", "a point")
    ],
)
def test_a_file_that_was_read_since_the_last_point_and_gives_other_samples_ends_the_pass_before_any_batch(
    kind: str,
    since: str,
    provider_file: Callable[..., str],
    text_files: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its samples are in batches that were delivered after the point, and that are cut again without a look at them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = [(131 * file) % 90 + 1 for file in range(80)]
    all_lines = [[120 * file + y for y in range(count)] for file, count in enumerate(rows)]
    files, address = text_files(all_lines), provider_file(PROVIDERS[kind])
    options = {"batch_size": 16, "seed": 5, "workers": 2, "interleave": 8}
    if kind == "on disk":
        options["cache_dir"] = str(tmp_path / "cache")

    def state_and_files() -> tuple[dict[str, Any], set[int], list[Any]]:
        """A state, files whose samples came since its point and that the point does not know, and what follows."""
        states, seen = [], []
        with pydp2.load(files, address, **options) as data:
            for batch in data:
                seen.append(plain(batch))
                states.append(data.state_dict())
        for at, state in enumerate(states):
            first, known = 0, set[int]()
            if (state["point"] is None) is (since != "the beginning"):
                continue
            if state["point"] is not None:
                pool, lanes = pool_of(state)
                first, known = state["point"]["index"], lanes | pool.keys()
            new = {int(value) // 120 for batch in seen[first : at + 1] for value in batch} - known
            if len(new) > 2 and at > 3 and not (state["point"] or {}).get("ended"):
                return state, new, seen[at + 1 :]
        raise AssertionError("no such state")

    state, new, rest = state_and_files()
    with pydp2.load(files, address, **options) as data:
        data.load_state_dict(json.loads(json.dumps(state)))
        assert [plain(batch) for batch in data] == rest
    for file in sorted(new)[:2]:
        text_files([[9001, *each[1:]] if number == file else each for number, each in enumerate(all_lines)])
        with pydp2.load(files, address, **options) as data:
            data.load_state_dict(state)
            with pytest.raises(NotRepeatable, match=rf"{files[file]}\b"):
                next(iter(data))


TOKENS = """
@provider(input_types={"tokens": integer_value_sequence(1 << 20)}, pool_size=20)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield {"tokens": [int(line)] * 3}
"""


@pytest.mark.parametrize("kind", ["mixture", "wrapped", "best fit"])
def test_a_file_of_which_a_stream_has_taken_some_rows_of_a_batch_is_compared(
    kind: str, provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    """Its position is before the batch in hand, whose samples come from files that were not read before it."""
    address = provider_file(TOKENS)
    all_lines = [[100 * file + i for i in range(10)] for file in range(40)]
    files = text_files(all_lines)
    options: dict[str, Any] = {"seed": 3, "workers": 1, "interleave": 2}

    def stream() -> Any:
        if kind == "mixture":
            return pydp2.mix([(files[:20], 1), (files[20:], 1)], address, batch_size=4, **options)
        return pydp2.pack_sequences(
            pydp2.load(files, address, batch_size=64, **options), slot="tokens", length=8, batch_size=2,
            strategy="wrapped" if kind == "wrapped" else "bfd",
        )  # fmt: skip

    def had(batch: Any) -> list[int]:
        values = batch["tokens"].values if kind == "mixture" else batch["tokens"].ravel()
        return sorted({int(value) for value in values})

    with stream() as data:
        seen, states = [], []
        for batch in data:
            seen.append(had(batch))
            states.append(json.dumps(data.state_dict()))
            if len(states) == 12:
                break
    for at in (0, 4, 11):
        last = seen[at][-1]
        text_files([[*each[:-1], 99_999] if last // 100 == file else each for file, each in enumerate(all_lines)])
        with stream() as data:
            data.load_state_dict(json.loads(states[at]))
            rest, error = [], ""
            try:
                rest += (had(batch) for batch in data)
            except NotRepeatable as raised:
                error = str(raised)
        assert files[last // 100] in error or not error
        if not error:
            assert rest[: 11 - at] == seen[at + 1 :]
            assert not any(99_999 in each for each in rest), "its last sample was read with the first"
        text_files(all_lines)


@pytest.mark.parametrize("kind", ["whole pass", "unshuffled"])
def test_in_the_tail_files_without_a_sample_that_is_needed_are_not_compared(
    kind: str, stopped: Callable[..., Any], text_files: Callable[..., list[str]], provider_file: Callable[..., str]
) -> None:
    """Only what can change a batch is read again."""
    _, _, load = stopped(kind, 0)
    with load() as data:
        states = [data.state_dict() for _ in data]
    last = states[-2]
    assert last["point"]["ended"]
    text_files([lines(each, 0 if each < len(ROWS) - 1 and kind == "unshuffled" else -1) for each in range(len(ROWS))])
    with load() as data:
        data.load_state_dict(last)
        assert sum(1 for _ in data) == 1


@pytest.mark.parametrize("kind", ["bounded pool", "whole pass", "in memory"])
def test_a_file_that_became_shorter_or_longer(
    kind: str, stopped: Callable[..., Any], text_files: Callable[..., list[str]]
) -> None:
    """What a file gives behind its end of then was never part of the pass."""
    state, rest, load = stopped(kind, 0)
    pool, open_files = pool_of(state)
    file = next(each for each in pool if each not in open_files and ROWS[each] > 1)
    files = text_files([lines(each) + [7] * (each == file) for each in range(len(ROWS))])
    with load() as data:
        data.load_state_dict(state)
        assert [plain(batch) for batch in data] == rest
    text_files([lines(each)[: -1 if each == file else None] for each in range(len(ROWS))])
    with load() as data:
        data.load_state_dict(state)
        with pytest.raises(NotRepeatable, match=files[file]):
            next(iter(data))


def test_changed_samples_of_a_saved_pool_are_an_error_under_skip_and_named_once_under_warn(
    stopped: Callable[..., Any], text_files: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    state, rest, load = stopped("whole pass", 0)
    with load(on_error="skip") as data:
        skipping = [data.state_dict() for _ in data][20]
    pool, _ = pool_of(state)
    file = min(pool)
    files = text_files([lines(each, pool[file][-1] if each == file else -1) for each in range(len(ROWS))])
    with load(on_error="skip") as data:
        data.load_state_dict(skipping)
        with pytest.raises(NotRepeatable, match=files[file]):
            next(iter(data))
    capfd.readouterr()
    with load(on_changed="warn") as data:
        data.load_state_dict(state)
        assert sum(plain(batch) != one for batch, one in zip(data, rest, strict=True)) == 1
    assert capfd.readouterr().err.count(f"changed: file {files[file]}: process() did not repeat itself") == 1


def test_a_provider_that_draws_anew_is_named_although_each_file_has_one_sample(
    provider_file: Callable[..., str],
) -> None:
    code = """
    import os
    @provider(input_types=[integer_value(1 << 30)], pool_size=300)
    def process(settings, filename):
        yield int.from_bytes(os.urandom(3), "little")
    """
    files = [f"file{i}" for i in range(500)]
    with pydp2.load(files, provider_file(code), batch_size=10, seed=1) as data:
        for batch in data:
            if batch.index == 25:
                break
        state = data.state_dict()
    with pydp2.load(files, provider_file(code), batch_size=10, seed=1) as data:
        data.load_state_dict(state)
        with pytest.raises(NotRepeatable, match=r"file file\d+: process\(\) did not repeat itself"):
            next(iter(data))


def test_a_state_of_a_pass_that_was_taken_up_itself_has_the_checksums_of_the_first_run(
    stopped: Callable[..., Any], text_files: Callable[..., list[str]]
) -> None:
    state, _rest, load = stopped("bounded pool", 0)
    before, _ = pool_of(state)
    with load() as data:
        data.load_state_dict(state)
        states = []
        for _ in data:
            states.append(data.state_dict())
    later = next(each for each in states if each["point"]["index"] > state["point"]["index"])
    pool, open_files = pool_of(later)
    file = next(each for each in pool if each in before and each not in open_files)
    files = text_files([lines(each, pool[file][0] if each == file else -1) for each in range(len(ROWS))])
    with load() as data:
        data.load_state_dict(later)
        with pytest.raises(NotRepeatable, match=files[file]):
            next(iter(data))


def test_a_service_that_is_started_again_compares_what_it_reads_again(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]], tmp_path: Path
) -> None:
    address = provider_file(PROVIDERS["whole pass"])
    files = text_files([lines(file) for file in range(len(ROWS))])
    bind, kept = f"ipc://{tmp_path}/s", str(tmp_path / "kept")
    (tmp_path / "kept").mkdir(mode=0o700)
    options: dict[str, Any] = {"bind": bind, "state_dir": kept, "workers": 2}
    service = pydp2.launch(files, address, **options)
    client = pydp2.connect(bind, batch_size=16, lease=30, prefetch=1)
    stream = iter(client)
    for _ in range(4):
        next(stream)
    os.kill(service.pid, signal.SIGKILL)
    service.close()
    text_files([[9, *lines(file)[1:]] for file in range(len(ROWS))])
    with pydp2.launch(files, address, **options), pytest.raises(NotRepeatable, match="part-"):
        list(stream)
    client.close()


def test_the_checksums_take_about_six_bytes_for_each_file_of_the_pool(stopped: Callable[..., Any]) -> None:
    state, _, _ = stopped("whole pass", 0)
    pool = sample_set.set_from_text(state["point"]["pool"])
    ends = decode_checksums(pool)
    assert {file: end for file, (end, _) in ends.items()} == dict(enumerate(ROWS))
    samples = sample_set.encode_set(*decode_samples(pool))
    assert len(pool) - len(samples) <= 8 + 6 * len(ROWS)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_service_with_less_credit_than_a_comparison_needs_goes_on_and_compares_later(
    is_changed: bool, provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    """A file of the cycle is compared at the end of a chunk, which may be larger than the share of the file."""
    code = lines_of_file("pool_size=150", slot="dense_vector(4000)", sample='np.full(4000, int(line), "f")')
    address, files = provider_file(code), text_files([range(1000 * file, 1000 * file + 600) for file in range(8)])
    job: dict[str, Any] = {"batch_size": 16, "seed": 2, "pool_bytes": 1 << 22}
    with pydp2.load(files, address, **job) as data:
        seen, states = [], []
        for batch in data:
            seen.append(plain(batch))
            states.append(data.state_dict())
    at = next(i for i, state in enumerate(states) if state["point"]) + 2
    pool, open_files = pool_of(states[at])
    file = next(each for each in pool if each in open_files)
    if is_changed:
        changed = [(1000 * file + y) + (500 if y == pool[file][0] else 0) for y in range(600)]
        Path(files[file]).write_text("".join(f"{line}\n" for line in changed))
    with pydp2.load(files, address, memory_limit=1 << 23, **job) as data:
        data.load_state_dict(states[at])
        if is_changed:
            with pytest.raises(NotRepeatable, match=files[file]):
                list(data)
        else:
            assert [plain(batch) for batch in data] == seen[at + 1 :]


def test_a_state_of_an_older_release_is_refused(stopped: Callable[..., Any]) -> None:
    state, _, load = stopped("bounded pool", 0)
    with load() as data, pytest.raises(StateMismatch, match=r"version 2, this pydp2 reads version 3: .* an older"):
        data.load_state_dict({**state, "version": 2})

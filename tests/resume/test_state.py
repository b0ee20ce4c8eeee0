"""A trainer that stops and goes on sees the stream that it would have seen."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.client.saved_state import seal
from pydp2.errors import ServiceLost, StateMismatch

FILES = [[f * 1000 + i for i in range(n)] for f, n in enumerate([300, 0, 7, 450, 300, 1, 260, 300, 299, 301, 5, 400])]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5, "workers": 2}
PROVIDERS = {
    "bounded pool": "@provider(input_types=[integer_value(100000)], pool_size=200)",
    "whole pass": "@provider(input_types=[integer_value(100000)])",
    "unshuffled": "@provider(input_types=[integer_value(100000)], should_shuffle=False)",
    "cached": "@provider(input_types=[integer_value(100000)], pool_size=200, cache=CacheType.CACHE_PASS_IN_MEM)",
    "weighted": "@provider(input_types=[integer_value(100000)], pool_size=300, calc_batch_size=lambda s: s[0] % 4)",
    "dropping": "@provider(input_types=[integer_value(3300)], pool_size=200, check=True, check_fail_continue=True)",
}
READ = """
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield int(line)
"""
Seen = tuple[int, int, int, int, int]


def sign(batch: pydp2.Batch) -> Seen:
    return (
        batch.pass_id,
        batch.index,
        len(batch),
        batch.pool_weight,
        zlib.crc32(np.ascontiguousarray(batch[0]).tobytes()),
    )


def passes(client: pydp2.Client, count: int) -> tuple[list[Seen], list[tuple[int, str]]]:
    """The batches of ``count`` passes, and states: how many batches were seen before, as JSON."""
    seen: list[Seen] = []
    states = []
    for _ in range(count):
        states.append((len(seen), json.dumps(client.state_dict())))
        for batch in client:
            seen.append(sign(batch))
            states.append((len(seen), json.dumps(client.state_dict())))
    return seen, states


def go_on(client: pydp2.Client, count: int) -> list[Seen]:
    seen: list[Seen] = []
    while len(seen) < count:
        seen += [sign(batch) for batch in client]
    return seen[:count]


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.slow if each == "whole pass" else ()) for each in PROVIDERS]
)
def test_what_follows_a_restore_is_what_would_have_followed(
    kind: str, provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS[kind] + READ), text_files(FILES)
    job = {"pool_bytes": 2000} if kind == "bounded pool" else {"last_batch": "pad"} if kind == "weighted" else {}
    with pydp2.load(files, address, **OPTIONS, **job) as client:
        seen, states = passes(client, 2)
        dice = random.Random(kind)
        # the first batch, the last of a pass, between passes, the same twice in a row, and some in the middle
        last = next(i for i, (k, _) in enumerate(states) if k and seen[k - 1][0] == 0 and seen[k][0] == 1)
        for k, state in [states[1], states[last], states[last + 1], states[last + 1], *dice.sample(states[:-1], 2)]:
            client.load_state_dict(json.loads(state))
            assert go_on(client, len(seen) - k) == seen[k:], f"from batch {k}"
    k, state = dice.choice(states[:-1])
    with pydp2.load(files, address, **{**OPTIONS, "workers": 3}, **job) as client:
        client.load_state_dict(json.loads(state))
        assert go_on(client, len(seen) - k) == seen[k:], f"on another service, from batch {k}"


def test_inside_the_last_body_of_a_pass_the_rest_is_empty_and_after_the_loop_the_next_pass_follows(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["whole pass"] + READ), text_files(FILES[:3])
    with pydp2.load(files, address, **OPTIONS) as client:
        seen, states = passes(client, 2)
        inside = states[len(states) // 2 - 1][1]
        assert json.loads(inside)["pass"] == 0
        client.load_state_dict(json.loads(inside))
        assert [sign(batch) for batch in client] == []
        assert [sign(batch) for batch in client] == [s for s in seen if s[0] == 1]


def test_a_pass_that_is_taken_up_survives_the_death_of_its_workers(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES)
    with pydp2.launch(files, address, workers=2) as service, service.connect(batch_size=16) as client:
        seen, states = passes(client, 1)
        for k, state in (states[30], states[90]):
            client.load_state_dict(json.loads(state))
            again, killed = [], 0
            for i, batch in enumerate(client):
                again.append(sign(batch))
                workers = service.stats()["workers"] if i % 25 == 0 else []
                active = [w for w in workers if w["active"] and w["samples_per_second"]]
                if active:  # else those that were killed before are not replaced yet
                    with contextlib.suppress(ProcessLookupError):  # killed before, and only now cleared away
                        os.kill(random.choice(active)["pid"], signal.SIGKILL)
                        killed += 1
            assert again == seen[k:]
            assert killed


def test_the_state_is_there_when_the_service_is_gone(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES)
    with pydp2.launch(files, address, workers=2) as service, service.connect(batch_size=16) as client:
        seen, _ = passes(client, 1)
    service = pydp2.launch(files, address, workers=2)
    with service, service.connect(batch_size=16) as client:
        delivered = []
        stream = iter(client)
        while len(delivered) < 41:
            delivered.append(sign(next(stream)))
        os.kill(service.pid, signal.SIGKILL)
        with pytest.raises(ServiceLost):
            delivered.extend(sign(batch) for batch in stream)
        state = client.state_dict()
        assert state["batch"] == len(delivered)
    with pydp2.load(files, address, batch_size=16, workers=1) as client:
        client.load_state_dict(state)
        assert delivered + [sign(batch) for batch in client] == seen


def test_files_that_ended_early_end_there_again(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]], tmp_path: Any
) -> None:
    """What an early-end record says holds after a restore, even where the file would give more by then."""
    code = PROVIDERS["bounded pool"] + """
def process(settings, filename):
    import pathlib
    for i, line in enumerate(open(filename)):
        if i == 50 and filename.endswith("3.txt") and not pathlib.Path(filename + ".mended").exists():
            raise RuntimeError("not yet")
        yield int(line)
"""  # fmt: skip
    address, files = provider_file(code), text_files(FILES)
    with pydp2.load(files, address, on_error="skip", **OPTIONS) as client:
        seen, states = passes(client, 1)
        assert json.loads(states[-2][1])["early_ends"][0][:2] == [3, 50]
        open(files[3] + ".mended", "w").close()
        client.load_state_dict(json.loads(states[-10][1]))
        assert go_on(client, 1) == seen[-9:-8]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 6}, "seed was 5, is 6"), ({"batch_size": 8}, "batch_size was 16, is 8"),
        ({"shuffle": False}, "shuffle was True, is False"), ({"interleave": 3}, "interleave was 16, is 3"),
        ({"pool_bytes": 5000}, "pool_bytes was"), ({"is_train": False}, "is_train was True"),
        ({"on_error": "skip"}, "on_error was"), ({"last_batch": "drop"}, "last_batch was"),
    ],
)  # fmt: skip
def test_a_state_of_another_stream_is_refused_and_the_text_says_what_differs(
    change: dict[str, Any], says: str, provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES[:2])
    with pydp2.load(files, address, **OPTIONS) as client:
        state = client.state_dict()
    with pydp2.load(files, address, **(OPTIONS | change)) as client, pytest.raises(StateMismatch, match=says):
        client.load_state_dict(state)


def test_a_state_of_another_list_or_provider_is_refused_unless_changed_code_is_allowed(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES[:4])
    with pydp2.load(files, address, **OPTIONS) as client:
        seen, states = passes(client, 1)
    with pydp2.load(files[:3], address, **OPTIONS) as client, pytest.raises(StateMismatch, match="list was") as raised:
        client.load_state_dict(json.loads(states[3][1]))
    assert "allow=" not in str(raised.value), "it does not help here"
    provider_file(PROVIDERS["bounded pool"] + READ + "# a comment\n")
    with pydp2.load(files, address, **OPTIONS) as client:
        with pytest.raises(StateMismatch, match=r'provider_source was .* pass allow=\["provider_source"\]$'):
            client.load_state_dict(json.loads(states[3][1]))
        client.load_state_dict(json.loads(states[3][1]), allow=["provider_source"])
        assert [sign(batch) for batch in client] == seen[3:]


def test_a_damaged_or_newer_state_is_refused_and_the_stream_stays_where_it_was(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES[:4])
    with pydp2.load(files, address, **OPTIONS) as client:
        seen, states = passes(client, 1)
        good = json.loads(states[-3][1])
        for bad in (
            {}, [], None, "x", {**good, "version": 99}, {**good, "batch": -1}, {**good, "stream_identity": 3},
            {**good, "early_ends": [[1]]}, {**good, "point": {**good["point"], "pool": "!"}},
        ):  # fmt: skip
            with pytest.raises(StateMismatch):
                client.load_state_dict(bad)
        client.load_state_dict(good)
        client.load_state_dict(seal({**good, "point": {**good["point"], "lanes": [[77, 0, 0, []]], "ended": False}}))
        with pytest.raises(pydp2.errors.OptionError, match="damaged"):  # the service, which knows the list, sees it
            next(iter(client))
        client.load_state_dict(good)
        assert [sign(batch) for batch in client] == seen[-2:]


def test_only_what_a_state_still_needs_is_run_again_and_it_is_told_how_much(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"].replace("200", "50") + READ), text_files(FILES)
    options = OPTIONS | {"interleave": 2}
    with pydp2.load(files, address, **options) as data:
        states = [data.state_dict() for _ in data]
    with pydp2.load(files, address, **options) as data:
        data.load_state_dict(states[-30])
        stream = iter(data)
        next(stream)
        again = data.stats()["run_again"]
    assert 0 < again["files"] < len(FILES) / 2
    assert 0 < again["samples"] < sum(map(len, FILES)) / 2
    told = f"{again['files']} files are run again, {again['samples']} samples of them a second time"
    assert told in capfd.readouterr().err
    with pydp2.load(files, address, **options) as data:
        data.load_state_dict(states[1])  # no point at which a pass can be taken up lies before it
        next(iter(data))
    assert "taken up at batch 2: all that came before is read again" in capfd.readouterr().err


def test_relaxed_order_has_a_state_between_passes_only(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    address, files = provider_file(PROVIDERS["bounded pool"] + READ), text_files(FILES[:4])
    with pydp2.load(files, address, order="relaxed", **OPTIONS) as client:
        for batch in client:
            if batch.index == 1:
                with pytest.raises(StateMismatch, match="between passes"):
                    client.state_dict()
        assert client.state_dict()["pass"] == 1

"""A state that was changed anywhere is refused, or gives the stream that it gave before: never another one, never an
exception of another kind, and never a trainer that waits."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydp2
from pydp2.client.saved_state import seal
from pydp2.errors import NotRepeatable, OptionError, StateMismatch
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_passes import WorkerPasses

_SECONDS = 60.0  # far more than an answer takes
CODE = """
@provider(input_types={"n": integer_value_sequence(100000)}, pool_size=100)
def process(settings, filename):
    for i in range(300):
        yield [int(filename) + i] * (1 + i % 5)
"""
FILES = [str(1000 * number) for number in range(6)]
fuzz = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def deep(levels: int) -> Any:
    """A list in a list, as deep as that."""
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 53, 1 << 62, 1 << 64, -(1 << 63), 10**5000, 0.0, 1.5, float("nan"),
    float("inf"), "", "x", "\ud800", "a" * 70_000, b"bytes", [], [0], [[]], {}, {"a": 1}, {1: 2}, {None: 0},
    {(): 0}, {"\ud800": 1}, list(range(5000)), list(range(20_000)),
    [1 << 61] * 9000, deep(15), deep(70), deep(5000), (), object(),
    {1, 2}, np.int64(3), np.arange(3), {"pool": "!"}, [[0, 0, 0, []]], [[0, 0, ""]], [[0, 0]],
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each node of a state."""
    found = [path]
    if isinstance(node, dict):
        for key, item in node.items():
            found += places(item, (*path, key))
    elif isinstance(node, list):
        for at, item in enumerate(node):
            found += places(item, (*path, at))
    return found


def changed(draw: Any, state: Any) -> Any:
    """``state`` with one node deleted, replaced, inserted, nested or repeated."""
    state = copy.deepcopy(state)
    path = draw(st.sampled_from(places(state)))
    how = draw(st.sampled_from(["delete", "replace", "replace", "insert", "nest", "repeat", "other"]))
    value = draw(st.sampled_from(VALUES))
    if not path:
        return value if how == "replace" else [state] if how == "nest" else {**state, "more": value}
    parent = state
    for step in path[:-1]:
        parent = parent[step]
    last = path[-1]
    match how:
        case "delete":
            del parent[last]
        case "replace":
            parent[last] = value
        case "insert" if isinstance(parent, list):
            parent.insert(last, value)
        case "insert":
            parent[draw(st.sampled_from(["more", 1, None, "\ud800", "pass"]))] = value
        case "nest":
            parent[last] = draw(st.sampled_from([[parent[last]], {"state": parent[last]}, [[parent[last]] * 3]]))
        case "repeat" if isinstance(parent, list):
            parent += parent[last:] * draw(st.sampled_from([1, 3000]))
        case _:  # the value of another node
            other: Any = state
            for step in draw(st.sampled_from(places(state))):
                other = other[step] if isinstance(other, dict | list) else other
            parent[last] = copy.deepcopy(other)
    return state


def in_time(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises, which must be known in time."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error.with_traceback(None))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert found, "it waits"
    return found[0]


def rest(stream: pydp2.Client) -> list[list[int]]:
    """The values of the batches up to the end of the pass."""
    return [np.asarray(getattr(batch[0], "values", batch[0])).tolist() for batch in stream]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pydp2.Service]:
    file = tmp_path_factory.mktemp("states") / "prov.py"
    file.write_text("from pydp2 import *\n" + CODE)
    with pydp2.launch(FILES, f"{file}:process", workers=2) as service:
        yield service


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pydp2.Service]:
    file = tmp_path_factory.mktemp("mixed") / "prov.py"
    file.write_text("from pydp2 import *\n" + CODE)
    with pydp2.launch({"one": FILES[:3], "two": FILES[3:]}, f"{file}:process", workers=2) as service:
        yield service


def opened(service: pydp2.Service, mixed: pydp2.Service, kind: str) -> pydp2.Client:
    if kind == "buckets":
        return service.connect(job="b", batch_size=32, seed=3, bucket_by="n", num_buckets=3)
    options: Any = {"job": kind, "batch_size": 32, "seed": 3}
    is_mixed = "mixture" in kind
    one = pydp2.mix({"one": 1, "two": 2}, address=mixed.address, **options) if is_mixed else service.connect(**options)
    return pydp2.pack_sequences(one, slot="n", length=16, batch_size=8) if "packed" in kind else one


KINDS = ["client", "buckets", "mixture", "packed", "packed mixture"]


@pytest.fixture(scope="module")
def streams(
    service: pydp2.Service, mixed: pydp2.Service
) -> Iterator[dict[str, tuple[pydp2.Client, dict[str, Any], list[list[int]]]]]:
    """Of each kind a stream, a state in the middle of its pass, and what follows."""
    made: dict[str, tuple[pydp2.Client, dict[str, Any], list[list[int]]]] = {}
    try:
        for kind in KINDS:
            stream = opened(service, mixed, kind)
            states = [json.loads(json.dumps(stream.state_dict())) for _ in stream]
            state = states[-6]
            stream.load_state_dict(state)
            made[kind] = stream, state, rest(stream)
            assert len(made[kind][2]) == 5
        yield made
    finally:
        for stream, _, _ in made.values():
            stream.close()


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(data=st.data())
def test_a_changed_state_is_refused_or_gives_the_same_stream(kind: str, streams: Any, data: st.DataObject) -> None:
    stream, state, expected = streams[kind]
    mutated = changed(data.draw, state)

    def use() -> Any:
        stream.load_state_dict(mutated)
        return rest(stream)

    outcome = in_time(use)
    assert outcome == expected or isinstance(outcome, StateMismatch | OptionError), outcome
    assert not isinstance(outcome, StateMismatch) or len(str(outcome)) < 3000


def resealed(state: Any) -> Any:
    """``state`` with a new digest, as one who wants to harm the service would make it."""
    try:
        return seal(state)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return state


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(data=st.data())
def test_a_state_that_somebody_made_up_harms_neither_service_nor_trainer(
    kind: str, streams: Any, data: st.DataObject
) -> None:
    """It may be that of another place."""
    stream, state, expected = streams[kind]
    mutated = resealed(changed(data.draw, state))

    def use() -> Any:
        stream.load_state_dict(mutated)
        for _, _ in zip(range(3), stream, strict=False):
            pass

    outcome = in_time(use)
    assert outcome is None or isinstance(outcome, StateMismatch | OptionError | NotRepeatable), outcome
    stream.load_state_dict(state)
    assert in_time(lambda: rest(stream)) == expected


@fuzz
@given(data=st.data())
def test_a_changed_state_never_comes_to_the_workers_of_a_loader(
    service: pydp2.Service, streams: Any, data: st.DataObject
) -> None:
    _, state, expected = streams["client"]
    mutated = changed(data.draw, state)
    passes = WorkerPasses(service.address, None, Ranks(0, 1), job="workers", batch_size=32, seed=3)

    def use() -> Any:
        passes.load_state_dict(mutated)
        return [
            np.asarray(getattr(batch[0], "values", batch[0])).tolist()
            for batch, _ in passes.read(0, 1, "one", with_state=False)
        ]

    try:
        outcome = in_time(use)
        assert outcome == expected or isinstance(outcome, StateMismatch | OptionError), outcome
    finally:
        passes.close()


def test_the_field_is_named(streams: Any) -> None:
    stream, state, _ = streams["client"]
    point = state["point"]
    for bad, named in (
        ({**state, "pass": -1}, "pass: -1"),
        ({**state, "batch": True}, "batch: True"),
        ({**state, "acknowledged_ahead": [1, "x"]}, "acknowledged_ahead: 'x'"),
        ({**state, "acknowledged_ahead": list(range(1 << 20, 1 << 21))}, "acknowledged_ahead: "),
        ({**state, "early_ends": [[0, 1]]}, "early_ends: "),
        ({**state, "stream_identity": []}, "stream_identity: "),
        ({**state, "buckets": {"bounds": 3}}, "buckets: 3"),
        ({**state, "point": {**point, "index": 0.5}}, "as index, it has 0.5"),
        ({**state, "point": {**point, "lanes": [[0, 1]]}}, r"as lanes\[0\]"),
        ({**state, "point": {**point, "lanes": [*point["lanes"]] * 1000}}, "point: it is larger than a service takes"),
        ({**state, "point": {**point, "note": 1}}, "point: 'note'"),
        ({**state, "point": {1: 2}}, r"state\['point'\] has a key of type int"),
        ({**state, "point": deep(80)}, r"state\['point'\]\[0\]\[0\].* is nested more than 64 deep"),
        ({**state, "pass": 1 << 70}, r"state\['pass'\] is a number of 71 bits"),
        (
            {**state, "early_ends": [[1, 2, "\ud800"]]},
            r"state\['early_ends'\]\[0\]\[2\] is a text with half a character",
        ),
        ({**state, "pass": np.int64(1)}, r"state\['pass'\] must be plain data .*got int64"),
    ):
        with pytest.raises(StateMismatch, match=named):
            stream.load_state_dict(bad)

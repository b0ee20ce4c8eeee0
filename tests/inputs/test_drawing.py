"""The compiled form of packing against the one in Python: the same columns, verdicts and words, drawn or added."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.errors import BadSample
from pydp2.inputs import (
    Packer,
    Slots,
    dense_vector,
    dense_vector_sequence,
    drawing,
    integer_value,
    integer_value_sequence,
    sparse_binary_vector,
    sparse_float_vector,
)
from pydp2.inputs.drawing import Budget, Mark

quick = settings(max_examples=150, deadline=None)
needs_compiled = pytest.mark.skipif(not drawing.built(), reason="the compiled form was not built")
PLENTY = Budget(1 << 40, 1 << 40, 1 << 40, 64)
SECOND = 1_000_000_000


def outcome(packer: Packer, samples: list[list[Any]], marks: list[bool], raw: Any) -> list[Any]:
    """All that can be seen of packing ``samples``; ``marks``: after which ones all is judged."""
    seen: list[Any] = []
    for values, mark in zip(samples, marks, strict=True):
        try:
            seen.append(packer.add(values))
        except BadSample as error:
            seen.append((str(error), error.slot, error.expected, error.got))
        seen.append((packer.rows, packer.nbytes))
        if mark:
            seen.append([(row, str(error)) for row, error in packer.verify()])
    cut = packer.cut()
    return [*seen, raw(cut.columns), cut.sample_bytes.tolist(), [(row, str(error)) for row, error in cut.bad]]


class Draw:
    """Draws from samples as a worker does."""

    def __init__(self, slots: Slots, *, strict: bool = True, fast: bool = True, timed: bool = False) -> None:
        self.row = array("q", [0] * 8)
        self.packer = Packer(slots, strict, fast)
        self.single = len(slots) == 1
        self.drawer = self.packer.drawer(self.single, Mark(memoryview(self.row), 2, 4, 3, timed))
        self.packed = 0

    def __call__(self, samples: Iterator[Any], budget: Budget = PLENTY, ns: int = SECOND) -> Any:
        try:
            return self.drawer.draw(samples, self.packed, *budget, ns)
        finally:
            rows, nbytes = self.drawer.taken()
            self.packer.absorb(rows, nbytes)
            self.packed += rows


@needs_compiled
@quick
@given(data=st.data(), strict=st.booleans())
def test_both_forms_say_the_same_of_any_samples(some: Any, data: Any, strict: bool) -> None:
    slots = data.draw(some.slots)
    sample = st.tuples(*(st.one_of(some.values(t), some.good_values(t)) for t in slots.types)).map(list)
    samples = data.draw(st.lists(sample, max_size=6))
    marks = [data.draw(st.booleans()) for _ in samples]
    fast, slow = (outcome(Packer(slots, strict, form), samples, marks, some.raw) for form in (True, False))
    assert fast == slow


@needs_compiled
@quick
@given(data=st.data(), strict=st.booleans())
def test_drawing_packs_what_adding_one_by_one_packs(some: Any, data: Any, strict: bool) -> None:
    slots = data.draw(some.slots)
    sample = st.tuples(*(some.good_values(t) for t in slots.types)).map(list)
    samples = data.draw(st.lists(sample, max_size=12))
    shapes = [data.draw(st.sampled_from(["list", "tuple", "dict"])) for _ in samples]
    draw = Draw(slots, strict=strict)
    slow = Packer(slots, strict, False)
    costs = [slow.add(values) for values in samples]

    def process() -> Iterator[Any]:
        for values, shape in zip(samples, shapes, strict=True):
            if shape == "dict" and slots.names is not None:
                yield dict(zip(slots.names, values, strict=True))
            elif draw.single:
                yield values[0]
            else:
                yield values if shape == "list" else tuple(values)

    drawn, at = process(), 0
    while True:
        budget = Budget(*data.draw(st.tuples(st.integers(-1, 4), *[st.integers(-50, 400)] * 2)), 64)
        before = draw.packed
        try:
            rest = draw(drawn, budget)
        except StopIteration:
            break
        finally:
            mine = costs[at : at + draw.packed - before]
            assert len(mine) <= max(0, budget.rows)
            assert not mine or sum(mine) + 64 * len(mine) <= budget.credit
            assert sum(mine[:-1]) < max(1, budget.room)
            at += len(mine)
        values = list(rest.values()) if isinstance(rest, dict) and slots.names else [rest] if draw.single else rest
        draw.packer.add(list(values))
        at += 1
    assert at == len(samples)
    assert (draw.packer.rows, draw.packer.nbytes) == (slow.rows, slow.nbytes)
    fast, plain = draw.packer.cut(), slow.cut()
    assert some.raw(fast.columns) == some.raw(plain.columns)
    assert not fast.bad


@needs_compiled
def test_usual_samples_are_packed_without_a_look_at_them() -> None:
    slots = Slots(
        (
            dense_vector(3),
            integer_value_sequence(10),
            sparse_binary_vector(100),
            sparse_float_vector(100),
            dense_vector_sequence(2),
            integer_value(5),
        )
    )
    values = [[1.0, 2.0, 3.0], [1, 2], [7, 3], [(5, 1.0), [2, 2.0]], [[1.0, 2.0], (3.0, 4.0)], 4]
    arrays = [
        np.ones(3, np.float32), np.array([1, 2]), np.array([3, 4], np.int32), [], np.ones((2, 2)), np.int64(3),
    ]  # fmt: skip
    draw = Draw(slots)
    with pytest.raises(StopIteration):
        draw(iter([values, tuple(values), arrays]))
    assert draw.packed == 3


@needs_compiled
@pytest.mark.parametrize(
    "sample",
    [(1,), (1, 2, 3), (5, 1), (-1, 1), (1.0, 1), (True, 1), (None, 1), {"a": 1}, "ab", None, (1, 10**30)],
    ids=repr,
)
def test_what_it_is_not_certain_of_is_given_out(sample: Any) -> None:
    draw = Draw(Slots((integer_value(5), integer_value(5))))
    given_out = draw(iter([(1, 2), sample]))
    assert given_out is sample
    assert draw.packer.cut().columns.samples() == [[1, 2]]


@needs_compiled
def test_a_dict_with_more_keys_is_given_out_once_for_them_to_be_looked_at() -> None:
    draw = Draw(Slots((integer_value(5), integer_value(5)), ("a", "b")))
    more = {"a": 3, "b": 4, "c": 5}
    samples = iter([{"a": 1, "b": 2}, more, more, {"a": 0, "c": 0}])
    assert draw(samples) is more
    assert draw(samples) == {"a": 0, "c": 0}
    assert draw.packer.cut().columns.samples() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_compiled), False])
def test_the_seat_tells_which_sample_is_asked_for(fast: bool) -> None:
    draw = Draw(Slots((integer_value(100),)), fast=fast, timed=True)
    seen = []

    def process() -> Iterator[int]:
        for i in range(5):
            seen.append((draw.row[2], draw.row[3]))
            assert 0 <= time.monotonic_ns() - draw.row[4] < SECOND
            draw.row[3] = 0
            yield i

    samples = process()
    for i in range(5):
        draw.drawer.draw(samples, i, 0, 0, 0, 64, SECOND)
    assert seen == [(i, 1) for i in range(5)]


@needs_compiled
def test_the_seat_follows_the_samples_that_are_packed() -> None:
    draw = Draw(Slots((integer_value(100),)))
    asked = []

    def process() -> Iterator[int]:
        for i in range(5):
            asked.append(draw.row[2])
            yield i

    with pytest.raises(StopIteration):
        draw(process())
    assert asked == [0, 1, 2, 3, 4]
    assert draw.row[2] == 5


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_compiled), False])
def test_what_the_generator_raises_passes_and_what_was_packed_stays(fast: bool) -> None:
    draw = Draw(Slots((integer_value(100),)), fast=fast)

    def process() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("mine")

    samples = process()
    for i in (1, 2) if not fast else ():
        draw.packer.add([draw(samples)])
        assert draw.packer.rows == i
    with pytest.raises(KeyError, match="mine"):
        draw(samples)
    assert draw.packer.cut().columns.samples() == [[1], [2]]
    assert not draw.drawer.away


@needs_compiled
def test_it_stops_when_its_time_is_over() -> None:
    draw = Draw(Slots((integer_value(1 << 40),)))
    forever = iter(range(1 << 40))
    began = time.monotonic()
    draw(forever, ns=20_000_000)
    assert 0.02 <= time.monotonic() - began < 5
    assert draw.packed


@needs_compiled
def test_another_thread_may_take_what_was_packed_while_the_generator_runs() -> None:
    draw = Draw(Slots((integer_value(1 << 40),)))
    inside, go_on = threading.Event(), threading.Event()
    taken: list[list[Any]] = []

    def process() -> Iterator[int]:
        yield from range(10)
        inside.set()
        assert go_on.wait(10)
        yield from range(10, 20)

    def other() -> None:
        assert inside.wait(10)
        drawer = draw.drawer
        drawer.sending = True
        assert drawer.away
        drawer.met = True
        draw.packer.absorb(*drawer.taken())
        taken.extend(draw.packer.cut().columns.samples())
        drawer.sending = False
        go_on.set()

    thread = threading.Thread(target=other)
    thread.start()
    samples = process()
    assert draw(samples) == 10, "the sample that came meanwhile is given out"
    thread.join()
    draw.packer.add([10])
    with pytest.raises(StopIteration):
        draw(samples)
    assert [value for [value] in taken + draw.packer.cut().columns.samples()] == list(range(20))


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., str]:
    """``copied(*files)``: what an interpreter says of packing that runs a copy of the package in which nothing was
    compiled, with these files beside it: empty ones."""

    def run(*files: str) -> str:
        package = Path(drawing.__file__).parents[1]
        shutil.copytree(package, tmp_path / "pydp2", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for name in files:
            (tmp_path / name).touch()
        done = subprocess.run(
            [sys.executable, "-c", "import pydp2; print(pydp2.__file__, pydp2.packing())"],
            env={name: value for name, value in os.environ.items() if name != drawing.PURE} | {"PYTHONPATH": "."},
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        file, said = done.stdout.split(" ", 1)
        assert Path(tmp_path, file) == tmp_path / "pydp2" / "__init__.py"
        return said.strip()

    return run


def test_a_checkout_that_was_never_built_says_how_to_build_it(copied: Callable[..., str], tmp_path: Path) -> None:
    said = copied("pyproject.toml")
    assert said == (
        f"in Python, because this checkout was never built: pip install -e {tmp_path} does, where there is a C compiler"
    )


def test_an_installation_without_a_compiler_says_so(copied: Callable[..., str]) -> None:
    assert copied() == "in Python, because there was no C compiler at the installation"


def test_a_checkout_that_was_installed_without_a_compiler_says_so(copied: Callable[..., str], tmp_path: Path) -> None:
    info = tmp_path / "pydp2-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydp2\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text(f'{{"url": "{tmp_path.as_uri()}", "dir_info": {{"editable": true}}}}')
    assert copied("pyproject.toml") == "in Python, because there was no C compiler at the installation"


def test_what_was_compiled_for_another_python_is_named_with_both(copied: Callable[..., str]) -> None:
    mine = sysconfig.get_config_var("EXT_SUFFIX")
    assert copied("pyproject.toml", "pydp2/inputs/_compiled.cpython-399-sparc.so") == (
        f"in Python, because it was compiled for .cpython-399-sparc.so, and this Python needs {mine}: "
        "install pydp2 again for it"
    )


def test_what_was_compiled_and_cannot_be_loaded_says_why(copied: Callable[..., str]) -> None:
    name = f"pydp2/inputs/_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    said = copied("pyproject.toml", name)
    assert said.startswith("in Python, because what was compiled cannot be loaded: ")
    assert "file too short" in said or "_compiled" in said


def test_the_form_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drawing.PURE, "1")
    assert not drawing.compiled()
    monkeypatch.setenv(drawing.PURE, "0")
    assert drawing.compiled() == drawing.built()

"""Which globals a provider uses, and how their values are compared between two processes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from pydp2.providers.decorator import Provider
from pydp2.providers.global_values import changed_globals, describe_globals

HEAD = """
import functools, math, os
from pydp2 import integer_value, provider

A, B, C, D, E, F, G, H, I, UNUSED = range(10)
DATA = DATA_OF_TEST

def wrap(function):
    @functools.wraps(function)
    def run(*args):
        return function(*args)
    return run

@wrap
def helper(n=A):
    return [B for _ in range(n)] + [lambda: C]

class Base:
    size = property(lambda self: D)
    @classmethod
    def make(cls):
        return E
    @staticmethod
    def other():
        return os.path

def hook(settings, **kwargs):
    settings.f = F

def weigh(sample):
    global I
    I += 1
    return G

@wrap
def around(settings, filename):
    H = 3
    yield helper, Base, DATA, H, len(str(math.pi)), settings.UNUSED

process = provider(input_types=[integer_value(10)], init_hook=hook, calc_batch_size=weigh)(around)
"""


def _module(data: Any = 0) -> types.ModuleType:
    module = types.ModuleType("made")
    vars(module)["DATA_OF_TEST"] = data
    exec(HEAD, vars(module))
    return module


def _process(module: types.ModuleType) -> Provider:
    assert isinstance(module.process, Provider)
    return module.process


def test_names_are_found_in_functions_that_the_provider_uses_and_no_others() -> None:
    described = describe_globals(_process(_module()))
    plain = {name for name, text in described.items() if text}
    assert plain == {"B", "C", "D", "E", "F", "G", "DATA"}
    assert {"helper", "Base", "os", "math"} <= {*described}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (1, 2), (1, True), (1, 1.0), (0.0, -0.0), (None, 0), ("a", "b"), ("a", b"a"), ([1], (1,)), ({1, 2}, {1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (None, object()), ([1, [2]], [1, [3]]),
    ],
)  # fmt: skip
def test_another_value_is_named_and_the_same_one_is_not(then: Any, now: Any) -> None:
    described = describe_globals(_process(_module(then)))
    assert changed_globals(_process(_module(then)), described) == ""
    assert "around uses DATA, " in changed_globals(_process(_module(now)), described)


class Raises:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "make",
    [object, Raises, lambda: [[0] * 1000] * 1000, lambda: "x" * 100_000, lambda: [Raises()], lambda: 10**5000],
)
def test_a_value_that_is_not_plain_or_large_is_not_compared(make: Callable[[], Any]) -> None:
    described = describe_globals(_process(_module(make())))
    assert changed_globals(_process(_module(3)), described) == ""


def test_many_names_are_named_in_one_line_that_ends() -> None:
    described = describe_globals(_process(_module()))
    module = _module(7)
    for name in "BCDEFG":
        setattr(module, name, "x")
    text = changed_globals(_process(module), described)
    assert text.count(", which") == 5
    assert "; …: workers import the module" in text
    del module.DATA
    assert "DATA, which the workers do not have" in changed_globals(_process(module), {"DATA": "7"})

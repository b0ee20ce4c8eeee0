"""What a module file defines, against what the notebook has: changes are named, what cannot be compared is refused, and
ordinary code is the same."""

from __future__ import annotations

import linecache
import re
import sys
from textwrap import dedent

import pytest

from .conftest import CELL, Notebook, refused

SCALE = """
class Scale:
    factor = 1
    def get(self): return self.factor
    @property
    def twice(self): return 2 * self.factor
    @classmethod
    def make(cls): return cls()
"""
DECO = """
    import functools
    def deco(g):
        @functools.wraps(g)
        def h(n): return g(n) + {}
        return h
"""


@pytest.mark.parametrize(
    ("cells", "value", "name"),
    [
        ([SCALE, "Scale.factor = 5"], "Scale().get()", "Scale.factor"),
        ([SCALE, "Scale.get = lambda self: 5"], "Scale().get()", "Scale.get"),
        ([SCALE, "def get(self): return self.factor + 0\nget.__qualname__ = 'Scale.get'\nScale.get = get"],
         "Scale().get()", "Scale.get"),
        ([SCALE, "Scale.__len__ = lambda self: 5"], "len(Scale())", "Scale.__len__"),
        ([SCALE, "Scale.twice = property(lambda self: 5)"], "Scale().twice", "Scale.twice"),
        ([SCALE, "Scale.make = classmethod(lambda cls: 5)"], "Scale.make()", "Scale.make"),
        ([SCALE, "class Sub(Scale): pass", SCALE.replace("1", "5")], "Sub().get()", "Sub.__bases__[0]"),
        ([SCALE, "Scale.get.__defaults__ = (5,)"], "Scale.get()", "Scale.get(self=…)"),
        (["import functools\n@functools.singledispatch\ndef f(x): return 1", "@f.register\ndef _(x: int): return 5"],
         "f(3)", "f.register(int)"),
        (["N = 3\ndef f(n=N): return n", "N = 5"], "f()", "f(n=…)"),
        (["N = 3\ndef f(*, n=N): return n", "N = 5"], "f()", "f(n=…)"),
        (["N = 3\nf = lambda n=N: n", "N = 5"], "f()", "f(n=…)"),
        (["import re\nN = 'a'\ndef f(p=re.compile(N)): return len(p.pattern)", "N = 'bb'"], "f()", "f(p=…)"),
        (["import numpy as np\nN = 2\ndef f(p=np.ones(N)): return len(p)", "N = 3"], "f()", "f(p=…)"),
        (["N = {1}\ndef f(p=frozenset(N)): return len(p)", "N = {2}"], "f()", "f(p=…)"),
        (["from dataclasses import dataclass\nN = 3\n@dataclass\nclass D:\n    n: int = N", "N = 5"], "D().n",
         "D.n"),
        (["import enum\nN = 3\nclass E(enum.Enum):\n    A = N", "N = 5"], "E.A.value", "E.A.value"),
        (["import enum\nN = 3\nclass E(enum.Enum):\n    A = 1\n    def __init__(self, v): self.n = N * v", "N = 5"],
         "E.A.n", "E.A.n"),
        (["import enum\nN = 1\nclass E(enum.Flag):\n    A = N", "N = 2"], "E.A.value", "E.A.value"),
        (["import typing\nN = 3\nclass T(typing.NamedTuple):\n    n: int = N", "N = 5"], "T().n", "T._field_defaults"),
        ([dedent(DECO.format(1)), "@deco\ndef f(n): return n", dedent(DECO.format(2))], "f(3)", "f"),
        ([f"def made(k):{DECO.format('k')}    return deco\nK = 1\n@made(K)\ndef f(n): return n", "K = 2"], "f(1)",
         "k of f"),
        (["def f(): return int(f.t)\nf.t = '1'"], "f()", "f.t"),
        (["def f(): return f.__doc__", "f.__doc__ = 'x'"], "len(f())", "f.__doc__"),
        (["class L:\n    up, down = lambda n: n + 1, lambda n: n - 1", "L.up, L.down = L.down, L.up"], "L.up(1)",
         "L.up"),
    ],
)  # fmt: skip
def test_what_was_changed_after_its_statement_ran_is_refused_by_name(
    notebook: Notebook, cells: list[str], value: str, name: str
) -> None:
    for cell in [*cells, CELL.format(value)]:
        notebook.run(cell)
    text = refused(notebook)
    assert f"do not give what the notebook has now: {name}, which was changed later, or what it was made of" in text
    defined = re.findall(r"\w+", name.rpartition(" of ")[2])[0]
    assert f"run the cells that define {defined} again, or write it to a file" in text
    assert "%%writefile" in text


@pytest.mark.parametrize(
    ("cell", "value", "part"),
    [
        ("import threading\nclass C: lock = threading.Lock()", "C.lock", "C.lock (a lock)"),
        ("import logging\nclass C:\n    class D: log = logging.getLogger('x')", "C.D.log", "C.D.log (a Logger)"),
        ("class C: __none = object()", "C", "C._C__none (a object)"),
        ("class C: table = {'a': [len]}", "C.table", "C.table (a builtin_function_or_method)"),
        ("class P: pass\ndef f(p=P()): return p", "f()", "f(p=…) (a P)"),
        ("from functools import partial\ndef f(*, p=partial(int, 3)): return p()", "f()", "f(p=…) (a partial)"),
        ("import operator\nclass C: get = operator.itemgetter(1)", "C.get", "C.get (a itemgetter)"),
        ("import numpy as np\ndef f(o=np.array([None])): return o", "f()", "f(o=…) (a ndarray)"),
        ("def f(): return f.rng\nimport random\nf.rng = random.Random(3)", "f()", "f.rng (a Random)"),
        (
            "def made(k):\n    def deco(g): return lambda: g(k)\n    return deco\n@made(object())\ndef f(k): return 1",
            "f()",
            "f (no cell has a statement",
        ),
        ("def wraps(g):\n    def h(): return g, none\n    none = object()\n    h.__wrapped__ = g\n    return h\n"
         "@wraps\ndef f(k): return 1", "f()", "none of f (a object)"),
    ],
)  # fmt: skip
def test_a_part_of_a_definition_that_cannot_be_compared_is_refused_with_the_way_out(
    notebook: Notebook, cell: str, value: str, part: str
) -> None:
    notebook.run(cell)
    notebook.run(CELL.format(value))
    text = refused(notebook)
    assert f"process uses what workers cannot be given: {part}" in text
    assert "make it in the init_hook, pass plain data with args=…, or write it to a file" in text


@pytest.mark.parametrize(
    ("options", "change", "part"),
    [
        ("input_types=[integer_value(N)]", "N = 50", "input_types"),
        ("input_types={'a': integer_value(N)}", "N = 50", "input_types"),
        ("input_types=[integer_value(9)], init_hook=HOOK", "def HOOK(settings, **k): settings.n = 2", "init_hook"),
    ],
)
def test_arguments_of_the_decorator_that_have_changed_are_refused(
    notebook: Notebook, options: str, change: str, part: str
) -> None:
    notebook.run("N = 9\ndef HOOK(settings, **k): settings.n = 1")
    notebook.run(f"@provider({options})\ndef process(settings, filename): yield 1")
    notebook.samples()
    notebook.run(change)
    assert f"now: process.{part}, which" in refused(notebook)


def test_when_its_cell_runs_again_a_change_is_given(notebook: Notebook) -> None:
    notebook.run("N = 3\ndef f(n=N): return n")
    notebook.run(CELL.format("f()") + "N = 5")
    assert "now: f(n=…), which" in refused(notebook)
    notebook.run("def f(n=N): return n")
    assert notebook.samples() == [[5]]


def test_of_a_changed_base_and_what_is_made_of_it_the_base_is_named(notebook: Notebook) -> None:
    notebook.run(SCALE + "class Again(Scale): pass\n" + CELL.format("Again().get() + Scale().get()"))
    notebook.run("Scale.factor = 2")
    assert "now: Scale.factor, which was changed later" in refused(notebook)


ORDINARY = """
import abc, typing
class A(abc.ABC):
    @abc.abstractmethod
    def m(self): ...
@typing.runtime_checkable
class P(typing.Protocol):
    def m(self) -> int: ...
class B(A):
    def m(self): return super().__init__() or 9
isinstance(B(), P)
>>> B().m() * isinstance(B(), P)

from dataclasses import dataclass, field
class X: n = 9
@dataclass(slots=True, order=True)
class D:
    x: X = None
    b: dict = field(default_factory=dict, metadata={'u': 1})
    def m(self): return X.n
D()
>>> D().m()

import enum
class E(enum.IntEnum):
    A = 8
class F(enum.Flag):
    A = 1
    B = 2
F.A | F.B
~F.A
class S(enum.StrEnum):
    A = enum.auto()
>>> E.A + len(S.A) + (0 if F.A | F.B else 1)

import collections, typing
class T(typing.NamedTuple):
    a: int = 9
    def m(self): return self.a
class U(collections.namedtuple('U', 'a b')):
    __slots__ = ()
class V(typing.TypedDict):
    m: int
>>> T().m() * len(U(1, V(m=2))) // 2

import math, re
class C:
    p = re.compile('a')
    s = {'a', 'b', 'c'}
    k = int
    def m(self, n=math.floor): return 9
>>> C().m()

import functools
class C:
    @functools.cached_property
    def v(self): return 3
    @functools.singledispatchmethod
    def s(self, x): return 1
    @s.register
    def _(self, x: int): return 6
C().v, C().s(1)
>>> C().v + C().s(1)

import functools
@functools.lru_cache(maxsize=4)
def f(n): return n
class W:
    def __init__(self, g):
        functools.update_wrapper(self, g)
        self.g = g
    def __call__(self, x): return self.g(x)
@W
def g(n): return f(n)
>>> g(9)

class M(type):
    known = []
    def __new__(m, n, b, names):
        m.known.append(n)
        return super().__new__(m, n, b, names)
class C(metaclass=M):
    def k(self): return 8 + len(M.known)
>>> C().k()

import contextlib
@contextlib.contextmanager
def f(): yield 9
def g():
    with f() as x: return x
>>> g()

x = 1; g = lambda n: math.floor(n); y = 2
h = lambda n: (
  math
  .floor(n)
)
class C:
    def é(self): return len('é' + 'é'.upper() + str(math.floor(3)))
>>> g(3) + h(3) + C().é()

import numpy as np
F = np.asfortranarray(np.arange(6.0).reshape(2, 3))
T = {'a': dense_vector(4, dtype='float64', shape=(2, 2))}
def f(w=F, d=np.float32, s=np.float32(3), p=T):
    return 9
>>> f()

def f(x: int) -> str: pass
class C:
    def m(self):
        'text'
>>> 9 if f(1) is C().m() else 8
"""


@pytest.mark.parametrize(("cell", "value"), re.findall(r"(?s)\n(.+?)>>> (.+?)\n", ORDINARY))
def test_ordinary_definitions_are_the_same_also_after_use(notebook: Notebook, cell: str, value: str) -> None:
    notebook.run("import math, sys")  # elsewhere: the code of what uses it is another in the file
    notebook.run(cell)
    notebook.run(CELL.format(value))
    next(iter(notebook.names["process"]({}, "x")))
    assert notebook.samples() == [[9]]


def test_nothing_of_the_comparison_stays_behind(notebook: Notebook) -> None:
    notebook.run(CELL.format(1))
    before, cells = set(sys.modules), set(linecache.cache)
    notebook.file()
    assert (set(sys.modules), set(linecache.cache)) == (before, cells)


def test_code_that_a_library_makes_is_not_looked_up_in_the_text_of_python_c(notebook: Notebook) -> None:
    """From Python 3.13 on, linecache has that text, by the name that code made by dataclasses has too."""
    linecache.cache["<string>"] = (4, None, ["pass"], "<string>")
    notebook.run("from dataclasses import dataclass\n@dataclass(order=True)\nclass D:\n    x: int = 9\n")
    notebook.run(CELL.format("D().x"))
    assert notebook.samples() == [[9]]


def test_equal_sets_of_tuples_are_the_same_in_whatever_order_they_were_filled(notebook: Notebook) -> None:
    """0 and 8, 16 … share a place in a small set, so the first that comes has it."""
    pairs = "{(n, frozenset({n})) for n in range(0, 200, 8)}"
    notebook.run(f"P = {pairs}\ndef f(p=P): return len(p) - 16")
    notebook.run("kept = sorted(P, reverse=True)\nP.clear()\nP.update(kept)")
    notebook.run(CELL.format("f()"))
    assert notebook.samples() == [[9]]

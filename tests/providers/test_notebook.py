"""Providers of notebooks: the module file that is written from cells, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.providers import resolve

from .conftest import CELL, Notebook, refused


def test_the_module_has_the_provider_and_what_it_uses_and_no_more(notebook: Notebook) -> None:
    notebook.run("import math as m\nWIDTH = 3\nUNUSED = open\ndef helper(n):\n    return m.floor(n) + WIDTH\n")
    notebook.run(f"side_effect = WIDTH / 0 if WIDTH > 3 else 1\n{CELL.format('helper(1.5)')}\nWIDTH = 7\n")
    assert notebook.samples() == [[8]]
    text = notebook.file().read_text()
    assert "UNUSED" not in text
    assert "side_effect" not in text
    assert "import math as m\n" in text
    assert "WIDTH = 7\n" in text


def test_what_decorators_defaults_classes_and_inner_functions_use_is_found(notebook: Notebook) -> None:
    notebook.run("import functools\nTYPES = {'a': integer_value(100)}\nSTEP = 2\nBASE = 30\nclass Plain: extra = 1\n")
    notebook.run("class Counter(Plain):\n    start = BASE\n    def next(self, by=STEP): return self.start + by\n")
    notebook.run("@functools.lru_cache\ndef twice(n): return 2 * n\nplus = lambda n: n + Plain.extra\n")
    notebook.run(
        "def hook(settings, **kw): settings.base = Counter().next()\n"
        "@provider(input_types=TYPES, init_hook=hook)\n"
        "def process(settings, filename):\n"
        "    def inner(): return [plus(n) for n in (twice(settings.base),)]\n"
        "    yield {'a': inner()[0]}\n"
    )
    assert notebook.samples() == [[65]]


def test_modules_inside_packages_and_names_that_values_do_not_know_are_imported(notebook: Notebook) -> None:
    notebook.run(
        "import xml.etree.ElementTree\nfrom typing import Iterator as It\nfrom string import digits\nimport os.path\n"
    )
    notebook.run(
        "@provider(input_types=[integer_value(100)])\n"
        "def process(settings, filename) -> It[int]:\n"
        "    yield len(xml.etree.ElementTree.Element('abc').tag + digits + os.path.basename('a/b'))\n"
    )
    assert notebook.samples() == [[14]]
    text = notebook.file().read_text()
    assert "import xml.etree.ElementTree\n" in text
    assert "from typing import Iterator as It\n" in text


def test_a_cell_that_is_run_again_after_an_edit_gives_another_file(notebook: Notebook) -> None:
    notebook.run(CELL.format(1))
    first = notebook.file()
    assert notebook.samples() == [[1]]
    notebook.run(CELL.format(2))
    assert notebook.samples() == [[2]]
    assert notebook.file() != first
    notebook.run(CELL.format(1))
    assert notebook.file() == first


def test_a_value_that_changed_gives_another_file(notebook: Notebook) -> None:
    notebook.run(CELL.format("N") + "\nN = 1")
    assert notebook.samples() == [[1]]
    notebook.run("N = 5")
    assert notebook.samples() == [[5]]


def test_future_annotations_stay(notebook: Notebook) -> None:
    annotated = CELL.format(3).replace("filename)", "filename: Unknown | None)")
    notebook.run(f"from __future__ import annotations\n{annotated}")
    assert "Unknown (not defined)" in refused(notebook)  # as a checker would say; it is not looked up before
    notebook.run("from pathlib import Path as Unknown")
    assert notebook.samples() == [[3]]
    assert "from __future__ import annotations" in notebook.file().read_text()


def test_names_that_workers_cannot_have_are_named_with_the_reason(notebook: Notebook) -> None:
    notebook.run(
        "import threading\nclass Model:\n    def predict(self): return 1\nmodel = Model()\nlock = threading.Lock()"
    )
    notebook.run("from unittest import mock\nanything = mock.call.of.some")
    notebook.run(CELL.format("model.predict(), lock, nowhere, big, anything") + "\nbig = list(range(70_000))")
    text = refused(notebook)
    for part in (
        "anything (a _Call)",
        "model (a Model)",
        "lock (a lock)",
        "nowhere (not defined)",
        "big (a list of 70000 entries)",
    ):
        assert part in text
    assert "make it in the init_hook, pass plain data with args=…, or write it to a file" in text
    assert "%%writefile my_provider.py" in text


def test_magics_and_what_only_a_notebook_has_are_refused(notebook: Notebook) -> None:
    notebook.names["get_ipython"] = notebook.run
    notebook.run(CELL.format("get_ipython().system('ls')"))
    assert "get_ipython (of a magic or a shell command)" in refused(notebook)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["def f(n): return n", "import functools\ndef deco(g):\n    @functools.wraps(g)\n    def h(n): return 7\n"
          "    return h\nf = deco(f)"], "f (no cell has a statement"),
        (["def make(n):\n    def f(m): return n + m\n    return f\nf = make(1)", "f = make(2)"], "f (no cell has"),
        (["def f(n): return n\ng = f\ndel f\nf = g", "f.__code__ = (lambda n: 8).__code__"], "f (no cell has"),
        (["class f:\n    def __new__(cls, n): return 1", "class f(int):\n    b = 1", "f = type('f', (f,), {})"],
         "f (several cells"),
    ],
)  # fmt: skip
def test_functions_and_classes_that_are_not_what_a_statement_gives_are_refused(
    notebook: Notebook, cells: list[str], reason: str
) -> None:
    for cell in cells:
        notebook.run(cell)
    notebook.run(CELL.format("f(3)"))
    assert reason in refused(notebook)


def test_a_provider_whose_source_is_not_known_is_refused_with_the_way_out(notebook: Notebook) -> None:
    exec(compile(CELL.format(1), "<ipython-input-99-gone>", "exec"), notebook.names)
    assert "its source is not known here; write it to a file: begin its cell with %%writefile" in refused(notebook)
    exec(compile(CELL.format(1), "<stdin>", "exec"), notebook.names)
    assert "its source is not known here" in refused(notebook)


def test_a_folder_that_cannot_be_written_is_an_error_with_the_remedy(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    notebook.run(CELL.format(1))
    assert "set XDG_CACHE_HOME to a folder that can" in refused(notebook)


def test_files_that_were_not_used_for_long_are_removed(notebook: Notebook) -> None:
    notebook.run(CELL.format(1))
    first = notebook.file()
    long_ago = time.time() - 100 * 86400
    os.utime(first, (long_ago, long_ago))
    assert notebook.file() == first  # it is used again
    assert first.stat().st_mtime > long_ago + 1
    os.utime(first, (long_ago, long_ago))
    notebook.run(CELL.format(2))
    assert notebook.file().is_file()
    assert not first.exists()


def plain_values() -> st.SearchStrategy[Any]:
    hashable = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), st.binary(max_size=9),
        st.text(max_size=9).filter(lambda text: "\0" not in text).map(Path),
    )  # fmt: skip
    return st.recursive(
        hashable | st.frozensets(hashable, max_size=3) | st.sets(hashable, max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(hashable, inner, max_size=3)
        ),
        max_leaves=9,
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=plain_values())
def test_plain_values_come_back_equal(notebook: Notebook, value: Any) -> None:
    notebook.names["VALUE"] = value
    notebook.run("def check(): return VALUE\n" + CELL.format("check()"))
    resolved = resolve(f"{notebook.file()}:process")
    found = resolved.function.__globals__["VALUE"]
    assert found == value
    assert type(found) is type(value)


def test_arrays_patterns_and_types_come_back_equal(notebook: Notebook) -> None:
    array = np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32)
    notebook.names["VALUE"] = [array, re.compile("a+", re.IGNORECASE), float("-inf")]
    notebook.run("ONE = dense_vector(4, dtype='float16', shape=(2, 2))\ndef check(): return VALUE, ONE\n")
    notebook.run(CELL.format("check()"))
    names = resolve(f"{notebook.file()}:process").function.__globals__
    found, pattern, least = names["VALUE"]
    assert found.tobytes() == array.tobytes()
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    assert (pattern, least) == (re.compile("a+", re.IGNORECASE), float("-inf"))
    assert names["ONE"] == notebook.names["ONE"]


def test_numbers_of_numpy_and_complex_ones_come_back_with_their_types(notebook: Notebook) -> None:
    values = [np.float64(3), np.float32(0.1), np.float16("nan"), np.int8(-3), np.longlong(4), np.bool(True), -0.0]
    values += [1j, complex("-inf-0j"), np.complex64(1 - 0j), np.longdouble(1) / 3, np.ones(2, complex)[0]]
    notebook.names["VALUES"] = values
    notebook.run(CELL.format("len(VALUES)"))
    found = resolve(f"{notebook.file()}:process").function.__globals__["VALUES"]
    assert [(repr(each), type(each)) for each in found] == [(repr(each), type(each)) for each in values]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("np.ma.array([1.0, 2.0], mask=[0, 1])", "a MaskedArray"),
        ("np.ma.masked", "a MaskedConstant"),
        ("[np.matrix([[1, 2], [3, 4]])]", "a matrix"),
        ("type('Metres', (np.ndarray,), {'unit': 'm'})(3)", "a Metres"),
    ],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_an_array_of_a_kind_of_its_own_is_refused(notebook: Notebook, value: str, reason: str) -> None:
    notebook.run(f"import numpy as np\nVALUE = {value}\n{CELL.format('VALUE')}")
    assert f"VALUE ({reason})" in refused(notebook)


def test_an_array_over_a_file_is_given_as_a_plain_one(notebook: Notebook, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    notebook.names["VALUE"] = np.load(tmp_path / "x.npy", mmap_mode="r")
    notebook.run(CELL.format("VALUE"))
    found = resolve(f"{notebook.file()}:process").function.__globals__["VALUE"]
    assert (type(found), found.tolist()) == (np.ndarray, [0, 1, 2])
    del notebook.names["VALUE"]  # and with it the open file


def test_a_type_of_bfloat16_comes_back_equal(notebook: Notebook) -> None:
    pytest.importorskip("ml_dtypes")
    notebook.run("PIX = dense_vector(2, dtype='bfloat16')")
    notebook.run("@provider(input_types=[PIX])\ndef process(settings, filename): yield [PIX.dim, 1.0]")
    assert notebook.samples() == [[[2, 1.0]]]
    assert resolve(f"{notebook.file()}:process").function.__globals__["PIX"] == notebook.names["PIX"]


def test_names_of_the_notebook_do_not_clash_with_those_of_the_file(notebook: Notebook) -> None:
    notebook.run("import re\nP = re.compile('a')\nMOST = float('inf')\nONE = {1}\nT = integer_value(3)\n")
    notebook.run("_re, _numpy, _pydp2, _pathlib, set, float = 1, 2, 3, 4, 5, 6\n")
    notebook.run(CELL.format("_re + _numpy + _pydp2 + _pathlib + set + float + len(ONE) + (P.pattern < str(MOST))"))
    assert notebook.samples() == [[23]]
    notebook.run("_pydp2_re = 1\n" + CELL.format("_pydp2_re"))
    assert "_pydp2_re (names that begin with _pydp2_ are those of the file itself: rename it)" in refused(notebook)


def test_names_with_two_underscores_are_given_unless_every_module_has_them(notebook: Notebook) -> None:
    notebook.run("__SCALE__ = '5'\n__doc__ = '7'\n")
    notebook.run("class Named:\n    name = __module__ + __qualname__\n    def me(self): return __class__ is Named\n")
    notebook.run(CELL.format("int(__SCALE__) + int(__doc__) + __debug__ + (__name__ in Named.name) + Named().me()"))
    assert notebook.samples() == [[15]]
    notebook.run(CELL.format("__NOWHERE__"))
    assert "__NOWHERE__ (not defined)" in refused(notebook)


BASE = """
class Base:
    @classmethod
    def make(cls, kind): return {'a': Sub, 'b': Another}[kind]()
"""


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        ([BASE, "class Sub(Base): n = 4", "class Another(Sub): n = 5"], "Base.make('a').n + Base.make('b').n"),
        (["import functools\ndef a(): return b()\n@functools.lru_cache(maxsize=len(a.__name__))\ndef b(): return 9"],
         "a()"),
        (["def z(): return 4\ndef a(): return z() if z() else B()\nclass B:\n    n = a() + 1"], "a() + B.n"),
        (["from __future__ import annotations\nclass A:\n    def m(self, b: B) -> B: return 9\nclass B(A): pass\n"
          + CELL.format("A().m(B())")], ""),
    ],
)  # fmt: skip
def test_definitions_come_behind_what_their_statements_need_when_they_run(
    notebook: Notebook, cells: list[str], value: str
) -> None:
    for cell in cells:
        notebook.run(cell)
    if value:
        notebook.run(CELL.format(value))
    assert notebook.samples() == [[9]]


def test_a_function_that_wraps_another_is_its_own_statement(notebook: Notebook) -> None:
    notebook.run("import builtins, functools\n@functools.wraps(builtins.sum)\ndef sum(x): return 42\n")
    notebook.run("def base(x): return x\n@functools.wraps(base)\ndef more(x): return base(x) + 1\n")
    shell: dict[str, Any] = {"__name__": "IPython.core.interactiveshell", "notebook": notebook.names}
    exec("import functools, io\n@functools.wraps(io.open)\ndef opened(*a): return io.open(*a)", shell)
    notebook.names["open"] = shell["opened"]
    notebook.run(CELL.format("sum([1]) + more(3) + (open is None)"))
    assert notebook.samples() == [[46]]


def test_cells_that_cannot_run_by_themselves_are_refused_before_anything_starts(notebook: Notebook) -> None:
    notebook.run("class C:\n    n = 1 // (__name__ == '__main__')\n" + CELL.format("C.n"))
    text = refused(notebook)
    assert "the cells that define process and what it uses cannot run by themselves" in text
    assert "ZeroDivisionError" in text
    assert "%%writefile" in text


# -- in a kernel -------------------------------------------------------------------------------------------------------
Execute = Callable[..., list[str]]
EXECUTE = """
import json, sys
import nbclient, nbformat
cells, path = json.load(sys.stdin)
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(book, timeout=60, allow_errors=True, resources={"metadata": {"path": path}}).execute()
json.dump([cell.outputs for cell in book.cells], sys.stdout)
"""


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs cells in a kernel; gives the text of each cell's output, of an error its name and message."""
    for module in ("ipykernel", "nbclient", "nbformat"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def run(*cells: str) -> list[str]:
        command = [sys.executable, "-c", EXECUTE]
        given = json.dumps([cells, str(tmp_path)])
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return ["".join(map(output_text, outputs)) for outputs in json.loads(done.stdout)]

    return run


def output_text(output: dict[str, Any]) -> str:
    match output["output_type"]:
        case "stream":
            return "".join(output["text"]) if output["name"] == "stdout" else ""
        case "error":
            return f"{output['ename']}: {output['evalue']}"
        case _:
            return "".join(output["data"].get("text/html", output["data"].get("text/plain")))


IN_A_KERNEL = """
import os, signal, threading, time
import pydp2
from pydp2 import integer_value, provider
NUMBER = 5
"""
FIRST = """
@provider(input_types=[integer_value(100)], should_shuffle=False)
def process(settings, filename):
    with open(os.devnull):  # IPython has an open() of its own
        for i in range(int(filename)):
            yield NUMBER + i

with pydp2.load(["3"], process, batch_size=10, workers=1) as data:
    print([batch[0].tolist() for batch in data])
"""


def test_a_provider_of_a_cell_is_served_and_an_edit_is_seen(execute: Execute) -> None:
    edited = FIRST.replace("NUMBER + i", "NUMBER - i")
    found = execute(IN_A_KERNEL, FIRST, edited, "NUMBER = 9", FIRST, "data", "batch = 1; process_2 = process; data")
    assert found[1:5] == ["[[5, 6, 7]]\n", "[[5, 4, 3]]\n", "", "[[9, 10, 11]]\n"]
    assert "closed in pass 1" in found[5]


def test_an_interrupt_leaves_a_service_usable_and_a_with_block_closed(execute: Execute) -> None:
    """As docs/notebooks.md says: in the body of the loop the pass is left; inside next() it goes on."""
    stop = "threading.Timer({}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    data = "data = pydp2.load(['9', '9'], process, batch_size=2, workers=1)"
    with_block = f"with pydp2.load(['9'], process, batch_size=1) as other:\n  {stop.format(0.1)}  time.sleep(60)"
    rest = "print(batch.pass_id, [(batch.pass_id, batch.index) for batch in data][0])"
    found = execute(
        IN_A_KERNEL, FIRST, data, f"for batch in data:\n  {stop.format(0.1)}  time.sleep(60)", rest,
        with_block, "next(iter(other))", "data.close(); print('ended')",
    )  # fmt: skip
    assert found[3].startswith("KeyboardInterrupt")
    assert found[4] == "0 (1, 0)\n"
    assert found[5].startswith("KeyboardInterrupt")
    assert found[6].startswith("ClientUseError: this client is closed")
    assert found[7] == "ended\n"


def test_the_notebook_of_the_docs_gives_the_outputs_that_it_shows(execute: Execute) -> None:
    file = Path(__file__).resolve().parents[2] / "docs/examples/digits.ipynb"
    cells = [cell for cell in json.loads(file.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    found = execute(*("".join(cell["source"]) for cell in cells))
    shown = ["".join(map(output_text, cell["outputs"])) for cell in cells]
    varies = ["varies" in cell["metadata"].get("tags", ()) for cell in cells]
    assert [text for text, other in zip(found, varies, strict=True) if not other] == [
        text for text, other in zip(shown, varies, strict=True) if not other
    ]
    assert [text for text in found if "Error: " in text] == []
    assert float(found[varies.index(True, 4)].split()[-1]) > 0.9

"""The house: which part may import which, and what must not be found anywhere (docs/architecture.md, "The house")."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import pydp2

ROOT = Path(__file__).resolve().parents[1]
CODE = ("pydp2", "cli", "sample_data")
INSTALLED_AS = {"pydp2_cli": "cli", "pydp2_samples": "sample_data"}
LIBRARIES = {  # numpy is at home everywhere
    "zmq": {"transport"},
    "msgpack": {"server.cache", "host", "protocol", "server", "server.snapshots", "options", "remote"},
    "obstore": {"remote"},
    "starlette": {"page"},
    "uvicorn": {"page"},
    "boto3": {"remote"},
    "huggingface_hub": {"remote"},
    "isal": {"data.columns", "remote"},
    "prometheus_client": {"server"},
    "ray": {"ray"},
    "paddle": {"paddle"},
    "tensorflow": {"tf"},
    "keras": {"keras"},
    "jax": {"jax", "keras"},
    "click": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
    "cramjam": {"formats"},
    "msgspec": {"formats"},
    "h5py": {"formats"},
    "lance": {"formats"},
    "lmdb": {"formats"},
    "numcodecs": {"formats"},
    "zarr": {"formats"},
    "google_crc32c": {"formats"},
    "zstandard": {"formats", "transport"},
    "torch": {"torch", "fluid"},
    "scipy": {"data.columns"},
    "pyarrow": {"data.columns"},
    "ml_dtypes": {"data.schema"},
    "PIL": {"formats", "mx"},
    "sklearn": {"sample_data"},  # the script that made the digits
}
EXECUTING = {"pickle", "cPickle", "shelve", "dill", "cloudpickle", "joblib", "code", "runpy"}
pytestmark = pytest.mark.xdist_group("house")  # in one process: each file is parsed once


def python_files(*tops: str) -> list[Path]:
    return [file for top in tops for file in sorted((ROOT / top).rglob("*.py"))]


@cache
def parts() -> dict[str, set[str]]:
    """Part to the parts that it may import, as docs/architecture.md says."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    block = text.partition("<!-- house -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("|").split("|") for line in block.strip().splitlines()[2:]]
    return {row[0].strip(" `"): set(re.findall(r"`([\w.]+)`", row[2])) for row in rows}


def part_of(file: Path) -> str:
    """The row of the table that ``file`` belongs to."""
    top, *rest = file.relative_to(ROOT).with_suffix("").parts
    if top != "pydp2":
        return top
    return "pydp2" if rest[0] == "__init__" else row_of(rest)


def row_of(path: list[str]) -> str:
    """The row of a module below ``pydp2``: a wing may have rows for its rooms."""
    inside = ".".join(path[:2])
    return inside if inside in parts() else path[0]


def module_of(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    parts[0] = next((name for name, top in INSTALLED_AS.items() if top == parts[0]), parts[0])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(file: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of ``file``, which is parsed once; the first is the module."""
    return [*ast.walk(ast.parse(file.read_text("utf-8")))]


@cache
def imports(file: Path) -> list[str]:
    """Dotted names that ``file`` imports, wherever in it and with ``import_module`` too; ``from a import b`` gives
    ``a.b``."""
    found = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are written in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [value.value for value in node.args if isinstance(value, ast.Constant)]
    return found


def ours(name: str) -> str | None:
    """The part that the import ``name`` leads to, None for a foreign one."""
    top, *rest = name.split(".")
    if top in INSTALLED_AS:
        return INSTALLED_AS[top]
    if top != "pydp2":
        return None
    known = rest and ((ROOT / "pydp2" / rest[0]).is_dir() or (ROOT / "pydp2" / f"{rest[0]}.py").is_file())
    return row_of(rest) if known else "pydp2"


@pytest.fixture(scope="module")
def table() -> dict[str, set[str]]:
    return parts()


def test_the_table_has_a_row_for_each_part_and_for_nothing_else(table: dict[str, set[str]]) -> None:
    assert set(table) == {part_of(file) for file in python_files(*CODE)}


def test_the_table_goes_one_way_only(table: dict[str, set[str]]) -> None:
    above: set[str] = set()
    for part, allowed in table.items():
        if part != "sample_data":  # it stands below all code; the demo reads its lists
            assert allowed - {"sample_data"} <= above, f"{part} may import what stands above it"
        above.add(part)


def test_every_part_imports_only_what_the_table_allows(table: dict[str, set[str]]) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}: {part_of(file)} may not import {part}"
        for file in python_files(*CODE)
        for name in imports(file)
        if (part := ours(name)) is not None and part not in table[part_of(file)] | {part_of(file)}
    ]
    assert wrong == []


def test_libraries_are_imported_only_where_they_belong() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in python_files(*CODE)
        for name in imports(file)
        if ours(name) is None and name.partition(".")[0] not in sys.stdlib_module_names | {"numpy"}
        if part_of(file) not in LIBRARIES.get(name.partition(".")[0], set())
        and not (file.parent / f"{name.partition('.')[0]}.py").exists()  # a script beside the data and its neighbour
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {module_of(file): file for file in python_files("pydp2", "cli")}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        graph[module] = set()
        for name in imports(file):
            target = name if name in modules else name.rpartition(".")[0]
            # a package that gathers the names of its own modules is imported with each of them: no circle of ours
            if target in modules and target != module and not module.startswith(f"{target}."):
                graph[module].add(target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def executing(of: Iterable[ast.AST]) -> Iterator[str]:
    """What in the nodes of a tree could run or build what was read from somewhere."""
    for node in of:
        match node:
            case ast.Name(id="eval" | "exec" | "compile" | "__import__" as name):
                yield f"line {node.lineno}: {name}"
            case ast.Attribute(attr="recv_pyobj" | "send_pyobj" as name):
                yield f"line {node.lineno}: {name}"
            case ast.keyword(arg="allow_pickle"):
                yield f"line {node.value.lineno}: allow_pickle"
            case ast.ImportFrom(module="marshal"):
                yield f"line {node.lineno}: from marshal"
            case ast.Attribute(value=ast.Name(id="marshal"), attr=name) if name != "dumps":
                # its bytes may be looked at as numbers, which is quick; reading them back builds objects
                yield f"line {node.lineno}: marshal.{name}"


def test_nothing_in_the_code_executes_what_it_read() -> None:
    wrong = []
    for file in python_files(*CODE):
        wrong += [f"{file}: imports {name}" for name in imports(file) if name.partition(".")[0] in EXECUTING]
        wrong += [f"{file}, {finding}" for finding in executing(nodes(file))]
    assert wrong == []
    bad = ast.parse("import marshal; marshal.loads(x); eval(y); np.load(z, allow_pickle=1)")
    assert len(list(executing(ast.walk(bad)))) == 3


def test_every_module_says_what_it_answers_for() -> None:
    modules = [(file, nodes(file)[0]) for file in python_files(*CODE)]
    assert [str(f.relative_to(ROOT)) for f, module in modules if not ast.get_docstring(cast(ast.Module, module))] == []


def public() -> dict[str, Any]:
    """The public names: those of the star import, and those that are re-exported beside them."""
    return {
        name: value
        for name in dir(pydp2)
        if not name.startswith("_")
        for value in [getattr(pydp2, name)]
        if name in pydp2.__all__ or not isinstance(value, ModuleType)
    }


def undocumented(name: str, value: Any) -> Iterator[str]:
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    if not (inspect.getdoc(value) or "").strip():
        yield name
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not attribute.startswith("_") and inspect.isfunction(member) and not (member.__doc__ or "").strip():
                yield f"{name}.{attribute}"


def test_every_public_name_and_its_methods_have_a_docstring() -> None:
    names = public()
    assert {"load", "launch", "connect", "Batch", "Client", "provider", "dense_vector"} <= set(names)
    assert [text for name, value in names.items() for text in undocumented(name, value)] == []


def test_every_folder_and_file_of_tests_mirrors_a_part_or_is_explained(table: dict[str, set[str]]) -> None:
    text = (ROOT / "docs/internals/tests.md").read_text("utf-8")
    explained = set(re.findall(r"^\| `(\w+)` ", text.partition("<!-- tests -->")[2].partition("<!-- end -->")[0], re.M))
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.glob("*.py"))}
    files = {p.name.removeprefix("test_").removesuffix(".py") for p in (ROOT / "tests").glob("test_*.py")}
    rooms = {part.rpartition(".")[2] for part in table}
    assert folders - rooms - explained == set()
    assert files - rooms - {"docs", "house", "packaging", "skips"} == set()


def tracked() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: which files belong to it cannot be told")
    return [file for name in listed.decode().split("\0") if name and (file := ROOT / name).is_file()]


def test_no_file_names_a_package_registry() -> None:
    hosts = [f"{host}.{end}".encode() for host, end in (("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"))]
    named = [f.name for f in tracked() for host in hosts if host in f.read_bytes()]
    assert named == []


def test_every_suppression_of_a_checker_is_for_something_named() -> None:
    bare = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in python_files(*CODE)
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)", line)
    ]
    assert bare == []


SAME_NAMES = {  # what two classes may be called
    "BeginPass": "a message, named so on the wire; an event of pydp2.reader, named so in Paddle",
    "Chunk": "a message, named so on the wire; a part of a RecordIO file, named so in its format",
    "Reader": "of each file format, under its public name",
    "Writer": "of each file format, under its public name",
}


def test_a_name_of_a_class_is_used_once_in_the_package() -> None:
    found = Counter(
        node.name for file in python_files("pydp2") for node in nodes(file) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == set(SAME_NAMES)


def test_each_term_of_the_glossary_stands_there_once_and_what_carries_it_exists() -> None:
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0].strip() != "term"]
    assert all(len(row) == 3 for row in rows)
    terms = Counter(term.strip() for row in rows for term in row[0].split(","))
    assert len(terms) > 80
    assert [term for term, count in terms.items() if count > 1] == []
    known: set[str] = set()
    for file in python_files("pydp2"):
        for node in nodes(file):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name):
                    known.add(name)
                case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    known.add(name)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row[2]) if name not in known] == []


def test_fewer_than_twelve_functions_are_longer_or_have_more_arguments_than_the_limits() -> None:
    """Each says why (the limits stand in pyproject.toml)."""
    exceptions = [
        line.partition("# noqa: ")[2]
        for file in python_files(*CODE)
        for line in file.read_text("utf-8").splitlines()
        if re.search(r"# noqa: (C901|PLR0913)", line)
    ]
    assert len(exceptions) < 12
    assert [text for text in exceptions if not re.fullmatch(r"(C901|PLR0913) - .+", text)] == []


ROLES = {"mod", "class", "func", "meth", "attr", "data"}


def test_what_a_docstring_refers_to_exists() -> None:
    """Modules by their file; classes, functions and methods by a definition of that name."""
    known: set[str] = set()
    for file in python_files("pydp2", "cli"):
        for node in nodes(file):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Attribute(attr=name):
                    known.add(name)
                case ast.Name(id=name):
                    known.add(name)
    wrong = []
    for file in python_files("pydp2", "cli"):
        for kind, target in re.findall(r":(\w+):`~?([\w.]+)`", file.read_text("utf-8")):
            path = ROOT / target.replace(".", "/") if target.startswith("pydp2.") else file.parent / target.lstrip(".")
            foreign = target.partition(".")[0] in sys.stdlib_module_names | {"numpy", "zmq"}
            if kind == "mod" and not foreign and not (path.is_dir() or path.with_suffix(".py").is_file()):
                wrong.append(f"{file.relative_to(ROOT)}: {target}")
            if kind not in ROLES:
                wrong.append(f"{file.relative_to(ROOT)}: there is no role {kind}")
            if kind != "mod" and not foreign and target.rpartition(".")[2] not in known:
                wrong.append(f"{file.relative_to(ROOT)}: {target}")
    assert wrong == []


def errors_named(docstring: str) -> set[str]:
    """The errors that a docstring says are raised: in a sentence, or as entries of a section "Raises:"."""
    sentences = re.findall(r"[Rr]aises? ((?:[A-Z]\w+(?:, | and | or )?)+)", docstring)
    section = docstring.partition("Raises:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^([A-Z]\w+(?:, [A-Z]\w+)*): ", textwrap.dedent(section), re.MULTILINE)
    return {name for names in (*sentences, *entries) for name in re.findall(r"[A-Z]\w+", names)}


def test_an_error_that_a_docstring_says_is_raised_exists() -> None:
    text = "Raises Aa and Bb.\n\nRaises:\n    Cc, Dd: x.\n    Ee: y,\n        Ff: z.\n\nReturns:\n    Gg: w."
    assert errors_named(text) == {"Aa", "Bb", "Cc", "Dd", "Ee"}
    trees = {file: nodes(file) for file in python_files("pydp2", "cli")}
    classes = {node.name for tree in trees.values() for node in tree if isinstance(node, ast.ClassDef)}
    named = [
        (file, name)
        for file, tree in trees.items()
        for node in tree
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module)
        for name in errors_named(ast.get_docstring(node) or "")
    ]
    assert len(named) > 200
    assert [
        f"{f.relative_to(ROOT)}: {name}" for f, name in named if name not in classes and not hasattr(builtins, name)
    ] == []

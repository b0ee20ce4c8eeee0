"""What an installation consists of. The wheel itself is built, compared and used by ``.ci/run``."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, TypeGuard

import pydp2_samples
import pytest

import pydp2

ROOT = Path(__file__).resolve().parents[1]

# What the original module offered; its helpers that were not meant for users are left out.
ORIGINAL = {
    "CacheType", "DataType", "InputType", "SequenceType", "provider",
    "dense_array", "dense_slot", "dense_vector", "dense_vector_sequence", "dense_vector_sub_sequence",
    "index_slot", "integer_sequence", "integer_value", "integer_value_sequence", "integer_value_sub_sequence",
    "sparse_binary_vector", "sparse_binary_vector_sequence", "sparse_binary_vector_sub_sequence",
    "sparse_float_vector", "sparse_float_vector_sequence", "sparse_float_vector_sub_sequence",
    "sparse_non_value_slot", "sparse_value_slot",
    "sparse_vector", "sparse_vector_sequence", "sparse_vector_sub_sequence",
}  # fmt: skip


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def face() -> dict[str, str]:
    """The names that ``pydp2`` has for a type checker, and where each is from."""
    (checked,) = (node for node in ast.parse(Path(pydp2.__file__).read_text("utf-8")).body if is_face(node))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


def is_face(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "_typing.TYPE_CHECKING"


def test_public_names_are_what_a_type_checker_sees_of_them() -> None:
    """They are imported when they are asked for, from where it says."""
    homes = face() | {"errors": "pydp2.errors"}
    assert {name for name in dir(pydp2) if name in homes} == set(homes) == set(pydp2._HOMES)
    for name, module in homes.items():
        found = importlib.import_module(module)
        assert getattr(pydp2, name) is (found if name == "errors" else getattr(found, name)), name
    assert set(pydp2.__all__) <= set(homes)
    with pytest.raises(AttributeError, match="module 'pydp2' has no attribute 'lod'"):
        _ = pydp2.lod  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'lod' from 'pydp2'"):
        exec("from pydp2 import lod")


def test_no_public_name_is_that_of_a_module_beside_it() -> None:
    """Importing the module would put it in place of the name."""
    beside = {
        p.stem for p in Path(pydp2.__file__).parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert beside & set(pydp2._HOMES) == {"errors"}


LATE = """
import sys
before = set(sys.modules)
{code}
print(*sorted({{name for name in sys.modules if name not in before}}))
"""


def imported(code: str) -> set[str]:
    """The modules that ``code`` imports in an interpreter of its own."""
    command = [sys.executable, "-c", LATE.format(code=code)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def parts(names: set[str]) -> set[str]:
    return {".".join(name.split(".")[:depth]) for name in names if name.startswith("pydp2.") for depth in (2, 3)}


def test_importing_pydp2_imports_nothing_else() -> None:
    """It takes milliseconds; and what it would import, anybody who imports only a part of it would pay for."""
    found = imported("import pydp2")
    folders = {"pydp2", "pydp2.system", "pydp2.data", "pydp2.data.columns"}  # a docstring each
    leaves = {"pydp2.system.release", "pydp2.data.columns.converters"}  # a line of code each
    assert {name for name in found if name.startswith("pydp2")} == folders | leaves
    assert found & {"numpy", "zmq", "msgpack", "asyncio", "inspect", "dataclasses"} == set()


@pytest.mark.parametrize(
    ("names", "needless"),
    [
        ("provider, dense_vector", {"pydp2.api", "pydp2.client", "pydp2.server", "pydp2.transport", "pydp2.order"}),
        (
            "Client, connect, launch, load",
            {"pydp2.order.batcher", "pydp2.order.pool", "pydp2.host.engine", "pydp2.fluid", "pydp2.mx", "pydp2.reader"},
        ),
    ],
)
def test_a_public_name_imports_no_more_than_it_needs(names: str, needless: set[str]) -> None:
    found = imported(f"from pydp2 import {names}")
    assert parts(found) & needless == set()
    assert "pydp2.diagnostics" not in parts(found)
    assert found & {"pydp2.host.worker.main", "pydp2.server.loop", "pydp2.server.cache.disk"} == set()
    assert found & {"asyncio", "importlib.metadata", "tomllib", "difflib", "numpy.random", "rich", "click"} == set()


def test_the_server_imports_neither_what_users_call_nor_what_event_loops_need() -> None:
    found = imported("import pydp2.server.main")
    assert (
        parts(found) & {"pydp2.api", "pydp2.client", "pydp2.diagnostics", "pydp2.fluid", "pydp2.mx", "pydp2.reader"}
        == set()
    )
    assert found & {"asyncio", "importlib.metadata", "tomllib", "difflib"} == set()


def folders(top: str, pattern: str, name: str) -> list[str]:
    """The folders below ``top`` that hold such files, as packages below ``name``."""
    found = {f.parent.relative_to(ROOT / top).parts for f in (ROOT / top).rglob(pattern) if f.is_file()}
    return sorted(".".join((name, *parts)) for parts in found if "__pycache__" not in parts)


def test_the_list_of_packages_is_that_of_the_folders(project: dict[str, Any]) -> None:
    packages = project["tool"]["setuptools"]["packages"]
    code = [*folders("pydp2", "*.py", "pydp2"), *folders("cli", "*.py", "pydp2_cli")]
    assert packages == [*code, *folders("sample_data", "*", "pydp2_samples")]


def test_every_folder_with_code_is_a_package() -> None:
    for top in ("pydp2", "cli"):
        holding = {file.parent for file in (ROOT / top).rglob("*.py")}
        assert [str(folder) for folder in holding if not (folder / "__init__.py").is_file()] == []


def test_the_renamed_folders_are_found_under_their_installed_names(project: dict[str, Any]) -> None:
    places = project["tool"]["setuptools"]["package-dir"]
    for name in ("pydp2", "pydp2_cli", "pydp2_samples"):
        found = importlib.import_module(name).__file__
        assert found is not None
        assert Path(found).parent == ROOT / places[name] or "site-packages" in found


def test_the_sample_data_are_shipped_with_all_of_their_files(project: dict[str, Any]) -> None:
    setup = project["tool"]["setuptools"]
    assert setup["package-data"]["pydp2_samples"] == ["**/*"]
    assert setup["package-data"]["pydp2"] == [
        "py.typed",
        "**/*.pyi",
        "**/*.pyx",
        *(f"page/*.{end}" for end in ("html", "js", "css", "svg")),
    ]
    assert "**/__pycache__/*" in setup["exclude-package-data"]["*"]
    assert (ROOT / "pydp2/py.typed").is_file()
    assert len(pydp2_samples.files("digits")) == 10
    assert all(Path(file).is_file() for file in pydp2_samples.files("digits"))


def test_the_licences_that_are_named_are_there(project: dict[str, Any]) -> None:
    assert set(project["project"]["license"].split(" AND ")) == {"Apache-2.0", "CC-BY-4.0"}
    files = project["project"]["license-files"]
    assert files == ["LICENSE"]
    assert [file.name for file in ROOT.rglob("LICENSE*") if ".venv" not in file.parts] == ["LICENSE"]
    assert "creativecommons.org/licenses/by/4.0" in (ROOT / "sample_data/digits/README.md").read_text("utf-8")


def test_the_version_is_the_same_wherever_it_stands(project: dict[str, Any]) -> None:
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert project["project"]["version"] == pydp2.__version__ == newest[1]


WORKFLOWS = [*(ROOT / ".github/workflows").glob("*.yml")]
TOOLS = {
    "cibuildwheel",
    "build",
    "pip",
    "twine",
    "venv",
}  # modules and programs that a workflow installs, or Python has


def test_workflows_run_what_exists() -> None:
    assert {file.name for file in WORKFLOWS} == {"ci.yml", "wheels.yml"}
    commands = [
        line for file in WORKFLOWS for line in re.findall(r"^ *(?:- )?run: (.*)$", file.read_text("utf-8"), re.M)
    ]
    assert ".ci/run" in commands
    assert os.access(ROOT / ".ci/run", os.X_OK)
    for command in commands:
        for part in command.split(" && "):
            words = part.split()
            if words[0] in ("python", "python3"):
                assert words[1] == "-m"
                assert words[2] in TOOLS, command
            elif words[0].startswith(".venv/bin/"):
                assert words[0].rpartition("/")[2] in TOOLS, command
            else:
                assert command == ".ci/run"


def test_releases_have_wheels_of_the_pythons_that_are_checked(project: dict[str, Any]) -> None:
    checked = re.findall(
        r'"(3\.\d+)"', re.findall(r"python: \[.*\]", (ROOT / ".github/workflows/ci.yml").read_text())[0]
    )
    built = project["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{version.replace('.', '')}-*" for version in checked]
    assert project["project"]["requires-python"] == f">={checked[0]}"
    tried = [name.rpartition(" ")[2] for name in project["project"]["classifiers"] if "Python :: 3." in name]
    assert set(tried) <= set(checked)


def test_only_the_job_that_publishes_has_a_right_beyond_reading() -> None:
    for file in WORKFLOWS:
        text = file.read_text("utf-8")
        assert re.search(r"^permissions:\n  contents: read\n", text, re.M), file
        rights = re.findall(r"^ +(\S+): write", text, re.M)
        assert rights == (["id-token"] if file.name == "wheels.yml" else [])
    jobs = (ROOT / ".github/workflows/wheels.yml").read_text("utf-8").partition("\n  publish:\n")
    assert "id-token: write" in jobs[2]
    assert "if: startsWith(github.ref, 'refs/tags/v')" in jobs[2]


def test_what_the_code_imports_is_what_an_installation_brings(project: dict[str, Any]) -> None:
    names = {re.match(r"[\w-]+", text)[0] for text in project["project"]["dependencies"]}  # type: ignore[index]
    assert names == {"numpy", "pyzmq", "msgpack", "click", "rich"}


def test_the_star_import_gives_the_names_of_the_original_and_shadows_no_builtin() -> None:
    names: dict[str, Any] = {}
    exec("from pydp2 import *", names)
    given = {name for name in names if name != "__builtins__"}
    assert given == {*ORIGINAL, "define_py_data_sources2"}
    assert [name for name in given if hasattr(builtins, name)] == []


def test_all_names_every_public_name_once_and_in_order() -> None:
    assert pydp2.__all__ == sorted(set(pydp2.__all__))
    assert [name for name in pydp2.__all__ if not hasattr(pydp2, name)] == []


def test_no_public_name_hides_a_part() -> None:
    parts = {p.stem for p in (ROOT / "pydp2").iterdir() if p.is_dir() or p.suffix == ".py"}
    public = set(pydp2.__all__) | {name for name, value in vars(pydp2).items() if callable(value)}
    assert public & parts == set()


def test_what_an_error_says_to_install_is_what_the_extra_installs(project: dict[str, Any]) -> None:
    """As long as no index has pydp2, `pip install 'pydp2[…]'` is an error, so hints name the packages themselves."""
    extras = {
        requirement for packages in project["project"]["optional-dependencies"].values() for requirement in packages
    }
    hints = []
    for file in sorted(path for folder in ("pydp2", "cli", "configs", "docs") for path in (ROOT / folder).rglob("*")):
        if file.suffix in (".py", ".md", ".toml"):
            text = file.read_text("utf-8")
            assert "install 'pydp2[" not in text, file
            hints += re.findall(r"'([\w-]+>=[\d.]+)'", text) if file.suffix == ".py" else []
    assert len(hints) > 10
    assert set(hints) <= extras

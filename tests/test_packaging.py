"""What an installation consists of. The wheel itself is built, compared and used by ``.ci/run``."""

from __future__ import annotations

import builtins
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

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
    assert setup["package-data"]["pydp2"] == ["py.typed", "**/*.pyi", "**/*.pyx"]
    assert "**/__pycache__/*" in setup["exclude-package-data"]["*"]
    assert (ROOT / "pydp2/py.typed").is_file()
    assert len(pydp2_samples.files("digits")) == 10
    assert all(Path(file).is_file() for file in pydp2_samples.files("digits"))


def test_the_licences_that_are_named_are_there(project: dict[str, Any]) -> None:
    assert set(project["project"]["license"].split(" AND ")) == {"Apache-2.0", "CC-BY-4.0", "PSF-2.0"}
    files = project["project"]["license-files"]
    assert files == ["LICENSE", "sample_data/LICENSE-PSF.txt"]
    assert all((ROOT / file).is_file() for file in files)
    assert "creativecommons.org/licenses/by/4.0" in (ROOT / "sample_data/digits/README.md").read_text("utf-8")


def test_the_version_is_the_same_wherever_it_stands(project: dict[str, Any]) -> None:
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert project["project"]["version"] == pydp2.__version__ == newest[1]


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

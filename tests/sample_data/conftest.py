"""What the tests of the sample data share: the package of the sets, under whatever name it lies, and its scripts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def load(name: str, file: Path) -> ModuleType:
    """The module in ``file``, imported under ``name``."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    """Package ``pydp2_samples``: the installed one, or the checkout's folder under that name."""
    try:
        return importlib.import_module("pydp2_samples")
    except ModuleNotFoundError:
        return load("pydp2_samples", CHECKOUT / "sample_data/__init__.py")


@pytest.fixture(scope="session")
def script(samples: ModuleType) -> Callable[[str], ModuleType]:
    """A module of the sample data by its path there, such as ``digits/make_digits.py``."""
    folder = Path(samples.__file__ or "").parent
    return lambda path: load(f"_sample_data_{Path(path).stem}", folder / path)


@pytest.fixture(scope="session")
def configs() -> Path:
    """The checkout's folder of configs; they name the sets by their place in the checkout."""
    if not (CHECKOUT / "sample_data").is_dir():
        pytest.skip("the configs are of the checkout, and this is not one")
    return CHECKOUT / "configs"

"""``python -m pydp2``: the same as ``pydp2``; in a checkout also where nothing is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_FOLDERS = {"pydp2_cli": "cli", "pydp2_samples": "sample_data"}
"""Packages that have another name once they are installed."""


def _find_in_checkout() -> None:
    """Make the packages that are not installed importable from the folders beside this one."""
    for name, folder in _FOLDERS.items():
        file = Path(__file__).resolve().parents[1] / folder / "__init__.py"
        if importlib.util.find_spec(name) is None and file.is_file():
            spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)


def _main() -> None:
    _find_in_checkout()
    from pydp2_cli import main

    main(prog_name="pydp2")


if __name__ == "__main__":
    _main()

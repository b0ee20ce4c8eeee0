"""Show which module is being imported while the module of a provider is imported.

Importing torch imports hundreds of modules, and the user knows only torch. So the name that is shown is that of the
outermost installed module (in site-packages) among the nested imports that are under way.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_INSTALLED = frozenset(("site-packages", "dist-packages"))


def is_installed(file: str) -> bool:
    """Return True if ``file`` belongs to an installed package, and not to the user's own code."""
    return not _INSTALLED.isdisjoint(Path(file).parts)


class _ImportWatch(MetaPathFinder):
    """Finder that finds nothing. As the first one in ``sys.meta_path``, it is called for every module that is
    imported."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._shown = ""
        self._under_way: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if "." in name:  # its package is shown, not the module
            return None
        self._under_way = [outer for outer in self._under_way if _is_under_way(outer)]
        self._under_way.append(name)
        known = (module for module in self._under_way if _is_installed(module))
        shown = next(known, name)
        if shown != self._shown:
            self._shown = shown
            self._show(f"importing {shown}")
        return None


def _is_under_way(name: str) -> bool:
    """Return True if the import of module ``name`` has begun and not ended."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _is_installed(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return is_installed(getattr(spec, "origin", None) or "")


@contextlib.contextmanager
def shown_imports(show: Callable[[str], None]) -> Iterator[None]:
    """Call ``show`` with "importing torch" while modules are imported in the context."""
    watch = _ImportWatch(show)
    sys.meta_path.insert(0, watch)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have replaced the list of finders
            sys.meta_path.remove(watch)

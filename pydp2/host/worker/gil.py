"""Require the interpreter's global lock, on which a worker's threads rely (:mod:`.loop`)."""

from __future__ import annotations

import sys

from pydp2.errors import GuardError


def require_gil() -> None:
    """Raise GuardError in an interpreter that runs without its global lock (the GIL)."""
    enabled = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    if enabled is not None and not enabled():
        import platform

        version = ".".join(platform.python_version_tuple()[:2])
        raise GuardError(
            f"pydp2 needs an interpreter with its global lock (GIL), on which threads of its workers rely; this one, "
            f"{sys.executable} (Python {platform.python_version()}, free-threaded), runs without; set PYTHON_GIL=1 in "
            f"the environment, or use a python{version} that is not free-threaded"
        )

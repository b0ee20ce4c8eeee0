"""Choose between the compiled and the Python form of packing, gathering and random bits.

Where the compiled forms were not built, the same is done in Python, with the same results. This package
imports nothing of pydp2.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PURE_PYTHON_VARIABLE = "PYDP2_PURE_PYTHON"
"""Environment variable: with any value but 0, packing runs in Python even if the compiled form is there."""

_load_error = ""
try:
    from pydp2.data.native import _packing
except ImportError as error:  # built only where there is a compiler
    _packing = None  # type: ignore[assignment]
    _load_error = str(error)


class PackingForm(NamedTuple):
    """Form in which samples are packed here. ``text``: "compiled", or "in Python" and why; ``remedy``: how to get the
    compiled form, where ``text`` does not say it already, else ''."""

    text: str
    is_compiled: bool
    remedy: str = ""


COMPILED = PackingForm("compiled", True)


def is_built() -> bool:
    """Return True if the compiled form is there."""
    return _packing is not None


def is_active() -> bool:
    """Return True if the compiled form runs."""
    return is_built() and os.environ.get(PURE_PYTHON_VARIABLE, "0") in ("", "0")


def packing() -> str:
    """Return the form of packing in this installation as text: ``"compiled"``, or ``"in Python"`` with the reason."""
    return packing_form().text


def packing_form() -> PackingForm:
    """Return the form in which samples are packed in this installation."""
    if is_active():
        return COMPILED
    reason, remedy = (f"{PURE_PYTHON_VARIABLE} is set", "unset it") if is_built() else _why_not_built()
    return PackingForm(f"in Python, because {reason}", False, remedy)


def _why_not_built() -> tuple[str, str]:
    """Return the reason why there is no compiled form, as the end of a sentence, and a remedy; '' if there is none, or
    the reason names it."""
    import sysconfig

    folder = Path(__file__).parent
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if (folder / f"_packing{suffix}").exists():
        return f"what was compiled cannot be loaded: {_load_error}", ""
    others = sorted(file.name.removeprefix("_packing") for file in folder.glob("_packing.*.so"))
    if others:
        return f"it was compiled for {others[0]}, and this Python needs {suffix}: install pydp2 again for it", ""
    checkout = folder.parents[2]
    if (checkout / "pyproject.toml").exists() and not _installed_from(checkout):
        return f"this checkout was never built: pip install -e {checkout} does, where there is a C compiler", ""
    return "there was no C compiler at the installation", "install pydp2 where there is one"


def _installed_from(checkout: Path) -> bool:
    """Return True if an installation of pydp2 runs the code in ``checkout``, and so was there to compile it."""
    import importlib.metadata
    import json

    for found in importlib.metadata.distributions(name="pydp2"):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable") and origin.get("url") == checkout.as_uri():
            return True
    return False

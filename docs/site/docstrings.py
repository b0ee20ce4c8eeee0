"""Docstrings as Markdown: a role such as ``:class:`Batch``` is shown as ``Batch``."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|data|attr|mod|exc):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Replace the roles of reStructuredText in each docstring by code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)

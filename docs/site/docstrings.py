"""Docstrings as Markdown: a role such as ``:class:`Batch``` is shown as ``Batch``, and docs/order.md as a link."""

import re
from pathlib import Path
from typing import Any

import griffe

_DOCS = Path(__file__).resolve().parents[1]
_ROLE = re.compile(r":(?:class|func|meth|data|attr|mod|exc):`~?([^`]+)`")
_PAGE = re.compile(r"docs/([\w-]+)\.md")


def link(page: str) -> str:
    """A link to a page of the site, with the page's title."""
    title = (_DOCS / f"{page}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({page}.html)"


class PlainRoles(griffe.Extension):
    """Rewrite each docstring before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``, if it has one."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _PAGE.sub(lambda match: link(match[1]), text)

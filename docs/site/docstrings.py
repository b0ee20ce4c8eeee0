"""Docstrings as Markdown: a role such as ``:class:`Batch``` is shown as ``Batch``, docs/order.md as a link, and an
entry of two parameters, such as ``x, y: slots``, as an entry for each, because griffe knows no others.
"""

import re
from pathlib import Path
from typing import Any

import griffe

_DOCS = Path(__file__).resolve().parents[1]
_ROLE = re.compile(r":(?:class|func|meth|data|attr|mod|exc):`~?([^`]+)`")
_PAGE = re.compile(r"docs/([\w-]+)\.md")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)+):(.*(?:\n     .*)*)", re.MULTILINE)


def link(page: str) -> str:
    """A link to a page of the site, with the page's title."""
    title = (_DOCS / f"{page}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({page}.md)"


def one_entry_each(text: str, parameters: set[str]) -> str:
    """``text`` with an entry for each parameter where it has one for several. Entries of other names, such as errors,
    stay as they are."""

    def entries(match: re.Match[str]) -> str:
        names = match[1].split(", ")
        return "\n".join(f"    {name}:{match[2]}" for name in names) if parameters.issuperset(names) else match[0]

    return _ENTRY.sub(entries, text)


class PlainRoles(griffe.Extension):
    """Rewrite each docstring before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``, if it has one."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            if isinstance(obj, griffe.Function):
                text = one_entry_each(text, {parameter.name for parameter in obj.parameters})
            obj.docstring.value = _PAGE.sub(lambda match: link(match[1]), text)

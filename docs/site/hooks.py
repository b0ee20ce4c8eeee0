"""What turns the Markdown files of docs/ into pages of the site: API entries, links to files outside of docs/, and
tables whose cells carry the heading of their column, because a narrow screen shows them below each other (site.css).
"""

from __future__ import annotations

import re
from html import escape, unescape
from inspect import ismodule
from pathlib import Path
from typing import Any

import pydp2

_DOCS = Path(__file__).resolve().parents[1]
_ENTRY = re.compile(r"^::: pydp2\.(\w+)$", re.MULTILINE)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Prepare the text of one page; called by mkdocs."""
    here = (_DOCS / page.file.src_path).parent
    markdown = _ENTRY.sub(lambda match: api_entry(match[1]), markdown)
    return _LINK.sub(lambda match: source_link(match[0], match[1], here / match[2]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Name the columns in the cells of the tables of one page; called by mkdocs."""
    return _TABLE.sub(lambda match: named_columns(match[0]), html)


def named_columns(table: str) -> str:
    """``table`` with its headings also in its cells, as attribute ``data-label``. Two columns fit on every screen."""
    texts = (re.sub(r"<[^>]+>", "", heading).strip() for heading in _HEADING.findall(table))
    headings = [escape(unescape(text)) for text in texts]
    if len(headings) < 3:
        return table

    def row(match: re.Match[str]) -> str:
        names = iter(headings)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{next(names)}"', match[0])

    return _ROW.sub(row, table).replace("<table>", f'<table data-columns="{len(headings)}">', 1)


def api_entry(name: str) -> str:
    """The entry of a public name, for the module that defines it: `pydp2` only re-exports it."""
    value = getattr(pydp2, name)
    if ismodule(value):
        return f"::: pydp2.{name}"
    return f"::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: {name}\n      toc_label: {name}"


def source_link(link: str, text: str, target: Path) -> str:
    """``link``, or its text where it leads out of docs/: the site has no page there, so the path becomes a hint."""
    file = Path(str(target).partition("#")[0]).resolve()
    if file.is_relative_to(_DOCS):
        return link
    path = file.relative_to(_DOCS.parent)
    if re.fullmatch(r"test_\w+", text):
        text = f"<code>{text}</code>"
    return f'<span class="source" title="{path}">{text}</span>'

"""Small HTML tables, in which notebooks show objects (``_repr_html_``). All text is escaped; there is no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

MAX_ROWS = 20
_STYLE = ' style="text-align:left"'  # notebooks set cells to the right


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with at most :data:`MAX_ROWS` of ``rows``, and the number of those left out. ``header``: titles of
    the columns, none if each row says by its first cell what it is."""
    lines = [_row("th", header)] if header else []
    lines += [_row("td", cells) for cells in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines.append(_row("td", [f"… and {len(rows) - MAX_ROWS:,} more"]))
    return f"<div><p>{escape(caption)}</p><table>{''.join(lines)}</table></div>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}{_STYLE}>{escape(str(each))}</{tag}>' for each in cells)}</tr>"

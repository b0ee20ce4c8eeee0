"""Tables for notebooks: all text is escaped, and they stay small."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.html_table import MAX_ROWS, html_table

KNOWN = r"</?(?:div|p|table|tr)>|<t[hd] style=\"text-align:left\">|</t[hd]>"


def cells(table: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", table, re.DOTALL)]


@given(caption=st.text(), rows=st.lists(st.tuples(st.text(), st.integers()), max_size=5))
def test_text_comes_back_as_it_was_and_makes_no_element(caption: str, rows: list[tuple[str, int]]) -> None:
    table = html_table(caption, ("a<b", "c&d"), rows)
    assert not re.search("[<>]", re.sub(KNOWN, "", table))
    assert cells(table) == ["a<b", "c&d", *(str(each) for row in rows for each in row)]


def test_many_rows_are_cut_and_counted() -> None:
    table = html_table("many", (), [(n, n) for n in range(1500)])
    assert cells(table)[-2:] == [str(MAX_ROWS - 1), "… and 1,480 more"]

"""docs/semantics.md makes 58 statements; each stands there, and leads to tests that are there and carry its number."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "semantics.md"
STATEMENTS = range(1, 59)
LINK = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")


def statements() -> dict[int, str]:
    """Each statement by its number: what stands between its mark and the next mark or heading."""
    found = re.findall(r"^- \*\*PD-(\d+)\.\*\* (.*?)(?=^- \*\*PD-|^#|\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    return {int(number): text for number, text in found}


def functions_of(file: Path) -> set[str]:
    """The test functions of a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def number_of(name: str) -> int | None:
    """The statement that a test's name carries: test_pd_7_… and test_pd_07_… carry 7."""
    match = re.match(r"test_pd_0*(\d+)_", name)
    return None if match is None else int(match[1])


def test_the_page_makes_every_statement_once_and_in_order() -> None:
    marks = [int(n) for n in re.findall(r"^- \*\*PD-(\d+)\.\*\*", PAGE.read_text("utf-8"), re.M)]
    assert marks == list(STATEMENTS)


def test_every_statement_is_carried_by_a_test() -> None:
    carried = {number_of(name) for file in (ROOT / "tests").rglob("test_*.py") for name in functions_of(file)}
    assert set(STATEMENTS) <= carried
    assert carried - {None} <= set(STATEMENTS)


@pytest.mark.parametrize("number", STATEMENTS)
def test_a_statement_leads_to_tests_that_hold_it(number: int) -> None:
    links = LINK.findall(statements()[number])
    assert number in {number_of(name) for name, _ in links}
    for name, file in links:
        assert name in functions_of(ROOT / file), f"PD-{number} leads to {name}, which is not in {file}"


def test_every_test_on_the_page_is_one_that_is_there() -> None:
    """Also those that are named outside of the statements."""
    text = PAGE.read_text("utf-8")
    assert len(LINK.findall(text)) == len(re.findall(r"\btest_\w+\]", text))
    for name, file in LINK.findall(text):
        assert name in functions_of(ROOT / file)

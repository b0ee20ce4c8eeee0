"""Pages of docs/ make numbered statements; each stands there, and leads to tests that are there and carry its name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("checklist")  # in one process: each file is parsed once
STATEMENTS: dict[str, dict[str, list[int]]] = {
    "semantics.md": {"PD": [*range(1, 59)]},
    "fluid.md": {"CF": [*range(1, 33)]},
    "readers.md": {"RD": [*range(1, 39)]},
    "formats.md": {"MX": [*range(33, 39), 40]},
    "mxnet.md": {"MX": [*range(1, 33), 39, 41, 42]},
}
"""Page to the statements that it makes: their letters, their numbers."""
LINK = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")
ALL = [
    pytest.param(page, f"{letters}-{number}", id=f"{letters}-{number}")
    for page, numbers in STATEMENTS.items()
    for letters, of in numbers.items()
    for number in of
]


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def statements(page: str) -> dict[str, str]:
    """Each statement by its number: what stands between its mark and the next mark or heading."""
    found = re.findall(r"^- \*\*([A-Z]{2}-\d+)\.\*\* (.*?)(?=^- \*\*[A-Z]{2}-|^#|\Z)", text_of(page), re.M | re.S)
    return dict(found)


@cache
def functions_of(file: Path) -> set[str]:
    """The test functions of a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def number_of(name: str) -> str | None:
    """The statement that a test's name carries: test_pd_7_… and test_pd_07_… carry PD-7."""
    match = re.match(r"test_([a-z]{2})_0*(\d+)_", name)
    return None if match is None else f"{match[1].upper()}-{match[2]}"


@pytest.mark.parametrize("page", STATEMENTS)
def test_a_page_makes_every_statement_once_and_in_order(page: str) -> None:
    marks = re.findall(r"^- \*\*([A-Z]{2})-(\d+)\.\*\*", text_of(page), re.M)
    for letters, numbers in STATEMENTS[page].items():
        assert [int(number) for other, number in marks if other == letters] == numbers
    assert {letters for letters, _ in marks} == set(STATEMENTS[page])


def test_no_page_but_these_makes_statements() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md") if statements(page.name)}
    assert pages == set(STATEMENTS)
    made = [(letters, n) for numbers in STATEMENTS.values() for letters, of in numbers.items() for n in of]
    assert len(made) == len(set(made))


def test_every_statement_is_carried_by_a_test() -> None:
    carried = {number_of(name) for file in (ROOT / "tests").rglob("test_*.py") for name in functions_of(file)}
    made = {f"{letters}-{n}" for numbers in STATEMENTS.values() for letters, of in numbers.items() for n in of}
    assert made == carried - {None}


@pytest.mark.parametrize(("page", "number"), ALL)
def test_a_statement_leads_to_tests_that_hold_it(page: str, number: str) -> None:
    links = LINK.findall(statements(page)[number])
    assert number in {number_of(name) for name, _ in links}
    for name, file in links:
        assert name in functions_of(ROOT / file), f"{number} leads to {name}, which is not in {file}"


@pytest.mark.parametrize("page", STATEMENTS)
def test_every_test_on_a_page_is_one_that_is_there(page: str) -> None:
    """Also those that are named outside of the statements."""
    text = text_of(page)
    assert len(LINK.findall(text)) == len(re.findall(r"\btest_\w+\]", text))
    for name, file in LINK.findall(text):
        assert name in functions_of(ROOT / file)

"""The tables of docs/mxnet.md name every parameter of the iterators, with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from pydp2.mx import CSVIter, ImageRecordIter, MNISTIter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mxnet.md"
COMMON = {"data_name": "data", "label_name": "softmax_label"}
"""Said once for all of them, above the tables."""


def written(heading: str) -> dict[str, str]:
    """Parameter to its default as it is written, of the tables from ``heading`` on to the next one as high."""
    text = PAGE.read_text("utf-8").partition(f"\n### {heading}\n")[2]
    text = re.split(r"^##{1,2} ", text, maxsplit=1, flags=re.M)[0]
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.M):
        listed, values = re.findall(r"`(\w+)`", names), re.findall(r"`([^`]*)`", defaults) or [defaults.strip()]
        found |= dict(zip(listed, values * (len(listed) if len(values) == 1 else 1), strict=True))
    return found


def shown(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "needed"
    if default == "" or default in ("NULL", "auto"):
        return f'"{default}"'
    if isinstance(default, type):
        return f'"{default.__name__}"'
    return "1e10" if default == 1e10 else str(default)


@pytest.mark.parametrize("iterator", [CSVIter, MNISTIter, ImageRecordIter])
def test_the_tables_have_every_parameter_with_its_default(iterator: Any) -> None:
    parameters = {name: shown(p.default) for name, p in inspect.signature(iterator).parameters.items()}
    assert {name: parameters.pop(name) for name in COMMON} == COMMON
    assert written(iterator.__name__) == parameters


def test_all_parameters_are_given_by_name() -> None:
    for iterator in (CSVIter, MNISTIter, ImageRecordIter):
        assert {p.kind for p in inspect.signature(iterator).parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}

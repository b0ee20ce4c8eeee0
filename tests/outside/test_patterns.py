"""Regular expressions see bytes from outside: their time grows with the length of the input, and not faster.

Every pattern of the tree meets inputs that are made from its own literals: a unit many times, with something before and
behind it. A pattern that can match a text in more than one way takes time that grows with the square of the length, or
doubles with each unit. The limit is a time, but a wide one: it is five hundred times what a linear pattern needs, and a
tenth of what a quadratic one does.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pydp2.errors import FormatError, OptionError
from pydp2.formats import comma, libsvm, lst, record_index
from pydp2.options.values import number_of_bytes
from pydp2.reader.unpickled import plain

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (6, 8, 10, 12, 16, 64, 512, 8192)
"""Numbers of units. The small ones find patterns whose time doubles, before it takes years."""
LIMIT = 0.1
EVERYWHERE = ("search", "finditer", "findall", "sub", "split")
COMMON = ["1", ".", "e", "+", "-", " ", "\t", ",", "'", '"', "\\", "a", "_"]


def seconds(function: Callable[[], Any]) -> float:
    """The processor time of this thread that a call takes: other processes do not count."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


class Used(NamedTuple):
    """A pattern, and the way in which the code looks for it: only at one place, or at every place of a text."""

    pattern: re.Pattern[Any]
    everywhere: bool


def used(source: Path) -> Iterator[Used]:
    """The patterns of a module: those that it keeps, and those that are written where they are used."""
    text = source.read_text()
    if "re." not in text:
        return
    calls = [
        call
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("re.") and call.args
    ]
    if not calls:
        return
    module = importlib.import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
    kept = {name: value for name, value in vars(module).items() if isinstance(value, re.Pattern)}
    assert len(kept) >= sum(ast.unparse(call.func) == "re.compile" for call in calls)
    for name, value in kept.items():
        yield Used(value, any(f"{name}.{way}(" in text for way in EVERYWHERE))
    for call in calls:
        way = ast.unparse(call.func).removeprefix("re.")
        if way != "compile" and isinstance(call.args[0], ast.Constant):
            yield Used(re.compile(call.args[0].value), way in EVERYWHERE)


def patterns() -> dict[str, Used]:
    return {
        f"{source.relative_to(ROOT)} {number}": found
        for source in sorted((ROOT / "pydp2").rglob("*.py"))
        for number, found in enumerate(dict.fromkeys(used(source)))
    }


PATTERNS = patterns()


def pieces(pattern: re.Pattern[Any]) -> list[str]:
    """Short texts that the pattern knows: signs that occur in it, and what it accepts of the common ones."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    literal = re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text)
    words = re.findall(r"[?]?[a-z]{2,}[=:]?", literal)
    return list(dict.fromkeys([*COMMON, *words, *(each for each in literal if ord(each) < 32)]))


def as_input(pattern: re.Pattern[Any], text: str) -> Any:
    return text if isinstance(pattern.pattern, str) else text.encode("latin-1")


def check_growth(measure: Callable[[str], float], texts: Iterator[tuple[str, str, str]]) -> None:
    for before, unit, behind in texts:
        for length in LENGTHS:
            text = before + unit * length + behind
            if (took := measure(text)) > LIMIT:
                took = min(took, measure(text))  # something else may have had the processor's caches
            assert took <= LIMIT, f"{took:.2f} s for {before!r} + {unit!r} * {length} + {behind!r}"


def test_all_patterns_are_found() -> None:
    assert len(PATTERNS) > 25
    assert any(key.startswith("pydp2/formats/lines.py") for key in PATTERNS)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_a_pattern_grows_with_the_length_of_its_input(name: str) -> None:
    pattern, everywhere = PATTERNS[name]
    some = pieces(pattern)
    units = [*some, "\\111", "1.", "e1", "1:", "1\t"]

    def measure(text: str) -> float:
        given = as_input(pattern, text)
        return seconds(lambda: pattern.findall(given) if everywhere else pattern.fullmatch(given))

    check_growth(measure, itertools.product(["", "'", *some[:1], *some[len(COMMON) :]], units, ["!", "\\q'"]))


READ: dict[str, Callable[[bytes], Any]] = {
    "csv": lambda line: list(comma.read(io.BytesIO(line))),
    "csv of ints": lambda line: list(comma.read(io.BytesIO(line), dtype="int64")),
    "libsvm": lambda line: list(libsvm.read(io.BytesIO(line))),
    "lst": lambda line: list(lst.read(io.BytesIO(line))),
    "index": lambda line: list(record_index.read(io.BytesIO(line)).keys),
    "pickle": lambda line: plain(b"S" + line + b"\n."),
    "size": lambda line: number_of_bytes("size", line.decode()),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("before", ["", "1", "1 1:", "1\t", "1\t1\t", "'", "1,"])
def test_the_time_for_a_long_field_grows_with_its_length(name: str, before: str) -> None:
    def read(text: str) -> None:
        with contextlib.suppress(FormatError, OptionError):
            READ[name](text.encode())

    units = ["1", ".", "1.", "e", "e1", "+", " ", "\t", "\\111", "'", '"', "#", "-"]
    texts = itertools.product([before], units, ["x", "", "\\q'", "\n1"])
    check_growth(lambda text: seconds(lambda: read(text)), texts)


def test_a_slow_pattern_is_noticed() -> None:
    slow = re.compile(r"\d+\.?\d*")
    with pytest.raises(AssertionError, match=r"'1' \* 8192"):
        check_growth(lambda text: seconds(lambda: slow.fullmatch(text)), iter([("", "1", "!")]))
    doubling = re.compile(r"(1|11)*")
    with pytest.raises(AssertionError, match="'11'"):
        check_growth(lambda text: seconds(lambda: doubling.fullmatch(text)), iter([("", "11", "!")]))

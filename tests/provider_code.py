"""Code of providers for ``provider_file``, named for what each file gives.

``options`` are further arguments of the decorator, as text: ``numbers(500, "pool_size=64")``. Expressions and
statements that are given as text see the number ``i`` of the sample in its file, ``filename`` and ``settings``.
"""

from __future__ import annotations

import textwrap


def numbers(
    count: int | str, options: str = "", *, first: str = "0", before: str = "", pause: float = 0.0, below: int = 1 << 40
) -> str:
    """``count`` integers from ``first`` on. ``before``: what happens before each of them, after a ``pause``. In the
    slot they have to be ``below`` a limit."""
    steps = [*[f"time.sleep({pause})"] * bool(pause), *[before] * bool(before), f"yield {first} + i"]
    body = textwrap.indent("\n".join(steps), "    ")
    return _provider(f"integer_value({below})", options, f"for i in range({count}):\n{body}")


def one(options: str = "") -> str:
    """The number 1."""
    return numbers(1, options, first="1", below=10)


def lines(options: str = "", *, slot: str = f"integer_value({1 << 40})", sample: str = "int(line)") -> str:
    """The integer of each ``line`` of the file, or what the expression ``sample`` makes of it for ``slot``."""
    return _provider(slot, options, f"with open(filename) as lines:\n    for line in lines:\n        yield {sample}")


def sequences(count: int, length: str, options: str = "", *, first: str = "0") -> str:
    """``count`` sequences: of as many integers as the expression ``length`` says, all of them ``first`` + i."""
    return yields(
        f"integer_value_sequence({1 << 30})", f"([{first} + i] * ({length}) for i in range({count}))", options
    )


def dense(count: int, dim: int, options: str = "") -> str:
    """``count`` vectors of ``dim`` times the number i."""
    return yields(f"dense_vector({dim})", f'(np.full({dim}, i, "f") for i in range({count}))', options)


def yields(types: str, samples: str, options: str = "") -> str:
    """What the expression ``samples`` has. ``types``: of a slot, or of several in brackets or braces."""
    return _provider(types, options, f"yield from {samples}")


def _provider(types: str, options: str, body: str) -> str:
    return f"""
import os, time
import numpy as np
import pydp2
@provider(input_types={types if types[0] in "[{" else f"[{types}]"}, {options})
def process(settings, filename):
{textwrap.indent(body, "    ")}
"""


NOTHING_BAD_GOOD = yields(
    "integer_value(10)", "{'nothing': [], 'bad': [99], 'good': [1]}[filename]", "check=True, check_fail_continue=True"
)
"""The file "nothing" has no sample, "bad" a bad one, which is dropped, and "good" a good one."""

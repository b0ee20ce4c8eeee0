"""Which form of packing runs: the compiled one where it was built, else the one in Python. Both give the same columns.

Also the drawing of samples: a worker's innermost loop, which the compiled form takes over as far as it is certain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydp2.inputs.adders import Adder
from pydp2.inputs.spec import Slots

PURE = "PYDP2_PURE_PYTHON"
"""Set to anything but 0 in the environment: packing runs in Python, also where the compiled form is there."""

_load_error = ""
try:
    from pydp2.inputs import _compiled
except ImportError as error:  # built only where there is a compiler
    _compiled = None  # type: ignore[assignment]
    _load_error = str(error)


def built() -> bool:
    """Whether the compiled form is there."""
    return _compiled is not None


def compiled() -> bool:
    """Whether the compiled form runs."""
    return built() and os.environ.get(PURE, "0") in ("", "0")


def packing() -> str:
    """How samples are packed in this installation: ``"compiled"``, or ``"in Python"`` and why."""
    if compiled():
        return "compiled"
    if built():
        return f"in Python, because {PURE} is set"
    return f"in Python, because {_why_not_built()}"


def _why_not_built() -> str:
    import sysconfig

    here = Path(__file__).parent
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if (here / f"_compiled{suffix}").exists():
        return f"what was compiled cannot be loaded: {_load_error}"
    others = sorted(file.name.removeprefix("_compiled") for file in here.glob("_compiled.*.so"))
    if others:
        return f"it was compiled for {others[0]}, and this Python needs {suffix}: install pydp2 again for it"
    checkout = here.parents[1]
    if (checkout / "pyproject.toml").exists() and not _installed_from(checkout):
        return f"this checkout was never built: pip install -e {checkout} does, where there is a C compiler"
    return "there was no C compiler at the installation"


def _installed_from(checkout: Path) -> bool:
    """Whether an installation of pydp2 runs the code in ``checkout``, and so was there to compile it."""
    import importlib.metadata
    import json

    for found in importlib.metadata.distributions(name="pydp2"):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable") and origin.get("url") == checkout.as_uri():
            return True
    return False


class Packs(Protocol):
    """Packs the values of one slot; see :class:`pydp2.inputs.adders.Adder`."""

    def add(self, value: Any, /) -> int: ...
    def add_checked(self, value: object, /) -> int: ...
    def rollback(self, rows: int, /) -> None: ...
    def hand_over(self) -> tuple[list[Any], list[Any], bool]: ...


def adders(slots: Slots, strict: bool, fast: bool) -> tuple[Packs, ...]:
    """One for each slot. ``fast``: in the compiled form."""
    spare = tuple(Adder(slots, i, strict) for i in range(len(slots)))
    if not fast:
        return spare
    return tuple(
        _compiled.Adder(each, declared, depth, strict)
        for each, declared, depth in zip(spare, slots.types, slots.depths, strict=True)
    )


class Mark(NamedTuple):
    """Where a worker notes which sample it asks for: a row of shared int64, and the places in it of the sample's
    number, of when that began (``time.monotonic_ns``; noted only if ``timed``), and of whether it does."""

    row: memoryview
    ordinal: int
    since: int
    running: int
    timed: bool

    def at(self, ordinal: int) -> None:
        """Note that sample ``ordinal`` begins."""
        row = self.row
        row[self.ordinal] = ordinal
        if self.timed:
            row[self.since] = time.monotonic_ns()
        row[self.running] = 1


class Budget(NamedTuple):
    """How much may be packed before the loop is to look again: ``rows``, bytes of columns (``room``), and bytes where
    each row costs ``cost`` more (``credit``)."""

    rows: int
    room: int
    credit: int
    cost: int


class Draws(Protocol):
    """Draws samples; see :class:`Drawer`."""

    away: bool
    sending: bool
    met: bool

    def draw(
        self, iterator: Iterator[Any], ordinal: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any: ...
    def taken(self) -> tuple[int, int]: ...


class Drawer:
    """Draws samples from generators. In this form it packs none of them.

    ``away``: the thread that draws is in the user's code. ``sending``: another thread is about to send, or does;
    ``met`` is set by it when it has asked for what was :meth:`taken`.
    """

    __slots__ = ("_mark", "away", "met", "sending")

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self.away = self.sending = self.met = False

    def draw(
        self, iterator: Iterator[Any], ordinal: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any:
        """The next sample of ``iterator`` that is not packed; ``ordinal`` is the number of the first.

        Samples before it were packed within the budget (see :class:`Budget`) and ``ns`` nanoseconds; :meth:`taken`
        tells how many. Raises what the iterator raises, and StopIteration at its end.
        """
        self._mark.at(ordinal)
        self.away = True
        try:
            return next(iterator)
        finally:
            self.away = False

    def taken(self) -> tuple[int, int]:
        """How many samples were packed since the last call, and the bytes of their columns."""
        return 0, 0


def drawer(packs: tuple[Packs, ...], slots: Slots, single: bool, mark: Mark) -> Draws:
    """What draws samples for ``packs``. ``single``: the only slot's value is yielded bare."""
    if _compiled is None or not isinstance(packs[0], _compiled.Adder):
        return Drawer(mark)
    return _compiled.Drawer(packs, slots.names, single, mark.row, (mark.ordinal, mark.since, mark.running), mark.timed)

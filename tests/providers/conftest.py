"""Cells of a notebook, registered as IPython does it, and run in a namespace called ``__main__``."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pydp2.errors import AddressError
from pydp2.providers import resolve
from pydp2.providers.notebook import module_file

IMPORTS = "from pydp2 import dense_vector, integer_value, provider\n"
CELL = """
@provider(input_types=[integer_value(100)])
def process(settings, filename):
    yield {}
"""


class Notebook:
    """Cells that share a namespace."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._numbers = count(1)

    def run(self, source: str) -> None:
        file = f"<ipython-input-{next(self._numbers)}-{id(self):x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec", dont_inherit=True), self.names)

    def samples(self, name: str = "process") -> list[Any]:
        """What the written module yields."""
        return list(resolve(f"{self.file(name)}:{name}").samples("x"))

    def file(self, name: str = "process") -> Path:
        return module_file(name, self.names[name].__wrapped__)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = dict(linecache.cache)
    one = Notebook()
    one.run(IMPORTS)
    yield one
    linecache.cache.clear()
    linecache.cache.update(before)


def refused(notebook: Notebook) -> str:
    with pytest.raises(AddressError) as caught:
        notebook.file()
    return str(caught.value)

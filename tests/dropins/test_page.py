"""The files that docs/drop-ins.md has to copy are short. tests/test_docs.py runs them, and the other tests here too."""

from __future__ import annotations

from tests.dropins.trained import glue

MOST = 40  # lines with something in them


def test_no_file_is_longer_than_the_page_says() -> None:
    lengths = {name: sum(bool(line.strip()) for line in code.splitlines()[1:]) for name, code in glue().items()}
    assert len(lengths) == 4
    assert max(lengths.values()) <= MOST, lengths

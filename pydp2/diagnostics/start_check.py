"""Begin a file at a few samples, and find the first one that a whole reading gave otherwise.

A provider with a parameter ``start`` is run from any sample on after the death of a worker and on resume
(docs/providers.md). A whole reading passes by here piece by piece, and a few pieces are chosen at random, each with the
same chance, without knowing how many will come. At the end ``process`` begins at each of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from random import Random

from pydp2.data.columns.columns import Array
from pydp2.diagnostics.repeat_check import Difference, checksum
from pydp2.errors import Error
from pydp2.providers import StartedProvider
from pydp2.providers.local_reader import LocalReader, LocalSamples

_STARTS = 4
_MOST = 64  # samples that are compared from a start on


class StartCheck:
    """Check of file number ``number``, ``name``. ``seen``: pieces of a whole reading."""

    def __init__(self, running: StartedProvider, name: str, number: int) -> None:
        self._running, self._name, self._number = running, name, number
        self._random = Random(number)
        self._seen = 0
        self._kept: list[tuple[int, LocalSamples]] = []  # each with the place of its first sample

    def add(self, samples: LocalSamples) -> None:
        """Add what comes next of a whole reading. A piece with bad samples cannot be chosen."""
        if samples.errors or not samples.indices:
            return
        self._seen += 1
        first = self._random.randrange(len(samples.indices))
        if len(self._kept) < _STARTS:
            self._kept.append((first, samples))
        elif (at := self._random.randrange(self._seen)) < _STARTS:
            self._kept[at] = first, samples

    @property
    def starts(self) -> list[int]:
        """Samples at which the file begins."""
        return sorted(samples.indices[first] for first, samples in self._kept)

    def differences(self) -> Iterator[Difference]:
        """Yield the first difference of each start that gives other samples."""
        for first, samples in sorted(self._kept, key=lambda kept: kept[1].indices[0]):
            if (difference := self._difference(first, samples)) is not None:
                yield difference

    def _difference(self, first: int, samples: LocalSamples) -> Difference | None:
        start = samples.indices[first]
        opened = self._running.open_file(self._name, file_index=self._number, seed=0, pass_id=0, start=start)
        reader = LocalReader(self._running, opened, limit=min(start + _MOST, samples.indices[-1] + 1))
        fields, y = self._running.schema.slots.fields, start
        names = self._running.schema.slots.names or [str(i) for i in range(len(fields))]
        try:
            for y in samples.indices[first : first + _MOST]:
                again = next(reader, None)
                if again is None:
                    return self._found(start, y, "", "a sample", "the end of the file")
                if again.errors:
                    return self._found(start, y, "", "a sample", str(again.errors[0][1]))
                whole = samples.packed.columns.slice(y - samples.indices[0], y - samples.indices[0] + 1)
                for name, left, right in zip(names, whole.arrays, again.packed.columns.arrays, strict=True):
                    if checksum(left) != checksum(right):
                        return self._found(start, y, name, _shown(left), _shown(right))
        finally:
            with contextlib.suppress(Error):
                reader.close()
        return None

    def _found(self, start: int, y: int, slot: str, first: str, second: str) -> Difference:
        return Difference(self._name, y, slot, first, second, start)


def _shown(arrays: Sequence[Array]) -> str:
    return f"{arrays[-1].tolist()!r:.80}"

"""Hold which samples of a list are never delivered (docs/bad-data.md, "Samples that are never delivered")."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b

import numpy as np

from pydp2.data.columns.sample_set import Ints, decode_set, encode_set


class BlockList:
    """Block list: a set of samples, each known by its file and its sample index. ``encoded``: what :attr:`encoded` of
    another one is, b"" for no samples."""

    def __init__(self, encoded: bytes = b"") -> None:
        self.encoded = encoded
        """The samples as bytes (:func:`.encode_set`), the same for the same samples; b"" for none."""

    @classmethod
    def of_samples(cls, files: Ints, sample_indices: Ints) -> BlockList:
        """Return the list of the given samples, in any order. Each may be given several times. Both arrays are int64 of
        shape (samples,)."""
        order = np.lexsort((sample_indices, files))
        files, sample_indices = files[order], sample_indices[order]
        is_first = np.ones(len(files), np.bool_)
        is_first[1:] = (np.diff(files) != 0) | (np.diff(sample_indices) != 0)
        return cls(encode_set(files[is_first], sample_indices[is_first]) if len(files) else b"")

    def __len__(self) -> int:
        return sum(map(len, self._by_file.values()))

    def of(self, file: int) -> Ints | None:
        """Return the sample indices of ``file`` in the list, rising, as int64 of shape (samples,); None if there are
        none."""
        return self._by_file.get(file)

    def digest_of(self, file: int) -> str:
        """Return a text that differs where the blocked samples of ``file`` do; "" if there are none."""
        blocked = self.of(file)
        return "" if blocked is None else blake2b(blocked.astype("<i8").tobytes(), digest_size=8).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Text that differs where the samples do; "" for no samples."""
        return blake2b(self.encoded, digest_size=8).hexdigest() if self.encoded else ""

    @cached_property
    def _by_file(self) -> dict[int, Ints]:
        if not self.encoded:
            return {}
        files, sample_indices = decode_set(self.encoded)
        starts = np.flatnonzero(np.diff(files, prepend=-1))
        return dict(zip(files[starts].tolist(), np.split(sample_indices, starts[1:]), strict=True))

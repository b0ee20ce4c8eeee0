"""Make seeded data for the figures, once, in a folder of the caller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydp2_samples

WORDS = 30_000


def words(folder: Path, files: int = 16, lines: int = 200_000) -> list[str]:
    """Return ``files`` files with ``lines`` lines ``label<TAB>word word …`` in all, and make their dictionary
    ``dict.txt``."""
    paths = [folder / f"words-{files}-{lines}-{i:03d}.txt" for i in range(files)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(7)
        names = [f"w{i:x}" for i in range(WORDS)]
        (folder / "dict.txt").write_text("".join(f"{name}\t{i}\n" for i, name in enumerate(names)))
        for path in paths:
            with path.open("w") as out:
                for _ in range(lines // files):
                    length = int(random.integers(20, 98))
                    ids = np.minimum(random.zipf(1.3, length), WORDS) - 1
                    out.write(f"{int(random.integers(2))}\t{' '.join(names[i] for i in ids)}\n")
    return [str(path) for path in paths]


def digits(times: int = 50) -> list[str]:
    """Return the training files of the digits, each ``times`` times."""
    return [path for path in pydp2_samples.files("digits") for _ in range(times)]


def tiny(folder: Path, count: int) -> list[str]:
    """Return ``count`` files of one sample each."""
    folder = folder / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06d}" for i in range(count)]
    for i, path in enumerate(paths):
        if not path.exists():
            path.write_text(f"{i}\n")
    return [str(path) for path in paths]

"""Choose the ready-made provider for entries by their suffix, where nobody named a provider (docs/formats.md)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from pydp2.errors import OptionTypeError, count_text
from pydp2.file_parts import file_of

SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tar": "tar",
    ".tgz": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".rec": "dmlc_recordio",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".zarr": "zarr",
    ".lance": "lance",
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
}
"""Module of :mod:`pydp2.formats` for each suffix. Formats whose provider needs an argument have none."""
_COMPRESSED = (".gz", ".zst")
_SHOWN = 5


def suffix_of(entry: str) -> str:
    """Return the suffix of an entry of a list, in small letters, without that of a compression; '' if it has none."""
    name = os.path.basename(file_of(entry)).lower()  # noqa: PTH119 - a Path takes ten times as long, for each entry
    for compressed in _COMPRESSED:
        name = name.removesuffix(compressed)
    return os.path.splitext(name)[1]  # noqa: PTH122


def is_data(path: str) -> bool:
    """Return True if ``path`` names a file of a known format by its suffix, and is no pattern."""
    return suffix_of(path) in SUFFIXES and not set(path) & set("*?[")


def provider_of(entries: Iterable[str]) -> str:
    """Return the address of the provider for ``entries``, which all have the same format.

    Raises OptionTypeError, which lists the suffixes, unless all have one that is known.
    """
    seen = Counter(map(suffix_of, entries))
    formats = {SUFFIXES.get(suffix, "") for suffix in seen}
    if len(formats) == 1 and (name := formats.pop()):
        return f"pydp2.formats.{name}"
    shown = ", ".join(
        f"{suffix or 'no suffix'} ({count_text(count, 'entry', 'entries')})"
        for suffix, count in seen.most_common(_SHOWN)
    )
    shown = shown or "none, as the list is empty"
    more = f" and {len(seen) - _SHOWN} more" * (len(seen) > _SHOWN)
    raise OptionTypeError(
        'a provider is needed, as in launch("train.list", "my_provider.process") or --provider my_provider.process; '
        f"without it all entries must have a suffix of one format: {', '.join(SUFFIXES)}; they have {shown}{more}"
    )

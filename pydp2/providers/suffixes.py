"""Choose the ready-made provider for entries by their suffix, where nobody named a provider (docs/formats.md)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from pydp2.errors import OptionTypeError, count_text
from pydp2.file_parts import file_of
from pydp2.remote import is_remote, is_remote_pattern, without_query

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
_FOLDER = "a folder of save_to_disk"
_FOLDER_FILES = ("state.json", "dataset_dict.json")  # by which a folder of Hugging Face is known, also one of splits
_SHOWN = 5


def suffix_of(entry: str) -> str:
    """Return the suffix of an entry of a list, in small letters, without that of a compression; '' if it has none."""
    path = without_query(file_of(entry))
    name = os.path.basename(path.rstrip("/")).lower()  # noqa: PTH119 - a Path takes ten times as long, for each entry
    for compressed in _COMPRESSED:
        name = name.removesuffix(compressed)
    return os.path.splitext(name)[1]  # noqa: PTH122


def is_data(path: str, root: str = "") -> bool:
    """Return True if ``path`` names a file of a known format by its suffix, or a folder below ``root`` that
    ``save_to_disk`` of Hugging Face wrote, and is no pattern."""
    if is_remote(path):
        return not is_remote_pattern(path) and suffix_of(path) in SUFFIXES
    return not set(path) & set("*?[") and _kind_of(path, root) in (*SUFFIXES, _FOLDER)


def _kind_of(entry: str, root: str) -> str:
    suffix = suffix_of(entry)
    if suffix not in SUFFIXES and not is_remote(entry):
        folder = os.path.join(root, file_of(entry))  # noqa: PTH118 - as above
        if any(os.path.isfile(f"{folder}/{name}") for name in _FOLDER_FILES):  # noqa: PTH113
            return _FOLDER
    return suffix


def provider_of(entries: Iterable[str], root: str = "") -> str:
    """Return the address of the provider for ``entries``, which all have the same format. Entries are below ``root``.

    Raises OptionTypeError, which lists the suffixes, unless all have one that is known.
    """
    seen = Counter(_kind_of(entry, root) for entry in entries)
    formats = {"arrow" if kind == _FOLDER else SUFFIXES.get(kind, "") for kind in seen}
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

"""File formats: readers and writers, byte-exact and strict, each format also a provider that can be served.

One module a format, imported by its name, as in ``from pydp2.formats import idx``; what they share stands in
:mod:`.source` (files read from front to back) and :mod:`pydp2.file_parts` (a share of one large file). A file that is
not what its format says is a :class:`pydp2.errors.FormatError` with the offset. The rules stand in docs/formats.md.
"""

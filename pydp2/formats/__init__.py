"""File formats: byte-exact writers, strict readers, and a provider for each format.

Each format has a module; import it by its name, for instance ``from pydp2.formats import idx``. The modules share
:mod:`.source` (files that are read from front to back) and :mod:`pydp2.file_parts` (parts of one large file). If a file
violates its format, the reader raises a :class:`pydp2.errors.FormatError` with the offset. See docs/formats.md.
"""

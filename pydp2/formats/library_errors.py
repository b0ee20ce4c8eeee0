"""Turn what a library finds wrong with a file into a FormatError that names the file and the place in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pydp2.errors import Error, FormatError

_PANIC = "PanicException"  # of libraries in Rust; it is no Exception


@contextlib.contextmanager
def errors_of(file: str, place: Callable[[], str] = str) -> Iterator[None]:
    """Raise what a library finds wrong with ``file`` as a FormatError, which names the ``place`` in it.

    Errors of the system pass, which have a number: libraries raise those of damaged data as an OSError without one. So
    do errors of pydp2, of an import, and of memory that Python itself lacks.
    """
    try:
        yield
    except (Error, ImportError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        if (isinstance(error, OSError) and error.errno is not None) or type(error) is MemoryError:
            raise
        what = " ".join(str(error).split()) or type(error).__name__
        where = place()
        raise FormatError(f"{file}{where and ', '}{where}: {what:.400}", file=file) from error

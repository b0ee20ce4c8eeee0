"""Find out what a service may use of the machine: cores, memory (control groups, address space), open files."""

from __future__ import annotations

import resource

from pydp2.errors import OptionError
from pydp2.server.available_memory import AvailableMemory, available_memory
from pydp2.system.processors import cores as cores

_BASE_OPEN_FILES = 60  # descriptors: some 36 of the server, those of clients, some for the death of a worker, a reserve
_PROCESS_BYTES = 56 << 20  # bytes of memory of server, supervisor and zygote before anything is read
_WORKER_BYTES = 8 << 20  # bytes of memory of each worker


def memory() -> AvailableMemory:
    """Return the memory that a service of this process may use.

    This is the least of three numbers: the machine's memory, the rest that the limits of its control groups leave, and
    the rest that the limit on address space would leave to its server.
    """
    return available_memory()


def check_memory(workers: int, limit: int, have: AvailableMemory) -> None:
    """Raise OptionError if there is too little memory for the processes of a service and ``limit``, its memory_limit:
    the kernel would kill one of them without a message."""
    need = limit + _PROCESS_BYTES + _WORKER_BYTES * workers
    if need > have.bytes:
        remedy = f"{have.remedy}, or " if have.remedy else ""
        raise OptionError(
            f"a service with workers={workers} and memory_limit={limit} needs about {need} bytes, and there are "
            f"{have.describe()}; {remedy}lower memory_limit, or ask for fewer workers"
        )


def check_open_files(workers: int) -> None:
    """Raise OptionError if the server of so many workers may run out of descriptors: ZeroMQ then aborts the process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    need = _BASE_OPEN_FILES + 2 * workers  # two for each worker: its connection and its output
    if limit != resource.RLIM_INFINITY and limit < need:
        raise OptionError(
            f"a service with workers={workers} needs up to {need} open files, this process may have {limit} "
            "(RLIMIT_NOFILE); raise it with `ulimit -n`, or ask for fewer workers"
        )

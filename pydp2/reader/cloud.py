"""``cloud_reader``: records that many clients share. A master hands out each record to one client.

The master is a service with the provider :data:`records`; its file list has the record files. A task is a batch of a
job with ``share="dynamic"``: ``buf_size`` records, which go to the client that asked first. If a client is silent for
``timeout_sec``, dead or not, the next client that asks gets its task. The pass ends for all clients when every task is
finished.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from numbers import Real
from typing import Any, SupportsIndex, Unpack

import numpy as np

from pydp2.client import Client, Target
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import dense_vector_sequence
from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.formats import paddle_recordio
from pydp2.options.job_options import JobChoices
from pydp2.options.tables import job_options
from pydp2.providers import provider
from pydp2.reader.contract import check_size
from pydp2.reader.unpickled import plain
from pydp2.transport.service_address import without_token


@provider(input_types={"record": dense_vector_sequence(1, dtype=np.uint8)})
def records(settings: Any, filename: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of Paddle's RecordIO as bytes: uint8 (length, 1)."""
    for record in paddle_recordio.read(filename):
        yield {"record": np.frombuffer(record, np.uint8).reshape(-1, 1)}


class CloudReader:
    """Reader that stays connected to the master from pass to pass. :func:`cloud_reader` makes it."""

    def __init__(self, master: str, options: dict[str, Any], job: str, decode: Callable[[bytes], Any]) -> None:
        self._master, self._options, self._job, self._decode = master, options, job, decode
        self._client: Client | None = None
        self._pid = 0

    def __call__(self) -> Iterator[Any]:
        tasks: Any = iter(self._connected())
        try:
            for task in tasks:
                for number, (record,) in enumerate(unbatch(task)):
                    try:
                        value = self._decode(record.tobytes())
                    except Exception as error:
                        of = f"of the master {without_token(self._master)}"
                        location = f"record {number} of task {task.index}, pass {task.pass_id}, {of}"
                        if isinstance(error, FormatError):
                            raise FormatError(f"{location}: {error}", offset=error.offset) from None
                        error.add_note(location)
                        raise
                    yield value
        finally:
            tasks.close(unused=True)  # this does nothing if the pass has ended

    def close(self) -> None:
        """Disconnect from the master. The next call of the reader connects again. Closing twice is fine."""
        if self._client is not None and self._pid == os.getpid():
            self._client.close()
        self._client = None

    def _connected(self) -> Client:
        if self._client is None or self._pid != os.getpid():  # a forked process is a client of its own
            self._client = Client(Target(self._master), self._options, job=self._job)
            self._pid = os.getpid()
        return self._client


def cloud_reader(
    master: str,
    timeout_sec: float = 5.0,
    buf_size: SupportsIndex = 64,
    *,
    decode: Callable[[bytes], Any] = plain,
    job: str = "cloud",
    **options: Unpack[JobChoices],
) -> CloudReader:
    """Return a reader of the records that the master at address ``master`` gives this client; clients share a pass.

    The master is a service over record files: ``pydp2 serve records.list --provider pydp2.reader.cloud.records``, or
    ``pydp2.launch([…], "pydp2.reader.cloud.records")``. Each task, ``buf_size`` records, goes to one client. If this
    client leaves the pass before the task is finished, the task goes to another client at once; if the client is silent
    or dies, after ``timeout_sec``. A task is finished when the client asks for the first record after it. The pass ends
    for all clients together; then each may begin the next.

    Args:
        master: address of the master.
        timeout_sec: seconds that a client may take for a task.
        buf_size: number of records of a task.
        decode: function that turns the bytes of a record into a sample, see :func:`recordio`.
        job: name of the job. Clients with the same name share the records; another job gives all of them again.
        options: further options of the job, as for :func:`pydp2.connect`. All clients must give the same options.
            Shuffling is off unless ``shuffle=True`` is given.

    While iterating, it raises ServiceUnreachable, ServiceLost, FormatError for a record that is not plain, and
    ProviderError for a file that cannot be read (with ``on_error="skip"`` the master leaves out that file instead). See
    docs/readers.md.

    Raises OptionTypeError, OptionError: an option has a type or value that is not allowed.
    """
    if not callable(decode):
        raise OptionTypeError(f"decode must be a function of the bytes of a record, got {decode!r:.80}")
    if not isinstance(master, str):
        raise OptionTypeError(f"master must be the address of a service that has the file list, got {master!r:.80}")
    if isinstance(timeout_sec, bool) or not isinstance(timeout_sec, Real):
        raise OptionTypeError(f"timeout_sec must be a number of seconds, got {timeout_sec!r:.80}")
    if not 0 < timeout_sec < math.inf:
        raise OptionError(f"timeout_sec must be more than 0 seconds, got {timeout_sec}")
    given: dict[str, Any] = {"shuffle": False, "prefetch": 1, **options}
    given |= {"batch_size": check_size("buf_size", buf_size, 1), "share": "dynamic", "lease": timeout_sec}
    return CloudReader(master, asdict(job_options(**given)), job, decode)

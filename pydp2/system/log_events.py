"""Name the events of the log: one line each, with a name that stays the same (docs/logs.md has the table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

INFO, WARNING, ERROR = "info", "warning", "error"
LogFields = Mapping[str, "str | int"]
"""Fields of a line, by name: "worker", "host", "file", "sample", "slot", "job", "rank" that it is about."""


class LogEvent(Enum):
    """Event of the log: its level, what its line begins with ("": nothing), and what it means.

    Of an event whose line begins with something, a service writes the first few lines, and then counts.
    """

    WORKER_LOST = WARNING, "worker lost", "A worker ended before its time; its files go to another one."
    SAMPLE_TIMEOUT = WARNING, "timeout", "A sample takes longer than `sample_timeout`; the stack of its worker follows."
    ZYGOTE_LOST = WARNING, "zygote", "The process that workers are forked from ended; another one is made."
    NO_ZYGOTE = INFO, "", "Each worker imports the provider for itself, and why."
    PROVIDER_WARNING = WARNING, "", "The provider's code gave a warning while it was imported."
    WORKER_OUTPUT = INFO, "", "Your code printed a line in a worker."
    OUTPUT_DROPPED = WARNING, "", "So many `bytes` of the log were left out: stderr was full, or nobody read it."
    PROTOCOL_BROKEN = ERROR, "protocol", "A worker, trainer or host sent what the service does not take."
    CONNECTION_REFUSED = WARNING, "", "The service did not admit a connection."
    KEY_REMOVED = WARNING, "refused", "The service ended a connection, because its key was removed."
    SOCKET_MISSING = WARNING, "", "Another program removed a socket file of the service."
    SAMPLE_DROPPED = WARNING, "dropped", 'A bad sample was left out (`on_error="skip"`, `check_fail_continue`).'
    FILE_ENDED_EARLY = WARNING, "skipped", "The rest of a file was left out, and why."
    FILE_CHANGED = WARNING, "changed", 'A file did not repeat itself (`on_changed="warn"`).'
    COUNT_CHANGED = WARNING, "count", "A file gave another number of samples than when it was counted last."
    BLOCK_LIST_BEYOND_END = WARNING, "block list", "`block_list` names samples behind the end of a file."
    QUARANTINE_FAILED = ERROR, "", "The file of `quarantine` cannot be written."
    PASS_RESUMED = INFO, "", "A pass goes on in its middle, and how much is read again."
    PASS_FAILED = ERROR, "failed", "A pass ends with an error, which its trainers get."
    PASS_LOSSES = WARNING, "", "A pass is over; so many of its samples were dropped, and files cut short."
    PASS_PADDING = INFO, "", "A pass with `bucket_by` is over; its share of padding."
    PASS_EMPTY = WARNING, "empty", "A pass had no samples."
    POOL_LIMITED = WARNING, "pool", "The pool has another size than the provider asks for."
    CACHE_LIMITED = WARNING, "cache", "The cache in memory has no room for all files."
    CACHE_UNREADABLE = WARNING, "cache", "Something in the cache on disk cannot be used and is made again."
    CACHE_NOT_WRITTEN = WARNING, "", "The cache on disk does not keep all files, and why."
    LEASE_ENDED = WARNING, "lease", "A trainer was silent for too long; others get its batches."
    RANK_LATE = WARNING, "late", "The ranks of a job wait for one of them."
    TRAINER_GONE = WARNING, "trainer", "A trainer vanished without leaving its job."
    ROWS_LOST = WARNING, "rows lost", "Rows of the pass were lost with their host and are read again."
    ROW_SERVER_UNREACHABLE = WARNING, "row server", "A trainer cannot fetch rows from a host; the service sends them."
    STATE_DAMAGED = WARNING, "", "The last snapshot of `state_dir` cannot be used, and what is used instead."
    STATE_NOT_WRITTEN = ERROR, "", "`state_dir` cannot be written."
    STATE_WRITTEN = INFO, "", "`state_dir` can be written again."
    HOST_JOINED = INFO, "host", "A host joined with its workers."
    HOST_LEAVING = INFO, "host", "A host leaves: its workers end the files that they read."
    HOST_LEFT = INFO, "host", "A host has left."
    HOST_REFUSED = WARNING, "host refused", "A host was turned away, and why."
    HOST_LOST = WARNING, "host lost", "A host is out of reach; the files of its workers go to others."
    HOST_ENDS = INFO, "", "`pydp2 worker` ends, and why."
    SERVICE_UNREACHABLE = WARNING, "", "A host does not reach the service, and joins again."
    FETCH_PROCESS_LOST = WARNING, "fetch", "The process that fetches remote files ended; another one is started."
    STORE_SILENT = WARNING, "remote files", "A store does not answer; it is asked again until it does."
    STORE_ANSWERS = INFO, "remote files", "The store answers again."
    PAGE_READY = INFO, "", "The page for the browser has this URL."
    SERVICE_READY = INFO, "", "`pydp2 serve` has started the service."
    PROGRESS = INFO, "", "What the service has delivered so far: every 5 s, or 30 s while trainers get nothing."
    SERVICE_ENDS = INFO, "", "The service ends, and why."
    COMMAND_FAILED = ERROR, "", "A command ends with this error."
    COMMAND_WARNING = WARNING, "", "A command warns of something, such as an option without effect."
    RAY_RESTART = WARNING, "", "Ray starts the server of the service again."
    TRAINER_WAITS = WARNING, "", "A trainer has waited long, and for what."
    CONNECTION_LOST = WARNING, "", "A trainer has lost the service and tries to come back."
    CONNECTION_BACK = INFO, "", "A trainer has come back to the service."

    def __init__(self, level: str, label: str, meaning: str) -> None:
        self.level, self.label, self.meaning = level, label, meaning

    @property
    def event_name(self) -> str:
        """Name of the event, as it is written."""
        return self.name.lower()


class WriteLog(Protocol):
    """Function that writes a line to the log: ``text``, and what it is about."""

    def __call__(self, text: str, event: LogEvent, /, **fields: str | int) -> None: ...

"""Define every exception that pydp2 raises, and how one travels between processes.

    Error
    ├── LocalError                    you asked for something impossible
    │   ├── OptionError               (ValueError) an option has a value that it cannot have
    │   ├── OptionTypeError           (TypeError)  an option is unknown, misplaced or of a wrong type
    │   ├── ListError                 (OSError)    the file list cannot be read
    │   ├── AddressError              (ImportError) the provider's address leads nowhere
    │   ├── StateMismatch             (ValueError) a saved state belongs to another stream, or is damaged
    │   ├── GuardError                (RuntimeError) started inside a worker process, or in a free-threaded interpreter
    │   ├── ClientUseError            (RuntimeError) nested iteration, two threads, after a fork, closed
    │   └── EOFException              (EOFError)   a reader was asked for more than it has
    ├── RemoteError                   the worker, the data or the service failed
    │   ├── ProviderError             the user's code raised (also the builtin of the same name)
    │   ├── BadSample                 (AssertionError, ValueError) a yielded value does not fit its slot
    │   ├── FileCondemned             a file killed its worker three times at the same sample
    │   ├── NotRepeatable             a generator yielded other samples when it was run again
    │   ├── BudgetExceeded            more bad samples and files than error_budget allows
    │   ├── SampleTooLarge            (ValueError) a sample cannot fit the pool or the batch
    │   ├── FormatError               (ValueError) a file is not what its format says
    │   ├── StoreError                (OSError) a remote file cannot be read
    │   ├── ComposeNotAligned         (ValueError) readers to be read together differ in length
    │   └── ReaderError               (ValueError) the source of a reader ended too early
    ├── ServiceError
    │   ├── ServiceUnreachable        (ConnectionError) no service answers, or the address cannot be bound
    │   ├── ServiceLost               (ConnectionError) the service ended
    │   ├── OutOfMemory               (MemoryError) server, worker or trainer has no memory for what comes next
    │   ├── JobTaken                  another trainer has this rank of the job
    │   ├── HostRefused               a host may not run workers of the service
    │   └── Rewound                   this rank is no longer where its job is
    └── ProtocolError
        ├── LocalProtocolError        we were about to break the protocol
        └── RemoteProtocolError       the other side did

Messages read: need, have, remedy; for data: file, sample, slot, expected, got. Nothing here does IO.
"""

from __future__ import annotations

import builtins
import re
import traceback
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(
    r"((?:token|sig|signature|credential|password|secret)=)[^&\s'\"]{8,}|(://[^/\s:@'\"]+:)[^/\s@'\"]+(?=@)",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return ``text`` without the tokens of addresses, and without signatures and passwords of URLs (docs/security.md):
    messages quote mistyped addresses and entries of lists."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}…", text)


class Error(Exception):
    """Base of every exception that pydp2 raises on purpose."""

    def __str__(self) -> str:  # KeyError's repr quoting would garble messages of the mixed classes below
        return without_secrets(str(self.args[0])) if self.args else ""

    def __repr__(self) -> str:
        return without_secrets(super().__repr__())


class LocalError(Error):
    """The caller asked for something impossible."""


class OptionError(LocalError, ValueError):
    """An option has a value that it cannot have."""


class OptionTypeError(LocalError, TypeError):
    """An option is unknown, given in the wrong place, or of a wrong type."""


class ListError(LocalError, OSError):
    """The file list is missing, a directory, or not UTF-8."""


class AddressError(LocalError, ImportError):
    """The provider's address leads nowhere: wrong module, attribute or file, or no provider there."""


class StateMismatch(LocalError, ValueError):
    """A saved state belongs to another stream (what differs is named), is damaged, or is of a newer release."""


class GuardError(LocalError, RuntimeError):
    """A service was started or read in a process that must not do so.

    This is a worker process, usually for lack of an ``if __name__ == "__main__"`` guard, or an interpreter without its
    global lock.
    """


class ClientUseError(LocalError, RuntimeError):
    """A client cannot give a pass when it is used like this: nested, from two threads, after a fork, after close."""


class EOFException(LocalError, EOFError):
    """A reader was asked for the next instance, and there is none in this pass: "There is no next data"."""


class RemoteError(Error):
    """The worker, the data or the service failed."""


class ProviderError(RemoteError):
    """The user's code raised, in the hook, at import or in the generator.

    If the user's exception was a builtin one (or derives from one), the error is also an instance of that builtin, so
    that ``except FileNotFoundError`` works across the process boundary. The text ends with the worker's traceback;
    other attributes, such as ``errno``, do not travel. ``StopIteration`` and ``StopAsyncIteration`` become
    RuntimeError, as in a generator, because they would end the trainer's loop. An exception that is no ``Exception``
    (``SystemExit``) becomes a plain ProviderError. The text of an ``ExceptionGroup`` names the exceptions in it.
    """

    def __reduce__(self) -> tuple[Any, ...]:  # pools and test runners pickle errors; a mixed class has no name there
        return provider_error, (str(self), builtin_name_of_mixed(self)), self.__dict__


class BadSample(RemoteError, AssertionError, ValueError):
    """A yielded value does not fit its slot. Attributes: ``slot``, ``expected``, ``got`` (all text)."""

    def __init__(self, message: str, *, slot: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.slot, self.expected, self.got = slot, expected, got


class FileCondemned(RemoteError):
    """A file killed its worker, or exceeded ``sample_timeout``, three times at the same sample.

    Attributes:
        sample_timeout: the limit in seconds, if the sample exceeded it; None if its worker died.
    """

    def __init__(self, message: str, *, sample_timeout: float | None = None) -> None:
        super().__init__(message)
        self.sample_timeout = sample_timeout


class NotRepeatable(RemoteError):
    """A generator yielded other samples when its file was run again, because the worker had died."""


class BudgetExceeded(RemoteError):
    """A pass had more bad samples, and files that ended early, than ``error_budget`` allows."""


class SampleTooLarge(RemoteError, ValueError):
    """A sample is heavier than the batch allows, or larger than the pool."""


class FormatError(RemoteError, ValueError):
    """A file is not what its format says: damaged, cut off, or of another kind.

    Attributes:
        file: name of the file; "" if it is not known.
        offset: offset of the defect in the decompressed file, in bytes; None if it is not known.
    """

    def __init__(self, message: str, *, file: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.file, self.offset = file, offset


class StoreError(RemoteError, OSError):
    """A remote file cannot be read: its store refuses it or gives no answer, or the file has changed."""


class ComposeNotAligned(RemoteError, ValueError):
    """Readers that are read together differ in length: one has ended, and another one has not."""


class ReaderError(RemoteError, ValueError):
    """The process behind a reader, another reader or a command, has failed or was killed."""


class ServiceError(Error):
    """The service cannot be reached, went away, or refuses."""


class ServiceUnreachable(ServiceError, ConnectionError):
    """No service answers at the address, or the address cannot be bound."""


class ServiceLost(ServiceError, ConnectionError):
    """The service went away while it was in use."""


class OutOfMemory(ServiceError, MemoryError):
    """A process of the service, or the trainer itself, has no memory left: on the machine, in its control group, or in
    its address space."""


class JobTaken(ServiceError):
    """Another trainer reads this job."""


class HostRefused(ServiceError):
    """A host may not run workers of the service: its code, its files or its version are not those of the service."""


class Rewound(ServiceError):
    """This rank's stream is no longer the one of its job: another rank loaded a state, or another trainer has its rank.

    Load the same state here too, or connect anew.
    """


class ProtocolError(Error):
    """A message is malformed, or the protocol does not allow it here."""


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol: a defect of pydp2."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol."""


_KINDS: dict[str, type[Error]] = {
    c.__name__: c
    for c in (
        Error, LocalError, OptionError, OptionTypeError, ListError, AddressError, StateMismatch, GuardError,
        ClientUseError, EOFException,
        RemoteError, ProviderError, BadSample, FileCondemned, NotRepeatable, BudgetExceeded, SampleTooLarge,
        FormatError, StoreError, ComposeNotAligned, ReaderError,
        ServiceError, ServiceUnreachable, ServiceLost, OutOfMemory, JobTaken, HostRefused, Rewound,
        ProtocolError, LocalProtocolError, RemoteProtocolError,
    )
}  # fmt: skip
_ENDS_LOOPS = (StopIteration, StopAsyncIteration)  # would end loops of the trainer, as if the pass were over
_UNICODE: dict[str, tuple[Any, ...]] = {  # arguments that these are made of, before the reason
    "UnicodeDecodeError": ("", b"", 0, 0),
    "UnicodeEncodeError": ("", "", 0, 0),
    "UnicodeTranslateError": ("", 0, 0),
}
# Attributes of an error that travel with it, each a keyword of its class: the key on the wire, and the type.
_FIELDS: dict[type[Error], dict[str, tuple[str, type]]] = {
    BadSample: {"slot": ("slot", str), "expected": ("exp", str), "got": ("got", str)},
    FileCondemned: {"sample_timeout": ("timeout", float)},
    FormatError: {"file": ("file", str), "offset": ("offset", int)},
}
_TEXT_LIMIT = 12_000  # an error travels inside a control frame of at most 64 KiB
_BYTES_LIMIT = 24_000


def builtin_name(exc: BaseException) -> str:
    """Return the name of the nearest builtin exception class of ``exc`` by which it can be caught, or ''.

    For ``StopIteration`` and ``StopAsyncIteration`` this is RuntimeError, as when they leave a generator.
    """
    for cls in type(exc).__mro__:
        if getattr(builtins, cls.__name__, None) is cls:
            if issubclass(cls, _ENDS_LOOPS):
                return "RuntimeError"
            return cls.__name__ if issubclass(cls, Exception) and cls is not Exception else ""
    return ""


def provider_error(message: str, builtin: str = "") -> ProviderError:
    """Return a :class:`ProviderError` that is also an instance of the builtin exception named
    ``builtin``, if possible."""
    base = getattr(builtins, builtin, None) if builtin else None
    if not (isinstance(base, type) and issubclass(base, Exception)) or issubclass(base, _ENDS_LOOPS):
        return ProviderError(message)
    if issubclass(ProviderError, base):
        return ProviderError(message)
    kind: Any = type(builtin, (ProviderError, base), {"__module__": ProviderError.__module__})
    if issubclass(base, BaseExceptionGroup):  # a group must have members
        error = kind(message, [ProviderError("it stands in the text of the group")])
    elif builtin in _UNICODE:
        error = kind(*_UNICODE[builtin], message)
        error.args = (message,)
    else:
        error = kind(message)
    assert isinstance(error, ProviderError)
    return error


def user_traceback(exc: BaseException, skip: int = 0) -> str:
    """Return the traceback of the user's exception as text, without our own first ``skip`` frames."""
    tb = exc.__traceback__
    for _ in range(skip):
        tb = None if tb is None else tb.tb_next
    try:
        return "".join(traceback.format_exception(type(exc), exc, tb)).rstrip()
    except Exception:  # a user's __str__ may itself raise: the class's name still helps
        return f"{type(exc).__name__} (its text cannot be shown)"


def from_user(what: str, exc: BaseException, skip: int = 0) -> ProviderError:
    """Return a :class:`ProviderError` for an exception of the user's code. Its text is ``what``, which says what
    happened, and the worker's traceback."""
    return provider_error(f"{what}\n\n{shorten(user_traceback(exc, skip))}", builtin_name(exc))


def bad_value(slot: str, expected: str, got: str, *, where: str = "", remedy: str = "") -> BadSample:
    """Return the error for a value that does not fit ``slot``; ``where`` begins its text, ``remedy`` ends it."""
    text = f"{where}{slot}: expected {expected}, got {got}{remedy}"
    return BadSample(text, slot=slot, expected=expected, got=got)


def bad_sample_at(where: str, error: BadSample, remedy: str = "") -> BadSample:
    """Return ``error`` with ``where``, the place of its sample, in front of its text, and ``remedy`` at the end."""
    return BadSample(f"{where}{error}{remedy}", slot=error.slot, expected=error.expected, got=error.got)


def at_sample(filename: str, sample_index: int, slot: str, what: str) -> str:
    """Return the text for sample ``sample_index`` of ``filename``: "file F, sample y, slot S: what". ``slot``: as in
    BadSample, a name, "slot 0", "all slots", or nothing."""
    named = slot and not slot.startswith(("slot ", "all slots"))
    return f"file {filename}, sample {sample_index}{', ' if slot else ''}{'slot ' if named else ''}{slot}: {what}"


def count_text(number: int, singular: str, plural: str = "", form: str = "") -> str:
    """Return ``number`` and its noun for a message: "1 file", "2 files".

    ``plural``: default: ``singular`` and an s. ``form``: format of the number, such as ",".
    """
    return f"{number:{form}} {singular if number == 1 else plural or singular + 's'}"


def shorten(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return ``text`` with its middle cut out if it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"


def fields(error: Error) -> dict[str, Any]:
    """Return the attributes of ``error`` beside its text, as keywords of its class."""
    names = next((_FIELDS[c] for c in type(error).__mro__ if c in _FIELDS), {})
    return {name: getattr(error, name) for name in names}


def to_wire(error: Error) -> dict[str, Any]:
    """Return ``error`` as plain values; see :func:`from_wire`."""
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KINDS and _KINDS[c.__name__] is c), "")
    message = sendable(shorten(str(error)))
    if len(message.encode()) > _BYTES_LIMIT:
        message = shorten(message, _BYTES_LIMIT // 4)
    wire: dict[str, Any] = {"kind": kind, "message": message}
    if isinstance(error, ProviderError):
        wire["builtin"] = builtin_name_of_mixed(error)
    values = fields(error)
    for name, (key, _) in _FIELDS.get(_KINDS[kind], {}).items():
        value = values[name]
        wire[key] = sendable(shorten(value, 500)) if isinstance(value, str) else value
    return wire


def sendable(text: str) -> str:
    """Return ``text`` with escapes for characters that UTF-8 cannot encode, such as undecodable bytes of a file
    name."""
    return text.encode("utf-8", "backslashreplace").decode()


def builtin_name_of_mixed(error: ProviderError) -> str:
    """Return the name of the builtin class that :func:`provider_error` added as a base class, or ''."""
    name = type(error).__name__
    return "" if type(error) is ProviderError else name


def from_wire(wire: Mapping[str, Any]) -> Error:
    """Return the error that :func:`to_wire` made ``wire`` of; an unknown kind becomes a :class:`RemoteError`."""
    message = str(wire.get("message", "")) or "the other side gave no reason"
    kind = _KINDS.get(str(wire.get("kind", "")), RemoteError)
    if kind is ProviderError:
        return provider_error(message, str(wire.get("builtin", "")))
    keys = _FIELDS.get(kind, {})
    return kind(message, **{name: wire[key] for name, (key, type_) in keys.items() if type(wire.get(key)) is type_})

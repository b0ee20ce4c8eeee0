"""Check the values of options: one check for each kind of option, which returns the value in its plain form."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from pydp2.errors import OptionError, OptionTypeError
from pydp2.transport.service_address import MAX_PATH_BYTES, split_key, split_token, with_token

Check = Callable[[str, Any], Any]
"""Function (option name, value given) -> value in its plain form. Raises OptionError or OptionTypeError."""

_UNITS = {"": 1, "B": 1} | {
    prefix + unit: base**power for power, prefix in enumerate("KMGT", 1) for unit, base in (("B", 1000), ("IB", 1024))
}
_LARGEST = (1 << 62) - 1  # largest number in messages between processes
_MAX_BOUNDS = 1000  # bounds of buckets, which travel with each batch
_MOST_SECONDS = 1e9  # 31 years: added to the time of the clock, it is still a valid time
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:]{2,45}")


MAX_CYCLE = 2048
"""Most files that a pass may read in turn: the sample index in each of them is in the header of a message."""


def integer_from(low: int, high: int | None = _LARGEST + 1) -> Check:
    """Return a check for a whole number from ``low`` to below ``high``. With ``high=None`` it may be of any size, also
    too large for messages between processes."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise OptionTypeError(f"{name} must be a whole number, got {value_text(value)}")
        number = int(value)
        if number < low:
            raise OptionError(f"{name} must be at least {low}, got {number}")
        if high is not None and number >= high:
            raise OptionError(f"{name} must be at most {high - 1}, got {number}")
        return number

    return check


@dataclass(frozen=True)
class Choice:
    """Check for one of several words."""

    allowed: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> str:
        if value not in self.allowed or not isinstance(value, str):
            kind = OptionError if isinstance(value, str) else OptionTypeError
            near = did_you_mean(value, self.allowed)
            raise kind(f"{name} must be {names_text(self.allowed)}, got {value_text(value)}{near}")
        return value


def or_none(inner: Check) -> Check:
    """Return a check that accepts what ``inner`` accepts, and None."""
    return lambda name, value: None if value is None else inner(name, value)


def or_no_limit(inner: Check) -> Check:
    """Return a check that accepts what ``inner`` accepts, and None for no limit."""

    def check(name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return inner(name, value)
        except OptionError as error:
            raise OptionError(f"{error}; leave it out for no limit") from None
        except OptionTypeError as error:
            raise OptionTypeError(f"{error}; None is for no limit") from None

    return check


def flag(name: str, value: Any) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name} must be True or False, got {value_text(value)}")
    return value


def flag_or_none(name: str, value: Any) -> bool | None:
    """Check for True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise OptionTypeError(f"{name} must be True, False or None, got {value_text(value)}")
    return value


def error_budget(name: str, value: Any) -> float:
    """Check for a number of losses in a pass: a whole number from 0, or a share of its samples above 0 and below 1."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number of samples or a share of them, got {value_text(value)}")
    if isinstance(value, Integral):
        number = int(value)
        if not 0 <= number <= _LARGEST:
            limit = "at least 0" if number < 0 else f"at most {_LARGEST}"
            raise OptionError(f"{name} must be {limit}, got {number}; leave it out for no limit")
        return number
    share = float(value)
    if not 0 < share < 1:
        raise OptionError(
            f"{name} must be a whole number, as {name}=100, or a share above 0 and below 1, as {name}=0.01, "
            f"got {share:g}"
        )
    return share


def file_path(name: str, value: Any) -> str:
    """Check for the path of a file."""
    return _path(name, value, "file")


def folder_path(name: str, value: Any) -> str:
    """Check for the path of a directory."""
    return _path(name, value, "directory")


def _path(name: str, value: Any, what: str) -> str:
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise OptionTypeError(f"{name} must be the path of a {what}, got {value_text(value)}")
    if not path or "\0" in path:
        raise OptionError(f"{name} must be the path of a {what}, got {path!r}")
    _check_utf8(name, f"the path of a {what}", path)
    return path


def _check_utf8(name: str, what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        raise OptionError(f"{name} must be {what}, written in UTF-8, got {text!r:.80}") from None


def seconds(name: str, value: Any) -> float:
    """Check for a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number of seconds, got {value_text(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (0 < number < math.inf):
        raise OptionError(f"{name} must be more than 0 seconds and finite, got {number:g}")
    if number > _MOST_SECONDS:
        raise OptionError(f"{name} must be at most {_MOST_SECONDS:,.0f} seconds, got {number:g}")
    return number


def seconds_from(least: float) -> Check:
    """Return a check for a finite number of seconds from ``least``."""

    def check(name: str, value: Any) -> float:
        number = seconds(name, value)
        if number < least:
            raise OptionError(f"{name} must be at least {least:g} seconds, got {number:g}")
        return number

    return check


def slot_names(name: str, value: Any) -> tuple[str, ...]:
    """Check for a list of slot names, each once."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise OptionTypeError(f"{name} must be a list of slot names, got {value_text(value)}")
    double = [v for i, v in enumerate(value) if v in value[:i]]
    if double:
        raise OptionError(f"{name} must name each slot once, got {double[0]!r} twice")
    for slot in value:
        _check_utf8(name, "a list of slot names", slot)
    return tuple(value)


def slot_name_or_index(name: str, value: Any) -> str | int:
    """Check for the name of a slot, or its index from 0. Raise OptionTypeError or OptionError for other values."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if not 0 <= number <= _LARGEST:
            limits = "from 0" if number < 0 else f"at most {_LARGEST}"
            raise OptionError(f"{name} must be the number of a slot, {limits}, got {number}")
        return number
    if not isinstance(value, str):
        raise OptionTypeError(f"{name} must be the name or the number of a slot, got {value_text(value)}")
    _check_utf8(name, "the name of a slot", value)
    return value


def bucket_bounds(name: str, value: Any) -> tuple[int, ...]:
    """Check for rising lengths from 1. Raise OptionTypeError for a wrong type, OptionError for other wrong values."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(bound, Integral) and not isinstance(bound, bool) for bound in value
    ):
        raise OptionTypeError(f"{name} must be a list of lengths like [8, 16, 32], got {value_text(value)}")
    bounds = tuple(int(bound) for bound in value)
    if not 1 <= len(bounds) <= _MAX_BOUNDS:
        raise OptionError(f"{name} must have from 1 to {_MAX_BOUNDS} lengths, got {len(bounds)}")
    if bounds[-1] >= 1 << 31:
        raise OptionError(f"{name} must be lengths below {1 << 31}, got {bounds[-1]}")
    if bounds[0] < 1 or any(low >= high for low, high in pairwise(bounds)):
        raise OptionError(
            f"{name} must rise from 1 or more, each greater than the one before, got {list(bounds)!r:.80}"
        )
    return bounds


def number_of_bytes(name: str, value: Any) -> int:
    """Return ``value`` in bytes: a whole number, or text such as ``"2GiB"`` (kB, MB, GB, TB and KiB, MiB, GiB, TiB).

    Raises:
        OptionTypeError: neither a whole number nor a text.
        OptionError: no such unit, less than one byte, or more than fits into a message; the text has ``name``.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise OptionError(f'{name} must be a size like "512MiB", "2GiB" or "1.5GB", or bytes, got {value!r}')
        size = float(match[1]) * unit
        number = int(size) if size <= _LARGEST else _LARGEST + 1  # also for inf, the value of too many digits
    elif isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionTypeError(f'{name} must be a whole number of bytes or a text like "2GiB", got {value_text(value)}')
    else:
        number = int(value)
    if number < 1:
        raise OptionError(f"{name} must be at least one byte, got {number}")
    if number > _LARGEST:
        raise OptionError(f"{name} must be at most {_LARGEST} bytes, got {value!r:.80}")
    return number


def bind_address(name: str, value: Any) -> str:
    """Check for an address to serve at: ``ipc://PATH``, or ``tcp://HOST:PORT`` with the IP address of a network
    interface, ``localhost`` or ``*`` for all of them (port 0 or ``*``: any port), and optionally ``?token=`` with at
    least 32 hexadecimal digits; without it the token is random.

    Raises:
        OptionTypeError: not a text.
        OptionError: malformed, or a path too long for a socket.
    """
    if not isinstance(value, str):
        raise OptionTypeError(
            f"{name} must be a text like ipc:///tmp/a or tcp://127.0.0.1:5555, got {value_text(value)}"
        )
    scheme, separator, rest = value.partition("://")
    if separator and scheme == "ipc":
        return _ipc_address(name, value, rest)
    if separator and scheme == "tcp":
        return _tcp_address(name, value)
    raise OptionError(f"{name} must be ipc://PATH or tcp://127.0.0.1:PORT, got {value!r}")


def _ipc_address(name: str, value: str, path: str) -> str:
    if not path or path[0] in "@*" or "\0" in path:
        raise OptionError(f"{name} must be ipc:// and the path of a socket, got {value!r}; without it, one is made")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise OptionError(
            f"{name} must have a path of at most {MAX_PATH_BYTES} bytes, got {len(path)} characters: {value!r}"
        )
    return value


def _tcp_address(name: str, value: str) -> str:
    try:
        endpoint, token = split_token(value)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
    if split_key(value)[1]:
        raise OptionError(f"{name} must not have ?key=…; the key comes from connection='FILE' or keys='FOLDER'")
    rest = endpoint.removeprefix("tcp://")
    host, colon, port = rest.rpartition(":")
    if not colon or not host or not (port == "*" or (port.isascii() and port.isdigit() and int(port) < 1 << 16)):
        raise OptionError(f"{name} must be tcp://HOST:PORT with a port below 65536 (0 or * for any), got {endpoint!r}")
    import ipaddress

    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bare = {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(bare, bare)
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        raise OptionError(
            f"{name} must have the IP address of a network interface (127.0.0.1, 10.0.0.5, 0.0.0.0 for all), got "
            f"{endpoint!r}; advertise='NAME' is how trainers call the host"
        ) from None
    return with_token(f"tcp://[{parsed}]:{port}" if parsed.version == 6 else f"tcp://{parsed}:{port}", token)


def host_name(name: str, value: Any) -> str:
    """Check for the name or IP address under which others reach this host. Raises OptionTypeError, OptionError."""
    if not isinstance(value, str):
        raise OptionTypeError(f"{name} must be the name of a host, got {value_text(value)}")
    if not _HOST.fullmatch(value):
        raise OptionError(f"{name} must be the name or IP address of a host, without a port, got {value!r:.80}")
    return value


def host_and_port(name: str, value: Any) -> str:
    """Check for HOST:PORT, the IP address of a network interface and a port (0: any). Raises OptionTypeError,
    OptionError."""
    if not isinstance(value, str):
        raise OptionTypeError(f"{name} must be a text like 127.0.0.1:9100, got {value_text(value)}")
    host, _, port = value.rpartition(":")
    if not _HOST.fullmatch(host.strip("[]")) or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise OptionError(
            f"{name} must be HOST:PORT with a port below 65536, as in 127.0.0.1:9100 (0 for any), got {value!r:.80}"
        )
    return value


def did_you_mean(name: object, known: Collection[str]) -> str:
    """Return text that suggests the nearest of the ``known`` names, to append to a message, or ''."""
    import difflib

    near = difflib.get_close_matches(str(name), list(known), 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def names_text(names: Collection[str]) -> str:
    """Return ``names`` as text, with "or" before the last."""
    *most, last = (repr(name) for name in names)
    return f"{', '.join(most)} or {last}"


def value_text(value: object) -> str:
    """Return ``value`` and its type, for a message."""
    return f"{value!r:.80}" if value is None else f"{value!r:.80} ({type(value).__name__})"

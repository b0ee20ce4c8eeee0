"""Keep keys in files: the connection file of one run, and folders with keys that last (docs/security.md).

A service that other hosts can reach lets in only peers whose public key it knows, each in the role of its key. The
usual way is the connection file: a service makes fresh keys for each run and writes them, with its address, into one
file that only its user can read. Whoever can read that file can connect. Keys that last lie in folders: each owner
makes one, and the folder of the service holds the public keys of its peers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydp2.errors import OptionError
from pydp2.transport.keys import KEY_DIGITS, KeyPair, new_key_pair, public_key
from pydp2.transport.service_address import ipc_path, split_key

ROLES = ("trainer", "observer", "worker")
"""What a key admits to: reading batches, only asking for statistics, or running workers."""
CONNECTION_VARIABLE = "PYDP2_CONNECTION"
"""Environment variable with the path of a connection file."""
_VERSION = 1
_MAX_BYTES = 64 * 1024
_KEY = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SECRET, _PUBLIC, _ALLOWED, _SUFFIX = "secret.key", "public.key", "allow", ".key"


# -- files -------------------------------------------------------------------------------------------------------------
def _write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, a file that only this user can read: whole, or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="ascii") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(file)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _read_private(path: Path) -> str:
    """Return the text of ``path``. Raises OSError, also if other users could read or write it, and ValueError if it is
    no text."""
    text, known = _read_regular(path)
    _require_private(path, known)
    return text


def _require_private(path: Path, known: os.stat_result) -> None:
    if known.st_mode & 0o077 or known.st_uid not in (os.geteuid(), 0):
        raise OSError(
            errno.EPERM,
            f"other users can read or write it (mode {stat.S_IMODE(known.st_mode):04o}); make it private: "
            f"chmod 600 {path}",
        )


def _read_object(path: Path) -> tuple[dict[str, Any], os.stat_result]:
    """Return the JSON object in ``path``, and what is known of that file. Raises OSError, also if it holds something
    else: only who knows that it is a file of ours can say what to do about its mode."""
    try:
        text, known = _read_regular(path)
        plain = json.loads(text)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise OSError(errno.EINVAL, "it holds something else; name the file that the service wrote")
    return plain, known


def _read_regular(path: Path) -> tuple[str, os.stat_result]:
    """Return the text of ``path``, and what is known of that file. Raises OSError if it is none: one that another
    process has to write would be waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    known = os.fstat(file)
    if not stat.S_ISREG(known.st_mode):
        os.close(file)
        raise OSError(errno.EPERM, "it is not a regular file")
    with open(file, encoding="ascii") as stream:
        return stream.read(_MAX_BYTES), known


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is damaged"


# -- the connection file -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ConnectionFile:
    """Content of a connection file: the address of a service with its public key, and a pair of keys for each role.
    ``host_address``: where workers on other hosts connect; "" if there can be none. ``local_address``: where processes
    of the same machine and user connect, to share memory with the service; elsewhere nothing is there."""

    address: str
    keys: Mapping[str, KeyPair] = field(repr=False)
    host_address: str = ""
    local_address: str = ""

    def text(self) -> str:
        """Return the text of the file."""
        keys = {role: {"public": pair.public, "secret": pair.secret} for role, pair in self.keys.items()}
        where = {
            "address": self.address,
            "host_address": self.host_address,
            "local_address": self.local_address,
        }
        return json.dumps({"pydp2": _VERSION, **where, "keys": keys}, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write it to ``path`` with mode 0600, in place of a file that is there. Raises OptionError."""
        try:
            _write_private(path, self.text())
        except OSError as error:
            raise OptionError(
                f"connection={str(path)!r} must be a file that can be written: {_reason(error)}; choose another place"
            ) from None

    @classmethod
    def read(cls, path: Path) -> ConnectionFile:
        """Return the content of the file ``path``. Raises OptionError if it is none, or if other users can read it."""
        try:
            plain, known = _read_object(path)
            found = cls.from_plain(plain)
            _require_private(path, known)
        except (OSError, ValueError, OptionError) as error:
            why = _reason(error)
            raise OptionError(
                f"{path} must be a connection file, as `pydp2 serve --connection FILE` writes it: {why}"
            ) from None
        return found

    @classmethod
    def from_plain(cls, plain: Any) -> ConnectionFile:
        """Return the content from the JSON value of its :meth:`text`. Raises ValueError if it is something else."""
        try:
            pairs = {role: KeyPair(pair["public"], pair["secret"]) for role, pair in plain["keys"].items()}
            address, host_address = plain["address"], plain.get("host_address", "")
            address.encode(), host_address.encode()
            local_address = plain.get("local_address", "")
            keys = [key for pair in pairs.values() for key in (pair.public, pair.secret)]
            if plain["pydp2"] != _VERSION or not split_key(address)[1] or not all(map(_KEY.fullmatch, keys)):
                raise ValueError
            if host_address and not (host_address.startswith("tcp://") and split_key(host_address)[1]):
                raise ValueError
            if local_address and (
                ipc_path(local_address) is None or split_key(local_address)[1] != split_key(address)[1]
            ):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, OptionError):
            raise ValueError("no content of a connection file") from None
        return cls(address, pairs, host_address, local_address)

    def pair(self, path: Path | str, *roles: str) -> KeyPair:
        """Return the keys of the first of ``roles`` that it has. Raises OptionError if it has none; ``path`` is named
        in its text."""
        for role in roles:
            if role in self.keys:
                return self.keys[role]
        raise OptionError(
            f"{path} must have keys for the role {' or '.join(roles)}, it has {', '.join(self.keys) or 'none'}; use "
            "the file that the service wrote"
        )


def is_connection_text(content: bytes) -> bool:
    """Return whether ``content`` is that of a connection file, of this release or another. The file of keys that a
    state directory keeps is none: it also has those of the service."""
    try:
        plain = json.loads(content)
        return "pydp2" in plain and "address" in plain and "service" not in plain["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def is_connection_file(path: Path) -> bool:
    """Return whether ``path`` is a connection file, of this release or another. Raises OSError if it cannot be read."""
    if not path.is_file():  # a pipe is not even opened: its writer would lose its reader when this one closes
        return False
    with open(path, "rb") as stream:
        return is_connection_text(stream.read(_MAX_BYTES))


def remove_connection(path: Path, address: str) -> None:
    """Remove the connection file ``path`` if it is still the one of the service at ``address``."""
    with contextlib.suppress(OptionError, OSError):
        if ConnectionFile.read(path).address == address:
            path.unlink()


# -- folders with keys that last ---------------------------------------------------------------------------------------
class AllowedKey(NamedTuple):
    """Public key that a service lets in, under a name and in a role."""

    name: str
    role: str
    public: str


def new_folder(folder: Path) -> KeyPair:
    """Make ``folder`` with a fresh pair of keys, and return the pair. Raises OptionError if it has one already."""
    pair = new_key_pair()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (folder / _SECRET).exists():
            raise FileExistsError(errno.EEXIST, f"it has a {_SECRET} already; remove that file to make a new pair")
        _write_private(folder / _SECRET, pair.secret + "\n")
        (folder / _PUBLIC).write_text(pair.public + "\n", encoding="ascii")
    except OSError as error:
        raise OptionError(f"{folder} must be a folder without keys that can be written: {_reason(error)}") from None
    return pair


def own_pair(folder: Path) -> KeyPair:
    """Return the pair of keys in ``folder``. Raises OptionError if there is none, or other users can read it."""
    path = folder / _SECRET
    try:
        secret = _read_private(path).strip()
        if not _KEY.fullmatch(secret):
            raise ValueError
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{path} must hold a secret key, as `pydp2 keys new {folder}` writes it: {_reason(error)}"
        ) from None
    return KeyPair(public_key(secret), secret)


def allow(folder: Path, name: str, role: str, public: str) -> None:
    """Let in the peer ``name`` with the key ``public`` as ``role`` at the service whose keys are in ``folder``; an
    older key of that name is replaced. Raises OptionError."""
    if not _NAME.fullmatch(name):
        raise OptionError(f"a name must be up to 64 letters, digits, dots, dashes and underscores, got {name!r:.80}")
    key = public.strip().lower()
    if not _KEY.fullmatch(key):
        raise OptionError(
            f"a public key must be {KEY_DIGITS} hexadecimal digits, got {len(key)} characters; `pydp2 keys new FOLDER` "
            "prints one"
        )
    own_pair(folder)
    for known in allowed_keys(folder):
        if known.public == key and known.name != name:
            raise OptionError(
                f"a key must have one name and one role, and {folder} lets this one in as {known.name!r} "
                f"({known.role}); drop {known.name!r} before, or have the peer make a pair of its own"
            )
    try:
        for each in ROLES:
            (folder / _ALLOWED / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(folder / _ALLOWED / role / f"{name}{_SUFFIX}", key + "\n")
        for each in ROLES:
            if each != role:
                (folder / _ALLOWED / each / f"{name}{_SUFFIX}").unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"{folder} must be a folder that can be written: {_reason(error)}") from None


def drop(folder: Path, name: str) -> None:
    """Let in the peer ``name`` no longer. Raises OptionError if there is no such peer."""
    known = [each for each in allowed_keys(folder) if each.name == name]
    if not known:
        names = ", ".join(sorted(each.name for each in allowed_keys(folder))) or "none"
        raise OptionError(f"{folder} must allow {name!r} for it to be dropped; it allows {names}")
    for each in known:
        (folder / _ALLOWED / each.role / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def allowed_keys(folder: Path) -> list[AllowedKey]:
    """Return the public keys that the service with the keys in ``folder`` lets in. A file that holds no key counts for
    none."""
    return [*_found_keys(folder, lambda error: None)]


def _found_keys(folder: Path, on_error: Callable[[OSError], None]) -> Iterator[AllowedKey]:
    """Yield the keys in ``folder``; ``on_error`` is called with what keeps one from being read."""
    for role in ROLES:
        try:
            paths = sorted((folder / _ALLOWED / role).glob(f"*{_SUFFIX}"))
        except OSError as error:
            on_error(error)
            continue
        for path in paths:
            try:
                key = _read_regular(path)[0].strip()
            except OSError as error:
                on_error(error)
            except ValueError:
                pass
            else:
                if _KEY.fullmatch(key):
                    yield AllowedKey(path.name.removesuffix(_SUFFIX), role, key)


class AllowedKeys:
    """Keys of a service: its ``pair``, and those of its peers with one of ``roles``: of this run, and of ``folder``."""

    def __init__(
        self, pair: KeyPair, of_run: Mapping[str, str], folder: Path | None, roles: Sequence[str] = ROLES
    ) -> None:
        self.pair = pair
        self._of_run, self._folder, self._admitted = dict(of_run), folder, roles
        self._roles: dict[str, str] = {}
        self.refresh()

    def role_of(self, key: str) -> str | None:
        """Return the role of the peer with the public ``key``; None: it may not come in."""
        return self._roles.get(key)

    def refresh(self) -> None:
        """Look again which keys the folder allows. One that cannot be read allows none; but where this process has no
        descriptor or memory left to read, all stays as it was."""
        errors: list[OSError] = []
        lasting = [] if self._folder is None else [*_found_keys(self._folder, errors.append)]
        if any(error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) for error in errors):
            return
        known = {each.public: each.role for each in lasting} | self._of_run
        self._roles = {key: role for key, role in known.items() if role in self._admitted}

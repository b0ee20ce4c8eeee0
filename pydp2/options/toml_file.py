"""Read the TOML file that configures a run.

A configuration file::

    root = "../sample_data/digits"      # relative to this file; default: the folder of this file
    provider = "digits_provider.process"

    [args]                              # keyword arguments of the init_hook
    [train]
    list = "train.list"                 # relative to root
    [test]
    list = "test.list"
    [service]
    workers = 2
    [job]
    batch_size = 128
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydp2.errors import Error, OptionError, OptionTypeError
from pydp2.options.job_options import JobOptions
from pydp2.options.service_options import ServiceOptions
from pydp2.options.tables import JOB_OPTIONS, PROVIDER_OPTIONS, SERVICE_OPTIONS, checked, elsewhere
from pydp2.options.values import did_you_mean, names_text, value_text
from pydp2.system.file_bytes import read_named


@dataclass(frozen=True)
class Config:
    """One side of a configuration file, everything resolved and checked.

    ``root`` becomes the working directory of the workers and the first entry of their ``sys.path``, so the provider is
    found there. The entries of the list are relative to it too: ``process`` gets them as they are written.

    Attributes:
        root: absolute path of a folder.
        list: absolute path of the list file, which need not exist before it is read.
        provider: address of the provider.
        args: keyword arguments of the init_hook.
        is_train: True for the train side.
        service: arguments for :func:`service_options`, valid and in plain form.
        job: arguments for :func:`job_options`, in the same form; ``batch_size`` may be missing.
    """

    root: Path
    list: Path
    provider: str
    args: dict[str, Any]
    is_train: bool
    service: dict[str, Any]
    job: dict[str, Any]


_SIDES = ("train", "test")
_TOP = {"root": str, "provider": str, "args": dict, "train": dict, "test": dict, "service": dict, "job": dict}


def load_config(path: str | Path, side: str = "train") -> Config:
    """Read one side, ``"train"`` or ``"test"``, of a configuration file; the module's docstring shows one.

    Raises:
        OptionTypeError: a key is unknown, misplaced or of a wrong type; the text names the file and the nearest right
            key.
        OptionError: the file is missing or no TOML, a value is not valid, or this side is missing.
    """
    if side not in _SIDES:
        raise OptionError(f"side must be {names_text(_SIDES)}, got {side!r}")
    file = Path(path)
    document = _document(file)
    try:
        return _config(file, document, side)
    except Error as error:
        raise type(error)(f"{file}: {error}") from None


def _document(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_named(file, 16 << 20).decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{file}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{file}: a configuration must be UTF-8: {error.reason}") from None
    except RecursionError:
        raise OptionError(f"{file}: tables and lists are nested too deep to be read; write fewer levels") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"the configuration {file} cannot be read: {reason}") from None


def _config(file: Path, document: dict[str, Any], side: str) -> Config:
    for key, value in document.items():
        _check_key(key, _TOP, "at the top of the file")
        if not isinstance(value, _TOP[key]):
            form = f"a table, written [{key}]" if _TOP[key] is dict else "a text"
            raise OptionTypeError(f"{key} must be {form}, got {value_text(value)}")
    for name in _SIDES:
        for key in document.get(name, {}):
            _check_key(key, ("list",), f"in [{name}]")
    tables: dict[str, dict[str, Any]] = {}
    for name, options in (("service", ServiceOptions), ("job", JobOptions)):
        given = document.get(name, {})
        for key in given:
            _check_key(key, [f.name for f in fields(options)], f"in [{name}]")
        tables[name] = checked(options, given)
    root = (file.parent / document.get("root", ".")).resolve()
    if not root.is_dir():
        raise OptionError(f"root must be a folder, relative to this file, got {document['root']!r}: no folder {root}")
    if not document.get("provider"):
        raise OptionError('provider is needed, as in provider = "my_module.process"')
    listed = document.get(side, {}).get("list")
    if not (isinstance(listed, str) and listed):
        kind = OptionError if listed in (None, "") else OptionTypeError
        raise kind(f'the {side} side needs list = "…" in [{side}], got {value_text(listed)}')
    args = document.get("args", {})
    return Config(root, root / listed, document["provider"], args, side == "train", **tables)


def _check_key(key: str, allowed: Collection[str], where: str) -> None:
    """Raise OptionTypeError for an unknown key, with the table that has it, or the nearest known key."""
    if key in allowed:
        return
    homes = dict.fromkeys(PROVIDER_OPTIONS, "in @provider(...), beside process")
    homes |= dict.fromkeys(_TOP, "at the top") | {"list": "in [train] and [test]"}
    homes |= dict.fromkeys(SERVICE_OPTIONS, "in [service]") | dict.fromkeys(JOB_OPTIONS, "in [job]")
    if key in homes:
        raise OptionTypeError(f"{key} cannot stand {where}: it belongs {homes[key]}")
    near = elsewhere(key, allowed, homes) or did_you_mean(key, list(allowed)) or did_you_mean(key, homes)
    raise OptionTypeError(f"there is no key {key!r} {where}{near}; known there: {', '.join(sorted(allowed))}")

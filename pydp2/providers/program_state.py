"""Pass settings of the program's interpreter to its workers.

A worker imports the module of the provider in an interpreter of its own, so the result may differ from the module of
the program. Therefore plain settings of the interpreter are sent to workers, which apply them before the import: the
arguments (``sys.argv``), the options for warnings (``-W``), the locale, and two limits. Environment, working directory,
``sys.path`` and the flags of the interpreter reach workers in other ways. Globals of the module that the program has
changed since cannot be sent; a worker compares them, and warns. See docs/workers.md.
"""

from __future__ import annotations

import contextlib
import locale
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from json import dumps, loads
from typing import Any

from pydp2.errors import RemoteProtocolError
from pydp2.providers.address import imported_provider
from pydp2.providers.decorator import Provider
from pydp2.providers.global_values import changed_globals, describe_globals

_LEAST_DEPTH, _MOST_DEPTH = 100, 1 << 30


@dataclass(frozen=True, kw_only=True)
class ProgramState:
    """Settings of a program's interpreter for its workers. ``described_globals``: for the address of a provider, the
    global names that it uses, each with a description of its value."""

    argv: tuple[str, ...]
    warn_options: tuple[str, ...] = ()
    locale: str = ""
    recursion_limit: int
    digits_limit: int
    described_globals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_this_program(cls, providers: Mapping[str, Provider | str]) -> ProgramState:
        """Return the state of this process, which serves ``providers``: for each address the provider, or the address
        again."""
        described = {address: found for address, provider in providers.items() if (found := _described(provider))}
        return cls(
            argv=tuple(str(argument) for argument in getattr(sys, "argv", ())),
            warn_options=tuple(sys.warnoptions),
            locale=_changed_locale(),
            recursion_limit=sys.getrecursionlimit(),
            digits_limit=sys.get_int_max_str_digits(),
            described_globals=described,
        )

    def apply(self) -> None:
        """Apply the settings to this process, as far as possible."""
        sys.argv[:] = self.argv
        if tuple(sys.warnoptions) != self.warn_options:
            sys.warnoptions[:] = self.warn_options
            warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]  # as the interpreter does at its start
        if self.locale:
            with contextlib.suppress(locale.Error):  # another host may not have it
                locale.setlocale(locale.LC_ALL, self.locale)
        sys.setrecursionlimit(self.recursion_limit)
        sys.set_int_max_str_digits(self.digits_limit)

    def warn_of_changes(self, address: str, provider: Provider) -> None:
        """Warn if globals that ``provider``, which is at ``address``, uses have other values in this process than in
        the program."""
        if changes := changed_globals(provider, self.described_globals.get(address, {})):
            warnings.warn(changes, UserWarning, stacklevel=2)

    def to_bytes(self) -> bytes:
        """Return the state as bytes."""
        return dumps(asdict(self)).encode()  # JSON in ASCII, because arguments need not be UTF-8

    @classmethod
    def from_bytes(cls, data: bytes) -> ProgramState:
        """Return the state that :meth:`to_bytes` wrote. Raises RemoteProtocolError."""
        try:
            plain = loads(data)
            plain |= {name: tuple(plain[name]) for name in ("argv", "warn_options")}
            state = cls(**plain)
            _check(state)
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # errors of JSON are ValueErrors
            raise RemoteProtocolError(f"the state of a program cannot be read: {error!r:.200}") from None
        return state


def _described(provider: Provider | str) -> dict[str, str]:
    """Return the global names that ``provider`` uses, each with a description of its value; {} if this process has not
    imported it."""
    found = imported_provider(provider) if isinstance(provider, str) else provider
    module = None if found is None else sys.modules.get(found.function.__module__)
    in_file = getattr(module, "__file__", None) is not None  # a module file of a notebook has the present values
    return describe_globals(found) if found is not None and in_file else {}


def _changed_locale() -> str:
    """Return the locale of this program, '' if it is that of a fresh interpreter, which sets only LC_CTYPE from the
    environment."""
    kinds = (locale.LC_COLLATE, locale.LC_MONETARY, locale.LC_NUMERIC, locale.LC_TIME)
    return locale.setlocale(locale.LC_ALL) if {locale.setlocale(kind) for kind in kinds} != {"C"} else ""


def _check(state: ProgramState) -> None:
    """Raise TypeError or ValueError if ``state`` has values that no program can have."""
    known = {**state.described_globals}
    texts: list[Any] = [*state.argv, *state.warn_options, state.locale, *known]
    texts += (text for described in known.values() for item in {**described}.items() for text in item)
    if not all(type(text) is str for text in texts):
        raise TypeError("a text is needed")
    if type(state.digits_limit) is not int or state.digits_limit < 0:
        raise ValueError("digits_limit")
    if type(state.recursion_limit) is not int or not _LEAST_DEPTH <= state.recursion_limit <= _MOST_DEPTH:
        raise ValueError("recursion_limit")

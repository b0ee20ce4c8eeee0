"""Find the global values that a provider uses, to compare them between a program and its workers.

A worker imports the module of the provider itself. It does not get values that the program assigned to globals of that
module later: in the part below ``if __name__ == "__main__":``, or from another module. A value is described by a text,
which is the same in both processes for equal plain values. Names that a function of the provider assigns by ``global``
are not compared.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from pydp2.providers.decorator import Provider
from pydp2.providers.plain_text import VALUE_BYTES, plain_text
from pydp2.system.stdlib import hashlib

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL")
_MOST_FUNCTIONS = 1000  # functions that are searched for names
_MOST_WRAPPERS = 16  # wrappers around a function; some objects return another such object for any attribute
_MOST_ITEMS = 10_000  # items of a collection that is compared
_MOST_NAMES = 5  # names in a message
_NUMBERS = (bool, int, float, type(None))  # types whose values a message shows; a text may be a secret
_ABSENT = object()
_OTHER = ""
"""Description of a value that is not plain."""


def describe_globals(provider: Provider) -> dict[str, str]:
    """Return the global names that ``provider`` uses and its module has, each with a description of its value."""
    names, namespace = _used_names(provider)
    return {name: _described(namespace[name]) for name in sorted(names) if name in namespace}


def changed_globals(provider: Provider, described: Mapping[str, str]) -> str:
    """Return text with the globals of ``provider`` that differ in this process from those ``described``, or ''."""
    namespace = inspect.unwrap(provider.function).__globals__
    found = []
    for name, then in described.items():
        value = namespace.get(name, _ABSENT)
        if value is _ABSENT:
            found.append(f"{name}, which the workers do not have")
        elif then != _OTHER and then != (now := _described(value)):
            shown = not {then[:1], now[:1]} & {"#", ""}
            values = (
                f"is {then} in the program and {now} in the workers" if shown else "has another value in the workers"
            )
            found.append(f"{name}, which {values}")
    if not found:
        return ""
    listed = "; ".join(found[:_MOST_NAMES]) + ("; …" if len(found) > _MOST_NAMES else "")
    return (
        f"{provider.function.__qualname__} uses {listed}: workers import the module, and have nothing that the program "
        'changes later (below `if __name__ == "__main__":`, or from another module); assign it at the top level of the '
        "module, or pass it with args=… to the init_hook"
    )


def _described(value: Any) -> str:
    """Return the text of a number, a digest of another plain value, and :data:`_OTHER` for anything else."""
    try:
        if type(value) in _NUMBERS:
            return repr(value)
        text = plain_text(value) if _is_small(value) else ""
    except Exception:  # it has no text, or is an object that raises for any attribute
        return _OTHER
    if not 0 < len(text) <= VALUE_BYTES:
        return _OTHER
    return "#" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _is_small(value: Any) -> bool:
    """Return True if ``value`` is no collection, or a collection with few items on all levels together."""
    left, count = [value], 0
    while left and count <= _MOST_ITEMS:
        item = left.pop()
        kind = type(item)
        if kind is dict:
            item = [*item.keys(), *item.values()] if len(item) <= _MOST_ITEMS else range(_MOST_ITEMS + 1)
        if kind in (dict, list, tuple, set, frozenset):
            count += len(item)
            left += item if count <= _MOST_ITEMS else ()
        elif kind in (str, bytes) and len(item) > VALUE_BYTES:
            return False
    return count <= _MOST_ITEMS


def _used_names(provider: Provider) -> tuple[set[str], Mapping[str, Any]]:
    """Return the global names that the functions of ``provider`` use, and the namespace in which they look them up."""
    options, function = provider.options, inspect.unwrap(provider.function)
    namespace = function.__globals__
    left: list[Any] = [function, options.init_hook, options.calc_batch_size]
    used, assigned = set[str](), set[str]()
    seen = set[int]()
    while left and len(seen) < _MOST_FUNCTIONS:
        for found in _functions(left.pop(), namespace):
            if id(found) in seen:
                continue
            seen.add(id(found))
            for loads, name in _global_names(found.__code__):
                (used if loads else assigned).add(name)
                if loads:
                    left.append(namespace.get(name))
    return {name for name in used - assigned if name not in vars(builtins) and not name.startswith("__")}, namespace


def _functions(value: Any, namespace: Mapping[str, Any]) -> Iterator[FunctionType]:
    """Yield the functions that ``value`` is, wraps or has as methods, if ``namespace`` has their globals."""
    if issubclass(type(value), type) and value.__module__ == namespace.get("__name__"):
        for member in vars(value).values():
            yield from _functions(getattr(member, "__func__", getattr(member, "fget", member)), namespace)
        return
    for _ in range(_MOST_WRAPPERS):
        if type(value) is FunctionType and value.__globals__ is namespace:
            yield value
        try:
            value = getattr(value, "__wrapped__", None)
        except Exception:  # a proxy whose object is not there yet
            return


def _global_names(code: CodeType) -> Iterator[tuple[bool, str]]:
    """Yield the global names in ``code`` and the code nested in it, each with True if it is used, False if it is
    assigned."""
    for step in dis.get_instructions(code):
        if step.opname in _LOADS or step.opname in _STORES:
            yield step.opname in _LOADS, step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)

"""Resolve addresses of providers: ``mod.process``, ``mod:process``, ``file.py:process``;
``package.mod`` for its ``process``.

This module finds a provider by its address, with a specific error for each way in which that can fail, and makes an
address under which another process finds the same provider. A provider never travels as an object: an address leads to
the same code everywhere, and nothing is executed from the wire.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydp2.errors import AddressError, OptionTypeError, from_user
from pydp2.providers.decorator import Provider
from pydp2.providers.error_location import count_own_frames, remedy
from pydp2.system.stdlib import hashlib

_FORMS = "write module.process, module:process or file.py:process"
_DEFAULT_FUNCTION = "process"  # name of the provider if the address names only a module
_MOST_WRAPPERS = 8  # decorators around a provider that are searched
_MAINS = ("__main__", "__mp_main__")
_REMEDY = "put the decorated function at the top level of a file and give that, as in my_provider.py:process"


def resolve(address: str) -> Provider:
    """Return the provider at ``address``; import its module or file if it is not imported yet.

    A file is imported under a special name (never ``__main__``, so its ``if __name__ == "__main__"`` part does not
    run). Meanwhile its folder is the first entry of ``sys.path``, and afterwards the last one, for imports inside its
    functions. A relative path starts at the working directory.

    Raises:
        AddressError: the address is malformed; there is no such module, file or attribute; or the object is not
            decorated.
        ProviderError: the user's module raised while it was imported (also the builtin of the same name).
    """
    source, attribute = _parse_address(address)
    if source.endswith(".py"):
        module, where = _import_file(Path(source), address), f"the file {source}"
    else:
        module, where = _import_module(source, address), f"the module {source}"
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            if isinstance(found, ModuleType) and (inner := _inner_module(found, part, address)) is not None:
                found = inner
                continue
            hint = _did_you_mean(part, vars(found)) or _known_providers(found)
            raise AddressError(f"{address}: {where} has no attribute {part!r}{hint}") from None
    if isinstance(found, ModuleType):
        found, where = vars(found).get(_DEFAULT_FUNCTION), f"the module {found.__name__}"
        if found is None:
            raise AddressError(f"{address}: {where} has no function called {_DEFAULT_FUNCTION}; {_FORMS}")
    if isinstance(found, Provider):
        return found
    if callable(found):
        raise AddressError(f"{address}: {attribute} is not a provider; {_decoration(found)}")
    raise AddressError(f"{address}: {attribute} must be a decorated function, it is a {type(found).__name__}")


def address_of(provider: Provider | str) -> str:
    """Return an address under which another process finds ``provider``; a text is only checked for its form.

    A provider of the running script is named by its file, because ``__main__`` is another module in another process. A
    provider of a notebook is written to a module file, with the definitions that it uses; see docs/notebooks.md.

    Raises:
        AddressError: there is no such address: for a lambda, a function inside a function, one of a prompt, one of a
            notebook that uses values that are not plain, or an undecorated function.
        OptionTypeError: ``provider`` is neither a provider nor a text.
    """
    if isinstance(provider, str):
        _parse_address(provider)
        return provider
    if not isinstance(provider, Provider):
        if callable(provider):
            raise AddressError(f"{provider!r:.80} is not a provider; {_decoration(provider)}")
        raise OptionTypeError(f"provider must be a decorated function or its address, got {provider!r:.80}")
    function = provider.function
    name, module_name = function.__qualname__, function.__module__
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else "a function inside a function"
        raise AddressError(f"{name} is {kind}, which no other process can find; {_REMEDY}")
    module = sys.modules.get(module_name)
    if module is None:
        raise AddressError(f"{name} belongs to the module {module_name}, which is not imported; {_REMEDY}")
    name = _name_in(module, provider, name)
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)  # for a script that -m runs, it has the name for an import
    importable = spec.name if spec is not None else module_name
    if importable not in _MAINS and _imports_as(importable, file):
        return f"{importable}:{name}"
    if file is None or not Path(file).is_file():
        if source := _place_without_file(file, inspect.unwrap(function)):
            raise AddressError(f"{name} was defined in {source}; {_REMEDY}")
        from pydp2.providers.notebook import module_file  # imported here, because scripts and workers do not need it

        return f"{module_file(name, inspect.unwrap(function))}:{name}"
    if not file.endswith(".py"):
        raise AddressError(f"{name} was defined in {file}, whose name must end in .py for workers to import it")
    return f"{Path(file).resolve()}:{name}"


def imported_provider(address: str) -> Provider | None:
    """Return the provider at ``address`` if this program has imported its module, also as ``__main__``; None
    otherwise."""
    source, attribute = _parse_address(address)
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if source.endswith(".py"):
        path = Path(source).resolve()
        named = [
            module
            for module in [*sys.modules.values()]
            if Path(getattr(module, "__file__", None) or "").name == path.name
        ]
        modules = [module for module in named if _is_same_file(str(module.__file__), str(path))]
    else:
        modules = [sys.modules[source]] if source in sys.modules else []
        if main is not None and file is not None and Path(file).stem == source:
            modules.append(main)
    for module in modules:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part, None)
        if isinstance(found, ModuleType):
            found = getattr(found, _DEFAULT_FUNCTION, None)
        if isinstance(found, Provider):
            return found
    return None


def _parse_address(address: object) -> tuple[str, str]:
    """Return (module or file, attribute) of an address."""
    if not isinstance(address, str):
        raise OptionTypeError(f"a provider's address must be a text, got {address!r:.80} ({type(address).__name__})")
    source, colon, attribute = address.rpartition(":")
    if not colon:
        if address.endswith(".py") or "/" in address:
            raise AddressError(f"{address}: which function of it? {_FORMS}")
        source, _, attribute = address.rpartition(".")
    if source in _MAINS:
        raise AddressError(f"{address}: {source} is another module in every process; write file.py:{attribute}")
    names = attribute if source.endswith(".py") else f"{source}.{attribute}"
    if not source or "\0" in source or not all(part.isidentifier() for part in names.split(".")):
        raise AddressError(f"{address!r} is not the address of a provider; {_FORMS}")
    return source, attribute


def _import_module(name: str, address: str) -> ModuleType:
    """Import one level after the other, to tell a missing module from an ImportError that the user's code raises."""
    importlib.invalidate_caches()
    parent: ModuleType | None = None
    parts = name.split(".")
    for depth, part in enumerate(parts):
        level = ".".join(parts[: depth + 1])
        module = sys.modules.get(level)
        if module is None:
            path = None if parent is None else getattr(parent, "__path__", ())
            if not path and parent is not None:
                raise AddressError(f"{address}: {parent.__name__} is a module, not a package: it has no {part}")
            if importlib.util.find_spec(level) is None:
                raise AddressError(_no_module(level, part, path, address))
            with _import_errors(f"the module {level}"):
                module = importlib.import_module(level)
        parent = module
    assert parent is not None
    return parent


def _inner_module(package: ModuleType, name: str, address: str) -> ModuleType | None:
    """Return the module ``name`` of ``package``, None if there is none."""
    full = f"{package.__name__}.{name}"
    if not hasattr(package, "__path__") or importlib.util.find_spec(full) is None:
        return None
    return _import_module(full, address)


def _no_module(level: str, part: str, path: Iterable[str] | None, address: str) -> str:
    beside = Path(*level.split(".")).with_suffix(".py")
    if beside.is_file():
        remedy = f"; there is a file {beside}: write {beside}:{address.rpartition(':' if ':' in address else '.')[2]}"
    else:
        remedy = _did_you_mean(part, [found.name for found in pkgutil.iter_modules(path)])
        looked = "is its folder on sys.path (PYTHONPATH)?" if path is None else f"looked in {', '.join(path)}"
        remedy = remedy or f"; {looked}"
    return f"{address}: there is no module {level!r}{remedy}"


def _import_file(path: Path, address: str) -> ModuleType:
    if not path.is_file():
        if path.exists():
            raise AddressError(f"{address}: {path} is not a file")
        folder = path.parent
        if not folder.is_dir():
            raise AddressError(f"{address}: there is no folder {folder}; relative paths start at {Path.cwd()}")
        hint = _did_you_mean(path.name, [file.name for file in folder.glob("*.py")])
        raise AddressError(f"{address}: there is no file {path}{hint}; relative paths start at {Path.cwd()}")
    path = path.resolve()
    # The name is not just the stem: a provider in a file random.py must not become the module random.
    digest = hashlib.blake2b(str(path).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    name = f"_pydp2_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    folder_name = str(path.parent)
    sys.path.insert(0, folder_name)
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        with _import_errors(f"the file {path}", path, address):
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]  # it is half imported: the next attempt must not find it
                raise
    finally:
        if folder_name in sys.path:
            sys.path.remove(folder_name)
        if folder_name not in sys.path:
            sys.path.append(folder_name)
    return module


@contextlib.contextmanager
def _import_errors(what: str, path: Path | None = None, address: str = "") -> Iterator[None]:
    """Convert exceptions of the user's code during its import, with their traceback but without the frames of the
    import system. ``path``: that of the file that ``address`` names."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, SyntaxError) and count_own_frames(error) == len(
            list(traceback.walk_tb(error.__traceback__))
        ):
            error = error.with_traceback(None)  # its text has the location, and no frame belongs to the user
        hint = remedy(error) or _argv_hint(error) or (_package_hint(error, path, address) if path is not None else "")
        text = f"{what} raised {type(error).__name__} while it was imported{hint}"
        raise from_user(text, error, count_own_frames(error)) from None


def _argv_hint(error: BaseException) -> str:
    """Return text with the arguments with which the user's module was imported, and the remedy, if ``error`` may come
    from them; '' otherwise."""
    if not isinstance(error, SystemExit) and not any(
        "sys.argv" in (frame.line or "") for frame in traceback.extract_tb(error.__traceback__)
    ):
        return ""
    return (
        "; workers import the module of the provider, with the arguments of the program, "
        f"sys.argv = {sys.argv!r:.200}: put what only the program does, such as parse_args(), "
        'below `if __name__ == "__main__":`, and pass what the provider needs of it with args=… to the init_hook'
    )


def _package_hint(error: BaseException, path: Path, address: str) -> str:
    """Return text with the dotted address of the provider in the file ``path`` if, according to ``error``, the file has
    relative imports; '' otherwise."""
    if not isinstance(error, ImportError) or "relative import" not in str(error):
        return ""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name:
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) == 1:  # the folders of a package need no __init__.py
        above = [Path(entry) for entry in sys.path if Path(entry) in path.parents and Path(entry) != folder]
        folder = max(above, key=lambda entry: len(entry.parts), default=folder.parent)
        names = list(path.with_suffix("").relative_to(folder).parts)
    where = "" if str(folder) in sys.path else f", with root={folder}"
    return (
        f"; its imports are relative to a package, to which a file given by its path does not belong: write "
        f"{'.'.join(names)}:{address.rpartition(':')[2]}{where}"
    )


def _decoration(value: Any) -> str:
    """Return a remedy, as text, that makes the callable ``value`` a provider."""
    if isinstance(value, type):  # for example a Dataset of torch
        return (
            "it is a class: write a generator function, process(settings, filename), that yields the samples of one "
            "file, and decorate it with @provider(input_types=…)"
        )
    if _holds_provider(value, 0):
        return "it wraps one: put @provider(…) above all other decorators, so that it is the last one to be applied"
    return "decorate it with @provider(input_types=…)"


def _holds_provider(value: Any, depth: int) -> bool:
    """Return True if ``value`` wraps a provider, as decorators of functools do, in a closure, or as an attribute."""
    if isinstance(value, Provider) or depth > _MOST_WRAPPERS:
        return isinstance(value, Provider)
    contents = [getattr(value, name, None) for name in ("__wrapped__", "func", "__func__")]
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell is empty
            contents.append(cell.cell_contents)
    contents += getattr(value, "__dict__", {}).values()
    return any(
        callable(value) and not isinstance(value, type) and _holds_provider(value, depth + 1) for value in contents
    )


def _place_without_file(file: str | None, function: Any) -> str:
    """Return text with the source of a function that workers cannot import and that is not in a cell of a notebook; ''
    for other functions. ``file``: that of its module."""
    if file is not None and (archive := next(filter(Path.is_file, Path(file).parents), None)) is not None:
        return (
            f"{file}, the main module of a program in a zip file: workers import other modules of {archive.name}, and "
            "not this one"
        )
    source = function.__code__.co_filename
    if source.startswith(("/dev/fd/", "/proc/self/fd/")):
        return f"a program that was read from {source}, a pipe, where workers cannot find it"
    if source == "<string>":
        return "the text of a command (python -c) or of exec(), where workers cannot find it"
    if source == "<stdin>" and not hasattr(sys, "ps1"):
        return "a program that was read from standard input (a here-document), where workers cannot find it"
    return ""


def _name_in(module: ModuleType, provider: Provider, name: str) -> str:
    """Return the name of ``provider`` in ``module``: that of its function, or one to which it was assigned."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is provider:
        return name
    for other, value in vars(module).items():
        if value is provider:
            return other
    raise AddressError(
        f"the module {module.__name__} does not hold this provider, neither as {name} nor as another name"
    )


def _imports_as(name: str, file: str | None) -> bool:
    """Return True if an import of ``name`` in another process leads to ``file``. (Some tools load modules by other
    means.)"""
    path: list[str] | None = None
    spec = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        level = ".".join(parts[:depth])
        specs = (finder.find_spec(level, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is None:
            return False
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return spec is not None and file is not None and spec.origin is not None and _is_same_file(spec.origin, file)


def _is_same_file(first: str, second: str) -> bool:
    return Path(first).resolve() == Path(second).resolve()


def _known_providers(found: object) -> str:
    names = [name for name, value in vars(found).items() if isinstance(value, Provider)]
    return f"; its providers are: {', '.join(names)}" if names else ""


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else ""

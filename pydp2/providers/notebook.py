"""Write a provider of a notebook into a module file that workers can import. See docs/notebooks.md.

Theory of operation. A cell runs in ``__main__`` of the kernel, which is another module in each process, so workers
import a file instead. Nothing is pickled, and everything in the file can be read. It has three kinds of statements:

* *definitions*: the statements of cells that define the provider, and the functions and classes that it uses. IPython
  keeps the source of each cell in :mod:`linecache`;
* *imports* of objects of modules;
* *assignments* of the present values of the other names, as far as these are plain (:mod:`.plain_text`).

A definition runs again in each worker, and the result must be equal to the present one in the notebook. The source
alone does not ensure that: a default value may have been computed from a name that has changed since, a method may have
been replaced, a decorator edited without the functions below it. Therefore the file is imported here once, under
another name, and the two definitions are compared part by part (:class:`_Contents`): functions by their source, plain
values by their text, objects of modules by their name. A part that has no such text cannot be compared, and is refused
with the remedy to write the provider to a file. A comparison of arbitrary objects would have no end: they have caches,
counters and locks, and code whose instructions depend on the code around it.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import linecache
import os
import re
import symtable
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, EnumMeta
from functools import cache, cached_property, singledispatchmethod
from importlib.machinery import SourceFileLoader
from inspect import isdatadescriptor
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from pydp2.errors import AddressError
from pydp2.providers.decorator import Provider
from pydp2.providers.plain_text import ALIAS, VALUE_BYTES, plain_text
from pydp2.system.stdlib import hashlib
from pydp2.system.user_folders import cache_home

_FUTURE = "from __future__ import annotations\n"
_MAX_LEVELS = 16  # levels of wrappers around a function
_UNUSED_SECONDS = 90 * 86400.0  # seconds without use after which a module file is removed
_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")  # scopes inside a statement that run with it
_OF_VALUES = ("builtins", "ml_dtypes", "numpy", "pathlib", "pydp2", "re")
_SHARED_NAMES = ("<string>", "<stdin>")  # file names of several sources, so linecache may have the wrong one
_COMPARED = "_pydp2_compared_"  # prefix of the name under which a module file is imported here


def module_file(name: str, function: FunctionType) -> Path:
    """Return the file of a module that defines ``name`` as the notebook of ``function`` does; write it if need be.

    Its name contains a digest of its text, so the same cells give the same file, and changed ones another.

    Raises:
        AddressError: there is no source, as at some prompts; the provider uses values that are not plain; the result of
            the cells differs from the present definitions of the notebook; or the file cannot be written.
    """
    if _cell(function.__code__.co_filename) is None:
        raise AddressError(
            f"{name} was defined at a prompt or in a notebook, where workers cannot find it, and its source is not "
            f"known here; {_to_a_file(name)}"
        )
    cells = _CellNames(function)
    cells.add(name.partition(".")[0])
    definitions = cells.in_order()
    present = _Contents(function.__globals__, definitions)
    if refused := cells.refused + present.refused:
        raise AddressError(
            f"{name} uses what workers cannot be given: {', '.join(refused)}; make it in the init_hook, pass "
            f"plain data with args=…, or {_to_a_file(name)}"
        )
    path = _write(name, cells.text())
    try:
        made = _contents_of_file(path, definitions)
    except Exception as error:
        raise AddressError(
            f"the cells that define {name} and what it uses cannot run by themselves, as they must in the workers: "
            f"{type(error).__name__}: {error}, in {path}; {_to_a_file(name)}"
        ) from error
    if changed := present.differences(made):
        raise AddressError(
            f"workers run the cells that define {name} and what it uses, and these do not give what the notebook has "
            f"now: {', '.join(changed.values())}, which was changed later, or what it was made of; run the cells that "
            f"define {', '.join(changed)} again, or {_to_a_file(name)}"
        )
    return path


def _to_a_file(name: str) -> str:
    return (
        "write it to a file: begin its cell with %%writefile my_provider.py, run the cell, and give "
        f'"my_provider.py:{name}" (see docs/notebooks.md)'
    )


class _Definition(NamedTuple):
    """Statement that defines a function or class: its source, the names that it uses when it runs (``now``) or at any
    time (``ever``), and the attributes that it gives its class."""

    source: str
    now: set[str]
    ever: set[str]
    attributes: set[str]


class _CellNames:
    """Statements that define the names that a provider uses. ``refused``: names that cannot be defined, each with the
    reason."""

    def __init__(self, function: FunctionType) -> None:
        self.refused: list[str] = []
        self._definitions: dict[str, _Definition] = {}
        self._namespace = function.__globals__
        self._future = _FUTURE if function.__code__.co_flags & __future__.annotations.compiler_flag else ""
        self._seen: set[str] = set()
        self._imports: dict[str, None] = {}  # in the order in which they were added
        self._values: list[str] = []

    def add(self, name: str, attributes: frozenset[str] = frozenset()) -> None:
        """Add the statements that define ``name``. ``attributes``: dotted names behind it, which may be modules inside
        a package."""
        value = self._namespace.get(name, _ABSENT)
        if name.startswith(ALIAS):
            self.refused.append(f"{name} (names that begin with {ALIAS} are those of the file itself: rename it)")
        elif isinstance(value, ModuleType):  # each time: other attributes may have been used
            self._add_module(name, value, attributes)
        elif name not in self._seen and not _is_given(name, value):
            self._seen.add(name)
            if not (self._add_import(name, value) or self._add_definition(name, value)):
                self._add_value(name, value)

    def text(self) -> str:
        """Return the text of the module."""
        future = [self._future] if self._future else []
        parts = ["# Written by pydp2 from the cells of a notebook: a provider, and what it uses.\n", *future]
        parts += ["\n".join(self._imports) + "\n"] if self._imports else []
        parts += ["\n".join(self._values) + "\n"] if self._values else []
        return "\n".join(parts) + "".join(f"\n\n{definition.source}\n" for definition in self.in_order().values())

    def in_order(self) -> dict[str, _Definition]:
        """Return the functions and classes in the order in which the module defines them."""
        placed: dict[str, None] = {}
        for name in self._definitions:
            self._place(name, placed, set())
        return {name: self._definitions[name] for name in placed}

    def _place(self, name: str, placed: dict[str, None], waiting: set[str]) -> None:
        """Put ``name`` into ``placed``, behind the definitions that its statement needs, and behind those that it may
        call. ``waiting``: names that are placed later, because they need this one."""
        if name in placed or name in waiting:
            return
        waiting.add(name)
        for used in self._closure(self._definitions[name].now & self._definitions.keys(), "now"):
            self._place(used, placed, waiting)
        for used in self._closure([name], "ever"):
            if waiting.isdisjoint(self._closure([used], "now")):
                self._place(used, placed, waiting)
        waiting.remove(name)
        placed[name] = None

    def _closure(self, names: Iterable[str], when: str) -> list[str]:
        """Return the definitions ``names``, and all that these use, directly or not, ``now`` or ``ever``."""
        found = sorted(names)
        for name in found:  # it grows
            found += sorted(getattr(self._definitions[name], when) & self._definitions.keys() - set(found))
        return found

    def _add_module(self, name: str, module: ModuleType, attributes: frozenset[str]) -> None:
        full = module.__name__
        if sys.modules.get(full) is not module or full == "__main__":
            self.refused.append(f"{name} (a module that cannot be imported as {full})")
            return
        self._imports[f"import {full}" if name == full else f"import {full} as {name}"] = None
        for inner in sorted(f"{full}.{attribute}" for attribute in attributes):
            if inner in sys.modules:  # `import xml` alone does not import xml.etree
                self._imports[f"import {inner}"] = None

    def _add_import(self, name: str, value: Any) -> bool:
        """Add an import of ``value`` from a module that has it. Return False if no such module is known."""
        imports = [found] if (found := _import_of(value)) else _from_imports(name)
        for module, attribute in imports:
            if vars(sys.modules.get(module, builtins)).get(attribute, _ABSENT) is value:
                self._imports[f"from {module} import {attribute}" + ("" if attribute == name else f" as {name}")] = None
                return True
        return False

    def _add_definition(self, name: str, value: Any) -> bool:
        """Add the statement of a cell that defines the function or class ``value``, and the names that it uses. Return
        False if ``value`` is neither a function nor a class."""
        if isinstance(value, type):
            sources = _class_sources(name, value)
        elif functions := _functions(value):
            sources = _function_sources(name, functions)
        else:
            return False
        if len(sources) != 1:
            why = "several cells define it" if sources else "no cell has a statement that defines it as it is now"
            self.refused.append(f"{name} ({why})")
            return True
        (source,) = sources
        names = _used_names(source)
        self._definitions[name] = _Definition(
            source, _needed_names(self._future + source), {*names}, _class_attributes(source)
        )
        for used, attributes in names.items():
            self.add(used, attributes)
        return True

    def _add_value(self, name: str, value: Any) -> None:
        if value is _ABSENT or name == "get_ipython":
            self.refused.append(f"{name} ({'not defined' if value is _ABSENT else 'of a magic or a shell command'})")
            return
        try:
            text = plain_text(value)
        except ValueError as error:
            self.refused.append(f"{name} ({error})")
            return
        if len(text) > VALUE_BYTES:
            self.refused.append(f"{name} (a {type(value).__name__} of more than {VALUE_BYTES >> 10} KiB)")
            return
        for module in re.findall(rf"\b{ALIAS}(\w+)\.", text):
            if module in _OF_VALUES:
                self._imports[f"import {module} as {ALIAS}{module}"] = None
        self._values.append(f"{name} = {text}")


_ABSENT = object()
_OF_MODULES = {  # and, while they are defined, of classes
    "__name__",
    "__file__",
    "__package__",
    "__spec__",
    "__loader__",
    "__cached__",
    "__builtins__",
    "__annotations__",
    "__module__",
    "__qualname__",
}


def _is_given(name: str, value: Any) -> bool:
    """Return True if ``name`` needs no statement, because it is an attribute of every module or a builtin (IPython
    wraps ``open``)."""
    if name in _OF_MODULES:
        return True
    builtin = vars(builtins).get(name, _ABSENT)
    if value is _ABSENT:
        return builtin is not _ABSENT and not str(getattr(builtin, "__module__", "")).startswith("IPython")
    if isinstance(value, FunctionType) and str(value.__globals__.get("__name__")).startswith("IPython"):
        value = getattr(value, "__wrapped__", value)
    return builtin is not _ABSENT and builtin is value


def _import_of(value: Any) -> tuple[str, str] | None:
    """Return the module and the attribute that are ``value``, by its own module and name; None if there are none."""
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(attribute, str) and not _is_of_cells(module):
        for source in (module.partition(".")[0], module):  # the package has it, or only the module
            if vars(sys.modules.get(source, builtins)).get(attribute, _ABSENT) is value:
                return source, attribute
    return None


def _is_of_cells(module: object) -> bool:
    """Return True for the name of the module in which cells run, here or in a module file."""
    return str(module).startswith(("__main__", _COMPARED))


# -- the sources of cells ----------------------------------------------------------------------------------------------
@cache
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _cell(file: str) -> tuple[str, ast.Module] | None:
    """Return source and syntax tree of a cell, None if they are not known."""
    entry = linecache.cache.get(file, ())
    if file in _SHARED_NAMES or len(entry) != 4 or entry[1] is not None:  # entry[1]: the time of a file on disk
        return None
    source = "".join(entry[2])
    tree = _parsed(source)
    return None if tree is None else (source, tree)


def _cells() -> Iterator[tuple[str, ast.Module]]:
    """Yield source and syntax tree of each cell that was run."""
    yield from filter(None, map(_cell, [*linecache.cache]))


def _from_imports(name: str) -> Iterator[tuple[str, str]]:
    """Yield module and attribute of each import in cells that defines ``name``, because a value need not have its
    module as an attribute."""
    for _, tree in _cells():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                yield from ((node.module, alias.name) for alias in node.names if name == (alias.asname or alias.name))


def _functions(value: Any) -> dict[int, FunctionType]:
    """Return the functions that ``value`` is or wraps, by the number of wrappers around them."""
    found = {}
    for layers in range(_MAX_LEVELS):  # some objects return another such object for any attribute
        if isinstance(value, FunctionType):
            found[layers] = value
        value = getattr(value, "__wrapped__", None)
    return found


def _function_sources(name: str, functions: Mapping[int, FunctionType]) -> set[str]:
    """Return a set with the statement that defines one of ``functions``. The set is empty if the statement would define
    a function with another number of wrappers, such as one that was wrapped or renamed later."""
    for layers, function in functions.items():
        code = function.__code__
        if (cell := _cell(code.co_filename)) is None:
            continue
        for node in cell[1].body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                    is_it, wraps = code.co_firstlineno == _first_line(node), len(node.decorator_list)
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Lambda()) if target == name:
                    is_it, wraps = code.co_firstlineno == node.value.lineno, 0
                case _:
                    continue
            if is_it and layers <= wraps:
                return {_segment(cell[0], node)}
    return set()


def _class_sources(name: str, value: type) -> set[str]:
    """Return the statements of cells that may define a class: that of the cell with its methods, or all."""
    methods = [method for member in vars(value).values() for method in _functions(member).values()]
    files = {method.__code__.co_filename for method in methods}
    own = [*filter(None, map(_cell, files))]
    for cells in (own, _cells()):
        found = {
            _segment(source, node)
            for source, tree in cells
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == name
        }
        if found:
            return found
    return set()


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _segment(source: str, node: ast.stmt) -> str:
    """Return the source of a statement, with its decorators."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return "\n".join(source.split("\n")[_first_line(node) - 1 : node.end_lineno])
    return ast.get_source_segment(source, node) or ""


def _used_names(source: str) -> dict[str, frozenset[str]]:
    """Return the global names that a statement uses, when it runs or when its function is called, sorted, with the
    dotted attributes that are looked up in them."""
    names: set[str] = set()
    tables = [symtable.symtable(source, "<cell>", "exec")]
    for number, table in enumerate(tables):  # it grows
        tables += table.get_children()
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (number == 0 or symbol.is_global())
        }
    attributes: dict[str, set[str]] = {name: set() for name in names}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
            first, _, rest = dotted.partition(".")
            attributes.get(first, set()).add(rest)
    return {name: frozenset(attributes[name]) for name in sorted(names)}


def _needed_names(source: str) -> set[str]:
    """Return the global names that a statement uses when it runs, without those in the functions that it defines."""
    names: set[str] = set()
    tables = [symtable.symtable(source, "<cell>", "exec")]
    for table in tables:  # it grows
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        tables += [
            child for child in table.get_children() if child.get_type() == "class" or child.get_name() in _AT_ONCE
        ]
    return names


def _class_attributes(source: str) -> set[str]:
    """Return the names that the bodies of classes in a statement assign."""
    names: set[str] = set()
    tables = [symtable.symtable(source, "<cell>", "exec")]
    for table in tables:  # it grows
        tables += [child for child in table.get_children() if child.get_type() == "class"]
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    return names


def _dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for an attribute of a name, else ''."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""


# -- the comparison ----------------------------------------------------------------------------------------------------
_OF_PYTHON = {  # attributes of a class that Python sets, such as those with the location of its definition
    "__module__",
    "__firstlineno__",
    "__static_attributes__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__slotnames__",
    "__annotations_cache__",
    "__annotate__",
    "__annotate_func__",
    "_value2member_map_",
}


class _Contents:
    """Parts of the definitions of ``namespace``. ``texts``: parts with a text that identifies a function, a plain value
    or an imported object. ``refused``: parts without such a text, with the reason."""

    def __init__(self, namespace: Mapping[str, Any], definitions: Mapping[str, _Definition]) -> None:
        self.texts: dict[str, dict[str, str]] = {}
        self.refused: list[str] = []
        self._namespace = namespace
        for name, definition in definitions.items():
            self._attributes = definition.attributes
            self._texts = self.texts[name] = {}
            self._seen: dict[int, Any] = {}  # by id; it has the objects, so that no others get the same ids
            self._add(name, namespace[name])

    def differences(self, made: _Contents) -> dict[str, str]:
        """Return the names whose definitions differ from those of ``made``, each with the first part that does."""
        found: dict[str, str] = {}
        for name, texts in self.texts.items():
            others = made.texts[name]
            odd = [part for part in {**texts, **others} if texts.get(part) != others.get(part)]
            if odd:
                found[name] = odd[0]
        return found

    def _add(self, label: str, value: Any, needed: bool = True) -> None:
        """Add ``value``, the part ``label``, and its own parts. If it is not ``needed``, because no statement names it,
        such as the internals of a dataclass, its type is enough if it has no text."""
        try:
            self._texts[label] = plain_text(value).replace(self._namespace["__name__"], "__main__")
            return
        except ValueError as error:
            reason = str(error)
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        text, parts = self._look_into(label, value)
        if not text and needed:
            self.refused.append(f"{label} ({reason})")
        self._texts[label] = text or type(value).__qualname__
        for inner, part in parts.items():
            bound = not isinstance(value, type) or inner.rpartition(".")[2] in self._attributes
            self._add(inner, part, needed and bound)

    def _look_into(self, label: str, value: Any) -> tuple[str, dict[str, Any]]:
        """Return a text for an object that is no plain value, '' if there is none, and the other parts to compare."""
        kind = type(value)
        is_own = _is_of_cells(kind.__module__)
        if isinstance(value, type) and _is_of_cells(value.__module__):
            return self._look_into_class(label, value)
        if isinstance(value, Enum):
            own = {"value": value.value} | {name: part for name, part in vars(value).items() if name[0] != "_"}
            return f"{kind.__qualname__}.{value.name}", _labelled(label, own if is_own else {})
        if kind is FunctionType and (text := _function_text(value.__code__)):
            return text, _function_parts(label, value)
        if functions := _wrapped(value):
            parts: dict[str, Any] = {}
            for function in functions:
                parts |= _function_parts(label, function)
            if kind is Provider:
                parts |= _labelled(label, vars(value.options))
            elif is_own:
                parts |= _labelled(label, vars(value))
            elif isinstance(implementations := getattr(value, "registry", None), Mapping):  # of a singledispatch
                parts |= {f"{label}.register({key.__qualname__})": part for key, part in implementations.items()}
            texts = [_function_text(function.__code__) for function in functions]
            return "\n".join([kind.__qualname__, *texts]), parts
        if imported := _import_of(value):
            return ".".join(imported), {}
        return (kind.__qualname__ if isdatadescriptor(value) and not is_own else ""), {}

    def _look_into_class(self, label: str, value: type) -> tuple[str, dict[str, Any]]:
        known: Any = self._namespace.get(value.__qualname__.partition(".")[0])
        for name in value.__qualname__.split(".")[1:]:
            known = getattr(known, name, None)
        text = value.__qualname__ if known is value else f"another {value.__qualname__}"
        if label not in (value.__qualname__, *self.texts):  # the class has its own definition
            return text, {}
        members: Mapping[str, Any] = value.__members__ if isinstance(value, EnumMeta) else {}
        attributes = {**members, **vars(value), **members}
        bases = {f"{label}.__bases__[{i}]": base for i, base in enumerate(value.__bases__)}
        return text, bases | _labelled(label, attributes)


def _labelled(label: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{label}.{name}": part for name, part in parts.items() if name not in _OF_PYTHON}


def _function_parts(label: str, function: FunctionType) -> dict[str, Any]:
    """Return the values of a function: defaults, attributes, variables of its closure."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    arguments = dict(zip(names, defaults, strict=True)) | (function.__kwdefaults__ or {})
    parts = {f"{label}({name}=…)": part for name, part in arguments.items()}
    parts |= _labelled(label, {"__doc__": function.__doc__} | vars(function))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty
            parts[f"{name} of {label}"] = cell.cell_contents
    return parts


def _wrapped(value: Any) -> list[FunctionType]:
    """Return the functions of cells that a decorator or a property wraps; of several layers, the outermost."""
    inner = [value]
    if isinstance(value, property):
        inner = [value.fget, value.fset, value.fdel]
    elif isinstance(value, cached_property | singledispatchmethod):
        inner = [value.func]
    layers = [
        [layer for layer in _functions(function).values() if _function_text(layer.__code__)] for function in inner
    ]
    return [known[0] for known in layers if known]


def _function_text(code: CodeType) -> str:
    """Return the source of a function of a cell, without its layout; '' if it is not known."""
    cell = _cell(code.co_filename)
    for node in ast.walk(cell[1]) if cell else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_it = code.co_name == node.name and code.co_firstlineno == _first_line(node)
        elif is_it := isinstance(node, ast.Lambda) and code.co_name == "<lambda>":  # its line may have several lambdas
            begins = (node.body.lineno, node.body.col_offset)
            is_it = begins in {(line, column) for line, _, column, _ in code.co_positions()}
        if is_it:
            return ast.unparse(node)
    return ""


def _contents_of_file(path: Path, definitions: Mapping[str, _Definition]) -> _Contents:
    """Import a module file, and return its definitions. Its exceptions pass."""
    file, text = str(path), path.read_text("utf-8", "surrogateescape")
    loader = SourceFileLoader(f"{_COMPARED}{path.stem}", file)
    module = ModuleType(loader.name)
    module.__file__ = file
    sys.modules[loader.name] = module  # dataclasses look there
    linecache.cache[file] = (len(text), None, [text], file)  # like a cell
    try:
        loader.exec_module(module)
        return _Contents(vars(module), definitions)
    finally:
        del sys.modules[loader.name], linecache.cache[file]


# -- the file ----------------------------------------------------------------------------------------------------------
def _write(name: str, text: str) -> Path:
    """Return the path of a file with ``text``; remove files that were not used for long."""
    folder = cache_home() / "pydp2-notebooks"
    content = text.encode("utf-8", "surrogateescape")
    file = folder / f"{name.replace('.', '_')}_{hashlib.blake2b(content, digest_size=6).hexdigest()}.py"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.is_file() and file.read_bytes() == content:
            os.utime(file)
        else:
            temporary = folder / f".{os.urandom(4).hex()}.new"
            temporary.write_bytes(content)
            temporary.replace(file)
        for old in folder.glob("*.py"):
            if old.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise AddressError(
            f"the provider {name} of this notebook must be written to a file for the workers, and {folder} cannot be "
            f"written: {error.strerror}; set XDG_CACHE_HOME to a folder that can, or {_to_a_file(name)}"
        ) from None
    return file

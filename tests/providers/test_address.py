"""Addresses: every form leads to the provider, every way to fail has words of its own, and names lead back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pydp2.data.schema.input_types import integer_value
from pydp2.errors import AddressError, OptionTypeError, ProviderError
from pydp2.providers import Provider, address_of, provider, resolve

GOOD = """
from pydp2.data.schema.input_types import integer_value
from pydp2.providers import provider

NUMBER = 3

def plain(settings, filename):
    yield 1

@provider(input_types=[integer_value(9)])
def process(settings, filename):
    yield 1

class Group:
    @provider(input_types=[integer_value(9)])
    def inner(settings, filename):
        yield 2

renamed = provider(input_types=[integer_value(9)])(plain)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes files below a folder that is the working directory; forgets what was imported from it."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)

    def write(name: str, text: str = GOOD) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith(("pr_", "_pydp2_")):
            del sys.modules[name]


@pytest.fixture
def importable(
    place: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    return place


# -- finding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "address"),
    [
        ("pr_one.py", "pr_one.process"),
        ("pr_one.py", "pr_one:process"),
        ("pr_one.py", "pr_one:Group.inner"),
        ("pr_one.py", "pr_one.renamed"),
        ("pr_pkg/deep/mod.py", "pr_pkg.deep.mod.process"),
        ("pr_pkg/deep/mod.py", "pr_pkg.deep.mod:process"),
        ("pr_pkg/__init__.py", "pr_pkg:process"),
    ],
)
def test_modules_are_found_by_dot_and_by_colon(importable: Callable[..., Path], file: str, address: str) -> None:
    importable(file)
    found = resolve(address)
    assert isinstance(found, Provider)
    assert len(list(found.samples("x"))) == 1
    assert resolve(address) is found


def test_files_are_found_relative_and_absolute(place: Callable[..., Path]) -> None:
    file = place("some where/my-provider.py")
    found = resolve("some where/my-provider.py:process")
    assert list(found.samples("x")) == [[1]]
    assert resolve(f"{file}:process") is found
    assert resolve("./some where/../some where/my-provider.py:Group.inner") is not found


def test_a_file_is_not_main_and_hides_no_module_of_its_name(place: Callable[..., Path]) -> None:
    place("random.py", GOOD + "\nif __name__ == '__main__':\n    raise SystemExit('ran as a script')\n")
    found = resolve("random.py:process")
    assert found.__module__ not in ("__main__", "random")
    import random

    assert random.random() < 1


def test_a_file_imports_what_lies_beside_it_at_once_and_later(place: Callable[..., Path]) -> None:
    place("sub/pr_beside.py", "LIMIT = 9")
    place("sub/pr_late.py", "NUMBER = 4")
    place(
        "sub/main_one.py",
        "import pr_beside\n"
        + GOOD.replace("yield 1", "import pr_late; yield pr_late.NUMBER").replace("9", "pr_beside.LIMIT"),
    )
    path = list(sys.path)
    assert list(resolve("sub/main_one.py:process").samples("x")) == [[4]]
    assert sys.path[: len(path)] == path  # nothing that was importable before is now another thing
    assert sys.path[len(path) :] == [str(Path("sub").resolve())]


def test_a_file_whose_import_failed_is_tried_again(place: Callable[..., Path]) -> None:
    file = place("pr_broken.py", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        resolve("pr_broken.py:process")
    file.write_text(GOOD)
    assert list(resolve("pr_broken.py:process").samples("x")) == [[1]]


# -- not finding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("pr_onee.process", r"^pr_onee\.process: there is no module 'pr_onee', did you mean 'pr_one'\?$"),
        ("pr_zzzz.process", "there is no module 'pr_zzzz'; is its folder on sys.path"),
        ("pr_pkg.deap.mod.process", "there is no module 'pr_pkg.deap', did you mean 'deep'"),
        ("pr_pkg.xyz.process", "there is no module 'pr_pkg.xyz'; looked in /"),
        ("pr_one.sub.process", "pr_one is a module, not a package: it has no sub"),
        ("pr_one.proces", "the module pr_one has no attribute 'proces', did you mean 'process'"),
        ("pr_one:xyz", "the module pr_one has no attribute 'xyz'; its providers are: process, renamed"),
        ("pr_one:Group.outer", "the module pr_one has no attribute 'outer'.* inner"),
        (
            "pr_one:Group",
            r"Group is not a provider; it is a class: write a generator function, process\(settings, filena",
        ),
        ("pr_one:plain", "plain is not a provider; decorate it with @provider"),
        ("pr_one.NUMBER", "NUMBER must be a decorated function, it is a int"),
        ("pr_one.py:proces", "the file pr_one.py has no attribute 'proces', did you mean 'process'"),
        ("pr_onee.py:process", "there is no file pr_onee.py, did you mean 'pr_one.py'.; relative paths start at /"),
        ("nowhere/pr_one.py:process", "there is no folder nowhere; relative paths start at /"),
        ("folder.py:process", "folder.py is not a file"),
        ("below/pr_two.process", "which function of it"),
        ("below.pr_two.process", r"there is no module 'below.pr_two'; looked in /"),
        ("pr_one.py", "^pr_one.py: which function of it. write module.process, module:process or file.py:process"),
        ("process", "is not the address of a provider; write module.process"),
        ("", "is not the address of a provider"),
        (":process", "is not the address of a provider"),
        ("pr_one:", "is not the address of a provider"),
        ("pr_one.", "is not the address of a provider"),
        (".process", "is not the address of a provider"),
        ("pr one:process", "is not the address of a provider"),
        ("pr_one:pro cess", "is not the address of a provider"),
        ("pr_one.py:3", "is not the address of a provider"),
        ("pr\0one.py:process", "is not the address of a provider"),
        ("__main__:process", "__main__ is another module in every process; write file.py:process"),
    ],
)
def test_each_way_to_fail_has_words_of_its_own(importable: Callable[..., Path], address: str, message: str) -> None:
    importable("pr_one.py")
    importable("pr_pkg/deep/__init__.py")
    importable("below/other.py")
    importable("folder.py/x")
    with pytest.raises(AddressError, match=message) as caught:
        resolve(address)
    assert isinstance(caught.value, ImportError)


def test_a_file_that_is_meant_as_a_module_is_told(place: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place("pr_here.py")
    place("pr_folder/pr_there.py")
    with pytest.raises(AddressError, match=r"there is a file pr_here\.py: write pr_here\.py:process"):
        resolve("pr_here.process")
    with pytest.raises(AddressError, match=r"no module 'pr_here'; there is a file pr_here\.py: write pr_here\.py:p$"):
        resolve("pr_here:p")


def test_only_text_is_an_address() -> None:
    with pytest.raises(OptionTypeError, match=r"must be a text, got 3 \(int\)"):
        resolve(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["pr_bad.process", "pr_bad.py:process"])
@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("import pr_not_there", ModuleNotFoundError, "import pr_not_there"),
        ("from json import nothing_such", ImportError, "nothing_such"),
        ("def f():\n    return 1 / 0\nf()", ZeroDivisionError, "return 1 / 0"),
        ("x = = 1", SyntaxError, "x = = 1"),
        ("raise SystemExit(2)", ProviderError, "raise SystemExit(2)"),
        (
            "from pydp2.providers import provider\n@provider(pool_size=0)\ndef process(settings, filename): yield 1",
            ValueError,
            "pool_size must be at least 1",
        ),
    ],
)
def test_an_error_inside_the_users_module_comes_with_its_own_traceback(
    importable: Callable[..., Path], address: str, text: str, kind: type[Exception], shown: str
) -> None:
    file = importable("pr_bad.py", text)
    with pytest.raises(ProviderError, match=r"raised .* while it was imported") as caught:
        resolve(address)
    assert isinstance(caught.value, kind)
    told = str(caught.value)
    assert shown in told
    assert str(file) in told
    assert "importlib" not in told
    assert "providers/address.py" not in told


def test_an_error_inside_a_parent_package_is_not_a_missing_module(importable: Callable[..., Path]) -> None:
    importable("pr_pack/__init__.py", "import pr_pack.missing")
    importable("pr_pack/mod.py")
    with pytest.raises(ModuleNotFoundError, match="the module pr_pack raised ModuleNotFoundError") as caught:
        resolve("pr_pack.mod:process")
    assert isinstance(caught.value, ProviderError)


def test_a_keyboard_interrupt_while_importing_passes(importable: Callable[..., Path]) -> None:
    importable("pr_stop.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolve("pr_stop.process")


# -- naming -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "address", "name"),
    [
        ("pr_named.py", "pr_named.process", "pr_named:process"),
        ("pr_named.py", "pr_named:Group.inner", "pr_named:Group.inner"),
        ("pr_named.py", "pr_named:renamed", "pr_named:renamed"),
        ("pr_named_pkg/mod.py", "pr_named_pkg.mod.process", "pr_named_pkg.mod:process"),
    ],
)
def test_an_imported_provider_is_named_by_module(
    importable: Callable[..., Path], file: str, address: str, name: str
) -> None:
    importable(file)
    found = resolve(address)
    assert address_of(found) == name
    assert resolve(name) is found


def test_a_provider_of_a_file_is_named_by_the_file(place: Callable[..., Path]) -> None:
    file = place("pr_file.py")
    found = resolve("pr_file.py:process")
    assert address_of(found) == f"{file.resolve()}:process"
    assert resolve(address_of(found)) is found


def test_a_module_that_was_loaded_by_other_means_is_named_by_its_file(importable: Callable[..., Path]) -> None:
    file = importable("pr_moved.py")
    found = resolve("pr_moved.process")
    sys.path.remove(str(file.parent))
    assert address_of(found) == f"{file.resolve()}:process"


def test_an_address_names_itself() -> None:
    assert address_of("some.where:process") == "some.where:process"
    with pytest.raises(AddressError, match="is not the address"):
        address_of("process")


def test_what_no_other_process_can_find_is_refused_with_the_way_out() -> None:
    @provider(input_types=[integer_value(3)])
    def local(settings: Any, filename: str) -> Any:
        yield 1

    anonymous = provider(input_types=[integer_value(3)])(lambda settings, filename: [1])
    way_out = r"put the decorated function at the top level of a file and give that, as in my_provider\.py:process"
    with pytest.raises(AddressError, match=r"local is a function inside a function, .*; " + way_out):
        address_of(local)
    with pytest.raises(AddressError, match=r"<lambda> is a lambda, .*; " + way_out):
        address_of(anonymous)
    with pytest.raises(AddressError, match=r"len> is not a provider; decorate it"):
        address_of(len)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="must be a decorated function or its address, got 3"):
        address_of(3)  # type: ignore[arg-type]


def test_a_provider_that_its_module_does_not_hold_is_refused(importable: Callable[..., Path]) -> None:
    importable("pr_gone.py")
    found = resolve("pr_gone.process")
    del sys.modules["pr_gone"].process
    with pytest.raises(AddressError, match="does not hold this provider, neither as process nor as another name"):
        address_of(found)
    del sys.modules["pr_gone"]
    with pytest.raises(AddressError, match="belongs to the module pr_gone, which is not imported"):
        address_of(found)


TELL = (
    GOOD + "\nif __name__ == '__main__':\n    from pydp2.providers import address_of\n    print(address_of(process))\n"
)


def run(*command: str, stdin: str = "", pass_fds: Sequence[int] = ()) -> str:
    python = [sys.executable, *command]
    done = subprocess.run(
        python, input=stdin, capture_output=True, text=True, timeout=60, check=False, pass_fds=pass_fds
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture
def from_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    import pydp2.errors

    monkeypatch.setenv("PYTHONPATH", str(Path(pydp2.errors.__file__).parents[1]))


@pytest.mark.usefixtures("from_checkout")
def test_a_provider_of_the_running_script_is_named_so_that_others_find_it(place: Callable[..., Path]) -> None:
    file = place("pr_script.py", TELL)
    address = run("pr_script.py")
    assert address == f"{file.resolve()}:process"
    assert list(resolve(address).samples("x")) == [[1]]
    place("pr_package/__init__.py", "")
    place("pr_package/tool.py", TELL)
    assert run("-m", "pr_package.tool") == "pr_package.tool:process"
    bare = place("pr_bare", TELL)
    assert f"process was defined in {bare}, whose name must end in .py" in run("pr_bare")


@pytest.mark.usefixtures("from_checkout")
def test_a_provider_of_a_prompt_is_refused_with_the_way_out(place: Callable[..., Path]) -> None:
    told = run("-i", "-q", stdin="import sys\nsys.ps1 = ''\n" + TELL.replace("\nif", "\n\nif") + "\n")
    assert "process was defined at a prompt or in a notebook, where workers cannot find it, and its source is" in told
    assert "; write it to a file: begin its cell with %%writefile my_provider.py, run the cell" in told


@pytest.mark.usefixtures("from_checkout")
def test_a_provider_of_a_command_or_a_here_document_is_not_told_of_notebooks(place: Callable[..., Path]) -> None:
    read, write = os.pipe()
    os.write(write, TELL.encode())
    os.close(write)
    for told, where in (
        (run(f"/dev/fd/{read}", pass_fds=[read]), f"in a program that was read from /dev/fd/{read}, a pipe, where"),
        (run("-c", TELL), "in the text of a command (python -c) or of exec(), where workers cannot find it; put the"),
        (run("-", stdin=TELL), "in a program that was read from standard input (a here-document), where workers"),
    ):
        assert f"process was defined {where}" in told
        assert "notebook" not in told
        assert "%%writefile" not in told
    os.close(read)


OUTER = """
import functools

def wrapping(function):
    @functools.wraps(function)
    def run(*args):
        return function(*args)
    return run

def plainly(function):
    return lambda *args: function(*args)

class Timed:
    def __init__(self, function):
        self.function = function
    def __call__(self, *args):
        return self.function(*args)

wrapped, hidden, timed = wrapping(process), plainly(process), Timed(process)
partial, twice = functools.partial(hidden), functools.lru_cache(wrapped)
"""


@pytest.mark.parametrize("name", ["wrapped", "hidden", "timed", "partial", "twice"])
def test_a_provider_under_another_decorator_is_told_the_order_of_decorators(
    name: str, importable: Callable[..., Path]
) -> None:
    importable("pr_outer.py", GOOD + OUTER)
    text = r" is not a provider; it wraps one: put @provider\(…\) above all other decorators"
    with pytest.raises(AddressError, match=name + text):
        resolve(f"pr_outer:{name}")
    with pytest.raises(AddressError, match=text):
        address_of(getattr(sys.modules["pr_outer"], name))


RELATIVE = "from . import util\n" + GOOD


@pytest.mark.parametrize("has_init", [True, False])
def test_a_file_with_relative_imports_is_told_its_dotted_address(
    has_init: bool, importable: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pr_rel/__init__.py", "pr_rel/inner/__init__.py") if has_init else ():
        importable(name, "")
    importable("pr_rel/inner/util.py", "")
    importable("pr_rel/inner/mod.py", RELATIVE)
    with pytest.raises(ImportError, match=r"does not belong: write pr_rel\.inner\.mod:Group\.inner\n"):
        resolve("pr_rel/inner/mod.py:Group.inner")
    assert list(resolve("pr_rel.inner.mod:Group.inner").samples("x")) == [[2]]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    named, root = ("pr_rel.inner.mod", tmp_path) if has_init else ("inner.mod", tmp_path / "pr_rel")
    with pytest.raises(ImportError, match=rf"write {named}:process, with root={root}\n"):
        resolve("pr_rel/inner/mod.py:process")


def test_a_module_in_a_package_stands_for_its_process(importable: Callable[..., Path]) -> None:
    importable("pr_pkg2/__init__.py", "")
    importable("pr_pkg2/mod.py")
    importable("pr_pkg2/none.py", "")
    found = resolve("pr_pkg2.mod")
    assert found is resolve("pr_pkg2:mod") is resolve("pr_pkg2.mod.process")
    with pytest.raises(AddressError, match=r"the module pr_pkg2\.none has no function called process"):
        resolve("pr_pkg2.none")
    with pytest.raises(AddressError, match="has no attribute 'nowhere'"):
        resolve("pr_pkg2.nowhere")

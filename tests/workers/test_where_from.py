"""Workers: what they are forked from, how they find a provider, what they are told."""

from __future__ import annotations

import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import AddressError, OptionTypeError

from ..runs import Program, one_pass, processes, wait_until

ONE = """
from pydp2 import *

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield 42
"""


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_workers_are_forked_from_one_thread_whatever_the_program_has(provider_file: Callable[[str], str]) -> None:
    """The supervisor has a single thread, and a worker's hook finds none of Python's but its own."""
    code = """
    import threading
    def hook(settings, **kwargs):
        settings.count = threading.active_count()

    @provider(input_types=[integer_value(100)], init_hook=hook)
    def process(settings, filename):
        yield settings.count
    """
    stop = threading.Event()
    others = [threading.Thread(target=stop.wait) for _ in range(3)]
    for other in others:
        other.start()
    try:
        with pydp2.load(["a"], provider_file(code), batch_size=1, workers=2) as data:
            (nursery,) = processes("pydp2-supervise")
            assert threads(nursery) == 1
            assert [batch[0].tolist() for batch in data] == [[1]]
    finally:
        stop.set()
        for other in others:
            other.join()


def test_processes_are_known_by_their_names(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["a"], provider_file(ONE), workers=2) as service:
        assert processes("pydp2-server") == [service.pid]
        assert wait_until(lambda: len(processes("pydp2-worker")) == 3)
        # two that read, and the one in reserve
        assert wait_until(lambda: sorted(w["active"] for w in service.stats()["workers"]) == [False, True, True])
        workers = service.stats()["workers"]
        assert sorted(worker["pid"] for worker in workers) == processes("pydp2-worker")
        assert {name(worker["pid"]) for worker in workers} == {f"pydp2-worker-{n}" for n in range(3)}


def test_the_users_code_runs_in_workers_only(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    """Neither the program nor the server nor the supervisor imports the provider."""
    code = """
    import os
    with open("importers", "a") as log:
        log.write(f"{os.getpid()}\\n")

    @provider(input_types=[integer_value(1 << 22)])
    def process(settings, filename):
        yield os.getpid()
    """
    with pydp2.load(["a", "b"], provider_file(code), batch_size=1, workers=2, root=tmp_path, start="spawn") as data:
        log = tmp_path / "importers"
        assert wait_until(lambda: len(log.read_text().split()) == 3)
        workers = set(processes("pydp2-worker"))
        ran = {int(batch[0][0]) for batch in data}
    imported = [int(line) for line in log.read_text().split()]
    assert len(imported) == len(set(imported))
    assert set(imported) == workers
    assert ran <= workers


@pytest.mark.parametrize(
    "address",
    ["prov.process", "prov:process", "{folder}/prov.py:process", "prov.py:process", "./sub/../prov.py:process",
     "pack.inner.prov.process", "pack.inner.prov:process", "pack/inner/prov.py:process", "prov:Group.process"],
)  # fmt: skip
def test_a_provider_is_found_by_every_form_of_address(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prov.py").write_text(ONE + "\nclass Group:\n    process = process\n")
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "inner" / "__init__.py").touch()
    (tmp_path / "pack" / "inner" / "prov.py").write_text(ONE)
    monkeypatch.chdir(tmp_path)
    assert one_pass(["a"], address.format(folder=tmp_path)).samples == [42]


def test_a_provider_finds_the_modules_beside_it_and_those_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, module in (("beside", "near"), ("elsewhere", "far")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text("value = 21\n")
    (tmp_path / "beside" / "prov.py").write_text(
        ONE.replace("yield 42", "import late\n    yield near.value + far.value + late.value").replace(
            "from pydp2", "import near, far\nfrom pydp2", 1
        )
    )
    (tmp_path / "beside" / "late.py").write_text("value = 0\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert one_pass(["a"], f"{tmp_path}/beside/prov.py:process").samples == [42]


SCRIPT = """
import pydp2
from pydp2 import *

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield 42

other = process

if __name__ == "__main__":
    for batch in pydp2.load(["a"], {given}, batch_size=1, workers=1):
        print("got", int(batch[0][0]))
"""


@pytest.mark.parametrize("given", ["process", "other", "'program.py:process'", "'program.process'"])
def test_the_provider_of_a_script_can_be_given_as_it_is(given: str, program: Callable[..., Program]) -> None:
    """Although __main__ is another module in every process."""
    script = program(SCRIPT.replace("{given}", given))
    assert script.ended(20) == 0
    assert script.lines == ["got 42"]
    assert script.screen == ""


def test_the_provider_of_a_module_run_by_its_name_can_be_given_as_it_is(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "train.py").write_text(SCRIPT.replace("{given}", "process"))
    script = program("import runpy\nrunpy.run_module('pack.train', run_name='__main__', alter_sys=True)\n")
    assert script.ended(20) == 0, script.screen
    assert script.lines == ["got 42"]


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ("lambda settings, filename: iter(())", AddressError, "is not a provider; decorate it with @provider"),
        ("decorate(lambda settings, filename: iter(()))", AddressError, "is a lambda, which no other process can find"),
        ("inner()", AddressError, "is a function inside a function, which no other process can find"),
        ("plain", AddressError, "is not a provider; decorate it with @provider"),
        ("42", OptionTypeError, "provider must be a decorated function or its address, got 42"),
    ],
)
def test_what_no_worker_could_find_is_refused_with_the_way_out(
    given: str, kind: type[BaseException], text: str
) -> None:
    decorate = pydp2.provider(input_types=[pydp2.integer_value(2)])

    def inner() -> object:
        def process(settings: object, filename: str) -> Any:
            yield 1

        return decorate(process)

    def plain(settings: object, filename: str) -> Any:
        yield 1

    names = {"decorate": decorate, "inner": inner, "plain": plain}
    with pytest.raises(kind, match=text) as caught:
        pydp2.launch(["a"], eval(given, names))
    if "other process" in text:
        assert "put the decorated function at the top level of a file" in str(caught.value)


def test_what_was_typed_as_a_command_is_refused_with_the_way_out() -> None:
    code = ONE + "\nimport pydp2\npydp2.launch(['a'], process)\n"
    typed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert typed.returncode == 1
    last = typed.stderr.splitlines()[-1]
    assert last.startswith("pydp2.errors.AddressError: process was defined in the text of a command (python -c) or of")
    assert "put the decorated function at the top level of a file and give that, as in my_provider.py:process" in last


def test_a_zipped_program_is_told_to_have_its_provider_in_another_module_of_the_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        main = "import sys, prov\nif __name__ == '__main__':\n    given = [process, prov.process][len(sys.argv) - 1]\n"
        main += "    with pydp2.load(['a'], given, batch_size=1, workers=1) as data:\n        print(len(list(data)))\n"
        archive.writestr("__main__.py", f"import pydp2\n{ONE}\n{main}")
        archive.writestr("prov.py", ONE)
    refused, served = (
        subprocess.run(
            [sys.executable, "app.zip", *more], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        for more in ([], ["other"])
    )
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(
        f"pydp2.errors.AddressError: process was defined in {tmp_path}/app.zip/__main__.py, the main"
    )
    assert "of a program in a zip file: workers import other modules of app.zip, and not this one; put" in last
    assert (served.returncode, served.stdout, served.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(("start", "most"), [("auto", 1), ("spawn", 3)])
def test_the_hook_runs_once_for_all_or_once_in_each_process(
    start: str, most: int, provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """However many files and passes there are; in the reserve too, which so is ready at once."""
    code = """
    import os
    def hook(settings, **kwargs):
        with open("hooks", "a") as log:
            log.write(f"{os.getpid()}\\n")

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        yield from range(10)
    """
    names = [str(n) for n in range(40)]
    with pydp2.load(names, provider_file(code), batch_size=20, workers=2, root=tmp_path, start=start) as data:
        for _ in range(3):
            assert sum(len(batch) for batch in data) == 400
    hooks = Counter((tmp_path / "hooks").read_text().split())
    assert set(hooks.values()) == {1}
    assert 1 <= len(hooks) <= most


def test_args_arrive_as_the_plain_data_that_they_are(provider_file: Callable[[str], str]) -> None:
    """Tuples stay tuples, sets sets, integer keys integers, arrays arrays."""
    code = """
    import numpy as np

    def hook(settings, given, **kwargs):
        assert given["tuple"] == (1, (2, 3)) and type(given["tuple"]) is tuple
        assert given["set"] == {1, "two"} and given["frozen"] == frozenset({(1, 2)})
        assert given["keys"] == {1: "one", (2, 3): "pair", None: "nothing"}
        assert given["array"].dtype == np.int16 and given["array"].tolist() == [[1, 2], [3, 4]]
        assert given["scalar"] == np.float32(0.5) and type(given["scalar"]) is np.float32
        assert given["bytes"] == b"x" and given["big"] == 1 << 100 and given["truth"] is True
        assert kwargs["is_train"] is False and kwargs["file_list"] == ["a"] and kwargs["input_order"] == []
        given["array"][:] = 0
        settings.input_types = [integer_value(10)]

    @provider(init_hook=hook)
    def process(settings, filename):
        yield 7
    """
    given = {
        "tuple": (1, (2, 3)), "set": {1, "two"}, "frozen": frozenset({(1, 2)}),
        "keys": {1: "one", (2, 3): "pair", None: "nothing"}, "array": np.array([[1, 2], [3, 4]], np.int16),
        "scalar": np.float32(0.5), "bytes": b"x", "big": 1 << 100, "truth": True,
    }  # fmt: skip
    seen = one_pass(["a"], provider_file(code), args={"given": given}, is_train=False)
    assert (seen.samples, seen.error) == ([7], None)
    assert given["array"].tolist() == [[1, 2], [3, 4]]  # type: ignore[attr-defined]


def test_a_generator_may_start_programs_of_its_own(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    """A pipeline through another program is an ordinary way to read a file."""
    code = """
    import signal, subprocess

    @provider(input_types=[integer_value(1000)])
    def process(settings, filename):
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        with subprocess.Popen(["sort", "-n", filename], stdout=subprocess.PIPE, text=True) as lines:
            for line in lines.stdout:
                yield int(line)
        assert lines.returncode == 0
    """
    (tmp_path / "f").write_text("3\n1\n2\n")
    assert one_pass([str(tmp_path / "f")] * 5, provider_file(code)).samples == [1, 2, 3] * 5


def test_workers_do_not_hold_the_locks_and_sockets_of_the_server(provider_file: Callable[[str], str]) -> None:
    """What a program that the user's code leaves behind could inherit would keep the service's directory locked."""
    code = """
    import os

    @provider(input_types=[integer_value(1000)])
    def process(settings, filename):
        yield sum(os.get_inheritable(int(fd)) for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                  if os.path.exists(f"/proc/self/fd/{fd}"))
    """
    assert one_pass(["a"], provider_file(code)).samples == [0]


def test_few_generators_are_open_at_once(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    """Of hundreds of files only those that the merge takes turns with, and a few that come next."""
    code = """
    import os

    @provider(input_types=[integer_value(10)], pool_size=32)
    def process(settings, filename):
        log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b"+")
        yield from [1] * 100
        os.write(log, b"-")
        os.close(log)
    """
    with pydp2.load(
        [str(n) for n in range(300)], provider_file(code), batch_size=32, workers=3, interleave=8, root=tmp_path
    ) as data:
        assert sum(len(batch) for batch in data) == 30_000
    highest = opened = 0
    for sign in (tmp_path / "log").read_text():
        opened += 1 if sign == "+" else -1
        highest = max(highest, opened)
    assert opened == 0
    assert highest <= 8 + max(3, 4) + 3

"""Give each generator of a provider its own state of the process's global random generators.

``random``, ``numpy.random`` and torch have one generator each for the whole process (torch: its default generator on
the CPU). A worker switches between several open files, so what the code of one file draws would depend on what the code
of the others drew before. Here each file has its own states of the three, seeded from job seed, pass and file. At a
switch the states of the file that ran are saved, and those of the next one are put in their place
(:func:`switch_to`). What a module draws while it is imported, and what an init_hook draws, starts from a seed that is
the same everywhere (:func:`prepared_random`). The program that runs a provider by hand has an owner as well, which is
never seeded: it finds its own numbers again.

A switch to the owner that runs already costs nothing, any other one about 0.01 ms, and 0.03 ms more where
``numpy.random`` was imported. numpy copies its state slowly, so each owner has a bit generator of its own, and a switch
exchanges these.

torch is never imported here, nor ``numpy.random``, which takes longer to import than a small file to read. Where one of
them is imported later, it is seeded at the end of its import, before anyone can draw from it: a finder on
``sys.meta_path`` waits for that.

The generators belong to the process and not to a thread. So only the main thread switches: in another one, a switch
would change the numbers of the thread that draws at the same time.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import numpy as np

from pydp2.system.stdlib import hashlib, struct, threading

_seed = random.seed  # as it is before code of the user runs
_PREPARED: Final = b"pydp2 prepared"
_FILE: Final = b"pydp2 global rng"


class GlobalRandom:
    """States of the global random generators for one owner. ``key``: 40 bytes that seed them when the owner first runs;
    None for the program itself, which takes them as they are."""

    __slots__ = ("_is_closed", "_key", "_states")

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._states: dict[str, Any] = {}
        self._is_closed = False

    def close(self) -> None:
        """Note that the owner draws no more: its states need not be saved. If the generators give its numbers, the
        program has them back."""
        if self is _running:
            switch_to(_program)
        self._is_closed = True
        if "numpy.random" in self._states:
            _free_bit_generators.append(self._states["numpy.random"][0])
        self._states.clear()

    def save(self) -> None:
        """Save the states of the generators that are imported."""
        if not self._is_closed:
            for name in _imported():
                self._states[name] = _READ[name]()

    def load(self) -> None:
        """Put the saved states into the generators, or seed those that have none. A closed owner draws no more, and
        takes nothing: its states would not be saved again."""
        for name in () if self._is_closed else _imported():
            if name in self._states:
                _WRITE[name](self._states[name])
            else:
                self.seed(name)

    def seed(self, name: str) -> None:
        """Seed the generator of module ``name``. The program's stays as it is, and is noted."""
        self._states[name] = _READ[name]() if self._key is None else _SEED[name](self._key)


def file_random(seed: int, pass_id: int, file_index: int) -> GlobalRandom:
    """Return the states for one file in one pass."""
    return GlobalRandom(_digest(_FILE, struct.pack("<3Q", seed, pass_id, file_index)))


def prepared_random() -> GlobalRandom:
    """Return the states for the import of a provider's module, or for its init_hook."""
    return GlobalRandom(_digest(_PREPARED, b""))


def _digest(purpose: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=40, person=purpose).digest()


def switch_to(owner: GlobalRandom) -> None:
    """Let the global generators give the numbers of ``owner``. Only the main thread switches: for another one nothing
    changes."""
    global _running  # it says what is in three generators that are global themselves
    if owner is not _running and threading.current_thread() is threading.main_thread():
        _finder.install()
        _running.save()
        _running = owner
        owner.load()


@contextlib.contextmanager
def running(owner: GlobalRandom) -> Iterator[None]:
    """Let the global generators give the numbers of ``owner`` within this context."""
    before = _running
    try:
        switch_to(owner)
        yield
    finally:
        switch_to(before)


# -- the three generators ----------------------------------------------------------------------------------------------
def _seed_random(key: bytes) -> None:
    _seed(int.from_bytes(key[:16], "little"))


def _numpy() -> Any:
    return sys.modules["numpy.random"]


def _read_numpy() -> tuple[Any, Any]:
    state = _numpy().get_state(legacy=False)
    # numbers of a normal distribution are made in pairs, and the second one waits outside of the bit generator
    return _numpy().get_bit_generator(), state if state["has_gauss"] else None


def _write_numpy(saved: tuple[Any, Any]) -> None:
    bit_generator, state = saved
    _numpy().set_bit_generator(bit_generator)
    if state is not None and isinstance(bit_generator, _numpy().MT19937):  # of others it cannot be set
        _numpy().set_state(state)


def _seed_numpy(key: bytes) -> tuple[Any, Any]:
    # making one takes longer than seeding it
    bit_generator = _free_bit_generators.pop() if _free_bit_generators else _numpy().MT19937(0)
    _numpy().set_bit_generator(bit_generator)
    _numpy().seed(np.frombuffer(key, "<u4", 4, 16))
    return bit_generator, None


def _torch_generator() -> Any:
    return sys.modules["torch"].default_generator


def _seed_torch(key: bytes) -> None:
    _torch_generator().manual_seed(int.from_bytes(key[32:40], "little"))  # torch.manual_seed would seed devices too


_NEEDED: dict[str, str] = {"random": "setstate", "numpy.random": "set_state", "torch": "default_generator"}
"""Attribute that a module has once it is imported to the end."""
_free_bit_generators: list[Any] = []  # of files that are closed
_READ: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy.random": _read_numpy,
    "torch": lambda: _torch_generator().get_state(),
}
_WRITE: dict[str, Callable[[Any], None]] = {
    "random": random.setstate,
    "numpy.random": _write_numpy,
    "torch": lambda state: _torch_generator().set_state(state),
}
_SEED: dict[str, Callable[[bytes], Any]] = {"random": _seed_random, "numpy.random": _seed_numpy, "torch": _seed_torch}


def _imported() -> list[str]:
    return [name for name, needed in _NEEDED.items() if hasattr(sys.modules.get(name), needed)]


# -- a module that is imported later -----------------------------------------------------------------------------------
class _Finder:
    """Finder that finds nothing by itself: it has a module with a global generator seeded at the end of its import."""

    def install(self) -> None:
        """Come before all other finders."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find, if it is one of these modules; else None."""
        if name not in _SEED:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _seed_after(name, spec.loader)
        return spec


def _seed_after(name: str, loader: Any) -> None:
    """Have ``loader`` seed the generator of module ``name`` once it has run the module."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name and threading.current_thread() is threading.main_thread():
            _program.seed(name)  # it gets later what the import has left
            _running.seed(name)

    loader.exec_module = exec_module


_finder = _Finder()
_program = _running = GlobalRandom(None)

"""Give each generator of a provider its own state of the process's global random generators.

``random``, ``numpy.random`` and torch have one generator each for the whole process (torch: its default generator on
the CPU). A worker switches between several open files, so the random numbers of one file would depend on how many
numbers the other files drew before. Therefore each file has its own states of the three generators, seeded from job
seed, pass and file. A switch saves the states of the file that ran, and sets those of the next one
(:func:`switch_to`). The import of the provider's module and its init_hook start from a seed that is the same in all
processes (:func:`prepared_random`). A program that runs a provider by hand has an owner as well, which is never seeded:
after a switch back, the program continues with its own numbers.

A switch to the owner that runs already costs nothing, any other one about 0.01 ms, and 0.03 ms more if
``numpy.random`` was imported. numpy copies its state slowly, so each owner has its own bit generator, and a switch
exchanges the bit generators.

This module never imports torch, nor ``numpy.random``, whose import takes longer than the reading of a small file. If
one of them is imported later, it is seeded at the end of its import, before any code can draw from it: a finder on
``sys.meta_path`` waits for that.

The generators belong to the process and not to a thread. So only the main thread switches: a switch in another thread
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

_seed = random.seed  # kept, because code of the user may replace it
_PREPARED: Final = b"pydp2 prepared"
_FILE: Final = b"pydp2 global rng"


class GlobalRandom:
    """States of the global random generators for one owner. ``key``: 40 bytes that seed them when the owner first runs;
    None for the program itself, whose generators are not seeded."""

    __slots__ = ("_is_closed", "_key", "_states")

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._states: dict[str, Any] = {}
        self._is_closed = False

    def close(self) -> None:
        """Note that the owner draws no more, so that its states need not be saved. If it is running, switch to the
        program."""
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
        """Set the generators to the saved states, or seed them if there are none. Do nothing for a closed owner, whose
        states would not be saved again."""
        for name in () if self._is_closed else _imported():
            if name in self._states:
                _WRITE[name](self._states[name])
            else:
                self.seed(name)

    def seed(self, name: str) -> None:
        """Seed the generator of module ``name``. For the program, only save its present state."""
        self._states[name] = _READ[name]() if self._key is None else _SEED[name](self._key)

    def begin_sample(self, sample_index: int) -> None:
        """Seed the generators for a sample of the file, if it is the one that runs."""
        if self is not _running or self._key is None:  # another thread's: its numbers are not those of the file
            return
        key = hashlib.blake2b(struct.pack("<Q", sample_index), key=self._key, digest_size=24).digest()
        _seed(int.from_bytes(key[:16], "little"))
        for name in _imported():
            if name == "numpy.random":  # numpy takes 7 µs more for a seed of several words
                _numpy().seed(int.from_bytes(key[16:20], "little"))
            elif name == "torch":
                _torch_generator().manual_seed(int.from_bytes(key[16:24], "little"))


def file_random(seed: int, pass_id: int, file_index: int) -> GlobalRandom:
    """Return the states for one file in one pass."""
    return GlobalRandom(_digest(_FILE, struct.pack("<3Q", seed, pass_id, file_index)))


def prepared_random() -> GlobalRandom:
    """Return the states for the import of a provider's module, or for its init_hook."""
    return GlobalRandom(_digest(_PREPARED, b""))


def _digest(purpose: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=40, person=purpose).digest()


def switch_to(owner: GlobalRandom) -> None:
    """Switch the global generators to ``owner``. In a thread other than the main thread, do nothing."""
    global _running  # it describes three generators that are global themselves
    if owner is not _running and threading.current_thread() is threading.main_thread():
        _finder.install()
        _running.save()
        _running = owner
        owner.load()


@contextlib.contextmanager
def running(owner: GlobalRandom) -> Iterator[None]:
    """Switch the global generators to ``owner`` within this context."""
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
    # Numbers of a normal distribution are made in pairs, and the second one is stored outside the bit generator.
    return _numpy().get_bit_generator(), state if state["has_gauss"] else None


def _write_numpy(saved: tuple[Any, Any]) -> None:
    bit_generator, state = saved
    _numpy().set_bit_generator(bit_generator)
    if state is not None and isinstance(bit_generator, _numpy().MT19937):  # others have no such state
        _numpy().set_state(state)


def _seed_numpy(key: bytes) -> tuple[Any, Any]:
    # reused, because making a bit generator takes longer than seeding it
    bit_generator = _free_bit_generators.pop() if _free_bit_generators else _numpy().MT19937(0)
    _numpy().set_bit_generator(bit_generator)
    _numpy().seed(np.frombuffer(key, "<u4", 4, 16))
    return bit_generator, None


def _torch_generator() -> Any:
    return sys.modules["torch"].default_generator


def _seed_torch(key: bytes) -> None:
    _torch_generator().manual_seed(int.from_bytes(key[32:40], "little"))  # torch.manual_seed would seed devices too


_NEEDED: dict[str, str] = {"random": "setstate", "numpy.random": "set_state", "torch": "default_generator"}
"""Attribute that a module has once its import has ended."""
_free_bit_generators: list[Any] = []  # bit generators of closed files, for reuse
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
    """Finder that wraps the other finders, to seed a module with a global generator at the end of its import."""

    def install(self) -> None:
        """Move this finder before all others."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find, if it is one of these modules; None otherwise."""
        if name not in _SEED:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _seed_after(name, spec.loader)
        return spec


def _seed_after(name: str, loader: Any) -> None:
    """Make ``loader`` seed the generator of module ``name`` after it has run the module."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name and threading.current_thread() is threading.main_thread():
            _program.seed(name)  # saves the state that the import has left, for the program
            _running.seed(name)

    loader.exec_module = exec_module


_finder = _Finder()
_program = _running = GlobalRandom(None)

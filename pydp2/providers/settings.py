"""Provide the object that ``process`` and the init_hook get as their first argument.

This module has the attributes that exist from the start, and ``filename``, ``pass_id`` and ``rng``, which belong to the
generator that is running: a worker has several open generators over one settings object and switches between them, and
passes of a reader may run in several threads at once. :mod:`pydp2.providers.started_provider` reads the attributes back
after the hook.
"""

from __future__ import annotations

import io
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import IO, Any

import numpy as np

from pydp2.errors import OptionError
from pydp2.providers.global_random import file_random
from pydp2.providers.options import CacheType, InputTypes, ProviderOptions
from pydp2.remote import RemoteFile, is_remote
from pydp2.system.stdlib import hashlib, os, struct

_BUFFER = 1 << 17  # bytes that settings.open reads at a time


class GeneratorContext:
    """Context of the generator that runs: the file it reads, the pass, and its own source of random numbers.

    Attributes:
        filename: the entry of the file list.
        pass_id: passes count from 0.
        rng: a :class:`numpy.random.Generator` over Philox, seeded only by job seed, pass (``drawn_pass``, if given) and
            file, so that a worker that runs the file again draws the same numbers. (NumPy does not promise one stream
            for all its versions.)
        global_random: its states of the global random generators, seeded in the same way.

    A generator that can begin at any sample is seeded anew for each sample (:meth:`begin_sample`): what it draws for a
    sample must not depend on where it began.
    """

    def __init__(
        self, filename: str, *, file_index: int, seed: int, pass_id: int, drawn_pass: int | None = None
    ) -> None:
        self.filename = filename
        self.pass_id = pass_id
        self._seed_parts = (seed, pass_id if drawn_pass is None else drawn_pass, file_index)
        self._rng_block = 0  # blocks of the generator's counter: 0 for a whole file, y + 1 for sample y
        self.global_random = file_random(*self._seed_parts)

    @cached_property
    def rng(self) -> np.random.Generator:
        digest = hashlib.blake2b(struct.pack("<3Q", *self._seed_parts), digest_size=16, person=b"pydp2 rng")
        key = int.from_bytes(digest.digest(), "little")
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, self._rng_block]))

    @cached_property
    def _rng_state(self) -> dict[str, Any]:
        """State of a generator of which nothing was drawn; only its counter has to be set."""
        state: dict[str, Any] = {**self.rng.bit_generator.state}
        fresh = np.random.Philox(key=0).state
        return {**fresh, "state": {"key": state["state"]["key"], "counter": np.zeros(4, np.uint64)}}

    def begin_sample(self, sample_index: int) -> None:
        """Seed ``rng`` and the global generators for sample ``sample_index``. ``rng`` takes 1 µs if it is used, the
        global generators of ``random``, numpy and torch up to 10 µs."""
        self._rng_block = sample_index + 1
        if "rng" in self.__dict__:
            self._rng_state["state"]["counter"][3] = self._rng_block
            self.rng.bit_generator.state = self._rng_state
        self.global_random.begin_sample(sample_index)


class _ThisThread(threading.local):
    """Generator that a thread runs: a weak reference to its settings, and its context."""

    shown: tuple[weakref.ref[Settings], GeneratorContext] | None = None


_this_thread = _ThisThread()


def show_context(settings: Settings, context: GeneratorContext) -> None:
    """Let ``settings`` show ``context`` to this thread, until it runs another generator. A thread that runs none, such
    as one that ``process`` has started, sees the context that was shown last."""
    settings._context = context
    _this_thread.shown = (weakref.ref(settings), context)


def shown_context(settings: Settings) -> GeneratorContext | None:
    """Return the context that ``settings`` show to this thread; None before the first generator."""
    shown = _this_thread.shown
    return shown[1] if shown is not None and shown[0]() is settings else settings._context


class _FromContext:
    """Attribute that reads from the running context.

    It has no setter, so that an attribute of the same name that a hook sets overrides it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, settings: Settings | None, owner: type) -> Any:
        if settings is None:
            return self
        context = shown_context(settings)
        if context is None:
            raise AttributeError(self._name)  # Settings.__getattr__ raises it with a full text
        return getattr(context, self._name)


class Settings:
    """Object with ordinary attributes, to read and to set. The init_hook may add its own and
    overwrite those of the provider.

    Attributes:
        logger: a logger of its own name; its level is left alone.
        input_types: None at first; if the hook sets it, it overrides the declaration of ``@provider``.
        should_shuffle, pool_size, min_pool_size, can_over_batch_size, calc_batch_size, cache, check,
            check_fail_continue: as given to ``@provider``; the values after the hook are used.
        generator: the ``process`` function.
        file_list: the entries of the file list.
        input_order: names of the slots in their order; empty if none was given.
        filename, pass_id, rng: see :class:`GeneratorContext`; only while ``process`` runs.
    """

    filename = _FromContext()
    pass_id = _FromContext()
    rng = _FromContext()

    def __init__(
        self,
        options: ProviderOptions,
        *,
        generator: Callable[..., Iterable[Any]],
        file_list: Sequence[str],
        input_order: Sequence[str],
        logger_name: str,
    ) -> None:
        self._context: GeneratorContext | None = None
        self.logger = logging.getLogger(logger_name)
        self.input_types: InputTypes | None = None
        self.should_shuffle: bool | None = options.should_shuffle
        self.pool_size: int = options.pool_size
        self.min_pool_size: int = options.min_pool_size
        self.can_over_batch_size: bool = options.can_over_batch_size
        self.calc_batch_size: Callable[[list[Any]], int] | None = options.calc_batch_size
        self.cache: CacheType = options.cache
        self.check: bool = options.check
        self.check_fail_continue: bool = options.check_fail_continue
        self.generator = generator
        self.file_list = file_list
        self.input_order = list(input_order)

    def open(self, filename: str | os.PathLike[str], mode: str = "rb", encoding: str = "utf-8") -> IO[Any]:
        """Return an open file for reading, seekable: a file of this machine, or a remote one (docs/remote.md).

        Args:
            filename: a path, or the URL of a remote file, such as an entry of the list.
            mode: ``"rb"`` for bytes, ``"r"`` for text.
            encoding: encoding of text.

        Raises:
            OSError: there is no such file, or it cannot be read.
            StoreError: the store of a remote file does not give it, or the file has changed.
        """
        name = os.fspath(filename)
        if mode not in ("rb", "r", "rt"):
            raise OptionError(f'settings.open only reads: mode must be "rb" or "r", got {mode!r:.40}')
        raw = RemoteFile(name) if is_remote(name) else io.FileIO(name, "rb")
        file = io.BufferedReader(raw, _BUFFER)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding)

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(type(self), name, None), _FromContext):
            raise AttributeError(f"settings.{name} exists while process runs: the init_hook has no pass and no file")
        raise AttributeError(f"settings has no attribute {name!r}; did the init_hook set it?")

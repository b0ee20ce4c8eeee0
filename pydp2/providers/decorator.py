"""Decorate a generator function so that it can be served: ``@provider``.

This module checks the arguments as the user writes them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from pydp2.errors import OptionTypeError
from pydp2.providers.local_reader import checked_samples
from pydp2.providers.options import (
    CacheType,
    InputTypes,
    LegacyKeywords,
    ProviderOptions,
    check_cache,
    check_calc_batch_size,
    check_names,
    check_pool_weight,
    normalise_shuffle,
)
from pydp2.providers.started_provider import StartedProvider, start_provider


class Provider:
    """Decorated ``process``. Calling it calls the function itself.

    Attributes:
        function: the undecorated function, also ``__wrapped__``.
        options: the arguments of ``@provider``.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], options: ProviderOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<provider {self.function.__module__}.{self.function.__qualname__}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__  # by its name, like a function; its module is that of the function

    def start(
        self,
        *,
        args: Mapping[str, Any] | None = None,
        is_train: bool = True,
        input_order: Sequence[str] | None = None,
        file_list: Sequence[str] = (),
        logger_name: str = "pydp2.provider",
    ) -> StartedProvider:
        """Run the init_hook and declare the slots. Once per process: the hook belongs to the process, not to a pass.

        The hook is called as ``init_hook(settings, file_list=…, is_train=…, input_order=…, **args)``.
        Afterwards the types are, highest first: ``settings.input_types`` set by the hook, ``input_types``,
        ``slots``, ``settings.slots`` set by the hook. Types by name are put in the order of ``input_order``
        (their own if it is empty).

        Raises:
            ProviderError: the hook raised (also the builtin of the same name), cannot take its arguments (TypeError),
                or left settings that cannot be; no types anywhere (ValueError); ``input_order`` names an undeclared
                slot (KeyError).
            OptionTypeError: ``args`` are no dict with names as keys.
        """
        return start_provider(
            self.function,
            self.options,
            args=args,
            is_train=is_train,
            input_order=input_order,
            file_list=file_list,
            logger_name=logger_name,
        )

    def samples(
        self,
        filename: str | os.PathLike[str],
        *,
        args: Mapping[str, Any] | None = None,
        is_train: bool = True,
        input_order: Sequence[str] | None = None,
        seed: int = 0,
        pass_id: int = 0,
    ) -> Iterator[list[Any]]:
        """Yield the checked samples of one file, without a service: for the tests of a provider.

        Each sample is a list of its slot values in slot order, as yielded. With ``check`` and ``check_fail_continue``
        bad samples are left out and logged; otherwise the first one raises.

        Raises:
            BadSample: a value does not fit its slot: file, sample (from 0), slot, expected, got.
            ProviderError: ``process``, ``calc_batch_size`` or the hook raised (also the builtin of the same name); and
                as :meth:`start` does.
        """
        name = os.fspath(filename)
        running = self.start(args=args, is_train=is_train, input_order=input_order, file_list=[name])
        return checked_samples(running, name, seed=seed, pass_id=pass_id)

    def reader(
        self,
        files: Sequence[str | os.PathLike[str]],
        *,
        args: Mapping[str, Any] | None = None,
        is_train: bool = True,
        input_order: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Callable[[], Iterator[tuple[Any, ...]]]:
        """Return a reader of the checked samples of ``files``, one file after the other, in
        this process and its thread.

        Each call of the reader is the next pass, in the order of list and yields: the pool is the service's. A sample
        is the tuple of its slot values, also of a single slot. The hook runs at the first call. Passes that are open
        together share ``settings``, which show each thread the file that it reads. A bad sample is dropped or raised as
        :meth:`samples` does. See docs/readers.md.

        Raises OptionTypeError: ``files`` is one path (of a list, say), not several, or a set.
        """
        if isinstance(files, str | os.PathLike):
            raise OptionTypeError(f"files must be the files themselves, as a list; got {files!r:.80}")
        if isinstance(files, set | frozenset):  # its order differs from run to run, with the hashes of texts
            raise OptionTypeError(f"files must have an order, got a {type(files).__name__}; write sorted(…)")
        names = [os.fspath(name) for name in files]
        passes = itertools.count()
        started: list[StartedProvider] = []
        starting = threading.RLock()

        def samples_of(pass_id: int) -> Iterator[tuple[Any, ...]]:
            with starting:  # two threads may begin the first pass and the second one together
                if not started:
                    started.append(self.start(args=args, is_train=is_train, input_order=input_order, file_list=names))
            for index, name in enumerate(names):
                for sample in checked_samples(started[0], name, file_index=index, seed=seed, pass_id=pass_id):
                    yield tuple(sample)

        def read() -> Iterator[tuple[Any, ...]]:
            return samples_of(next(passes))

        # a pass that a fork reads is counted here: see pydp2.reader.contract.begun
        read.begin_pass = lambda: functools.partial(samples_of, next(passes))  # type: ignore[attr-defined]
        return read


def provider(  # noqa: PLR0913 - the arguments are PyDataProvider2's
    input_types: InputTypes | None = None,
    should_shuffle: bool | float | str | None = None,
    pool_size: int = -1,
    min_pool_size: int = -1,
    can_over_batch_size: bool = True,
    calc_batch_size: Callable[[list[Any]], int] | None = None,
    cache: CacheType | int = CacheType.NO_CACHE,
    check: bool = False,
    check_fail_continue: bool = False,
    init_hook: Callable[..., object] | None = None,
    **legacy: Unpack[LegacyKeywords],
) -> Callable[[Callable[..., Iterable[Any]]], Provider]:
    """Decorate ``process(settings, filename)``, a generator function that reads the samples of one file.

    Args:
        input_types: the slots, as a list or tuple of input types, or a dict of them by name. May be left to the hook.
        should_shuffle: None shuffles in training only; bools, 1, 0 and the words t, true, on, f, false, off are
            taken too. Anything else warns and counts as None.
        pool_size: most weight waiting in the pool, -1 for no bound.
        min_pool_size: least weight waiting when a batch is cut (while there is more), -1 for "as much as there may be".
        can_over_batch_size: whether a batch may exceed its size by its last sample.
        calc_batch_size: ``calc_batch_size(sample)`` gives the weight of a sample, a whole number from 0; the sample is
            always the list of its slot values, also of a single one. Without it a sample weighs 1.
        cache: ``CacheType.CACHE_PASS_IN_MEM`` keeps the samples of the first pass for the later ones,
            ``CACHE_PASS_ON_DISK`` for later runs too, ``CACHE_PASS_IN_MEM_THEN_DISK`` puts on the disk what memory
            has no room for. See docs/caching.md.
        check: strict types (no plain int in a dense slot).
        check_fail_continue: with ``check``, drop and count a bad sample instead of raising.
        init_hook: ``init_hook(settings, file_list=…, is_train=…, input_order=…, **args)``, called before the
            first file, once for all workers or once in each (docs/workers.md); may set types and attributes.
        **legacy: ``slots`` is an old name of ``input_types`` (warns). Anything else is an error.

    Raises:
        OptionTypeError: an argument is unknown or of a wrong type.
        OptionError: an argument has a value that it cannot have.
    """
    slots = legacy.pop("slots", None)
    check_names(legacy)
    if callable(input_types):
        raise OptionTypeError("@provider needs its arguments: write @provider(input_types=…) above the function")
    if slots is not None:  # a UserWarning, because Python hides a DeprecationWarning from a provider's author
        warnings.warn("slots is an old name: write input_types", UserWarning, stacklevel=2)
    options = ProviderOptions(
        input_types=input_types,
        slots=slots,
        should_shuffle=normalise_shuffle(should_shuffle),
        pool_size=check_pool_weight("pool_size", pool_size),
        min_pool_size=check_pool_weight("min_pool_size", min_pool_size),
        can_over_batch_size=can_over_batch_size,
        calc_batch_size=check_calc_batch_size(calc_batch_size),
        cache=check_cache(cache),
        check=check,
        check_fail_continue=check_fail_continue,
        init_hook=init_hook,
    )

    def decorate(function: Callable[..., Iterable[Any]]) -> Provider:
        if isinstance(function, Provider) or not inspect.isroutine(function):
            raise OptionTypeError(f"@provider decorates a generator function, got {function!r:.80}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise OptionTypeError(f"@provider decorates a plain generator function, {function.__qualname__} is async")
        _check_parameters(function)
        return Provider(function, options)

    return decorate


def _check_parameters(function: Callable[..., Iterable[Any]]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell
        return
    try:
        signature.bind(None, "")
    except TypeError:
        name = function.__qualname__
        raise OptionTypeError(f"a provider is called with (settings, filename), {name} takes {signature}") from None

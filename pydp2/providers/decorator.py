"""Define the decorator ``@provider``, which makes a generator function a provider.

This module checks the arguments in the form in which the user writes them.
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
from pydp2.providers.started_provider import INDICES, START, StartedProvider, start_provider


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
        return self.function.__qualname__  # pickled by name, like a function, in the module of the function

    def start(
        self,
        *,
        args: Mapping[str, Any] | None = None,
        is_train: bool = True,
        input_order: Sequence[str] | None = None,
        file_list: Sequence[str] = (),
        logger_name: str = "pydp2.provider",
    ) -> StartedProvider:
        """Run the init_hook and declare the slots. Call it once per process: the hook belongs to the process, not to a
        pass.

        The hook is called as ``init_hook(settings, file_list=…, is_train=…, input_order=…, **args)``. Afterwards the
        types are the first of these that is set: ``settings.input_types`` of the hook, ``input_types``, ``slots``,
        ``settings.slots`` of the hook. Types by name are put in the order of ``input_order`` (in their own order if it
        is empty).

        Raises:
            ProviderError: the hook raised (also the builtin of the same name), cannot take its arguments (TypeError),
                or left settings that are not valid; there are no types (ValueError); ``input_order`` names an
                undeclared slot (KeyError).
            OptionTypeError: ``args`` is not a dict with names as keys.
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
            ProviderError: ``process``, ``calc_batch_size`` or the hook raised (also the builtin of the same name). Also
                the errors of :meth:`start`.
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
        """Return a reader of the checked samples of ``files``, one file after the other, in the calling thread.

        Each call of the reader is the next pass, in the order of list and yields: only a service has a pool. A sample
        is a tuple of slot values, also if there is only one slot. The hook runs at the first call. Passes that are open
        at the same time share ``settings``, which show each thread the file that it reads. Bad samples are dropped or
        raised as in :meth:`samples`. See docs/readers.md.

        Raises OptionTypeError: ``files`` is one path (such as that of a list), or a set.
        """
        if isinstance(files, str | os.PathLike):
            raise OptionTypeError(f"files must be the files themselves, as a list; got {files!r:.80}")
        if isinstance(files, set | frozenset):  # the order of a set of texts differs from run to run
            raise OptionTypeError(f"files must have an order, got a {type(files).__name__}; write sorted(…)")
        names = [os.fspath(name) for name in files]
        passes = itertools.count()
        started: list[StartedProvider] = []
        starting = threading.RLock()

        def samples_of(pass_id: int) -> Iterator[tuple[Any, ...]]:
            with starting:  # two threads may begin the first and the second pass at the same time
                if not started:
                    started.append(self.start(args=args, is_train=is_train, input_order=input_order, file_list=names))
            for index, name in enumerate(names):
                for sample in checked_samples(started[0], name, file_index=index, seed=seed, pass_id=pass_id):
                    yield tuple(sample)

        def read() -> Iterator[tuple[Any, ...]]:
            return samples_of(next(passes))

        # Counts a pass that a fork reads in this process: see pydp2.reader.contract.begun.
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

    With a third parameter ``start`` it is called with the index of the first sample that is needed, and yields from
    there (docs/providers.md, "Begin at any sample"). With a fourth, ``indices``, it yields these samples alone, unless
    they are None.

    Args:
        input_types: the slots, as a list or tuple of input types, or a dict of them by name. May be left to the hook.
        should_shuffle: None shuffles in training only. Bools, 1, 0 and the words t, true, on, f, false, off are
            accepted too. Anything else warns and counts as None.
        pool_size: largest weight of the samples in the pool, -1 for no bound.
        min_pool_size: least weight of the samples in the pool when a batch is cut (while there are more samples), -1
            for a full pool.
        can_over_batch_size: True if the last sample of a batch may exceed the batch size.
        calc_batch_size: ``calc_batch_size(sample)`` returns the weight of a sample, a whole number from 0; ``sample``
            is always a list of slot values, also if there is only one slot. Without it a sample weighs 1.
        cache: ``CacheType.CACHE_PASS_IN_MEM`` keeps the samples of the first pass for later passes,
            ``CACHE_PASS_ON_DISK`` for later runs too, ``CACHE_PASS_IN_MEM_THEN_DISK`` writes the samples to the disk
            that do not fit into memory. See docs/caching.md.
        check: strict types (no plain int in a dense slot).
        check_fail_continue: with ``check``, drop and count a bad sample instead of raising.
        init_hook: ``init_hook(settings, file_list=…, is_train=…, input_order=…, **args)``, called before the
            first file, once for all workers or once in each (docs/workers.md); may set types and attributes.
        **legacy: ``slots``, an old name of ``input_types``, gives a warning. Anything else is an error.

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
    except ValueError:  # a builtin without a signature
        return
    taken = signature.parameters
    more: dict[str, Any] = {name: None for name in (START, INDICES) if name in taken}
    try:
        signature.bind(None, "", **more)
    except TypeError:
        raise OptionTypeError(
            f"a provider is called with (settings, filename), or with (settings, filename, start) if it can begin at "
            f"any sample; {function.__qualname__} takes {signature}"
        ) from None
    if INDICES in taken and START not in taken:
        raise OptionTypeError(f"a provider with {INDICES} needs {START} before it; {function.__qualname__} has none")

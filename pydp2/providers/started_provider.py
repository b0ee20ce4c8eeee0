"""Start a provider and run its generators: once its hook has run, its slots are known and its files can be opened.

This module reads the settings after the hook (types, precedence, levels, flags), makes the plain declaration, which
must be the same in all workers, and runs the generators: ``settings.filename``, ``pass_id`` and ``rng`` are those of
the generator that runs. It does not pack, order or send anything.

See docs/semantics.md for the order of construction.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    OptionError,
    OptionTypeError,
    from_user,
    provider_error,
)
from pydp2.providers.error_location import count_own_frames, remedy
from pydp2.providers.global_random import prepared_random, running, switch_to
from pydp2.providers.hook_arguments import wrong_arguments
from pydp2.providers.options import (
    InputTypes,
    ProviderOptions,
    check_cache,
    check_calc_batch_size,
    check_flag,
    check_pool_weight,
    check_types,
)
from pydp2.providers.settings import GeneratorContext, Settings, show_context, shown_context

START, INDICES = "start", "indices"
"""Names of the parameters of a ``process`` that can begin at any sample, or yield chosen ones (docs/providers.md)."""
MAX_WEIGHT = 1 << 40
"""Largest weight of a sample: sums over millions of such samples still fit 64 bits."""
_ONE_SAMPLE = (Mapping, str, bytes, bytearray, memoryview)


class OpenFile(Iterator[Any]):
    """Run of ``process`` over one file. ``next`` returns the next sample as it was yielded, and samples of
    :func:`pydp2.rows` one by one; exceptions of ``process`` pass unchanged. Between two samples the global random
    generators are those of the caller.

    Attributes:
        start: index of the sample that comes first.
        context: context that settings show while it runs. A loop that draws many samples in a row from one file may
            call :meth:`StartedProvider.show_context` with it once and then draw from ``iterator`` directly.
        iterator: the generator itself, which returns :class:`ManySamples` unchanged.
    """

    __slots__ = ("_is_single_slot", "_pending", "_settings", "context", "iterator", "start")

    def __init__(
        self,
        settings: Settings,
        context: GeneratorContext,
        iterator: Iterator[Any],
        is_single_slot: bool,
        start: int,
    ) -> None:
        self._settings, self.context, self.iterator, self.start = settings, context, iterator, start
        self._is_single_slot = is_single_slot
        self._pending: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        show_context(self._settings, self.context)
        with self.user_code():
            while True:
                for sample in self._pending:
                    return sample
                drawn = next(self.iterator)
                if type(drawn) is not ManySamples:
                    return drawn
                self._pending = drawn.samples(self._is_single_slot)

    def user_code(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the global random generators are those of this file: for other calls of the user's
        code than ``next``, and for several samples in a row."""
        return running(self.context.global_random)

    def close(self) -> None:
        """Close the generator: its ``finally`` blocks run, and their exceptions pass."""
        before = shown_context(self._settings)
        show_context(self._settings, self.context)
        try:
            close = getattr(self.iterator, "close", None)
            if close is not None:
                with self.user_code():
                    close()
        finally:  # the garbage collector may close this generator while another one runs
            show_context(self._settings, before or self.context)
            self.context.global_random.close()


class StartedProvider:
    """Started provider; made by :meth:`Provider.start <pydp2.providers.decorator.Provider.start>`.

    Attributes:
        settings: the object that the user's functions share.
        schema: the schema that it declares.
        arrange: ``arrange(sample)`` returns the list of slot values of one yielded sample; it raises BadSample, or
            ProviderError (TypeError) for a dict if types are a list.
        is_single_slot: True if there is only one slot, whose value is yielded without a list.
        slot_order: the object of the method ``arrange``; its ``on_unknown`` may be set.
        can_start: True if ``process`` can begin at any sample of a file: it has a parameter ``start``.
        can_select: True if it can also yield chosen samples alone: it has a parameter ``indices``.
        slots_by_hook: True if the ``init_hook`` declares the slots, not the decorator.
    """

    def __init__(
        self,
        settings: Settings,
        schema: Schema,
        calc_batch_size: Callable[[list[Any]], Any] | None,
        *,
        slots_by_hook: bool = False,
    ) -> None:
        self.settings = settings
        self.schema = schema
        self.is_single_slot = len(schema.slots) == 1
        self.slots_by_hook = slots_by_hook
        declared = settings.input_types  # it has more names than the slots if input_order leaves some out
        self.slot_order = SlotOrder(
            schema.slots, self.is_single_slot, tuple(declared) if isinstance(declared, Mapping) else ()
        )
        self.arrange = self.slot_order.arrange
        self._calc_batch_size = calc_batch_size
        taken = _parameters(settings.generator)
        self.can_start = START in taken
        self.can_select = self.can_start and INDICES in taken

    def weight_of(self, values: list[Any]) -> int:
        """Return the weight of one arranged sample: the result of ``calc_batch_size``, or 1.

        Raises:
            ProviderError: ``calc_batch_size`` raised, or its result is no whole number (TypeError), or negative or
                above :data:`MAX_WEIGHT` (ValueError).
        """
        if self._calc_batch_size is None:
            return 1
        try:
            weight = self._calc_batch_size(values)
        except Exception as error:
            raise from_user(f"calc_batch_size raised {type(error).__name__}", error, count_own_frames(error)) from None
        if not isinstance(weight, Integral):
            raise provider_error(
                f"calc_batch_size must return a whole number, got {weight!r:.80} ({type(weight).__name__})", "TypeError"
            )
        whole = int(weight)
        if not 0 <= whole <= MAX_WEIGHT:
            raise provider_error(
                f"calc_batch_size must return a weight from 0 to {MAX_WEIGHT}, got {whole!r:.80}", "ValueError"
            )
        return whole

    def open_file(
        self,
        filename: str,
        *,
        file_index: int,
        seed: int,
        pass_id: int,
        start: int = 0,
        indices: NDArray[np.int64] | None = None,
    ) -> OpenFile:
        """Return a new run of ``process`` over ``filename``; no user code runs before the first ``next``.

        It begins at sample ``start``, which must be 0 unless ``can_start``. ``indices`` (int64, in rising order; only
        with ``can_select``): the samples that it yields, and no others.

        ``file_index`` is its number in the file list, ``seed`` the seed of the job; with ``pass_id`` they seed
        ``settings.rng``. With a cache, all passes get the samples of the pass that reads a file first. Which pass that
        is depends on restarts and limits, so every pass is seeded as pass 0 then.
        """
        context = GeneratorContext(
            filename,
            file_index=file_index,
            seed=seed,
            pass_id=pass_id,
            drawn_pass=0 if self.schema.cache else pass_id,
        )
        generator, settings = self.settings.generator, self.settings
        more: dict[str, Any] = {START: start} if self.can_start else {}
        if self.can_select:
            more[INDICES] = indices
        iterator: Iterator[Any] | None = None
        if inspect.isgeneratorfunction(generator):
            with contextlib.suppress(TypeError):  # it takes other arguments; the first next() reports that
                iterator = generator(settings, filename, **more)
        if iterator is None:
            iterator = _iterate_result(partial(generator, settings, filename, **more))
        if self.can_start:
            iterator = _seed_each_sample(iterator, context, start, indices)
        return OpenFile(settings, context, iterator, self.is_single_slot, start)

    def show_context(self, context: GeneratorContext) -> None:
        """Let the settings show ``context`` to this thread, and switch the global random generators to it, until
        another generator runs."""
        show_context(self.settings, context)
        switch_to(context.global_random)


def _parameters(generator: Callable[..., Iterable[Any]]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(generator).parameters
    except ValueError:  # a builtin without a signature
        return {}


def _seed_each_sample(
    iterator: Iterator[Any], context: GeneratorContext, start: int, indices: NDArray[np.int64] | None
) -> Iterator[Any]:
    """Yield what ``iterator`` does. What it draws for a yield depends on the index of its first sample, and not on the
    yields before."""
    drawn = 0  # number of samples
    try:
        while True:
            context.begin_sample(start + drawn if indices is None else int(indices[min(drawn, len(indices) - 1)]))
            try:
                sample = next(iterator)
            except StopIteration:
                return
            yield sample
            drawn += len(sample) if type(sample) is ManySamples else 1
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _iterate_result(call: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Iterate over the result of a ``process`` that is no generator function and returns an iterable. It is called at
    the first ``next``, like the code of a generator function."""
    result = call()
    if isinstance(result, _ONE_SAMPLE) or not isinstance(result, Iterable):
        # A single sample, such as a dict or a text, is an iterable too, but its items are no samples.
        what = (
            "returned a sample: yield it; got" if isinstance(result, _ONE_SAMPLE) else "must yield samples, it returned"
        )
        raise provider_error(f"process {what} {result!r:.80} ({type(result).__name__})", "TypeError")
    yield from result


def start_provider(
    function: Callable[..., Iterable[Any]],
    options: ProviderOptions,
    *,
    args: Mapping[str, Any] | None,
    is_train: bool,
    input_order: Sequence[str] | None,
    file_list: Sequence[str],
    logger_name: str,
) -> StartedProvider:
    """Make the settings, run the hook, and read the settings after it. See ``Provider.start``."""
    name = f"{function.__module__}.{function.__qualname__}"
    settings = Settings(
        options, generator=function, file_list=file_list, input_order=input_order or (), logger_name=logger_name
    )
    given = {
        **_checked_args(args),
        "file_list": file_list,
        "is_train": is_train,
        "input_order": list(settings.input_order),
    }
    if options.init_hook is not None:
        _run_hook(options.init_hook, settings, given, name)
    elif args:
        warnings.warn(
            f"args have no effect: {name} has no init_hook to take {', '.join(args)}", UserWarning, stacklevel=3
        )
    weigher = check_calc_batch_size(settings.calc_batch_size)
    schema = _make_schema(settings, options, is_train, weigher is not None, name)
    by_decorator = (options.input_types, options.slots)
    by_hook = all(settings.input_types is not declared for declared in by_decorator)
    return StartedProvider(settings, schema, weigher, slots_by_hook=by_hook)


def _checked_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise OptionTypeError(f"args must be a dict of keyword arguments for the init_hook, got {type(args).__name__}")
    for key in args:
        if not isinstance(key, str):
            raise OptionTypeError(f"args must have names as keys, got the key {key!r:.80} ({type(key).__name__})")
    return dict(sorted(args.items()))  # the same order in workers and without a service


def _run_hook(hook: Callable[..., object], settings: Settings, given: dict[str, Any], name: str) -> None:
    try:
        signature = inspect.signature(hook)
    except ValueError:
        pass  # a builtin without a signature: calling it reports the error
    else:
        try:
            signature.bind(settings, **given)
        except TypeError as error:
            raise provider_error(wrong_arguments(signature, given, name, str(error)), "TypeError") from None
    try:
        with running(prepared_random()):  # values that the hook draws must be the same in all workers and later runs
            hook(settings, **given)
    except (Exception, SystemExit) as error:
        what = f"the init_hook of {name} raised {type(error).__name__}{remedy(error, settings.file_list)}"
        raise from_user(what, error, count_own_frames(error)) from None


def _make_schema(settings: Settings, options: ProviderOptions, is_train: bool, is_weighted: bool, name: str) -> Schema:
    declared = _input_types(settings, options, name)
    if not callable(settings.generator):
        raise provider_error(f"settings.generator of {name} must be a function, the init_hook set another", "TypeError")
    try:
        slots = _ordered_slots(check_types("input_types", declared), settings.input_order, name)
        check = check_flag("check", settings.check)
        schema = Schema(
            slots=slots,
            shuffle=_resolved_shuffle(settings.should_shuffle, is_train, name),
            pool_size=check_pool_weight("pool_size", settings.pool_size),
            min_pool_size=check_pool_weight("min_pool_size", settings.min_pool_size),
            can_over_batch_size=check_flag("can_over_batch_size", settings.can_over_batch_size),
            weighted=is_weighted,
            cache=int(check_cache(settings.cache)),
            check=check,
            check_fail_continue=check and check_flag("check_fail_continue", settings.check_fail_continue),
        )
    except (OptionError, OptionTypeError) as error:  # the arguments of @provider were valid, so the hook set this
        kind = "TypeError" if isinstance(error, OptionTypeError) else "ValueError"
        raise provider_error(f"the init_hook of {name} left invalid settings: {error}", kind) from None
    settings.input_types = declared
    return schema


def _input_types(settings: Settings, options: ProviderOptions, name: str) -> InputTypes:
    """Return the first that is set of: ``settings.input_types`` of the hook, ``input_types``, ``slots``,
    ``settings.slots`` of the hook."""
    for declared in (settings.input_types, options.input_types, options.slots, vars(settings).get("slots")):
        if declared is not None:
            return declared
    raise provider_error(
        f"input_types must be set, and {name} has none; "
        "declare them in @provider(input_types=…), or set settings.input_types in the init_hook",
        "ValueError",
    )


def _ordered_slots(input_types: InputTypes, input_order: Sequence[str], name: str) -> Slots:
    if not isinstance(input_types, Mapping):
        return Slots(tuple(input_types), None)
    order = tuple(input_order) or tuple(input_types)
    for slot in order:
        if slot not in input_types:
            known = ", ".join(input_types)
            raise provider_error(f"input_order names {slot!r}, {name} declares {known}", "KeyError")
        if order.count(slot) > 1:
            raise provider_error(f"input_order must name each slot once, got {slot!r} twice", "ValueError")
    return Slots(tuple(input_types[slot] for slot in order), order)


def _resolved_shuffle(value: Any, is_train: bool, name: str) -> bool:
    """Return should_shuffle as a bool. The argument of ``@provider`` is normalized already; a value of the hook is not,
    and anything but a bool counts as None."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if value is not None:
        warnings.warn(
            f"the init_hook of {name} set should_shuffle={value!r:.80}, which is not a bool: "
            "taken as None, that is, shuffled in training only",
            UserWarning,
            stacklevel=2,
        )
    return is_train

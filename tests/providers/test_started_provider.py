"""Starting a provider: the hook, what it may overwrite, which types win; and which generator the settings follow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.schema.input_types import Slots, dense_vector, integer_value
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionTypeError, ProviderError, RemoteProtocolError
from pydp2.providers import CacheType, GeneratorContext, Provider, StartedProvider, provider
from pydp2.providers.global_random import prepared_random, running

ONE = [integer_value(10)]
AB = {"a": integer_value(10), "b": integer_value(100)}


def hooked(hook: Callable[..., object] | None, **options: Any) -> Provider:
    @provider(init_hook=hook, **options)
    def process(settings: Any, filename: str) -> Any:
        yield 1

    return process


def after(hook: Callable[[Any], object], **options: Any) -> Schema:
    """What is declared once ``hook(settings)`` has run."""

    def whole(settings: Any, **kwargs: Any) -> None:
        hook(settings)

    return hooked(whole, **{"input_types": ONE, **options}).start().schema


# -- the hook ---------------------------------------------------------------------------------------------------------


def test_pd_22_the_hook_gets_settings_first_and_all_else_by_name() -> None:
    seen: list[Any] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    running = hooked(hook, input_types=AB).start(
        args={"dictionary": {"a": 1}, "size": 3}, is_train=False, input_order=["b", "a"], file_list=["x", "y"]
    )
    ((args, kwargs),) = seen
    assert args == (running.settings,)
    assert kwargs == {
        "dictionary": {"a": 1},
        "size": 3,
        "is_train": False,
        "input_order": ["b", "a"],
        "file_list": ["x", "y"],
    }


def test_pd_22_the_names_of_the_framework_beat_args() -> None:
    def hook(settings: Any, is_train: bool, file_list: Any, input_order: Any, other: int) -> None:
        settings.seen = (is_train, list(file_list), input_order, other)

    running = hooked(hook, input_types=ONE).start(args={"is_train": 5, "file_list": 6, "input_order": 7, "other": 8})
    assert running.settings.seen == (True, [], [], 8)


def test_pd_23_the_hook_runs_once_before_the_first_process_call_and_never_again() -> None:
    calls: list[str] = []

    def hook(settings: Any, **kwargs: Any) -> str:
        calls.append("hook")
        return "ignored"

    @provider(input_types=ONE, init_hook=hook)
    def process(settings: Any, filename: str) -> Any:
        calls.append(filename)
        yield 1

    running = process.start()
    for pass_id in range(3):
        for index, name in enumerate(["x", "y"]):
            assert list(running.open_file(name, file_index=index, seed=0, pass_id=pass_id)) == [1]
    assert calls == ["hook", *["x", "y"] * 3]


def test_pd_23_the_hook_may_set_what_the_decorator_sets() -> None:
    def hook(settings: Any) -> None:
        settings.input_types = [dense_vector(2)]
        settings.should_shuffle = False
        settings.pool_size = np.int64(7)
        settings.min_pool_size = 3
        settings.can_over_batch_size = False
        settings.calc_batch_size = lambda sample: 5
        settings.cache = CacheType.CACHE_PASS_IN_MEM
        settings.check = True
        settings.check_fail_continue = True

    assert after(hook) == Schema(
        slots=Slots((dense_vector(2),), None),
        shuffle=False,
        pool_size=7,
        min_pool_size=3,
        can_over_batch_size=False,
        weighted=True,
        cache=1,
        check=True,
        check_fail_continue=True,
    )


def test_pd_23_the_hook_may_set_the_generator() -> None:
    def other(settings: Any, filename: str) -> Any:
        yield 7

    def hook(settings: Any, **kwargs: Any) -> None:
        settings.generator = other

    assert list(hooked(hook, input_types=ONE).samples("x")) == [[7]]


def test_pd_24_what_the_hook_keeps_on_settings_is_seen_in_process() -> None:
    def hook(settings: Any, dictionary: dict[str, int], **kwargs: Any) -> None:
        settings.dictionary = dictionary
        settings.input_types = [integer_value(len(dictionary))]

    @provider(init_hook=hook)
    def process(settings: Any, filename: str) -> Any:
        yield from (settings.dictionary[word] for word in ("b", "a"))

    assert list(process.samples("x", args={"dictionary": {"a": 0, "b": 1}})) == [[1], [0]]


def test_pd_25_the_types_of_the_hook_beat_those_of_the_decorator() -> None:
    def types(settings: Any) -> None:
        settings.input_types = AB

    def slots(settings: Any) -> None:
        settings.slots = [integer_value(3)]

    assert after(types).slots.names == ("a", "b")
    assert after(slots).slots.types == tuple(ONE)
    with pytest.warns(UserWarning, match="slots is an old name"):
        assert after(slots, input_types=None, slots=[integer_value(4)]).slots.types == (integer_value(4),)
    with pytest.warns(UserWarning, match="slots is an old name"):
        assert after(lambda settings: None, slots=[integer_value(4)]).slots.types == tuple(ONE)
    assert after(slots, input_types=None).slots.types == (integer_value(3),)


def test_pd_25_the_types_that_won_stand_on_settings() -> None:
    assert hooked(None, input_types=ONE).start().settings.input_types == ONE


def test_pd_26_no_types_anywhere_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"input_types must be set, and .*process has none; declare them in @provider"):
        hooked(lambda settings, **kwargs: None).start()
    with pytest.raises(ProviderError, match="input_types must be set"):
        hooked(None).samples("x")


def test_pd_20_input_order_with_an_undeclared_name_is_an_error() -> None:
    process = hooked(None, input_types=AB)
    for run in (lambda: process.start(input_order=["a", "c"]), lambda: process.samples("x", input_order=["a", "c"])):
        with pytest.raises(KeyError, match=r"^input_order names 'c', .*process declares a, b$") as caught:
            run()
        assert isinstance(caught.value, ProviderError)


def test_input_order_puts_dict_types_in_order_and_may_leave_some_out() -> None:
    process = hooked(None, input_types={"c": integer_value(1), **AB})
    assert process.start().schema.slots.names == ("c", "a", "b")
    assert process.start(input_order=[]).schema.slots.names == ("c", "a", "b")
    assert process.start(input_order=("b", "c")).schema.slots == Slots((AB["b"], integer_value(1)), ("b", "c"))
    assert hooked(None, input_types=ONE).start(input_order=["z"]).schema.slots.names is None
    with pytest.raises(ValueError, match="each slot once, got 'a' twice"):
        process.start(input_order=["a", "a"])


def test_without_a_word_training_is_shuffled_and_testing_is_not() -> None:
    for process in (hooked(None, input_types=ONE), hooked(None, input_types=ONE, should_shuffle=None)):
        assert process.start(is_train=True).schema.shuffle is True
        assert process.start(is_train=False).schema.shuffle is False
    assert hooked(None, input_types=ONE, should_shuffle="On").start(is_train=False).schema.shuffle is True


def test_pd_28_a_word_set_by_the_hook_is_not_read_and_counts_as_unsaid() -> None:
    def hook(settings: Any) -> None:
        settings.should_shuffle = "off"

    with pytest.warns(UserWarning, match="set should_shuffle='off', which is not a bool: taken as None"):
        assert after(hook).shuffle is True


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("pool_size", 0, ValueError, "pool_size must be at least 1"),
        ("min_pool_size", 1.5, TypeError, "min_pool_size must be a whole number"),
        ("cache", 9, ValueError, "cache must be one of"),
        ("check", "yes", TypeError, "check must be True or False"),
        ("can_over_batch_size", None, TypeError, "can_over_batch_size must be True or False"),
        ("input_types", 5, TypeError, "input_types must be a list, tuple or dict"),
        ("input_types", [], ValueError, "must declare at least one slot"),
        ("generator", None, TypeError, "settings.generator of .* must be a function"),
    ],
)
def test_attributes_that_cannot_be_are_blamed_on_the_hook(
    name: str, value: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"(?s)init_hook.*{message}|{message}.*init_hook") as caught:
        after(lambda settings: setattr(settings, name, value))
    assert isinstance(caught.value, ProviderError)


def test_a_weigher_set_by_the_hook_that_is_no_function_is_ignored() -> None:
    with pytest.warns(UserWarning, match="calc_batch_size must be a function"):
        assert after(lambda settings: setattr(settings, "calc_batch_size", 3)).weighted is False


def test_a_hook_that_raises_is_told_with_its_class_and_traceback() -> None:
    def hook(settings: Any, **kwargs: Any) -> None:
        raise KeyError("word")

    with pytest.raises(KeyError, match=r"^the init_hook of .*process raised KeyError\n\nTraceback") as caught:
        hooked(hook, input_types=ONE).start()
    assert isinstance(caught.value, ProviderError)
    assert 'raise KeyError("word")' in str(caught.value)
    assert "pydp2/providers" not in str(caught.value)


def test_a_hook_that_exits_is_told_as_well() -> None:
    def hook(settings: Any, **kwargs: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(ProviderError, match="raised SystemExit"):
        hooked(hook, input_types=ONE).start()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, r"process needs the argument 'dictionary': write args=\{'dictionary': …\}, .*; it takes dictionary$"),
        ({"dictionary": 1, "extra": 2}, r"process has no argument 'extra'; it takes dictionary$"),
        ({"dictionry": 1}, r"process has no argument 'dictionry', did you mean 'dictionary'\?; it takes dictionary$"),
        ({"dictionary": 1, "settings": 2}, r"process has no argument 'settings'; it takes dictionary$"),
    ],
)
def test_args_that_the_hook_does_not_take_are_named(args: dict[str, Any], message: str) -> None:
    def hook(settings: Any, dictionary: Any, file_list: Any, is_train: Any, input_order: Any) -> None: ...

    with pytest.raises(TypeError, match=message) as caught:
        hooked(hook, input_types=ONE).start(args=args)
    assert isinstance(caught.value, ProviderError)


def test_a_hook_that_takes_too_little_is_told_about_kwargs() -> None:
    with pytest.raises(TypeError, match=r"accept the arguments that it does not need with \*\*kwargs"):
        hooked(lambda settings: None, input_types=ONE).start()


def test_a_type_error_inside_the_hook_is_its_own() -> None:
    def hook(settings: Any, **kwargs: Any) -> None:
        len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="raised TypeError\n\nTraceback"):
        hooked(hook, input_types=ONE).start()


def test_args_without_a_hook_have_no_effect_and_warn() -> None:
    with pytest.warns(UserWarning, match=r"args have no effect: .*process has no init_hook to take size"):
        hooked(None, input_types=ONE).start(args={"size": 3})


@pytest.mark.parametrize(
    ("args", "message"), [([1], "args must be a dict"), ({1: 2}, "must have names as keys, got the key 1")]
)
def test_args_must_be_a_dict_of_names(args: Any, message: str) -> None:
    with pytest.raises(OptionTypeError, match=message):
        hooked(None, input_types=ONE).start(args=args)


def test_the_logger_has_a_name_and_keeps_its_level() -> None:
    settings = hooked(None, input_types=ONE).start(logger_name="mine").settings
    assert settings.logger is logging.getLogger("mine")
    assert settings.logger.level == logging.NOTSET


# -- the declaration on its way ---------------------------------------------------------------------------------------


def test_a_declaration_comes_back_from_the_wire() -> None:
    for process in (hooked(None, input_types=AB, pool_size=5), hooked(None, input_types=ONE, check=True)):
        schema = process.start().schema
        assert Schema.from_wire(schema.to_wire()) == schema


@pytest.mark.parametrize("change", [{"cache": "1"}, {"shuffle": 1}, {"pool_size": -7}, {"more": 1}, {"slots": 3}])
def test_a_declaration_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    wire = hooked(None, input_types=ONE).start().schema.to_wire()
    with pytest.raises(RemoteProtocolError):
        Schema.from_wire(wire | change)


# -- which generator runs ---------------------------------------------------------------------------------------------


@provider(input_types=ONE)
def telling(settings: Any, filename: str) -> Any:
    """Yields what its settings say it is, three times."""
    try:
        for _ in range(3):
            yield settings.filename, settings.pass_id, int(settings.rng.integers(1 << 30))
    finally:
        settings.last = (settings.filename, settings.pass_id)


def opened(running: StartedProvider, name: str, index: int, pass_id: int = 0, seed: int = 0) -> Any:
    return running.open_file(name, file_index=index, seed=seed, pass_id=pass_id)


@given(st.lists(st.integers(0, 2), max_size=12))
def test_settings_follow_whichever_generator_runs(turns: list[int]) -> None:
    alone = [list(opened(telling.start(), name, i, i)) for i, name in enumerate("xyz")]
    running = telling.start()
    files = [opened(running, name, i, i) for i, name in enumerate("xyz")]
    got: list[list[Any]] = [[], [], []]
    for turn in turns:
        got[turn] += [value for value in [next(files[turn], None)] if value is not None]
    for i in range(3):
        got[i] += list(files[i])
    assert got == alone
    assert [(name, pass_id) for name, pass_id, _ in got[1]] == [("y", 1)] * 3


def test_a_generator_is_closed_under_its_own_settings() -> None:
    running = telling.start()
    x, y = opened(running, "x", 0), opened(running, "y", 1)
    next(x)
    next(y)
    x.close()
    assert running.settings.last == ("x", 0)
    y.close()
    assert running.settings.last == ("y", 0)


def test_closing_a_generator_leaves_the_settings_to_the_one_that_runs() -> None:
    """The collector may close it at any line of the other one."""
    files: dict[str, Any] = {}

    @provider(input_types=ONE)
    def process(settings: Any, filename: str) -> Any:
        try:
            yield settings.filename
            if filename == "y":
                files["x"].close()
            yield settings.filename
        finally:
            settings.last = settings.filename

    running = process.start()
    files |= {name: opened(running, name, i) for i, name in enumerate("xy")}
    assert [next(files["x"]), *files["y"]] == ["x", "y", "y"]
    assert running.settings.last == "y"


def test_a_thread_sees_the_file_of_its_own_generator_while_another_thread_runs_one() -> None:
    inside, go_on = threading.Event(), threading.Event()

    @provider(input_types=ONE)
    def process(settings: Any, filename: str) -> Any:
        if filename == "x":
            inside.set()
            assert go_on.wait(10)
        yield settings.filename, settings.pass_id, int(settings.rng.integers(1 << 30))

    def first_of(running: StartedProvider, name: str, pass_id: int) -> Any:
        return next(opened(running, name, 0, pass_id))

    running = process.start()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(first_of, running, "x", 0)
        assert inside.wait(10)
        assert first_of(running, "y", 5)[:2] == ("y", 5)
        go_on.set()
        assert other.result(10) == first_of(process.start(), "x", 0)


def test_a_thread_that_process_starts_sees_the_file_of_process() -> None:
    @provider(input_types=ONE)
    def process(settings: Any, filename: str) -> Any:
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(lambda: (settings.filename, settings.pass_id)).result()

    running = process.start()
    assert [next(opened(running, name, 0, i)) for i, name in enumerate("xy")] == [("x", 0), ("y", 1)]


def test_a_context_can_be_activated_once_for_many_samples() -> None:
    started = telling.start()
    x, y = opened(started, "x", 0), opened(started, "y", 1)
    with running(prepared_random()):  # what runs behind the block is the program again
        next(x)
        started.show_context(y.context)
        assert [name for name, _, _ in y.iterator] == ["y"] * 3


def test_random_numbers_depend_on_seed_pass_and_file_alone() -> None:
    def drawn(**given: int) -> bytes:
        context = GeneratorContext("x", **{"file_index": 0, "seed": 0, "pass_id": 0, **given})
        return context.rng.bytes(16)

    assert drawn() == drawn()
    assert GeneratorContext("other", file_index=0, seed=0, pass_id=0).rng.bytes(16) == drawn()
    others = [drawn(file_index=1), drawn(seed=1), drawn(pass_id=1), drawn(seed=2**64 - 1), drawn()]
    assert len(set(others)) == 5


def test_the_stream_of_random_words_is_pinned() -> None:
    words = GeneratorContext("x", file_index=3, seed=1, pass_id=2).rng.bit_generator.random_raw(2)
    assert [int(word) for word in words] == [3824315530191533244, 12862674118736456098]


@pytest.mark.parametrize("name", ["rng", "filename", "pass_id"])
def test_in_the_hook_there_is_no_pass_and_no_file(name: str) -> None:
    with pytest.raises(AttributeError, match=f"settings.{name} exists while process runs: the init_hook has no pass"):
        after(lambda settings: getattr(settings, name))


def test_an_attribute_that_the_hook_sets_wins_over_one_of_the_context() -> None:
    def hook(settings: Any, **kwargs: Any) -> None:
        settings.filename = "mine"

    @provider(input_types=ONE, init_hook=hook)
    def process(settings: Any, filename: str) -> Any:
        yield settings.filename

    assert list(opened(process.start(), "x", 0)) == ["mine"]


def test_an_attribute_that_nobody_set_is_told() -> None:
    settings = hooked(None, input_types=ONE).start().settings
    with pytest.raises(AttributeError, match="settings has no attribute 'dictionary'; did the init_hook set it"):
        _ = settings.dictionary


def test_nothing_of_process_runs_before_the_first_sample_is_asked_for() -> None:
    def hook(settings: Any, **kwargs: Any) -> None:
        settings.generator = lambda only_one: [1]

    running = hooked(hook, input_types=ONE).start()
    file = opened(running, "x", 0)
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        next(file)


def test_a_generator_with_other_parameters_is_told_at_the_first_sample() -> None:
    def other(only_one: Any) -> Any:
        yield 1

    def hook(settings: Any, **kwargs: Any) -> None:
        settings.generator = other

    file = opened(hooked(hook, input_types=ONE).start(), "x", 0)
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        next(file)

"""What was asked for: options, args, hooks, and sizes that do not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import OptionError, OptionTypeError, ProviderError, SampleTooLarge

from ..provider_code import yields
from ..runs import consume, one_pass

COUNT = """
@provider(input_types=[integer_value(1000)]{arguments})
def process(settings, filename):
    for i in range(20):
        yield i
"""


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_holds_at_least_one_sample(size: int, provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionError, match=f"batch_size must be at least 1, got {size}"):
        one_pass(["a"], provider_file(COUNT.format(arguments="")), batch_size=size)


def test_a_batch_that_no_memory_could_be_padded_to_fails_the_pass_and_not_the_service(
    provider_file: Callable[[str], str],
) -> None:
    with pydp2.launch(["a"], provider_file(COUNT.format(arguments="")), workers=1) as service:
        with service.connect(batch_size=1 << 50, last_batch="pad") as data:
            seen = consume(data)
        assert isinstance(seen.error, OptionError)
        assert "which has 20 of batch_size=1,125,899,906,842,624, up with more than 4 GiB" in seen.text
        assert seen.samples == []
        with service.connect(batch_size=30, last_batch="pad", shuffle=False, job="other") as data:
            assert consume(data).samples == [*range(20), *range(10)]


@pytest.mark.parametrize(
    ("call", "options", "text"),
    [
        ("launch", {"batch_size": 3}, r"batch_size is not an option here: it belongs to connect\(\) or load\(\)"),
        (
            "launch",
            {"pool_size": 3},
            r"pool_size is not an option here: it belongs to @provider\(...\)",
        ),
        ("connect", {"workers": 3}, r"workers is not an option here: it belongs to launch\(\), load\(\) or serve"),
        ("connect", {"is_train": True}, r"is_train is not an option here: it belongs to launch\(\), load\(\) or serve"),
        ("connect", {"pool_size": 3}, r"it belongs to @provider\(...\)"),
        ("load", {"pool_size": 3, "batch_size": 3}, r"it belongs to @provider\(...\)"),
        ("load", {"batchsize": 3}, "there is no option 'batchsize', did you mean 'batch_size'"),
        ("launch", {"worker": 3}, "there is no option 'worker', did you mean 'workers'"),
        ("connect", {"sed": 3}, "there is no option 'sed', did you mean 'seed'"),
        ("load", {}, "batch_size is needed, as in batch_size=128"),
        ("load", {"batch_size": "8"}, r"batch_size must be a whole number, got '8' \(str\)"),
        ("load", {"batch_size": 8, "is_train": "no"}, r"is_train must be True or False, got 'no' \(str\)"),
        ("launch", {"args": [1]}, "args must be a dict of keywords for the init_hook, got list"),
        ("launch", {"args": {1: 2}}, r"args must have names as keys, got the key 1 \(int\)"),
    ],
)
def test_an_option_that_is_unknown_misplaced_or_of_a_wrong_type_is_a_type_error(
    call: str, options: dict[str, Any], text: str, provider_file: Callable[[str], str]
) -> None:
    """It says where the option belongs, or which one was meant, before anything is started."""
    where = ("ipc:///tmp/pydp2-nobody/s",) if call == "connect" else (["a"], provider_file(COUNT.format(arguments="")))
    with pytest.raises(OptionTypeError, match=text):
        getattr(pydp2, call)(*where, **options)


def test_a_folder_to_start_from_must_be_there(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"root must be a folder, .*got '.*/none'"):
        pydp2.launch(["a"], provider_file(COUNT.format(arguments="")), root=tmp_path / "none")


def test_args_that_cannot_travel_are_named_by_their_path(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionTypeError, match=r"args\['model'\]\['layers'\]\[1\]: an object cannot travel") as caught:
        pydp2.launch(["a"], provider_file(COUNT.format(arguments="")), args={"model": {"layers": [1, object()]}})
    assert "args are plain data" in str(caught.value)


HOOKED = """
def hook(settings, words, **kwargs):
    {body}

@provider(init_hook=hook)
def process(settings, filename):
    yield 1
"""


@pytest.mark.parametrize(
    ("args", "body", "kind", "text"),
    [
        ({"word": 1}, "", TypeError, "process needs the argument 'words', args have 'word': write args="),
        (None, "", TypeError, "process needs the argument 'words': write args=.'words': …., or --args words=… on the"),
        ({"words": 1}, "raise KeyError('no such word')", KeyError, "init_hook of .*process raised KeyError"),
        ({"words": 1}, "pass", ValueError, "input_types must be set, and .*process has none; declare them in"),
        ({"words": 1}, "settings.input_types = 3", TypeError, "init_hook of .*process left invalid settings"),
        ({"words": 1}, "import sys; sys.exit('no')", ProviderError, "init_hook of .*process raised SystemExit"),
        ({"words": 1}, "import os; os._exit(4)", ProviderError, "ended with exit code 4 while it .*pydp2 check"),
    ],
    ids=["wrong-args", "no-args", "raises", "sets-no-types", "sets-nonsense", "exits", "dies"],
)  # fmt: skip
def test_a_hook_that_fails_keeps_the_service_from_starting(
    args: dict[str, Any] | None,
    body: str,
    kind: type[BaseException],
    text: str,
    provider_file: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What it raised arrives as that builtin, with the user's own traceback; nothing else is on the terminal."""
    with pytest.raises(kind, match=text) as caught:
        one_pass(["a"], provider_file(HOOKED.format(body=body or "pass")), args=args)
    assert isinstance(caught.value, ProviderError)
    assert "pydp2/" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_hook_that_declares_other_types_in_another_worker_is_an_error(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """All workers must declare alike, because one batch holds samples of several."""
    code = """
    import os
    def hook(settings, **kwargs):
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
            settings.input_types = [integer_value(10)]
        except FileExistsError:
            settings.input_types = [integer_value(20)]

    @provider(init_hook=hook)
    def process(settings, filename):
        for i in range(10**6):
            yield i % 10
    """
    with pytest.raises(ValueError, match=r"the init_hook declares something else in another worker.*arguments alone"):
        raise (
            one_pass(["a", "b"], provider_file(code), root=tmp_path, start="spawn").error
            or AssertionError("nothing was said")
        )


WEIGHED = yields(
    "integer_value(1000)", "[2, 2, 3, 1, 9, 1]", "calc_batch_size=lambda sample: sample[0], can_over_batch_size=False"
)


def test_a_sample_heavier_than_a_batch_may_be_is_named(provider_file: Callable[[str], str]) -> None:
    """After every full batch of what stands before it."""
    seen = one_pass(["heavy"], provider_file(WEIGHED))
    assert seen.batches == [[2, 2], [3, 1]]
    assert isinstance(seen.error, SampleTooLarge)
    assert "file heavy, sample 4: calc_batch_size gave 9, a batch holds 4; raise batch_size" in seen.text


def test_a_sample_above_pool_bytes_is_named(provider_file: Callable[[str], str]) -> None:
    code = yields("integer_value_sequence(10)", "([1] * i for i in [1, 2, 3, 4, 5, 300, 7])")
    sizes: list[int] = []
    with pydp2.load(["large"], provider_file(code), batch_size=2, shuffle=False, pool_bytes=1000, workers=2) as data:
        error = consume(data, lambda batch: sizes.extend(np.diff(batch[0].sequence_start_positions).tolist())).error
    assert sizes == [1, 2, 3, 4]
    assert isinstance(error, SampleTooLarge)
    assert "file large, sample 5: the sample needs 1204 bytes, the pool holds 1000; raise pool_bytes" in str(error)


def test_a_pool_that_the_machine_cannot_hold_is_refused_with_the_figures(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionError, match=r"pool_bytes=\d+ and memory_limit=\d+, .* together exceed the \d+ bytes"):
        one_pass(["a"], provider_file(COUNT.format(arguments="")), pool_bytes="900 TB")


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pool_smaller_than_a_batch_holds_a_batch_with_one_warning(
    shuffle: bool, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = one_pass(["a", "b"], provider_file(COUNT.format(arguments=", pool_size=3")), batch_size=8, shuffle=shuffle)
    assert [len(batch) for batch in seen.batches] == [8, 8, 8, 8, 8]
    text = "pydp2: pool: pool_size=3 is smaller than batch_size=8; the pool holds 8 instead\n"
    assert capfd.readouterr().err == text

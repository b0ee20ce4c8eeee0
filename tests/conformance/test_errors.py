"""What the user's code can do wrong while it runs, and what the trainer sees of it."""

from __future__ import annotations

from typing import Any

import pytest

import pydp2
from pydp2.errors import FileCondemned, ProviderError

RAISING = """
import os, sys

class Odd(LookupError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

class Bare(Exception):
    pass

def helper(kind):
    if kind == "missing":
        open("nowhere.txt")
    if kind == "odd":
        raise Odd("a comma", "a tab")
    if kind == "bare":
        raise Bare("of my own")
    if kind == "exit":
        sys.exit("enough")
    if kind == "int":
        int("twelve")
    if kind == "stop":
        raise StopIteration("inside")

def hook(settings, kinds, **kwargs):
    settings.kinds = kinds

@provider(input_types=[integer_value(100)], init_hook=hook, should_shuffle=False)
def process(settings, filename):
    for i in range(10):
        if i == 5 and filename == "second":
            helper(settings.kinds[settings.pass_id])
        yield i
"""
EXPECTED: list[tuple[str, type[Exception], str]] = [
    ("missing", FileNotFoundError, "No such file or directory: 'nowhere.txt'"),
    ("odd", LookupError, "Odd: a comma and a tab"),
    ("bare", ProviderError, "Bare: of my own"),
    ("exit", ProviderError, "SystemExit: enough"),
    ("int", ValueError, "invalid literal for int"),
    ("stop", RuntimeError, "generator raised StopIteration"),
]


def test_pd_56_an_exception_in_process_reaches_the_trainer(
    provider_file: Any, until_error: Any, flat: Any, tmp_path: Any
) -> None:
    """With its text, file and traceback, as an instance of its builtin base too; and the next pass works."""
    kinds = [kind for kind, _, _ in EXPECTED] + ["none"]
    with pydp2.load(
        ["first", "second", "third"], provider_file(RAISING), args={"kinds": kinds}, root=tmp_path, batch_size=4,
        workers=2,
    ) as data:  # fmt: skip
        for kind, base, words in EXPECTED:
            batches, error = until_error(data)
            assert flat(batches) == [*range(10), 0, 1], kind  # every full batch of what stands before it
            assert isinstance(error, ProviderError), kind
            assert isinstance(error, base), kind
            assert "second" in str(error)
            assert words in str(error)
            assert "Traceback (most recent call last)" in str(error)
            assert "helper(settings.kinds[settings.pass_id])" in str(error)
        batches, error = until_error(data)
        assert error is None
        assert flat(batches) == [*range(10)] * 3
    # that no worker survives is what the watch over every test looks at


def test_pd_56_skipping_keeps_what_stood_before_the_exception(
    deliver: Any, flat: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = deliver(
        RAISING, ["first", "second", "third"], passes=2, args={"kinds": ["odd", "none"]}, on_error="skip"
    )
    assert flat(first) == [*range(10), *range(5), *range(10)]
    assert flat(second) == [*range(10)] * 3
    said = capfd.readouterr().err
    assert "skipped" in said
    assert "file second, sample 5: process raised Odd" in said
    assert "Odd: a comma and a tab" in said


def test_pd_56_a_shuffled_pass_raises_when_the_merge_reaches_the_file(provider_file: Any, until_error: Any) -> None:
    """Where that is depends on the seed alone, so the batches before it do too."""
    address = provider_file(RAISING.replace("should_shuffle=False", "pool_size=20"))
    names = [f"f{i}" for i in range(30)] + ["second"]
    seen = []
    for workers in (1, 3):
        with pydp2.load(names, address, args={"kinds": ["odd"]}, seed=2, batch_size=7, workers=workers) as data:
            batches, error = until_error(data)
            assert isinstance(error, LookupError)
            seen.append([b[0].tolist() for b in batches])
    assert seen[0] == seen[1]
    assert len(seen[0]) > 3


def test_pd_56_a_file_that_kills_its_workers_is_an_error_after_three(
    provider_file: Any, until_error: Any, flat: Any, tmp_path: Any
) -> None:
    code = """
    import os

    @provider(input_types=[integer_value(100)], should_shuffle=False)
    def process(settings, filename):
        for i in range(10):
            if i == 6 and filename == "deadly":
                with open("deaths", "a") as deaths:
                    deaths.write("x")
                os._exit(3)
            yield i
    """
    files, address = ["a", "deadly", "b"], provider_file(code)
    with pydp2.load(files, address, root=tmp_path, batch_size=4, workers=2) as data:
        batches, error = until_error(data)
    assert isinstance(error, FileCondemned)
    assert "file deadly, sample 6: three workers died while process() produced it" in str(error)
    assert "ended with exit code 3" in str(error)
    assert flat(batches) == [*range(10), *range(6)]
    assert (tmp_path / "deaths").read_text() == "xxx"
    with pydp2.load(files, address, root=tmp_path, batch_size=4, workers=2, on_error="skip") as data:
        batches, error = until_error(data)
    assert error is None
    assert flat(batches) == [*range(10), *range(6), *range(10)]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("return 7", TypeError, r"process must yield samples, it returned 7 \(int\)"),
        ("return None", TypeError, "process must yield samples, it returned None"),
        ("return {'n': 7}", TypeError, r"process returned a sample: yield it; got \{'n': 7\} \(dict\)"),
        ("return iter([1, 2, None])", ValueError, "sample 2, slot 0: expected .*, got None"),
    ],
)
def test_a_process_that_is_no_generator(
    provider_file: Any, until_error: Any, body: str, kind: type[Exception], words: str
) -> None:
    """It may return an iterable of samples; anything else is an error that says so."""
    code = f"""
    @provider(input_types=[integer_value(10)])
    def process(settings, filename):
        {body}
    """
    with pydp2.load(["f"], provider_file(code), is_train=False, batch_size=2, workers=1) as data:
        batches, error = until_error(data)
    assert isinstance(error, kind)
    with pytest.raises(pydp2.errors.Error, match=words):
        raise error
    assert [b[0].tolist() for b in batches] == ([[1, 2]] if "iter" in body else [])


def test_an_argument_that_the_decorator_does_not_have_is_an_error_at_start(provider_file: Any) -> None:
    code = """
    @provider(input_types=[integer_value(10)], pool_sise=4)
    def process(settings, filename):
        yield 1
    """
    with pytest.raises(TypeError, match="@provider has no argument 'pool_sise', did you mean 'pool_size'"):
        pydp2.launch(["f"], provider_file(code), workers=1)


@pytest.mark.parametrize("arguments", ["pool_size=0", "pool_size=-2", "min_pool_size=-5", "cache=4"])
def test_an_argument_with_a_value_that_it_cannot_have_is_an_error_at_start(provider_file: Any, arguments: str) -> None:
    code = f"""
    @provider(input_types=[integer_value(10)], {arguments})
    def process(settings, filename):
        yield 1
    """
    with pytest.raises(ValueError, match=f"{arguments.partition('=')[0]} must be"):
        pydp2.launch(["f"], provider_file(code), workers=1)

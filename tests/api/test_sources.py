"""``define_py_data_sources2``: the two sides of a training configuration, and what a service makes of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2 import Source, define_py_data_sources2
from pydp2.errors import ListError, OptionError, OptionTypeError


def test_pd_54_one_module_object_and_args_hold_for_both_sides() -> None:
    train, test = define_py_data_sources2("train.list", "test.list", "mnist_provider", "process", {"a": 1})
    assert train == Source("train.list", "mnist_provider:process", {"a": 1}, is_train=True)
    assert test == Source("test.list", "mnist_provider:process", {"a": 1}, is_train=False)


@pytest.mark.parametrize("pair", [list, tuple])
def test_pd_54_two_elements_are_one_for_each_side(pair: Callable[[Any], Any]) -> None:
    train, test = define_py_data_sources2(
        "train.list", "test.list", pair(["m1", "m2"]), pair(["p1", "p2"]), pair([{"a": 1}, None])
    )
    assert train == Source("train.list", "m1:p1", {"a": 1}, is_train=True)
    assert test == Source("test.list", "m2:p2", {}, is_train=False)


def test_pd_54_module_object_and_args_are_split_each_by_itself() -> None:
    train, test = define_py_data_sources2("a", "b", "m", ["p1", "p2"], {"x": [1, 2]})
    assert train is not None
    assert test is not None
    assert (train.provider, test.provider) == ("m:p1", "m:p2")
    assert train.args == test.args == {"x": [1, 2]}


def test_pd_54_a_side_without_a_list_does_not_exist() -> None:
    train, test = define_py_data_sources2("train.list", None, "m", "p")
    assert train == Source("train.list", "m:p", {}, is_train=True)
    assert test is None
    train, test = define_py_data_sources2(None, ["x", "y"], "m", "p")
    assert train is None
    assert test == Source(["x", "y"], "m:p", {}, is_train=False)


def test_pd_54_both_lists_none_is_an_error() -> None:
    with pytest.raises(OptionError, match="needs train_list or test_list, but both are None"):
        define_py_data_sources2(None, None, "m", "p")


@pytest.mark.parametrize(("module", "obj"), [(None, "process"), ("m", None)])
def test_pd_54_module_and_obj_are_needed(module: Any, obj: Any) -> None:
    with pytest.raises(OptionTypeError, match="needs module and obj"):
        define_py_data_sources2("train.list", None, module, obj)


@pytest.mark.parametrize("args", ["(dp0\n.", 7, ["one", "two"], [{}, {}, {}]])
def test_pd_54_args_are_a_dict_and_nothing_is_unpickled(args: Any) -> None:
    with pytest.raises(OptionTypeError, match="args must be a dict of keywords for the init_hook"):
        define_py_data_sources2("train.list", "test.list", "m", "p", args)


SIDES = """
def hook(settings, is_train, width, **kwargs):
    settings.told = int(is_train)
    settings.input_types = [integer_value(2), integer_value(width)]

@provider(init_hook=hook)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield settings.told, int(line)
"""


def test_pd_55_is_train_is_true_on_the_train_side_and_false_on_the_test_side(
    provider_file: Callable[..., str], text_files: Any, tmp_path: Path
) -> None:
    """The hook is told, the samples of training are shuffled, and a source stands wherever a list does."""
    provider_file(SIDES, "sides_provider")
    one, two = text_files([range(40), range(40, 80)])
    (tmp_path / "train.list").write_text(f"{one}\n{two}\n")
    train, test = define_py_data_sources2("train.list", [two, one], "sides_provider", "process", {"width": 80})
    assert train is not None
    assert test is not None
    with pydp2.load(train, root=tmp_path, batch_size=100, workers=1) as data:
        ((told, values),) = data
    assert told.tolist() == [1] * 80
    assert values.tolist() != list(range(80))
    assert sorted(values) == list(range(80))
    with pydp2.launch(test, root=tmp_path, workers=1) as service, service.connect(batch_size=100) as data:
        ((told, values),) = data
    assert told.tolist() == [0] * 80
    assert values.tolist() == [*range(40, 80), *range(40)]


def test_what_is_given_beside_a_source_beats_it(provider_file: Callable[..., str], text_files: Any) -> None:
    source = Source(text_files([[1, 2]]), provider_file(SIDES), {"width": 2})
    with pydp2.load(source, args={"width": 3}, is_train=False, batch_size=9, workers=1) as data:
        ((told, values),) = data
    assert told.tolist() == [0, 0]
    assert values.tolist() == [1, 2]


@pytest.mark.parametrize("files", ["*.txt", Path("*.txt"), ["*.txt"], ["1.txt", "[1-9].txt"]])
def test_a_pattern_or_a_list_of_patterns_takes_the_place_of_a_list(
    provider_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any
) -> None:
    for value in (0, 1):
        (tmp_path / f"{value}.txt").write_text(f"{value}\n")
    source = Source(files, provider_file(SIDES), {"width": 2}, is_train=False)
    expected = [0, 1] if "*.txt" in str(files) else [1, 1]
    with pydp2.load(source, root=tmp_path, batch_size=9, workers=1) as data:
        assert [values.tolist() for _, values in data] == [expected]
    monkeypatch.chdir(tmp_path)
    with pydp2.load(source, batch_size=9, workers=1) as data:
        assert [values.tolist() for _, values in data] == [expected]


def test_a_list_file_whose_name_looks_like_a_pattern_is_a_list(
    provider_file: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "1.txt").write_text("1\n")
    (tmp_path / "[0-9].txt").write_text("1.txt\n1.txt\n")
    source = Source("[0-9].txt", provider_file(SIDES), {"width": 2}, is_train=False)
    with pydp2.load(source, root=tmp_path, batch_size=9, workers=1) as data:
        assert [values.tolist() for _, values in data] == [[1, 1]]


def test_a_pattern_without_files_is_an_error_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=rf"no file matches 'docs-\*\.jsonl'; patterns are looked up in {tmp_path}"):
        pydp2.load("docs-*.jsonl", "m.process", root=tmp_path, batch_size=9)


@pytest.mark.parametrize("url", ["sqlite://bucket/train.list", "ftp://host/train.list"])
def test_a_url_that_pydp2_does_not_open_is_an_entry_and_no_list(url: str) -> None:
    with pytest.raises(ListError, match=r"must be a file, and \w+://.* is a URL; its own list is \['\w+://"):
        pydp2.load(url, "m.process", batch_size=9)


CONNECTION = {"pydp2": 1, "address": "tcp://localhost:7000", "keys": {"server": "x"}}


@pytest.mark.parametrize("provider", [None, "m.process"])
def test_a_connection_file_in_place_of_a_list_is_an_error_that_says_how_to_connect(
    tmp_path: Path, provider: str | None
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(CONNECTION))
    path = str(tmp_path / "run.json")
    with pytest.raises(OptionTypeError, match=r"run\.json is the connection file of a service: .*pydp2\.connect\("):
        pydp2.load(path, provider, batch_size=9)
    with pytest.raises(OptionTypeError, match=r"run\.json is the connection file of a service: .*mixes its sources"):
        pydp2.mix({path: 1}, provider, batch_size=9)


def test_an_address_in_place_of_a_list_is_an_error_that_does_not_show_its_token() -> None:
    with pytest.raises(OptionTypeError, match=r"^tcp://h:7000 is the address of a service") as caught:
        pydp2.load("tcp://h:7000?token=00112233445566778899aabbccddeeff", batch_size=9)
    assert "token" not in str(caught.value)

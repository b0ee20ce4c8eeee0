"""Options: right names in the right place, values that can be; and configuration files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import pydp2
import pydp2.ray as pydp2_ray
from pydp2.errors import OptionError, OptionTypeError
from pydp2.options.job_options import JobKeywords, JobOptions
from pydp2.options.service_options import ServiceKeywords, ServiceOptions
from pydp2.options.tables import (
    ELSEWHERE,
    JOB_OPTIONS,
    PROVIDER_OPTIONS,
    SERVICE_OPTIONS,
    check_keywords,
    check_options,
    job_options,
    service_options,
    split_options,
    takes,
)
from pydp2.options.toml_file import Config, load_config
from pydp2.options.values import bind_address, number_of_bytes
from pydp2.protocol.messages import INT_LIMIT


def test_defaults_are_as_documented() -> None:
    assert service_options() == ServiceOptions(
        workers=None,
        start="auto",
        memory_limit=None,
        worker_memory=None,
        sample_timeout=None,
        on_error="raise",
        error_budget=None,
        quarantine=None,
        on_changed="raise",
        block_list=None,
        state_dir=None,
        cache_dir=None,
        cache_size=None,
        remember_counts=True,
        bind=None,
        input_order=None,
    )
    assert job_options(batch_size=128) == JobOptions(
        batch_size=128,
        seed=0,
        shuffle=None,
        order="strict",
        interleave=16,
        pool_bytes=1 << 30,
        last_batch="keep",
        prefetch=2,
        prefetch_bytes=64 << 20,
        bucket_by=None,
        bucket_bounds=None,
        num_buckets=None,
    )


def test_the_tables_say_name_help_and_default() -> None:
    assert set(SERVICE_OPTIONS) == {
        "workers", "start", "memory_limit", "worker_memory", "sample_timeout", "on_error", "error_budget", "quarantine",
        "on_changed", "block_list", "state_dir", "cache_dir", "cache_size", "remember_counts", "remote_cache",
        "remote_cache_size", "remote_timeout", "bind", "connection", "keys", "worker_bind", "advertise", "metrics",
        "page", "page_samples", "input_order",
    }  # fmt: skip
    assert set(JOB_OPTIONS) == {
        "batch_size", "seed", "shuffle", "order", "interleave", "pool_bytes", "last_batch", "prefetch",
        "prefetch_bytes",
        "bucket_by", "bucket_bounds", "num_buckets", "mix", "pack",
        "share", "lease", "origin",
    }  # fmt: skip
    for name, option in {**SERVICE_OPTIONS, **JOB_OPTIONS}.items():
        assert option.help, name
        assert option.required == (name == "batch_size")
    assert JOB_OPTIONS["interleave"].default == 16


KEYWORDS = {ServiceOptions: ServiceKeywords, JobOptions: JobKeywords}
FORMS = (3, np.int64(3), 2.5, "pixel", "2GiB", Path("f"), True, None, ["a"], ("a",), [8, 16], (8, 16), b"x", {}, 1j)
# values of options that not every text or number can be
SAMPLE = {
    "bind": "ipc:///tmp/a",
    "worker_bind": "tcp://127.0.0.1:1",
    "metrics": "127.0.0.1:1",
    "page": "127.0.0.1:1",
    "error_budget": 0.5,
}


def members(kind: Any) -> set[Any]:
    """The types in a union, each literal by itself; a sequence with what it holds."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return set().union(*(members(each) for each in typing.get_args(kind)))
    return set(typing.get_args(kind)) if typing.get_origin(kind) is typing.Literal else {kind}


def is_of(value: object, kind: Any) -> bool:
    """Whether a type checker would take ``value`` for ``kind``."""
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if kind is int:
        return type(value) is int
    if typing.get_origin(kind) in (list, tuple):
        return type(value) is typing.get_origin(kind) and all(is_of(each, typing.get_args(kind)[0]) for each in value)
    return isinstance(value, typing.get_origin(kind) or kind)


@pytest.mark.parametrize("options", KEYWORDS)
def test_the_keywords_for_type_checkers_are_those_of_the_tables(options: type[ServiceOptions | JobOptions]) -> None:
    keywords = KEYWORDS[options]
    declared = typing.get_type_hints(keywords)
    table = {field.name: field for field in dataclasses.fields(options)}
    assert list(table) == sorted(declared, key=list(table).index)
    assert keywords.__required_keys__ == {n for n, field in table.items() if field.default is dataclasses.MISSING}
    held = typing.get_type_hints(options)
    for name, field in table.items():
        taken, check = members(declared[name]), field.metadata["check"]
        if choices := getattr(check, "allowed", ()):
            assert taken == set(choices), name
            continue
        assert members(held[name]) <= taken, f"{name} is kept as what nobody could give"
        for value in (*FORMS, *([SAMPLE[name]] if name in SAMPLE else [])):
            try:
                check(name, value)
            except OptionTypeError:
                assert not any(is_of(value, kind) for kind in taken), f"{name}={value!r} is declared, and not taken"
            except OptionError:  # of this type, with another value
                assert any(is_of(value, kind) for kind in taken), f"{name}={value!r} is not declared"
            else:
                assert any(is_of(value, kind) for kind in taken), f"{name}={value!r} is taken, and not declared"


@pytest.mark.parametrize(
    ("function", "tables"),
    [
        (pydp2.launch, [SERVICE_OPTIONS]),
        (pydp2.connect, [JOB_OPTIONS]),
        (pydp2.Service.connect, [JOB_OPTIONS]),
        (pydp2.load, [SERVICE_OPTIONS, JOB_OPTIONS]),
        (pydp2.bench, [SERVICE_OPTIONS, JOB_OPTIONS]),
    ],
)
def test_a_signature_shows_options_with_their_defaults(function: Callable[..., Any], tables: list[Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for table in tables:
        for name, option in table.items():
            if function is pydp2.bench and name == "batch_size":
                assert parameters[name].default == 128
                continue
            assert parameters[name].default == (inspect.Parameter.empty if option.required else option.default)
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "interleave: 'Whole' = 16" in str(inspect.signature(pydp2.connect))
    if function in (pydp2.launch, pydp2.connect):
        assert [name for name in tables[0] if not re.search(rf"\b{name}\b", inspect.getdoc(function) or "")] == []


def test_options_are_given_in_several_forms_and_held_in_one() -> None:
    given = service_options(
        workers=np.int64(3), memory_limit="2GiB", sample_timeout=5, input_order=["a", "b"], bind="tcp://localhost:0"
    )
    assert given.workers == 3
    assert type(given.workers) is int
    assert given.memory_limit == 2 << 30
    assert given.sample_timeout == 5.0
    assert given.input_order == ("a", "b")
    assert given.bind == "tcp://127.0.0.1:0"
    for budget, held in ((np.int64(0), 0), (np.float32(0.25), 0.25), (100, 100), (0.01, 0.01)):
        plain = service_options(error_budget=budget).error_budget
        assert (type(plain), plain) == (type(held), held)
    assert service_options(quarantine=Path("bad.jsonl")).quarantine == "bad.jsonl"
    job = job_options(batch_size=1, seed=2**64 - 1, shuffle=False, order="relaxed", pool_bytes="10 kB", prefetch=1)
    assert (job.seed, job.shuffle, job.order, job.pool_bytes) == (2**64 - 1, False, "relaxed", 10_000)
    job = job_options(batch_size=1, bucket_by="words", bucket_bounds=[8, np.int32(16)])
    assert (job.bucket_by, job.bucket_bounds, job.num_buckets) == ("words", (8, 16), None)
    assert job_options(batch_size=1, bucket_by=np.int64(2), num_buckets=4).bucket_by == 2


def test_options_of_buckets_need_their_slot_and_not_each_other() -> None:
    for given in ({"bucket_bounds": [8]}, {"num_buckets": 4}):
        with pytest.raises(OptionError, match=f"{next(iter(given))} needs bucket_by, the slot"):
            job_options(batch_size=1, **given)
    with pytest.raises(OptionError, match="bucket_bounds and num_buckets cannot both be given"):
        job_options(batch_size=1, bucket_by="words", bucket_bounds=[8], num_buckets=4)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("batch_size", 0, OptionError, "batch_size must be at least 1, got 0"),
        ("batch_size", -4, OptionError, "at least 1, got -4"),
        ("batch_size", 2.0, OptionTypeError, r"must be a whole number, got 2\.0 \(float\)"),
        ("batch_size", "8", OptionTypeError, r"must be a whole number, got '8' \(str\)"),
        ("batch_size", True, OptionTypeError, "must be a whole number"),
        ("batch_size", None, OptionTypeError, "must be a whole number, got None"),
        ("seed", -1, OptionError, "seed must be at least 0"),
        ("seed", 1 << 64, OptionError, "at most 18446744073709551615"),
        ("seed", None, OptionTypeError, "whole number"),
        ("shuffle", "yes", OptionTypeError, "shuffle must be True, False or None, got 'yes'"),
        ("shuffle", 1, OptionTypeError, "shuffle must be True, False or None"),
        ("order", "strictly", OptionError, "'strict' or 'relaxed', got 'strictly'.*did you mean 'strict'"),
        ("order", None, OptionTypeError, "'strict' or 'relaxed', got None"),
        ("interleave", 0, OptionError, "interleave must be at least 1"),
        ("interleave", 2049, OptionError, "interleave must be at most 2048"),
        ("pool_bytes", 0, OptionError, "at least one byte"),
        ("pool_bytes", None, OptionTypeError, "bytes"),
        ("last_batch", "discard", OptionError, "'keep', 'drop' or 'pad', got 'discard'"),
        ("prefetch", 0, OptionError, "prefetch must be at least 1"),
        ("prefetch", 1 << 70, OptionError, "prefetch must be at most 4294967295, got"),
        ("prefetch_bytes", 0, OptionError, "prefetch_bytes must be at least one byte, got 0"),
        ("prefetch_bytes", "64 batches", OptionError, 'prefetch_bytes must be a size like "512MiB"'),
        ("prefetch_bytes", 1.5, OptionTypeError, "prefetch_bytes must be a whole number of bytes or a text"),
        ("bucket_by", 1.5, OptionTypeError, "must be the name or the number of a slot, got 1.5"),
        (
            "bucket_by",
            "a\ud800",
            OptionError,
            r"bucket_by must be the name of a slot, written in UTF-8, got 'a\\ud800'",
        ),
        ("bucket_by", True, OptionTypeError, "must be the name or the number of a slot"),
        ("bucket_by", -1, OptionError, "must be the number of a slot, from 0, got -1"),
        ("bucket_bounds", 8, OptionTypeError, r"must be a list of lengths like \[8, 16, 32\], got 8"),
        ("bucket_bounds", [8, "9"], OptionTypeError, "must be a list of lengths"),
        ("bucket_bounds", [], OptionError, "must have from 1 to 1000 lengths, got 0"),
        ("bucket_bounds", [8, 8], OptionError, r"must rise .* greater than the one before, got \[8, 8\]"),
        ("bucket_bounds", [0, 8], OptionError, "must rise from 1 or more"),
        ("bucket_bounds", [8, 1 << 31], OptionError, "must be lengths below 2147483648"),
        ("num_buckets", 1, OptionError, "num_buckets must be at least 2"),
        ("workers", -1, OptionError, "workers must be at least 0"),
        ("workers", "all", OptionTypeError, "workers must be a whole number"),
        ("memory_limit", "2 gallons", OptionError, "memory_limit must be a size like .*, got '2 gallons'"),
        ("memory_limit", 1.5, OptionTypeError, "whole number of bytes"),
        ("error_budget", -1, OptionError, "error_budget must be at least 0, got -1; leave it out for no limit"),
        ("error_budget", 0.0, OptionError, "a share above 0 and below 1, as error_budget=0.01, got 0"),
        ("error_budget", 1.0, OptionError, "must be a whole number, as error_budget=100, or a share .*, got 1"),
        ("error_budget", float("nan"), OptionError, "a share above 0 and below 1"),
        ("error_budget", "1%", OptionTypeError, r"must be a number of samples or a share of them, got '1%' \(str\)"),
        ("error_budget", True, OptionTypeError, "must be a number of samples"),
        ("quarantine", "", OptionError, "quarantine must be the path of a file, got ''"),
        ("error_budget", 1 << 80, OptionError, "error_budget must be at most 4611686018427387903, got"),
        ("quarantine", "a\udcff", OptionError, "must be the path of a file, written in UTF-8"),
        ("quarantine", "a\0b", OptionError, "must be the path of a file"),
        ("quarantine", 3, OptionTypeError, r"must be the path of a file, got 3 \(int\)"),
        ("quarantine", b"bad", OptionTypeError, "must be the path of a file"),
        ("on_changed", "skip", OptionError, "on_changed must be 'raise' or 'warn', got 'skip'"),
        ("sample_timeout", 0, OptionError, "more than 0 seconds and finite, got 0; leave it out for no limit"),
        ("sample_timeout", float("inf"), OptionError, "more than 0 seconds"),
        ("sample_timeout", float("nan"), OptionError, "more than 0 seconds"),
        ("sample_timeout", "5s", OptionTypeError, "a number of seconds, got '5s' .*; None is for no limit"),
        ("lease", 1e-6, OptionError, "lease must be at least 0.1 seconds, got 1e-06"),
        ("lease", 0, OptionError, "lease must be more than 0 seconds and finite, got 0"),
        ("on_error", "ignore", OptionError, "'raise' or 'skip'"),
        ("input_order", "ab", OptionTypeError, "must be a list of slot names, got 'ab'"),
        ("input_order", ["a", "b\ud800"], OptionError, r"a list of slot names, written in UTF-8, got 'b\\ud800'"),
        ("input_order", [1], OptionTypeError, "must be a list of slot names"),
        ("input_order", ["a", "b", "a"], OptionError, "each slot once, got 'a' twice"),
        ("bind", 5555, OptionTypeError, "bind must be a text"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: Any, error: type[Exception], message: str) -> None:
    make, given = (job_options, {"batch_size": 1}) if name in JOB_OPTIONS else (service_options, {})
    with pytest.raises(error, match=message) as caught:
        make(**{**given, name: value})
    assert name in str(caught.value)


LARGEST = (1 << 62) - 1
UNBOUNDED = [  # by themselves: the machine has less memory, the list fewer files
    "workers", "memory_limit", "worker_memory", "cache_size", "error_budget", "batch_size", "pool_bytes",
    "prefetch_bytes", "bucket_by",
]  # fmt: skip


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_number_that_no_message_holds_is_refused_with_the_largest_that_one_does(name: str) -> None:
    make, given = (job_options, {"batch_size": 1}) if name in JOB_OPTIONS else (service_options, {})
    for value in (1 << 62, 1 << 70):
        with pytest.raises(OptionError, match=f"{name} must be .*at most {LARGEST}.*, got {value}"):
            make(**{**given, name: value})
    assert getattr(make(**{**given, name: LARGEST}), name) == LARGEST == INT_LIMIT - 1


def test_every_option_is_refused_or_fits_a_message() -> None:
    for table, make, given in ((JOB_OPTIONS, job_options, {"batch_size": 1}), (SERVICE_OPTIONS, service_options, {})):
        for name in table:
            for value in (1 << 70, -(1 << 70), 1e300, float("inf"), "99999999999TB", f"{'9' * 5000}TB"):
                try:
                    options = make(**{**given, name: value})
                except (OptionError, OptionTypeError) as error:
                    assert name in str(error)  # noqa: PT017  # most are refused, and this is how
                else:
                    msgpack.packb(getattr(options, name))


def test_options_check_themselves_when_made_directly() -> None:
    with pytest.raises(OptionError, match="workers must be at least 0"):
        ServiceOptions(workers=-1)
    with pytest.raises(OptionTypeError, match="memory_limit must be given as 2147483648, got '2GiB'"):
        ServiceOptions(memory_limit="2GiB")  # type: ignore[arg-type]
    options = JobOptions(batch_size=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.batch_size = 4  # type: ignore[misc]
    with pytest.raises(OptionError):
        dataclasses.replace(options, seed=-1)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1, 1), ("17", 17), ("17B", 17), ("1kB", 1000), ("1KB", 1000), ("1KiB", 1024), ("1.5MiB", 3 << 19),
        (" 2 GiB ", 2 << 30), ("2gib", 2 << 30), ("3GB", 3 * 10**9), ("1TiB", 1 << 40), (np.int64(5), 5),
    ],
)  # fmt: skip
def test_sizes_are_numbers_or_texts_with_a_unit(given: Any, size: int) -> None:
    assert number_of_bytes("memory_limit", given) == size


@pytest.mark.parametrize("size", ["99999999999TB", "4194304TiB", f"{'9' * 5000}B"])
def test_a_size_beyond_the_largest_is_refused_as_it_is_written(size: str) -> None:
    with pytest.raises(OptionError, match=f"cache_size must be at most {LARGEST} bytes, got '{size[:9]}"):
        number_of_bytes("cache_size", size)


@pytest.mark.parametrize("wrong", ["", "GiB", "-1", "1e3", "2G", "2 Gib ibytes", "1,5GiB", "0", "0.1B"])
def test_other_texts_are_no_sizes(wrong: str) -> None:
    with pytest.raises(OptionError, match="memory_limit must be"):
        number_of_bytes("memory_limit", wrong)


@pytest.mark.parametrize(
    "address",
    [
        "ipc:///run/x.sock", "ipc://relative", "tcp://127.0.0.1:5555", "tcp://127.3.2.1:*", "tcp://[::1]:0",
        "tcp://0.0.0.0:5555", "tcp://192.168.1.5:5555", "tcp://[::]:5555",
    ],
)  # fmt: skip
def test_addresses_of_interfaces_and_socket_paths_can_be_bound(address: str) -> None:
    assert bind_address("bind", address) == address


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "tcp://example.org:5555",
            "IP address of a network interface .*got 'tcp://example.org:5555'; advertise='NAME'",
        ),
        ("tcp://127.0.0.1:1?key=" + "0" * 64, r"bind must not have \?key=…"),
        ("tcp://127.0.0.1:1?key=0", "there must be the 64 hexadecimal digits"),
        ("tcp://127.0.0.1", "HOST:PORT"),
        ("tcp://127.0.0.1:", "HOST:PORT"),
        ("tcp://127.0.0.1:70000", "below 65536"),
        ("tcp://127.0.0.1:5x", "HOST:PORT"),
        ("tcp://127.0.0.1:²", "HOST:PORT"),
        ("ipc://", "the path of a socket"),
        ("ipc://@abstract", "the path of a socket"),
        ("ipc://" + "x" * 108, "at most 104 bytes"),
        ("ipc://" + "å" * 60, "at most 104 bytes"),
        ("inproc://x", "must be ipc://PATH or tcp://"),
        ("127.0.0.1:5555", "must be ipc://PATH or tcp://"),
        ("", "must be ipc://PATH or tcp://"),
    ],
)
def test_other_addresses_cannot_be_bound(address: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bind_address("bind", address)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            service_options,
            {"batch_size": 3},
            r"batch_size is not an option here: it belongs to connect\(\) or load\(\)",
        ),
        (
            service_options,
            {"world_size": 2},
            r"world_size is not an option here: it belongs to connect\(\) or load\(\)",
        ),
        (job_options, {"workers": 3}, r"workers is not an option here: it belongs to launch\(\), load\(\) or serve"),
        (job_options, {"args": {}}, r"args is not an option here: it belongs to launch\(\)"),
        (job_options, {"pool_size": 3}, r"pool_size is not an option here: it belongs to @provider"),
        (job_options, {"batchsize": 3}, "no option 'batchsize', did you mean 'batch_size'"),
        (job_options, {"worker": 3}, "no option 'worker', did you mean 'workers'"),
        (service_options, {"timeout": 3}, "no option 'timeout': write sample_timeout=60, for one sample"),
        (
            service_options,
            {"xyz": 3},
            "no option 'xyz'; known here: advertise, bind, block_list, cache_dir, cache_size, connection, error_b",
        ),
        (job_options, {}, "batch_size is needed"),
    ],
)
def test_unknown_and_misplaced_names_are_told_the_right_one(
    make: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionTypeError, match=message) as caught:
        make(**given)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (job_options, "drop_last", 'write last_batch="drop"'),
        (service_options, "drop_last", r'write last_batch="drop" in connect\(\) or load\(\)'),
        (job_options, "num_workers", r"write workers=4 in launch\(\), load\(\) or serve"),
        (service_options, "num_workers", "write workers=4$"),
        (job_options, "prefetch_factor", "write prefetch=2$"),
        (job_options, "generator", "write seed=7$"),
        (service_options, "worker_init_fn", r"write init_hook=function in @provider\(...\), beside process$"),
        (job_options, "collate_fn", "a batch is made of the columns that input_types declare, so leave it out"),
        (job_options, "pin_memory", "batches are numpy arrays"),
        (job_options, "sampler", "nothing samples here: the order is drawn from seed=, and shuffle=False turns it off"),
        (service_options, "persistent_workers", "workers live as long as the service, so leave it out"),
        (job_options, "drop_remainder", 'write last_batch="drop"'),
        (service_options, "num_parallel_calls", "write workers=4$"),
        (job_options, "buffer_size", r"write pool_size=4096, .* in @provider\(...\), beside process$"),
        (job_options, "num_epochs", ".*for epoch in range"),
        (service_options, "worker_count", "write workers=4$"),
        (job_options, "shard_count", r"connect\(\) has rank=0, world_size=4"),
    ],
)
def test_the_names_of_other_loaders_are_told_what_to_write(make: Callable[..., Any], name: str, words: str) -> None:
    with pytest.raises(OptionTypeError, match=f"there is no option '{name}': {words}"):
        make(**{name: 1})


def test_the_known_names_are_listed_only_where_no_name_is_near() -> None:
    for name, is_listed in {"xyz": True, "batchsize": False, "num_workers": False}.items():
        with pytest.raises(OptionTypeError) as caught:
            service_options(**{name: 1})
        assert ("known here: advertise, " in str(caught.value)) is is_listed, name


def test_what_is_written_in_place_of_another_loader_s_name_is_an_option_of_ours() -> None:
    ours = {*SERVICE_OPTIONS, *JOB_OPTIONS, *PROVIDER_OPTIONS}
    for name, (option, words) in ELSEWHERE.items():
        assert name not in ours
        assert option == "" or (option in ours and words.startswith(f"{option}=")), name


def test_a_lease_cannot_be_without_limit_and_is_not_said_to_be() -> None:
    for value, kind in ((-1, OptionError), (None, OptionTypeError), (float("inf"), OptionError)):
        with pytest.raises(kind, match="lease must be") as caught:
            job_options(batch_size=1, lease=value)
        assert "limit" not in str(caught.value)
        assert "or None" not in str(caught.value)


def test_names_are_checked_against_any_two_places() -> None:
    check_options({"a": 1}, ["a", "b"])
    with pytest.raises(OptionTypeError, match="b is not an option here: it belongs to elsewhere"):
        check_options(["b"], ["a"], ["b"], "elsewhere")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "run.toml") -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


WHOLE = """
root = "data"
provider = "mine.process"
[args]
dictionary = "words.txt"
sizes = [1, 2]
[train]
list = "train.list"
[test]
list = "test.list"
[service]
workers = 2
memory_limit = "1GiB"
input_order = ["a", "b"]
[job]
batch_size = 128
order = "relaxed"
"""


def test_a_file_gives_one_side_resolved(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(WHOLE)
    root = tmp_path.resolve() / "data"
    assert load_config(path) == Config(
        root=root,
        list=root / "train.list",
        provider="mine.process",
        args={"dictionary": "words.txt", "sizes": [1, 2]},
        is_train=True,
        service={"workers": 2, "memory_limit": 1 << 30, "input_order": ("a", "b")},
        job={"batch_size": 128, "order": "relaxed"},
    )
    test = load_config(str(path), side="test")
    assert (test.list, test.is_train) == (root / "test.list", False)
    service_options(**test.service)
    job_options(**test.job)


def test_a_file_needs_little(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write('provider = "m:p"\ntrain.list = "/lists/all"\n')
    monkeypatch.chdir(tmp_path / "data")
    config = load_config("../run.toml")
    assert config == Config(tmp_path.resolve(), Path("/lists/all"), "m:p", {}, True, {}, {})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("provder = 'm.p'", OptionTypeError, "no key 'provder' at the top of the file, did you mean 'provider'"),
        ("workers = 2", OptionTypeError, r"workers cannot stand at the top of the file: it belongs in \[service\]"),
        ("[job]\nworkers = 2", OptionTypeError, r"workers cannot stand in \[job\]: it belongs in \[service\]"),
        ("[service]\nbatch_size = 2", OptionTypeError, r"batch_size .* belongs in \[job\]"),
        ("[job]\npool_size = 2", OptionTypeError, r"pool_size .* belongs in @provider"),
        ("list = 'x'", OptionTypeError, r"list .* belongs in \[train\] and \[test\]"),
        ("[train]\nlists = 'x'", OptionTypeError, r"no key 'lists' in \[train\], did you mean 'list'"),
        ("[job]\nbatchsize = 2", OptionTypeError, r"no key 'batchsize' in \[job\], did you mean 'batch_size'"),
        ("[job]\ndrop_last = true", OptionTypeError, r'no key .drop_last. in \[job\]: write last_batch="drop"; known'),
        ("[service]\ndrop_last = true", OptionTypeError, r'write last_batch="drop" in \[job\]; known there'),
        ("[job]\nwrkers = 2", OptionTypeError, r"no key 'wrkers' in \[job\], did you mean 'workers'"),
        ("train = 'x'", OptionTypeError, r"train must be a table, written \[train\], got 'x'"),
        ("provider = 3", OptionTypeError, "provider must be a text, got 3"),
        ("[train]\nlist = 3", OptionTypeError, r"needs list = .* in \[train\], got 3"),
        ("[test]\nlist = 'x'", OptionError, r"the train side needs list = .* got None"),
        ("root = 'nowhere'", OptionError, "root must be a folder, relative to this file, got 'nowhere': no folder /"),
        ("[job]\nbatch_size = 0", OptionError, "batch_size must be at least 1, got 0"),
        ("[service]\nbind = 'tcp://head:1'", OptionError, "bind must have the IP address of a network interface"),
        ("[job", OptionError, "not valid TOML"),
        ("[job]\nseed = 1\nseed = 2", OptionError, "not valid TOML"),
    ],
)
def test_what_cannot_be_in_a_file_is_told_with_its_name(
    write: Callable[..., Path], text: str, error: type[Exception], message: str
) -> None:
    given = text if "provider" in text or "provder" in text else f"provider = 'm.p'\n{text}"
    with pytest.raises(error, match=message) as caught:
        load_config(write(given))
    assert "run.toml: " in str(caught.value)


def test_a_file_without_provider_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(OptionError, match=r"run\.toml: provider is needed, as in provider = "):
        load_config(write("train.list = 'x'"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml cannot be read: No such file"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe5\n")
    with pytest.raises(OptionError, match=r"latin\.toml: a configuration must be UTF-8"):
        load_config(tmp_path / "latin.toml")


def test_there_are_two_sides(write: Callable[..., Path]) -> None:
    with pytest.raises(OptionError, match="side must be 'train' or 'test', got 'valid'"):
        load_config(write(WHOLE), side="valid")


def test_the_names_of_provider_options_are_those_of_the_decorator() -> None:
    from pydp2.providers.options import ARGUMENTS

    assert set(PROVIDER_OPTIONS) == set(ARGUMENTS)


def test_the_keywords_of_a_provider_are_those_of_the_decorator() -> None:
    from pydp2.providers.options import LegacyKeywords, ProviderKeywords

    parameters = inspect.signature(pydp2.provider).parameters.values()
    shown = {each.name: each.annotation for each in parameters if each.kind is not each.VAR_KEYWORD}
    declared = {name: kind.__forward_arg__ for name, kind in ProviderKeywords.__annotations__.items()}
    assert {name: kind for name, kind in declared.items() if name not in LegacyKeywords.__annotations__} == shown


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=("job",))
def some_loader(files: str, *, pad_to: int | None = None, **options: Any) -> dict[str, Any]:
    check_keywords(some_loader, options)
    return {"files": files, "pad_to": pad_to, **options}


@takes(SERVICE_OPTIONS)
def some_launch(**options: Any) -> dict[str, Any]:
    check_keywords(some_launch, options)
    return options


def test_a_function_that_takes_options_gets_them_as_they_are() -> None:
    assert some_loader("a", pad_to=3, batch_size=9, job="b") == {"files": "a", "pad_to": 3, "batch_size": 9, "job": "b"}
    assert list(inspect.signature(some_loader).parameters)[:3] == ["files", "pad_to", "workers"]


def test_options_are_split_into_those_of_a_job_and_all_others_which_a_service_checks() -> None:
    given = {"batch_size": 8, "workers": 2, "seed": 1, "args": {}, "no_such": 3}
    assert split_options(given) == ({"batch_size": 8, "seed": 1}, {"workers": 2, "args": {}, "no_such": 3})


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (some_loader, {"padd_to": 3}, "no option 'padd_to', did you mean 'pad_to'"),
        (some_loader, {"jobb": "x"}, "no option 'jobb', did you mean 'job'"),
        (some_loader, {"batchsize": 3}, "no option 'batchsize', did you mean 'batch_size'"),
        (some_loader, {"transform": len}, r"no option 'transform': process\(settings, filename\) makes the samples"),
        (some_loader, {"pool_size": 9}, r"pool_size is not an option here: it belongs to @provider"),
        (some_launch, {"batch_size": 9}, r"batch_size is not an option here: it belongs to connect\(\) or load\(\)"),
        (some_launch, {"rankk": 9}, "no option 'rankk', did you mean 'rank'"),
    ],
)
def test_a_keyword_that_no_option_has_suggests_what_the_function_itself_takes(
    function: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionTypeError, match=message):
        function("a", **given) if function is some_loader else function(**given)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 3000 + "]" * 3000, ".".join("a" * 3000) + " = 1", "x = " + "{a = " * 3000]
)
def test_a_configuration_that_is_nested_thousands_deep_is_an_option_error(
    write: Callable[..., Path], text: str
) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=r"run\.toml: "):
        load_config(write(text))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pydp2.check([], "p.process", limits=1), "there is no option 'limits', did you mean 'limit'?"),
        (lambda: pydp2.check([], "p.process", batch_size=1), "batch_size is not an option here: it belongs to load()"),
        (lambda: pydp2.check([], "p.process", workers=1), "workers is not an option here: it belongs to load()"),
        (lambda: pydp2.peek([], "p.process", batchsize=1), "did you mean 'batch_size'?"),
        (lambda: pydp2.peek([], "p.process", workers=1), "it belongs to launch(), load() or serve"),
        (lambda: pydp2.replay("q", "p.process", is_training=True), "did you mean 'is_train'?"),
        (lambda: pydp2.stats("ipc:///x", timout=1), "did you mean 'timeout'?"),
        (lambda: pydp2.pack_sequences(None, slot=0, length=1, batch_size=1, pad_tokens=1), "did you mean 'pad_token'?"),
        (lambda: pydp2.define_py_data_sources2("a", None, "m", "o", arg={}), "did you mean 'args'?"),
        (lambda: pydp2.WorkerHost("x", worker=1), "did you mean 'workers'?"),
        (lambda: pydp2_ray.launch([], "p.process", host=1), "did you mean 'hosts'?"),
    ],
)
def test_each_public_function_suggests_its_own_keywords(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(OptionTypeError) as caught:
        call()
    assert words in str(caught.value)
    assert "Never" not in str(caught.value)


def test_a_method_does_not_name_self_among_its_options() -> None:
    with pytest.raises(OptionTypeError, match="there is no option 'nonsense'; known here: batch_size, ") as caught:
        check_keywords(pydp2.Service.connect, ["nonsense"])
    assert "self" not in str(caught.value).split(", ")


def test_the_signatures_show_no_parameter_for_wrong_keywords() -> None:
    for function in (pydp2.check, pydp2.peek, pydp2.replay, pydp2.stats, pydp2.pack_sequences):
        assert "others" not in inspect.signature(function).parameters

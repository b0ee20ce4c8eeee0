"""A service with several sources: each file is read by the provider of its source, whatever becomes of the workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2 import Source
from pydp2.errors import AddressError, ListError, OptionError, OptionTypeError, ProviderError, StateMismatch

from ..runs import alarm, wait_until

CODE = """
from pydp2 import text
import time

def on_init(settings, file_list, is_train, tag="", **_):
    settings.tag = "TAG" + tag
    settings.first = file_list[0]
    assert len(file_list) < 9

@provider(input_types={"who": text(), "n": integer_value(1000)}, init_hook=on_init, pool_size=150OPTIONS)
def process(settings, filenameSTART):
    for i in range(FROM, COUNT):
        time.sleep(0.001)
        yield {"who": f"{settings.tag} {settings.first} {filename}", "n": i}
"""
FILES = ["a", "b", "c"]
Write = Callable[..., str]


def code(tag: str, count: int, *, options: str = "", can_start: bool = False) -> str:
    start, begin = (", start", "start") if can_start else ("", "0")
    found = CODE.replace("TAG", tag).replace("COUNT", str(count)).replace("OPTIONS", options)
    return found.replace("START", start).replace("FROM", begin)


@pytest.fixture
def sources(provider_file: Write) -> dict[str, Any]:
    """Three sources: two with one provider and other arguments, one with another provider; all have the file ``b``."""
    wiki, books = provider_file(code("wiki", 60), "wiki"), provider_file(code("books", 80, can_start=True), "books")
    return {
        "wiki": Source(FILES, wiki, {"tag": "1"}),
        "books": Source(["b", "d"], books, {"tag": "2"}),
        "talk": Source(["x", "b"], wiki, {"tag": "3"}),
    }


EXPECTED = {f"wiki1 a {name}": 60 for name in FILES} | {
    "books2 b b": 80, "books2 b d": 80, "wiki3 x x": 60, "wiki3 x b": 60,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 3}
Rows = list[tuple[str, int]]


def rows(batch: pydp2.Batch) -> Rows:
    return list(zip(map(str, batch["who"]), batch["n"].tolist(), strict=True))


def check(seen: Rows) -> None:
    """Each sample once, made by the provider of its source."""
    assert len(set(seen)) == len(seen)
    assert Counter(who for who, _ in seen) == EXPECTED


def one_pass(sources: Any, **options: Any) -> list[Rows]:
    with alarm(60), pydp2.load(sources, **OPTIONS | {"workers": 2} | options) as data:
        return [rows(batch) for batch in data]


def test_each_file_is_read_by_the_provider_of_its_source_with_its_arguments(sources: dict[str, Any]) -> None:
    batches = one_pass(sources)
    check([row for batch in batches for row in batch])
    assert one_pass(sources, workers=1) == batches  # the order depends on the workers no more than elsewhere


def test_a_worker_that_is_killed_changes_nothing(sources: dict[str, Any]) -> None:
    expected = one_pass(sources)
    with alarm(60), pydp2.load(sources, **OPTIONS, workers=2) as data:
        seen, killed = [], set[int]()

        def others() -> list[int]:
            return [worker["pid"] for worker in data.stats()["workers"] if worker["pid"] not in killed]

        for batch in data:
            seen.append(rows(batch))
            if batch.index in (3, 9):
                assert wait_until(lambda: bool(others()))
                killed.add(pid := others()[0])
                os.kill(pid, signal.SIGKILL)
    assert seen == expected


def test_a_state_is_taken_up_and_one_of_changed_sources_is_refused_by_name(
    sources: dict[str, Any], provider_file: Write
) -> None:
    expected = one_pass(sources)
    with pydp2.load(sources, **OPTIONS, workers=2) as data:
        stream = iter(data)
        assert [rows(next(stream)) for _ in range(7)] == expected[:7]
        state = json.loads(json.dumps(data.state_dict()))
    with pydp2.load(sources, **OPTIONS, workers=1) as data:
        data.load_state_dict(state)
        assert [rows(batch) for batch in data] == expected[7:]

    def refusal(changed: dict[str, Any]) -> str:
        with pydp2.load(changed, **OPTIONS, workers=1) as data, pytest.raises(StateMismatch) as caught:
            data.load_state_dict(state)
        return str(caught.value)

    books = sources["books"]
    other = provider_file(code("books", 80, can_start=True) + "\n", "other")
    text = refusal(sources | {"books": Source(books.files, other, {"tag": "9"})})
    assert "provider_source of source 'books' was" in text
    assert "args of source 'books' was" in text
    assert "'wiki'" not in text
    assert "list of source 'wiki' was" in refusal(sources | {"wiki": Source([*FILES, "e"], sources["wiki"].provider)})
    assert "sources was ['wiki', 'books', 'talk'], is ['books', " in refusal(dict(sorted(sources.items())))


def test_workers_of_other_hosts_read_all_sources(sources: dict[str, Any], tmp_path: Path) -> None:
    file, expected = tmp_path / "run.json", one_pass(sources)
    with (
        alarm(60),
        pydp2.launch(sources, workers=0, bind="tcp://127.0.0.1:*", connection=file) as service,
        _joined(file),
        service.connect(**OPTIONS) as data,
    ):
        assert [rows(batch) for batch in data] == expected


@contextlib.contextmanager
def _joined(file: Path) -> Iterator[None]:
    host = pydp2.WorkerHost(file, workers=2)
    thread = threading.Thread(target=host.run)
    thread.start()
    try:
        yield
    finally:
        host.leave()
        thread.join(30)
        assert not thread.is_alive()


def test_call_arguments_are_those_of_the_plain_lists(provider_file: Write) -> None:
    wiki, books = provider_file(code("wiki", 60), "wiki"), provider_file(code("books", 80), "books")
    found = one_pass({"plain": FILES, "books": Source(["b", "d"], books)}, provider=wiki, args={"tag": "7"})
    assert {who for batch in found for who, _ in batch} == {
        *(f"wiki7 a {name}" for name in FILES), "books b b", "books b d",
    }  # fmt: skip


def test_trainers_see_the_list_of_each_source_and_the_names(sources: dict[str, Any]) -> None:
    with pydp2.load(sources, **OPTIONS, workers=1) as data:
        assert [list(entries) for entries in data.files] == [["a", "b", "c"], ["b", "d"], ["x", "b"]]
        identity = data.state_dict()["stream_identity"]
    assert identity["sources"] == ["wiki", "books", "talk"]
    assert identity["is_train"] == {"wiki": True, "books": True, "talk": True}


def test_sources_with_other_slots_are_refused_with_both_names(sources: dict[str, Any], provider_file: Write) -> None:
    sources["odd"] = Source(["q"], provider_file(code("odd", 5).replace("(1000)", "(999)"), "odd"))
    with pytest.raises(
        ProviderError, match=r"same slots, and source 'wiki' has n: .*1000.*, source 'odd' has n: .*999"
    ):
        pydp2.launch(sources, workers=1)


def test_an_error_at_the_start_names_its_source(sources: dict[str, Any], provider_file: Write) -> None:
    sources["odd"] = Source(["q"], provider_file(code("odd", 5) + "\n" + "OH = 1", "odd"), {"unknown": 1, "tag": 5})
    with pytest.raises(ProviderError, match=r"source 'odd': the init_hook of .* raised TypeError"):
        pydp2.launch(sources, workers=1)


@pytest.mark.parametrize(
    ("files", "options", "error", "says"),
    [
        ({}, {}, OptionError, "from 1 to 1024 sources, got 0"),
        ({str(i): ["a"] for i in range(1025)}, {}, OptionError, "from 1 to 1024 sources, got 1025"),
        ({3: ["a"]}, {}, OptionTypeError, "must be a str, got 3"),
        ({"": ["a"]}, {}, OptionError, "not empty"),
        ({"\ud800": ["a"]}, {}, OptionError, "UTF-8"),
        ({"x" * 9000: ["a"], "y" * 9000: ["a"]}, {}, OptionError, "16384 bytes together, and have 18000"),
        ({"wiki": []}, {"provider": "p.process"}, ListError, "source 'wiki': the file list is empty"),
        ({"wiki": "none.list"}, {"provider": "p.process"}, ListError, "source 'wiki': the file list none.list is miss"),
        ({"wiki": {"a": "b"}}, {"provider": "p.process"}, OptionTypeError, "source 'wiki': one source is needed here"),
        ({"wiki": ["a"]}, {"provider": "lambda"}, AddressError, "source 'wiki': .* is not the address of a provider"),
        (
            {"wiki": Source(["a"], "p.process")},
            {"args": {}},
            OptionError,
            "each of these is a Source, .*leave them out",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:the file list is empty")
def test_sources_that_cannot_be_are_refused(
    files: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        pydp2.launch(files, **options, workers=1)


def test_what_looks_at_one_source_says_so(sources: dict[str, Any]) -> None:
    looks: list[Callable[[Any], object]] = [pydp2.check, pydp2.peek, pydp2.count, partial(pydp2.bench, batch_size=1)]
    for look in looks:
        with pytest.raises(OptionTypeError, match=r"one source is needed here.*'wiki', 'books', 'talk'; choose one of"):
            look(sources)


def test_each_sample_is_cached_for_its_source(sources: dict[str, Any], tmp_path: Path, provider_file: Write) -> None:
    both = ", cache=CacheType.CACHE_PASS_ON_DISK"
    wiki = provider_file(code("wiki", 60, options=both), "cached")
    books = provider_file(code("books", 80, options=both), "cached_books")
    for lists in ((["b"], ["c"]), (["c"], ["b"])):  # a file that has changed its source is not taken from the cache
        given = {"wiki": Source(lists[0], wiki), "books": Source(lists[1], books)}
        for _ in range(2):
            seen = [row for batch in one_pass(given, cache_dir=tmp_path / "cache") for row in batch]
            assert Counter(who for who, _ in seen) == {
                f"wiki {lists[0][0]} {lists[0][0]}": 60, f"books {lists[1][0]} {lists[1][0]}": 80,
            }  # fmt: skip

"""The description of a service: its sources divide the list, and reach the server and other hosts as they are."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import (
    MAX_SOURCES,
    ServiceSpec,
    SourceTerms,
    WorkerTerms,
    packed,
    packed_sources,
    receive_spec,
    send_spec,
)

names = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=6, unique=True)
lists = st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=5), min_size=1, max_size=6)


def sources_of(names: Sequence[str], lists: Sequence[Sequence[str]]) -> tuple[SourceTerms, ...]:
    starts = [sum(map(len, lists[:i])) for i in range(len(lists))]
    return tuple(
        SourceTerms(name=name, first_file=first, provider=f"p.{i}", args=b"%d" % i, is_train=i % 2 == 0)
        for i, (name, first) in enumerate(zip(names, starts, strict=True))
    )


def spec_of(sources: Sequence[SourceTerms]) -> ServiceSpec:
    return ServiceSpec(
        sources=tuple(sources), program=b"state", input_order=("a",), start="auto", worker_memory=None,
        sample_timeout=1.5, warn_changed=False, skip_errors=True, root="/", path=("/a",), workers=2,
        memory_limit=1 << 30, error_budget=None, quarantine=None, client_address="", worker_address="", run_dir="",
    )  # fmt: skip


@given(st.data())
def test_a_spec_arrives_at_server_and_hosts_as_it_was_sent(data: st.DataObject) -> None:
    entries = data.draw(lists)
    named = data.draw(names.filter(lambda found: len(found) >= len(entries)))[: len(entries)]
    files = FileList.joined([FileList.of(part) for part in entries])
    spec = spec_of(sources_of(named, entries))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_spec(ours, spec, files)
        assert receive_spec(theirs) == (spec, files)
    terms = WorkerTerms.from_wire(spec.to_wire(), packed_sources(spec.sources), spec.program, files=len(files))
    assert (terms.sources, terms.program, terms.input_order) == (spec.sources, b"state", ("a",))


@given(lists)
def test_each_source_has_the_part_of_the_list_that_was_joined_for_it(entries: list[list[str]]) -> None:
    files = FileList.joined([FileList.of(part) for part in entries])
    assert files == [entry for part in entries for entry in part]
    parts = spec_of(sources_of([str(i) for i in range(len(entries))], entries)).source_lists(files)
    assert [list(part) for part in parts] == entries
    for part, expected in zip(parts, entries, strict=True):  # as complete as a list that was read alone
        assert part == FileList.of(expected)
        assert part.fingerprint() == FileList.of(expected).fingerprint()
        assert FileList.from_buffers(*part.to_buffers()) == expected
        assert part[-1] == expected[-1]


def test_the_only_source_without_a_name_is_the_list_itself() -> None:
    spec, files = spec_of(sources_of([""], [["a", "b"]])), FileList.of(["a", "b"])
    assert (spec.source_names, spec.source_starts, spec.providers) == ((), (), ("p.0",))
    assert spec.source_lists(files)[0] is files


def test_the_server_knows_names_and_first_files_of_several_sources() -> None:
    spec = spec_of(sources_of(["wiki", "code"], [["a", "b"], ["c"]]))
    assert (spec.source_names, spec.source_starts, spec.providers) == (("wiki", "code"), (0, 2), ("p.0", "p.1"))


@pytest.mark.parametrize(
    "starts", [[], [1], [0, 0], [0, 2, 1], [0, 3], [0, 4], [-1, 1], list(range(MAX_SOURCES + 1))], ids=str
)
def test_sources_that_do_not_divide_the_list_are_refused(starts: list[int]) -> None:
    sources = [
        SourceTerms(name=f"s{i}", first_file=at, provider="p", args=b"", is_train=True) for i, at in enumerate(starts)
    ]
    spec = spec_of(sources)
    with pytest.raises(RemoteProtocolError, match="begin at the files"):
        WorkerTerms.from_wire(spec.to_wire(), packed_sources(sources), b"", files=max(3, len(starts) - 1 and 3))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", packed({}), packed({"sources": [{"name": "a"}]}), packed({"sources": 3})]
)
def test_bytes_that_are_no_sources_are_refused(data: bytes) -> None:
    wire: Any = spec_of(sources_of([""], [["a"]])).to_wire()
    with pytest.raises(RemoteProtocolError):
        WorkerTerms.from_wire(wire, data, b"", files=1)

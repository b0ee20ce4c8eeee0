"""A log of checksums: the last record of each file counts, and it is read back from its bytes as it was."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.checksum_log import (
    NO_CHECKSUMS,
    ChecksumLog,
    FileChecksum,
    LoggedChecksums,
    are_records,
    decode_checksums,
    joined,
)
from pydp2.errors import OptionError

NUMBERS = st.integers(0, 1 << 40)
RECORDS = st.lists(st.tuples(st.integers(0, 20), NUMBERS, st.integers(0, (1 << 32) - 1), st.booleans()), max_size=40)
Records = list[tuple[int, int, int, bool]]


def logged(records: Records) -> LoggedChecksums:
    log = ChecksumLog()
    for file, index, checksum, is_end in records:
        log.note(file, FileChecksum(index, checksum, is_end))
    return log.view()


def last_of_each(records: Records) -> dict[int, FileChecksum]:
    """The record that is furthest in its file; of those of one place the last."""
    found: dict[int, FileChecksum] = {}
    for file, index, checksum, is_end in records:
        known = found.get(file)
        if known is None or (index, is_end) >= (known.sample_index, known.is_end):
            found[file] = FileChecksum(index, checksum, is_end)
    return found


@given(RECORDS)
def test_the_furthest_record_of_each_file_counts_and_is_read_back(records: Records) -> None:
    found = logged(records).by_file()
    expected = last_of_each(records)
    for again in (found, decode_checksums(found.encode(), 21), found.logged().by_file()):
        assert {file: again.of(file) for file in range(21)} == {file: expected.get(file) for file in range(21)}
    assert found.of(22) is None


@given(st.lists(st.tuples(RECORDS, st.booleans()), max_size=6))
def test_who_is_sent_what_came_since_has_all_of_it(parts: list[tuple[Records, bool]]) -> None:
    """Also behind a position that was gone back to: what came after it does not count."""
    log, sent, here, all_records = ChecksumLog(), None, NO_CHECKSUMS, []
    for records, goes_astray in parts:
        for file, index, checksum, is_end in records:
            log.note(file, FileChecksum(index, checksum, is_end))
        all_records += records
        if goes_astray:
            here.extended(logged([(5, 1 << 41, 0, True)]).since(None))
        assert are_records(log.view().since(sent))
        here = here.extended(log.view().since(sent))
        sent = log.view()
        assert here.since(None) == logged(all_records).since(None)
    assert joined([here, sent] if sent else [here]).by_file().encode() == here.by_file().encode()


def test_a_log_that_begins_with_others_leaves_them_as_they_are() -> None:
    begin = logged([(1, 2, 3, False)])
    log = ChecksumLog(begin)
    log.note(2, FileChecksum(2, 4, False))
    assert (len(begin.since(None)), len(log.view().since(None))) == (24, 48)
    assert log.view().since(begin) == log.view().since(None), "it is another log"
    assert NO_CHECKSUMS.since(None) == b""


def test_a_file_takes_seven_bytes() -> None:
    records = [(file, 100 + file % 100, file, True) for file in range(1000)]
    assert len(logged(records).by_file().encode()) <= 7 * 1000 + 2


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_are_checksums(data: bytes) -> None:
    with suppress(OptionError):
        found = decode_checksums(data, 1000)
        assert decode_checksums(found.encode(), 1000).encode() == found.encode()


@pytest.mark.parametrize("cut", range(1, 14))
def test_bytes_that_are_cut_off_are_refused(cut: int) -> None:
    data = logged([(3, 9, 1, False), (7, 9, 1, False)]).by_file().encode()
    assert len(data) > 12
    with pytest.raises(OptionError, match="damaged"):
        decode_checksums(data[: len(data) - min(cut, len(data) - 1)], 10)


def test_a_file_that_the_list_does_not_have_is_named() -> None:
    with pytest.raises(OptionError, match="file 7 is not in the list"):
        decode_checksums(logged([(7, 9, 1, False)]).by_file().encode(), 7)


def test_what_came_from_elsewhere_has_whole_records_of_numbers_from_0_on() -> None:
    assert are_records(b"")
    assert are_records(logged([(3, 9, 1, False)]).since(None))
    assert not are_records(bytes(23))
    assert not are_records(b"\xff" * 24)

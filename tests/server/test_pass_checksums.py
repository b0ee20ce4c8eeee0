"""The checksums of a pass: what a state has of its files, and what is compared before the first batch."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, FileChecksum, LoggedChecksums
from pydp2.errors import NotRepeatable
from pydp2.order.sample_source import FileFailure, SampleRun
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, FileRange
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.dispatch.pass_checksums import PassChecksums
from pydp2.server.dispatch.reread import open_ledger, with_checksum

UNTIL = 1 << 62


def committed(ledger: FileLedger, *counts: int, ends: bool = True) -> FileLedger:
    """Commit ranges of so many samples; the checksum behind sample ``n`` is 100 + ``n``."""
    ledger.assign(1, 1)
    for at, count in enumerate(counts):
        first = ledger.committed
        state = FILE_ENDED if ends and at == len(counts) - 1 else FILE_OPEN
        run = SampleRun(None, 0, count, np.arange(first, first + count), np.full(count, 10), None)
        ledger.commit(FileRange(ledger.file, 1, first, count, count, state, [100 + first + count], [], {}), run)
    return ledger


def take(checksums: PassChecksums, ledger: FileLedger, count: int) -> None:
    ledger.next_run()
    checksum = checksums.next_of(ledger)
    ledger.consume(count)
    if checksum is not None:
        checksums.note_taken(ledger.file, checksum)


def records(checksums: LoggedChecksums) -> dict[int, tuple[int, int, bool]]:
    found = checksums.by_file()
    return {file: tuple(known) for file in found.files.tolist() if (known := found.of(file)) is not None}


def test_a_state_has_the_checksum_behind_each_chunk_that_the_merge_took_of_and_of_each_end() -> None:
    checksums, ledger = PassChecksums(NO_CHECKSUMS), committed(FileLedger(3, 0), 4, 2)
    take(checksums, ledger, 1)
    assert records(checksums.logged_checksums()) == {3: (4, 104, False)}
    take(checksums, ledger, 3)
    take(checksums, ledger, 2)
    assert records(checksums.logged_checksums()) == {3: (6, 106, False)}
    checksums.note_end(ledger)
    assert records(checksums.logged_checksums()) == {3: (6, 106, True)}


def test_a_snapshot_begins_anew_and_what_came_before_it_is_told_once() -> None:
    checksums, ledger = PassChecksums(NO_CHECKSUMS), committed(FileLedger(3, 0), 4, 2)
    take(checksums, ledger, 4)
    checksums.note_snapshot()
    assert records(checksums.logged_checksums()) == {}
    assert records(checksums.take_checksums_before()) == {3: (4, 104, False)}
    assert records(checksums.take_checksums_before()) == {}


def test_nothing_is_logged_where_no_state_is_made_in_the_middle_of_the_pass() -> None:
    checksums, ledger = PassChecksums(None), committed(FileLedger(3, 0), 4)
    take(checksums, ledger, 4)
    checksums.note_end(ledger)
    assert records(checksums.logged_checksums()) == {}


def test_ends_are_those_that_the_merge_met_or_that_the_cache_has() -> None:
    checksums = PassChecksums(NO_CHECKSUMS)
    checksums.note_end(committed(FileLedger(5000, 0), 4))
    cached = {2: (9, 77)}
    ends, crcs = checksums.ends.of(np.array([1, 2, 5000, 7000]), lambda file: cached.get(file, (0, 0)))
    assert (ends.tolist(), crcs.tolist()) == ([0, 9, 4, 0], [0, 77, 104, 0])


@pytest.mark.parametrize("is_end", [False, True])
def test_a_file_of_the_state_is_compared_once_the_merge_has_come_to_it(is_end: bool) -> None:
    assert with_checksum(None, None) is None
    reread = with_checksum(None, FileChecksum(6, 106, is_end))
    assert reread is not None
    assert (reread.checksum_index, reread.crcs, reread.end) == (6, [106], 6 if is_end else UNTIL)
    ledger = committed(open_ledger(3, 0, reread, UNTIL), 4, ends=False)
    checksums = PassChecksums(NO_CHECKSUMS)
    assert checksums.next_to_compare() is None, "the merge is not there yet"
    checksums.compare_later(ledger)
    assert checksums.next_to_compare() == (3, 2), "two samples are missing"
    ledger.commit(FileRange(3, 1, 4, 2, 2, FILE_OPEN, [106], [], {}), None)
    assert checksums.next_to_compare() is None


def test_a_file_that_is_not_what_it_was_fails_the_pass_even_once_the_merge_has_left_it() -> None:
    checksums = PassChecksums(NO_CHECKSUMS)
    ledger = open_ledger(3, 0, with_checksum(None, FileChecksum(6, 106, False)), UNTIL)
    checksums.compare_later(ledger)
    ledger.assign(1, 1)
    changed = NotRepeatable("another one")
    ledger.end_early(changed, skip=True)
    checksums.note_end(ledger)
    assert checksums.next_to_compare() == FileFailure(changed, 3, 0)

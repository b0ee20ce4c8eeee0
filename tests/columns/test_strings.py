"""Text and bytes in a batch: what was packed comes back, as objects of Python, strings of numpy and arrays of Arrow."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251  # as torch pickles what a user's worker sends
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.batch import Batch, BinaryArray, Ragged, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import SequenceType, Slots, raw, raw_sequence, text, text_sequence
from pydp2.errors import OptionTypeError

from ..sample_cases import columns_of

SLOTS = Slots((text(), raw(), text_sequence(), raw(SequenceType.SUB_SEQUENCE)))
TEXTS, BINARIES = st.text(max_size=6), st.binary(max_size=6)
SAMPLES = st.lists(
    st.tuples(TEXTS, BINARIES, st.lists(TEXTS, max_size=3), st.lists(st.lists(BINARIES, max_size=2), max_size=2))
)


def batch_of(samples: list[Any], slots: Slots = SLOTS) -> Batch:
    return Batch(columns_of(slots, [list(s) for s in samples]), pass_id=0, index=0, size=len(samples))


def text_array(*strings: str) -> StringArray:
    array = batch_of([[s] for s in strings], Slots((text(),)))[0]
    assert isinstance(array, StringArray)
    return array


@given(samples=SAMPLES, data=st.data())
def test_any_strings_come_back_through_picking_joining_and_the_wire(samples: list[Any], data: st.DataObject) -> None:
    columns = columns_of(SLOTS, [list(s) for s in samples])
    order = data.draw(st.permutations(range(len(samples))))
    cut = data.draw(st.integers(0, len(samples)))
    taken = columns.take(order)
    joined = Columns.concat([taken.slice(0, cut), taken.slice(cut, len(samples))])
    frames = [bytes(frame) for frame in joined.frames()]
    sent = Columns.from_frames(Slots.from_wire(SLOTS.to_wire()), len(samples), frames)
    batch = Batch(sent, pass_id=0, index=0, size=len(samples))
    assert [tuple(s) for s in unbatch(batch)] == [samples[i] for i in order]
    assert [tuple(s) for s in sent.samples()] == [samples[i] for i in order]
    assert batch[0].to_list() == list(batch[0]) == [samples[i][0] for i in order]
    assert batch[1].to_list() == list(batch[1]) == [samples[i][1] for i in order]
    assert isinstance(batch[2], Ragged)
    assert batch[2].values.to_list() == [word for i in order for word in samples[i][2]]


@given(strings=st.lists(TEXTS), key=st.slices(8) | st.integers(-8, 7))
def test_indexing_is_that_of_a_list(strings: list[str], key: Any) -> None:
    array = text_array(*strings)
    assert len(array) == len(strings)
    try:
        expected = strings[key]
    except IndexError:
        with pytest.raises(IndexError, match=f"there is no string {key}: the array has {len(strings)}"):
            array[key]
        return
    found = array[key]
    assert (found.to_list() if isinstance(key, slice) else found) == expected
    if isinstance(key, slice):
        assert (type(found), int(found.offsets[0]), int(found.offsets[-1])) == (StringArray, 0, len(found.data))


def test_a_slice_shares_its_bytes_where_they_lie_together() -> None:
    array = text_array("ab", "cde", "", "f")
    assert np.shares_memory(array[1:3].data, array.data)
    assert array[::-2].to_list() == ["f", "cde"]


def test_the_layout_is_offsets_and_bytes_of_their_own() -> None:
    array = text_array("a", "", "é€")
    assert (array.offsets.dtype, array.offsets.tolist()) == (np.int64, [0, 1, 1, 6])
    assert (array.data.dtype, array.data.tobytes()) == (np.uint8, "aé€".encode())
    assert array.data.flags.writeable
    assert repr(array) == "<StringArray 3 strings, 6 bytes>"
    assert [copy.copy(array).to_list(), pickle.loads(pickle.dumps(array)).to_list()] == [["a", "", "é€"]] * 2


@given(strings=st.lists(TEXTS))
def test_text_becomes_an_array_of_numpy_s_strings(strings: list[str]) -> None:
    array = text_array(*strings).to_numpy()
    assert (array.dtype, array.tolist()) == (np.dtypes.StringDType(), strings)


@pytest.mark.parametrize(("declared", "given_"), [(text(), ["a", "", "é€"]), (raw(), [b"\xff", b"", b"ab"])])
def test_strings_become_arrow_s_arrays_without_a_copy(declared: Any, given_: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    array = batch_of([[s] for s in given_], Slots((declared,)))[0]
    assert isinstance(array, StringArray | BinaryArray)
    arrow = array.to_pyarrow()
    arrow.validate(full=True)
    assert arrow.to_pylist() == given_
    assert arrow.type == (pyarrow.large_string() if declared == text() else pyarrow.large_binary())
    assert arrow.buffers()[2].address == array.data.ctypes.data
    assert batch_of([], Slots((declared,)))[0].to_pyarrow().to_pylist() == []


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"StringArray.to_pyarrow\(\) needs pyarrow.*pip install pyarrow"):
        text_array("a").to_pyarrow()


def test_strings_cannot_be_padded() -> None:
    ragged = batch_of([[[b"a", b""]]], Slots((raw_sequence(),)))[0]
    assert isinstance(ragged, Ragged)
    assert repr(ragged) == "<Ragged 1 sequence, 2 steps, of BinaryArray 2 strings, 1 byte>"
    with pytest.raises(OptionTypeError, match=r"these are strings; use .values.to_list\(\)"):
        ragged.pad()


def test_the_length_of_a_single_string_is_its_bytes_and_of_a_sequence_its_strings() -> None:
    columns = columns_of(Slots((text(), text_sequence())), [["é", ["a", "bc"]], ["", []]])
    assert [columns.lengths(0).tolist(), columns.lengths(1).tolist()] == [[2, 0], [2, 0]]
    assert columns.sample_bytes().tolist() == [4 + 2 + 4 + 8 + 3, 4 + 4]


def test_bytes_that_are_no_text_are_found_where_they_are_read() -> None:
    array = StringArray(np.array([0, 1]), np.array([255], np.uint8))
    with pytest.raises(UnicodeDecodeError):
        array.to_list()

"""What ``process`` may yield, what is a bad sample, and what becomes of one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.data.columns.batch import Ragged
from pydp2.errors import BadSample, ProviderError

from ..provider_code import NOTHING_BAD_GOOD, yields

# -- what a yielded value is taken as ---------------------------------------------------------------------------------


def test_pd_13_a_list_yielded_for_the_single_slot_is_its_value(deliver: Any) -> None:
    code = yields("integer_value_sequence(10)", "([1, 2], [3])")
    ((batch,),) = deliver(code)
    assert isinstance(batch[0], Ragged)
    assert batch[0].sequence_start_positions.tolist() == [0, 2, 3]


def test_pd_13_a_list_with_the_integer_of_the_single_slot_is_refused(deliver: Any) -> None:
    code = yields("integer_value(10)", "[[1]]")
    with pytest.raises(BadSample, match=r"slot 0: expected an int in \[0, 10\), got \[1\]"):
        deliver(code)


def test_pd_14_a_single_slot_with_a_name_takes_the_bare_value_and_a_dict(deliver: Any, flat: Any) -> None:
    code = yields("{'label': integer_value(10)}", "(4, {'label': 5}, {'label': 6, 'weather': 'fine'})")
    (batches,) = deliver(code)
    assert flat(batches) == [4, 5, 6]
    assert batches[0].names == ("label",)


NAMED = """
@provider(input_types={"a": integer_value(10), "b": integer_value(20), "c": integer_value(30)})
def process(settings, filename):
    yield {"a": 1, "b": 2, "c": 3}
    yield {"c": 6, "x": "unknown", "b": 5, "a": 4}
    yield 9, 7, 8
    yield [9, 7, 8]
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> pydp2.Batch:
    """What NAMED yields, with an input_order that is not its own."""
    path = tmp_path_factory.mktemp("named") / "prov.py"
    path.write_text(f"from pydp2 import *\n{NAMED}")
    with pydp2.load(
        ["f"], f"{path}:process", input_order=["c", "a", "b"], is_train=False, batch_size=9, workers=1
    ) as data:
        (only,) = data
    return only


def test_pd_15_dicts_are_put_into_input_order_whatever_their_own(named: pydp2.Batch) -> None:
    assert named.names == ("c", "a", "b")
    assert [value.tolist()[:2] for value in named] == [[3, 6], [1, 4], [2, 5]]


def test_pd_16_tuples_and_lists_are_taken_in_input_order(named: pydp2.Batch) -> None:
    assert [value.tolist()[2:] for value in named] == [[9, 9], [7, 7], [8, 8]]


def test_pd_19_unknown_keys_are_ignored(named: pydp2.Batch) -> None:
    assert len(named) == 4
    assert [value.tolist()[1] for value in named] == [6, 4, 5]  # of the dict that has an "x" as well


@pytest.mark.parametrize("pure", ["0", "1"])
@pytest.mark.parametrize("arguments", ["", ", check=True, check_fail_continue=True"])
@pytest.mark.parametrize(
    "yields", ['{"a": i % 9, "b": 2, "x": 3}', "pydp2.rows(a=[i % 9], b=[2], x=[3])"], ids=["dict", "rows"]
)
def test_pd_19_unknown_keys_are_told_of_once_with_file_sample_and_slots(
    yields: str,
    arguments: str,
    pure: str,
    deliver: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once in all workers together, and nothing is dropped for it, with check as without."""
    code = f"""
    import pydp2

    @provider(input_types={{"a": integer_value(10), "b": integer_value(20)}}{arguments})
    def process(settings, filename):
        yield 1, 2
        for i in range(50):
            yield {yields}
    """
    monkeypatch.setenv("PYDP2_PURE_PYTHON", pure)
    (batches,) = deliver(code, ["f", "g", "h"])
    assert sum(len(batch) for batch in batches) == 153
    told = re.findall(
        r"file (\w), sample 1: process yielded 'x', which no slot is called: (.*)", capfd.readouterr().err
    )
    assert len(told) == 1
    assert "the slots are a, b" in told[0][1]


@pytest.mark.parametrize("pure", ["0", "1"])
def test_pd_19_an_unknown_key_is_told_of_also_where_input_order_leaves_a_known_one_out(
    pure: str, deliver: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    @provider(input_types={"a": integer_value(10), "b": integer_value(20), "id": integer_value(30)})
    def process(settings, filename):
        for i in range(20):
            yield {"a": 1, "b": 2, "id": i}
        yield {"a": 1, "b": 2, "idd": 20}
    """
    monkeypatch.setenv("PYDP2_PURE_PYTHON", pure)
    deliver(code, ["f"], input_order=["a", "b"])
    assert "file f, sample 20: process yielded 'idd', which no slot is called" in capfd.readouterr().err


@pytest.mark.parametrize("pure", ["0", "1"])
def test_pd_18_a_defaultdict_that_lacks_a_name_raises_naming_it(
    pure: str, deliver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    from collections import defaultdict

    @provider(input_types={"a": integer_value(10), "b": integer_value(20)})
    def process(settings, filename):
        yield defaultdict(int, a=1, b=2)
        yield defaultdict(int, a=3)
    """
    monkeypatch.setenv("PYDP2_PURE_PYTHON", pure)
    with pytest.raises(BadSample, match="file f, sample 1, slot b: expected a value for 'b', got a dict with 'a'"):
        deliver(code)


def test_pd_15_without_input_order_the_dict_has_its_own(deliver: Any) -> None:
    ((batch,),) = deliver(NAMED)
    assert batch.names == ("a", "b", "c")
    assert batch["c"].tolist() == [3, 6, 8, 8]


def test_pd_15_input_order_may_leave_names_out(deliver: Any) -> None:
    code = NAMED.replace("yield 9, 7, 8", "").replace("yield [9, 7, 8]", "")
    ((batch,),) = deliver(code, input_order=["b"])
    assert batch.names == ("b",)
    assert batch["b"].tolist() == [2, 5]


@pytest.mark.parametrize("arguments", ["", "check=True, check_fail_continue=True"])
@pytest.mark.parametrize(("types", "right"), [("[integer_value(10)] * 2", "1, 2"), ("[integer_value(10)]", "1")])
def test_pd_17_a_dict_for_slots_without_names_is_an_error_of_the_program(
    deliver: Any, arguments: str, types: str, right: str
) -> None:
    """It is never dropped: no sample of such a provider could be right."""
    code = f"""
    @provider(input_types={types}, {arguments})
    def process(settings, filename):
        yield {right}
        yield {{"a": 1, "b": 2}}
    """
    with pytest.raises(TypeError, match="input_types is not a dict") as caught:
        deliver(code, workers=1)
    assert isinstance(caught.value, ProviderError)
    assert "file f, sample 1" in str(caught.value)


LACKING = """
@provider(input_types={{"a": integer_value(10), "b": integer_value(20)}}, {arguments})
def process(settings, filename):
    yield {{"a": 1, "b": 2}}
    yield {{"a": 3}}
    yield {{"a": 5, "b": 6}}
"""


def test_pd_18_a_dict_that_lacks_a_name_raises_naming_it(deliver: Any) -> None:
    with pytest.raises(BadSample, match="file f, sample 1, slot b: expected a value for 'b', got a dict with 'a'"):
        deliver(LACKING.format(arguments=""))


def test_pd_18_a_dict_that_lacks_a_name_is_a_bad_sample_with_check(deliver: Any, flat: Any) -> None:
    (batches,) = deliver(LACKING.format(arguments="check=True, check_fail_continue=True"))
    assert flat(batches) == [1, 5]


def test_pd_20_input_order_with_an_undeclared_name_is_a_key_error_at_construction(provider_file: Any) -> None:
    address = provider_file(NAMED)
    with pytest.raises(KeyError, match=r"input_order names 'd', .*process declares a, b, c"):
        pydp2.launch(["f"], address, input_order=["a", "d"], workers=1)


COUNTS = """
@provider(input_types=[integer_value(10), integer_value(10)], {arguments})
def process(settings, filename):
    yield 1, 2
    yield 3, 4, 5
    yield 6,
    yield 7
    yield 8, 9
"""


def test_pd_21_a_wrong_number_of_values_raises(deliver: Any) -> None:
    with pytest.raises(BadSample, match=r"file f, sample 1, all slots: expected 2 values, got 3 in \(3, 4, 5\)"):
        deliver(COUNTS.format(arguments="check=True"))


def test_pd_21_a_wrong_number_of_values_is_dropped_where_bad_samples_are(deliver: Any) -> None:
    ((batch,),) = deliver(COUNTS.format(arguments="check=True, check_fail_continue=True"))
    assert [value.tolist() for value in batch] == [[1, 8], [2, 9]]


# -- checks -----------------------------------------------------------------------------------------------------------

BAD = [
    # what stands in the provider, the slot, what the message says
    ("5, [1, 1], [0.0] * 3", "bits", r"each index once in a row, got 1 \(int\) at \[1\]"),
    ("5, [1], [0.0] * 2", "vector", "3 numbers in a list, tuple or numpy array, got"),
    ("5, [1], [0.0, 1, 0.0]", "vector", r"a float \(write float\(x\)\), got 1 \(int\) at \[1\]"),
    ("10, [1], [0.0] * 3", "label", r"an int in \[0, 10\), got 10"),
    ("-1, [1], [0.0] * 3", "label", r"an int in \[0, 10\), got -1"),
    ("5, [8], [0.0] * 3", "bits", r"an int in \[0, 8\), got 8 \(int\) at \[0\]"),
    ("5, [1, -2], [0.0] * 3", "bits", r"an int in \[0, 8\), got -2 \(int\) at \[1\]"),
    ("3.7, [1], [0.0] * 3", "label", r"an int in \[0, 10\) \(write int\(x\)\), got 3.7"),
    ("'7', [1], [0.0] * 3", "label", r"an int in \[0, 10\) \(write int\(x\)\), got '7'"),
    ("None, [1], [0.0] * 3", "label", r"an int in \[0, 10\), got None"),
    ("5, 1, [0.0] * 3", "bits", r"a list, tuple or numpy array of indices \(write \[1\]\), got 1"),
    ("5, [1], [0.0, 1e39, 0.0]", "vector", r"a number within the range of float32, got 1e\+39 \(float\) at \[1\]"),
    ("5, [1], ['1.5', 0.0, 0.0]", "vector", r"a float \(write float\(x\)\), got '1.5'"),
]
MANY = """
BAD = [{values}]

@provider(
    input_types={{"label": integer_value(10), "bits": sparse_binary_vector(8), "vector": dense_vector(3)}},
    check=True, {arguments}
)
def process(settings, filename):
    for i, bad in enumerate(BAD):
        yield i % 10, [i % 8], [float(i)] * 3
        if filename == "all" or i == settings.pass_id:
            yield bad
"""


def test_pd_48_bad_samples_never_reach_a_batch_and_the_others_all_do(
    deliver: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    code = MANY.format(values=", ".join(f"({values})" for values, _, _ in BAD), arguments="check_fail_continue=True")
    first, second = deliver(code, ["all"], passes=2, batch_size=5)
    for batches in (first, second):
        labels = [int(x) for batch in batches for x in batch["label"]]
        assert labels == [i % 10 for i in range(len(BAD))]
        assert [len(b) for b in batches] == [5, 5, 3]
    said = capfd.readouterr().err
    assert "dropped: file all, sample 1, slot bits: expected each index once in a row" in said  # the first ones in full
    assert f"pass 0: {len(BAD)} bad samples were dropped" in said
    assert f"pass 1: {len(BAD)} bad samples were dropped" in said


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        (["nothing"] * 3, {}, "pydp2: empty: pass 0 has no samples: process yielded nothing for any of 3 files"),
        (["nothing"], {}, "pydp2: empty: pass 0 has no samples: process yielded nothing for its file"),
        (["nothing", "bad"], {}, "pydp2: pass 0: 1 bad sample was dropped"),
        (["nothing", "good"], {"last_batch": "drop"}, ""),
        (["nothing", "good"], {}, ""),
    ],
)
def test_a_pass_for_which_process_yielded_nothing_is_said_to_have_no_samples(
    deliver: Any, capfd: pytest.CaptureFixture[str], files: list[str], options: dict[str, Any], words: str
) -> None:
    deliver(NOTHING_BAD_GOOD, files, passes=2, batch_size=4, **options)
    said = capfd.readouterr().err
    assert words in said
    assert said.count("has no samples") == (2 if "empty" in words else 0)


def test_pd_51_what_is_bad_raises_naming_file_sample_slot_and_reason(provider_file: Any, until_error: Any) -> None:
    """One bad sample a pass: each names file, sample, slot, what was expected and what was there."""
    code = MANY.format(values=", ".join(f"({values})" for values, _, _ in BAD), arguments="")
    with pydp2.load(["f"], provider_file(code), is_train=False, batch_size=3, workers=1) as data:
        for i, (_, slot, words) in enumerate(BAD):
            batches, error = until_error(data)
            assert isinstance(error, BadSample)
            assert re.match(rf"file f, sample {i + 1}, slot {slot}: expected {words}", str(error))
            assert error.slot == slot
            assert error.expected
            assert error.got
            assert [len(b) for b in batches] == [3] * ((i + 1) // 3)  # every full batch before it
            assert isinstance(error, AssertionError)
            assert isinstance(error, ValueError)


def test_pd_49_the_first_bad_sample_raises_in_the_trainer(provider_file: Any, until_error: Any) -> None:
    code = yields("integer_value(10)", "(1, 2, 3, 10, 4, -1, 5, 6)", "check=True")
    with pydp2.load(["f"], provider_file(code), is_train=False, batch_size=3, workers=1) as data:
        for _ in range(2):
            batches, error = until_error(data)
            assert [b[0].tolist() for b in batches] == [[1, 2, 3]]
            assert isinstance(error, BadSample)
            assert str(error) == "file f, sample 3, slot 0: expected an int in [0, 10), got 10 (int)"


def test_pd_50_dropping_needs_check(deliver: Any) -> None:
    code = yields("integer_value(10)", "(3, 11)", "check_fail_continue=True")
    with pytest.raises(BadSample, match=r"sample 1, slot 0: expected an int in \[0, 10\), got 11"):
        deliver(code)


def test_pd_51_without_check_a_plain_int_in_a_dense_slot_is_converted(deliver: Any) -> None:
    code = yields("dense_vector(3)", "([1, 2.5, True], [float('nan'), float('inf'), -float('inf')])")
    ((batch,),) = deliver(code)
    np.testing.assert_array_equal(batch[0], np.array([[1, 2.5, 1], [np.nan, np.inf, -np.inf]], np.float32))


def test_pd_52_arrays_of_any_real_dtype_fill_dense_slots(deliver: Any) -> None:
    code = """
    import numpy as np

    @provider(input_types=[dense_vector(4), dense_vector_sequence(2)], check=True)
    def process(settings, filename):
        for dtype in ("float32", "float64", "float16", "int8", "uint64", "bool"):
            yield np.array([[1, 0], [0, 1]], dtype), np.array([[0, 1], [1, 1], [0, 0]], dtype)
        yield [np.float32(1), np.float64(0), 0.0, np.float16(1)], [np.array([0.0, 1.0]), (1.0, 1.0), [0.0, 0.0]]
    """
    ((batch,),) = deliver(code)
    dense, steps = batch
    assert dense.dtype == np.float32
    assert dense.tolist() == [[1, 0, 0, 1]] * 7
    assert steps.values.dtype == np.float32
    assert steps.values.tolist() == [[0, 1], [1, 1], [0, 0]] * 7


def test_pd_52_numpy_scalars_and_arrays_fill_the_other_slots(deliver: Any) -> None:
    code = """
    import numpy as np

    @provider(
        input_types=[integer_value(9), integer_value_sequence(9), sparse_binary_vector(9), sparse_float_vector(9)],
        check=True,
    )
    def process(settings, filename):
        yield np.int64(3), np.array([1, 2], np.uint8), np.array([4, 5]), [(np.int32(6), np.float32(0.5))]
        yield np.True_, (np.int16(1), 2), [np.int64(4), 5], ((6, np.float64(0.5)),)
    """
    ((batch,),) = deliver(code)
    label, words, bits, scores = batch
    assert label.tolist() == [3, 1]
    assert words.values.tolist() == [1, 2, 1, 2]
    assert bits.indices.tolist() == [4, 5, 4, 5]
    assert scores.values.tolist() == [0.5, 0.5]

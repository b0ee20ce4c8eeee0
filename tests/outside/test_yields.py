"""Every wrong yield, through a service: what the trainer is told, and what it was given before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pydp2.errors import BadSample, ProviderError

from ..runs import one_pass

CODE = """
import numpy as np

@provider(input_types={types}{arguments})
def process(settings, filename):
    for i in range(11):
        yield {good}
    yield {bad}
    yield {good}
"""
ONE = ("[integer_value(20)]", "i")
DENSE = ("[integer_value(20), dense_vector(2)]", "(i, [1.0, 2.0])")
LONELY = ("[integer_value(20), dense_vector(1)]", "(i, [1.0])")
BINARY = ("[integer_value(20), sparse_binary_vector(5)]", "(i, [1, 3])")
FLOAT = ("[integer_value(20), sparse_float_vector(5)]", "(i, [(1, 0.5)])")
STEPS = ("[integer_value(20), integer_value_sequence(5)]", "(i, [1, 2])")
NESTED = ("[integer_value(20), dense_vector_sub_sequence(2)]", "(i, [[[1.0, 2.0]]])")
NAMED = ("dict(label=integer_value(20), pixel=dense_vector(2))", "dict(label=i, pixel=[1.0, 2.0])")

WRONG = {
    "too-large-an-id": (ONE, "20", r"slot 0: expected an int in \[0, 20\), got 20 \(int\)"),
    "a-negative-id": (ONE, "-1", r"slot 0: expected an int in \[0, 20\), got -1 \(int\)"),
    "a-float-id": (ONE, "3.7", r"slot 0: expected an int in \[0, 20\) \(write int\(x\)\), got 3\.7 \(float\)"),
    "a-text-id": (ONE, "'3'", r"slot 0: expected an int in \[0, 20\) \(write int\(x\)\), got '3' \(str of length 1\)"),
    "a-list-of-one-id": (ONE, "[3]", r"slot 0: expected an int in \[0, 20\), got \[3\] \(list"),
    "nothing": (ONE, "None", r"slot 0: .*got None; leave the sample out, or give a default"),
    "too-few-slots": (DENSE, "(1,)", r"expected 2 .*got .*1"),
    "too-many-slots": (DENSE, "(1, [1.0, 2.0], 3)", r"expected 2 .*got .*3"),
    "no-tuple": (DENSE, "1", r"expected .*got 1"),
    "a-slot-is-none": (DENSE, "(1, None)", r"slot 1: .*got None; leave the sample out"),
    "too-short-a-vector": (DENSE, "(1, [1.0])", r"slot 1: expected 2 numbers.*got \[1\.0\] \(list of length 1\)"),
    "too-long-a-vector": (DENSE, "(1, [1.0, 2.0, 3.0])", r"slot 1: expected 2 numbers.*length 3"),
    "a-text-in-a-vector": (DENSE, "(1, [1.0, '1.5'])", r"slot 1: expected .*got .*'1\.5'"),
    "too-large-for-float32": (DENSE, "(1, [1.0, 1e300])", r"slot 1: expected .*got .*1e\+?300"),
    "an-array-of-another-size": (DENSE, "(1, np.zeros(3))", r"slot 1: expected 2 numbers.*got"),
    "a-bare-number": (LONELY, "(1, 3.0)", r"expected 1 number in a list, .* \(write \[3\.0\], or .*\), got 3\.0"),
    "a-bare-number-of-numpy": (
        LONELY,
        "(1, np.float32(3))",
        r"slot 1: expected 1 number .*\(write \[3\.0\], or .*\), got",
    ),
    "a-bare-number-of-half-precision": (
        LONELY,
        "(1, np.float16(3))",
        r"slot 1: expected 1 number .*\(write \[3\.0\], or .*\), got",
    ),
    "two-numbers-for-one": (LONELY, "(1, [1.0, 2.0])", r"slot 1: expected 1 number in a list, .*length 2"),
    "a-masked-vector": (
        DENSE,
        "(1, np.ma.masked_greater([1.0, 2.0], 1))",
        r"slot 1: expected 2 .* without a mask \(write x\.filled\(0\)\), got a masked numpy array of shape \(2,\)",
    ),
    "masked-steps": (
        STEPS,
        "(1, np.ma.masked_greater([1, 2], 1))",
        r"slot 1: .* without a mask \(write x\.filled.*got a masked numpy",
    ),
    "a-column-out-of-range": (BINARY, "(1, [1, 5])", r"slot 1: expected an int in \[0, 5\), got 5 \(int\) at \[1\]"),
    "a-column-twice": (BINARY, "(1, [1, 1])", r"slot 1: expected .*got .*1"),
    "a-number-for-columns": (BINARY, "(1, 3)", r"slot 1: expected .* \(write \[3\]\), got 3"),
    "no-pair": (FLOAT, "(1, [(1, 0.5, 2)])", r"slot 1: expected .*pair"),
    "a-number-for-a-pair": (FLOAT, "(1, [3])", r"slot 1: expected .*got .*3"),
    "a-text-value": (FLOAT, "(1, [(1, 'x')])", r"slot 1: expected .*got .*'x'"),
    "a-number-for-a-sequence": (STEPS, "(1, 3)", r"slot 1: expected .* \(write \[3\]\), got 3"),
    "a-step-out-of-range": (STEPS, "(1, [1, 7])", r"slot 1: expected an int in \[0, 5\), got 7 \(int\) at \[1\]"),
    "one-level-too-few": (NESTED, "(1, [[1.0, 2.0]])", r"slot 1: expected"),
    "a-name-is-missing": (NAMED, "dict(label=1)", r"slot pixel: expected a value for 'pixel', got a dict with 'label'"),
    "a-named-slot-is-wrong": (NAMED, "dict(label=1, pixel=[1.0])", r"slot pixel: expected 2 numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_yield_is_named_by_file_sample_slot_expected_and_got(
    case: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Every full batch before it is delivered; then one line says what is wrong, and nobody else says anything."""
    (types, good), bad, text = WRONG[case]
    seen = one_pass(["digits"], provider_file(CODE.format(types=types, good=good, bad=bad, arguments="")))
    assert seen.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert isinstance(seen.error, BadSample)
    assert "\n" not in seen.text
    assert seen.text.startswith("file digits, sample 11, ")
    with pytest.raises(BadSample, match=text):
        raise seen.error
    assert capfd.readouterr().err == ""


def test_a_plain_int_in_a_dense_slot_is_wrong_where_types_are_strict(provider_file: Callable[[str], str]) -> None:
    types, good = DENSE
    seen = one_pass(
        ["digits"], provider_file(CODE.format(types=types, good=good, bad="(1, [1, 2.0])", arguments=", check=True"))
    )
    assert seen.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "file digits, sample 11, slot 1: " in seen.text
    assert "write float(x)" in seen.text


def test_a_dict_where_types_are_a_list_is_an_error_of_the_program(provider_file: Callable[[str], str]) -> None:
    """It is raised also where bad samples are dropped."""
    types, good = ONE
    code = CODE.format(types=types, good=good, bad="{'a': 1}", arguments=", check=True, check_fail_continue=True")
    seen = one_pass(["digits"], provider_file(code))
    assert seen.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert isinstance(seen.error, ProviderError)
    assert isinstance(seen.error, TypeError)
    assert seen.text.startswith("file digits, sample 11: ")


SHOWN = 5  # of so many in a row all are shown, and of more only their number
TOGETHER = [
    cases[at : at + SHOWN]
    for slots in (ONE, DENSE, LONELY, BINARY, FLOAT, STEPS, NESTED)
    for cases in [[case for case in WRONG if WRONG[case][0] == slots]]
    for at in range(0, len(cases), SHOWN)
]


@pytest.mark.parametrize("cases", TOGETHER, ids=" ".join)
def test_wrong_yields_are_dropped_and_shown_where_that_was_asked_for(
    cases: list[str], provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Each in a file of its own, which goes on behind it."""
    (types, good), *_ = WRONG[cases[0]]
    bad = "{" + ", ".join(f"{case!r}: lambda: {WRONG[case][1]}" for case in cases) + "}[filename]()"
    code = CODE.format(types=types, good=good, bad=bad, arguments=", check=True, check_fail_continue=True")
    seen = one_pass(cases, provider_file(code))
    assert seen.error is None
    assert seen.samples == [*range(11), 10] * len(cases)
    *dropped, last = capfd.readouterr().err.splitlines()
    assert len(dropped) == len(cases)
    for case in cases:
        assert sum(line.startswith(f"pydp2: dropped: file {case}, sample 11, ") for line in dropped) == 1, dropped
    count = "1 bad sample was" if len(cases) == 1 else f"{len(cases)} bad samples were"
    assert last == f"pydp2: pass 0: {count} dropped"

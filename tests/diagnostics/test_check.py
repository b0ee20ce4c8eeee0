"""``pydp2.check``: a dry run that goes on after whatever is wrong, with the verdicts of a service."""

from __future__ import annotations

import os
import sys
from bdb import BdbQuit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import AddressError, ListError, OptionError, OptionTypeError, ProviderError

from ..provider_code import yields

Write = Callable[..., str]
SUMMED = """
    @provider(input_types={"x": dense_vector(2), "y": integer_value(5)}%s)
    def process(settings, filename):
        for y in range(20):
            yield {"x": [1.0] if y %% 7 == 3 else [1.0, y], "y": y %% 6}
"""


@pytest.mark.parametrize("options", ["", ", check=True, check_fail_continue=True", ", calc_batch_size=lambda s: 2"])
def test_every_bad_sample_is_found_in_the_order_of_the_file(options: str, provider_file: Write) -> None:
    """Wrong lengths are seen at once, wrong ranges later, when many are judged together: that must not show. (With
    ``check``, an int in a dense slot is wrong too, which the generator avoids only for some.)"""
    code = SUMMED % options
    code = code.replace("1.0, y]", "1.0, float(y)]")
    report = pydp2.check(["f", "g"], provider_file(code), max_errors=100)
    bad = [3, 5, 10, 11, 17]
    assert [(f.file, f.sample) for f in report.findings] == [(name, y) for name in "fg" for y in bad]
    assert [f.slot for f in report.findings[:5]] == ["x", "y", "x", "y", "x"]
    assert (report.found, report.samples, report.ok) == (10, 30, False)
    assert [(file.samples, file.bad, file.raised) for file in report.files] == [(15, 5, False)] * 2
    assert report.files[0].weight == (30 if "calc" in options else 15)


def test_the_findings_are_those_that_a_service_drops_and_the_others_are_those_that_it_delivers(
    provider_file: Write,
) -> None:
    address = provider_file((SUMMED % ", check=True, check_fail_continue=True").replace(", y]", ", float(y)]"))
    with pydp2.load(["f"], address, batch_size=100, workers=1) as data:
        delivered = [y for batch in data for y in batch["y"].tolist()]
    report = pydp2.check(["f"], address)
    assert (report.samples, report.found) == (len(delivered), 5)
    assert sorted(delivered) == sorted(y % 6 for y in range(20) if y not in {f.sample for f in report.findings})


def test_files_for_which_process_yielded_nothing_are_told_from_those_whose_samples_are_bad(
    provider_file: Write,
) -> None:
    code = """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            if filename == "raises":
                raise ValueError(filename)
            yield from {"nothing": [], "bad": [99], "good": [1]}[filename]
    """
    report = pydp2.check(["good", "nothing", "bad", "raises", "nothing"], provider_file(code))
    assert [file.yielded_nothing for file in report.files] == [False, True, False, False, True]
    assert report.plain()["files"][1]["samples"] == report.plain()["files"][1]["bad"] == 0


def test_a_finding_has_file_sample_slot_expected_and_got(provider_file: Write) -> None:
    report = pydp2.check(["f"], provider_file(SUMMED % ""))
    first = report.findings[0]
    assert (first.file, first.sample, first.slot, first.raised) == ("f", 3, "x", False)
    assert first.expected.startswith("2 numbers")
    assert first.got.startswith("[1.0]")
    assert first.text == f"file f, sample 3, slot x: expected {first.expected}, got {first.got}"


def test_many_samples_are_judged_in_several_lots_and_nothing_is_lost_between_them(provider_file: Write) -> None:
    address = provider_file(yields("integer_value(10)", "(10 if y % 1000 == 999 else y % 10 for y in range(5000))"))
    calls: list[tuple[str, int]] = []
    report = pydp2.check(["f"], address, progress=lambda file, samples: calls.append((file, samples)))
    assert [f.sample for f in report.findings] == [999, 1999, 2999, 3999, 4999]
    assert report.samples == 4995
    assert report.files[0].bytes == 4995 * 4
    assert calls[-1] == ("f", 4995)
    assert len(calls) > 3


def test_a_generator_that_raises_ends_its_file_only(provider_file: Write) -> None:
    address = provider_file(
        """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            yield 1
            if filename == "f":
                raise SystemExit("enough")
            yield 2
        """
    )
    report = pydp2.check(["f", "g"], address)
    assert [(file.samples, file.raised) for file in report.files] == [(1, True), (2, False)]
    (finding,) = report.findings
    assert (finding.file, finding.sample, finding.raised) == ("f", 1, True)
    assert "process raised SystemExit" in finding.text
    assert 'raise SystemExit("enough")' in finding.text


def test_what_a_generator_raises_while_it_is_closed_is_found(provider_file: Write) -> None:
    address = provider_file(
        """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            try:
                yield 1
                yield 2
            finally:
                raise OSError("cannot close")
        """
    )
    report = pydp2.check(["f"], address, limit=1)
    assert report.samples == 1
    assert "cannot close" in report.findings[0].text


def test_a_weight_that_cannot_be_is_a_finding_and_the_next_sample_is_looked_at(provider_file: Write) -> None:
    address = provider_file(yields("integer_value(10)", "(1, 0, 1)", "calc_batch_size=lambda sample: 1 // sample[0]"))
    report = pydp2.check(["f"], address)
    assert (report.samples, report.found, report.files[0].bad) == (2, 1, 1)
    assert "calc_batch_size raised ZeroDivisionError" in report.findings[0].text


RAISING = {  # the slot, a good value, the other one, and the exception
    "released": ("pydp2.raw()", "b'a'", "released(b'b')", "ValueError"),
    "index": ("integer_value(9)", "1", "Odd()", "ZeroDivisionError"),
    "length": ("dense_vector(1)", "[1.0]", "OddList()", "KeyError"),
}


@pytest.mark.parametrize("options", ["", ", check=True, check_fail_continue=True", ", calc_batch_size=lambda s: 2"])
@pytest.mark.parametrize("kind", RAISING)
def test_a_value_that_raises_is_a_finding_in_the_words_of_a_worker_and_the_next_sample_is_looked_at(
    kind: str, options: str, provider_file: Write
) -> None:
    declared, good, odd, name = RAISING[kind]
    address = provider_file(
        f"""
        import pydp2
        class Odd:
            def __index__(self):
                return 1 // 0
        class OddList(list):
            def __len__(self):
                return {{}}["n"]
        def released(data):
            with memoryview(data) as value:
                return value
        @provider(input_types=[{declared}]{options})
        def process(settings, filename):
            yield from ({good}, {odd}, {good})
        """
    )
    report = pydp2.check(["f"], address)
    (finding,) = report.findings
    assert finding.text.startswith(f"file f, sample 1: process raised {name}")
    assert (finding.sample, finding.raised, finding.exception) == (1, False, name)
    assert (report.samples, report.found, report.files[0].bad) == (2, 1, 1)
    with pytest.raises(ProviderError) as told, pydp2.load(["f"], address, batch_size=2, workers=1) as data:
        list(data)
    assert str(told.value).startswith(f"file f, sample 1: process raised {name}")


def test_a_debugger_that_is_left_inside_a_value_ends_it(provider_file: Write) -> None:
    address = provider_file(
        """
        from bdb import BdbQuit
        class Odd:
            def __index__(self):
                raise BdbQuit
        @provider(input_types=[integer_value(9)])
        def process(settings, filename):
            yield Odd()
        """
    )
    with pytest.raises(BdbQuit):
        pydp2.check(["f"], address)
    with pytest.raises(BdbQuit):
        pydp2.peek(["f"], address)


def test_a_dict_where_types_are_a_list_is_found_for_every_sample(provider_file: Write) -> None:
    address = provider_file(yields("integer_value(10)", "({'a': 1}, {'a': 2})"))
    report = pydp2.check(["f"], address)
    assert report.found == 2
    assert "declare input_types as a dict" in report.findings[0].text


def test_ctrl_c_passes(provider_file: Write) -> None:
    address = provider_file(
        """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            yield 1
            raise KeyboardInterrupt
        """
    )
    with pytest.raises(KeyboardInterrupt):
        pydp2.check(["f"], address)


def test_findings_beyond_max_errors_are_counted(provider_file: Write) -> None:
    report = pydp2.check(["f", "g", "h"], provider_file(SUMMED % ""), max_errors=2)
    assert [(f.file, f.sample) for f in report.findings] == [("f", 3), ("f", 5)]
    assert report.found == 15
    assert pydp2.check(["f"], provider_file(SUMMED % ""), max_errors=0).findings == []


KINDS = """
    import numpy as np

    @provider(input_types={
        "dense": dense_vector(4), "image": dense_vector(4, dtype="uint8", shape=(2, 2)),
        "steps": dense_vector_sequence(1), "ids": integer_value_sub_sequence(10),
        "flags": sparse_binary_vector(100), "pairs": sparse_float_vector(100),
    })
    def process(settings, filename):
        for y in range(3):
            yield {
                "dense": np.full((2, 2), float("nan") if y == 1 else float(y)),
                "image": np.full(4, y, np.uint8), "steps": [[0.5]] * y, "ids": [[1] * y, [9]],
                "flags": list(range(y)), "pairs": [(7, 0.25 * y)],
            }
"""


def test_what_was_seen_in_each_kind_of_slot_is_told(provider_file: Write) -> None:
    report = pydp2.check(["f", "g"], provider_file(KINDS))
    assert report.ok, report.findings
    slots: dict[str, dict[str, Any]] = {slot.slot: slot.plain() for slot in report.slots}

    def seen(slot: str, kind: str) -> tuple[Any, ...]:
        return tuple(slots[slot][kind].values())

    assert slots["dense"]["given"] == {"float64 array (2, 2)": 6}
    assert seen("dense", "values") == (0.0, 2.0, 24, 8)  # 8 not finite
    assert slots["image"]["declared"] == 'dense_vector(4, dtype="uint8", shape=(2, 2))'
    assert seen("image", "values") == (0, 2, 24, 0)
    assert seen("steps", "steps") == (0, 2, 6, 0)
    assert seen("steps", "values") == (0.5, 0.5, 6, 0)
    assert seen("ids", "subs") == (2, 2, 6, 0)
    assert seen("ids", "steps") == (0, 2, 12, 0)
    assert seen("ids", "ids") == (1, 9, 12, 0)
    assert seen("flags", "nnz") == (0, 2, 6, 0)
    assert seen("flags", "indices") == (0, 1, 6, 0)
    assert seen("pairs", "values") == (0.0, 0.5, 6, 0)
    assert slots["pairs"]["given"] == {"list": 6}
    assert [slot.plain() for slot in report.files[0].slots] == [slot.plain() for slot in report.files[1].slots]


def test_values_given_in_many_ways_are_counted_in_few(provider_file: Write) -> None:
    address = provider_file(yields("dense_vector(2)", "([1.0] * n for n in range(1, 21))"))
    given = pydp2.check(["f", "g"], address).slots[0].given
    assert list(given) == ["list of 1", "list of 2", "list of 3", "list of 4", "list of 5", "list of 6", "others"]
    assert sum(given.values()) == 40


def test_root_is_working_directory_and_first_on_the_path_meanwhile_and_nothing_of_it_stays(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_provider.py").write_text("value = 7\n")
    (tmp_path / "at_root.py").write_text(
        "from pydp2 import *\n@provider(input_types=[integer_value(10)])\ndef process(settings, filename):\n"
        "    from neighbour_of_provider import value\n    open(filename).close()\n    yield value\n"
    )
    (tmp_path / "x.list").write_text("data.txt\n")
    (tmp_path / "data.txt").touch()
    here, path = Path.cwd(), list(sys.path)
    report = pydp2.check("x.list", "at_root.process", root=tmp_path)
    assert (report.ok, report.samples) == (True, 1)
    assert (Path.cwd(), sys.path) == (here, path)
    with pytest.raises(ProviderError):
        pydp2.check("x.list", "nothing_at_root.process", root=_broken(tmp_path))
    assert (Path.cwd(), sys.path) == (here, path)
    del sys.modules["at_root"], sys.modules["neighbour_of_provider"]


def _broken(folder: Path) -> Path:
    (folder / "nothing_at_root.py").write_text("1 / 0\n")
    return folder


def test_a_decorated_object_and_a_source_are_taken_as_by_launch(tmp_path: Path, provider_file: Write) -> None:
    @pydp2.provider(input_types=[pydp2.dense_vector(1)])
    def local(settings: Any, filename: str) -> Any:
        yield np.array([len(filename)])

    assert pydp2.check(["abc"], local).slots[0].ranges["values"].most == 3.0
    address = provider_file(
        """
        def hook(settings, is_train, n, **kwargs):
            settings.input_types = [integer_value(n)]
            settings.n = n - 1 + is_train

        @provider(init_hook=hook)
        def process(settings, filename):
            yield settings.n
        """
    )
    module, name = address.rsplit(":", 1)
    test = pydp2.Source(["f"], address, {"n": 5}, is_train=False)
    assert pydp2.check(test).ok
    assert not pydp2.check(test, is_train=True).ok
    assert pydp2.check(test, args={"n": 9}).slots[0].ranges["ids"].most == 8
    assert (module, name) == (address.removesuffix(":process"), "process")


def test_input_order_is_that_of_the_slots(provider_file: Write) -> None:
    assert [s.slot for s in pydp2.check(["f"], provider_file(SUMMED % ""), input_order=["y", "x"]).slots] == ["y", "x"]


def test_limit_looks_at_the_first_samples_only(provider_file: Write) -> None:
    assert pydp2.check(["f"], provider_file(SUMMED % ""), limit=10**20).samples == 15
    report = pydp2.check(["f", "g"], provider_file(SUMMED % ""), limit=4)
    assert [(file.samples, file.bad) for file in report.files] == [(3, 1)] * 2


def test_what_cannot_be_is_refused_in_the_words_of_launch(provider_file: Write, tmp_path: Path) -> None:
    address = provider_file(SUMMED % "")
    with pytest.raises(OptionTypeError, match="a provider is needed"):
        pydp2.check(["f"])
    with pytest.raises(ListError, match="is missing"):
        pydp2.check(tmp_path / "none.list", address)
    with pytest.raises(AddressError, match="did you mean 'process'"):
        pydp2.check(["f"], f"{address}s")
    with pytest.raises(OptionTypeError, match="args"):
        pydp2.check(["f"], address, args={"o": os})
    for options, words in (
        ({"limit": 0}, "limit must be a whole number from 1, got 0"),
        ({"limit": True}, "limit must be"),
        ({"max_errors": -1}, "max_errors must be a whole number from 0, got -1"),
    ):
        with pytest.raises(OptionError, match=words):
            pydp2.check(["f"], address, **options)  # type: ignore[arg-type]

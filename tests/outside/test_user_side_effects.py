"""What process can do to its surroundings: close stdout, change the working directory, replace streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..runs import one_pass

CODE = """
import os, sys

@provider(input_types=[integer_value(20)])
def process(settings, filename):
    print("begin", filename)
    for i in range(20):
        if i == 11:
            {what}
        yield i
"""


@pytest.mark.parametrize(
    "what",
    ["sys.stdout.close()", "os.close(1)", "sys.stdout = None", "os.close(1); os.close(2)", "sys.stderr.close()",
     "os.closerange(0, 3)"],
)  # fmt: skip
def test_a_generator_that_closes_stdout_harms_nobody(
    what: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, and what other files print is still shown."""
    seen = one_pass(["a", "b", "c", "d"], provider_file(CODE.replace("{what}", what)), workers=1)
    assert seen.error is None
    assert seen.samples == [*range(20)] * 4
    screen = capfd.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in screen] == [f"{name}] begin {name}" for name in "abcd"]


def test_the_working_directory_is_put_back_with_one_warning(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Relative entries are found again in the files that follow, whichever worker reads them."""
    code = """
    import os

    @provider(input_types=[integer_value(20)])
    def process(settings, filename):
        with open(filename) as lines:
            os.chdir("/")
            for line in lines:
                yield int(line)
    """
    names = [f"f{i}" for i in range(20)]
    for name in names:
        (tmp_path / name).write_text("1\n2\n")
    seen = one_pass(names, provider_file(code), root=tmp_path, workers=3)
    assert seen.error is None
    assert seen.samples == [1, 2] * 20
    screen = capfd.readouterr().err.splitlines()
    assert len(screen) == 1
    assert f"process() changed the working directory to /; it is put back to {tmp_path}" in screen[0]


def test_the_service_goes_on_without_its_working_directory(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root := tmp_path / "root").mkdir()
    what = f"os.path.isdir({str(root)!r}) and os.rmdir({str(root)!r})"
    seen = one_pass(["a", "b", "c"], provider_file(CODE.replace("{what}", what)), root=root, workers=1)
    assert seen.error is None
    assert seen.samples == [*range(20)] * 3
    screen = capfd.readouterr().err
    assert screen.count("cannot be used any more: No such file or directory; start the service again with") == 1
    assert f"the working directory {root}" in screen


def test_a_directory_that_is_gone_is_left(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = one_pass(
        ["a", "b"], provider_file(CODE.replace("{what}", "os.mkdir('x'); os.chdir('x'); os.rmdir(os.getcwd())")),
        root=tmp_path, workers=1,
    )  # fmt: skip
    assert seen.samples == [*range(20)] * 2
    assert "changed the working directory to a folder that is gone" in capfd.readouterr().err

"""The list of the skips that CI allows: what it finds in a run, alone and in several processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .skips import JAX, SKIPS, TORCH, Skip

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
    import pytest
    def test_that_runs(): pass
    @pytest.mark.skip(reason="no such thing here")
    def test_that_is_skipped(): pass
    @pytest.mark.xfail(reason="known", strict=True)
    def test_that_fails_as_expected(): assert False
"""
CONFTEST = """
    import sys
    sys.path.insert(0, {root!r})
    from tests.skips import Skip, SkipLedger
    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(SkipLedger([{rows}]))
"""
ALLOWED = "Skip('test_some.py', 'no such thing', 'why', {due})"


def run(folder: Path, rows: str, *more: str, tests: str = TESTS, at: Sequence[str] = ()) -> tuple[int, str]:
    """The exit status and the output of pytest over ``tests``, with a list of ``rows``. ``at``: what is run of them."""
    for name, text in (("test_some.py", tests), ("conftest.py", CONFTEST.format(root=str(ROOT), rows=rows))):
        (folder / name).write_text("\n".join(line[4:] for line in text.splitlines()))
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", *(at or [str(folder)]), *more],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # other plugins take longer than the tests
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_a_skip_that_no_row_allows_ends_the_run_with_1(tmp_path: Path, processes: tuple[str, ...]) -> None:
    status, shown = run(tmp_path, "", *processes)
    assert (status, "test_some.py::test_that_is_skipped was skipped, and no row allows it" in shown) == (1, True), shown
    assert "1 passed, 1 skipped, 1 xfailed" in shown.splitlines()[-1]
    assert run(tmp_path, ALLOWED.format(due=None), *processes)[0] == 0


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_a_file_that_is_skipped_as_a_whole_needs_a_row_as_well(tmp_path: Path, processes: tuple[str, ...]) -> None:
    whole = "    import pytest\n    pytest.importorskip('no_such_module')"
    status, shown = run(tmp_path, "", *processes, tests=whole)
    assert "test_some.py was skipped, and no row allows it: Skipped: could not import 'no_such_module'" in shown
    assert status != 0


def test_a_row_that_is_due_and_does_not_come_true_ends_the_run_with_1(tmp_path: Path) -> None:
    never = "Skip('test_some.py', 'something else', 'why', {due})"
    status, shown = run(tmp_path, f"{ALLOWED.format(due=True)}, {never.format(due=True)}")
    assert status == 1
    assert "nothing of test_some.py was skipped because of 'something else': delete the row" in shown
    assert run(tmp_path, f"{ALLOWED.format(due=True)}, {never.format(due=None)}")[0] == 0
    elsewhere = "Skip('test_other.py', 'something else', 'why', True)"  # not looked at in this run
    assert run(tmp_path, f"{ALLOWED.format(due=True)}, {elsewhere}")[0] == 0


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["alone", "in two processes"]
)
def test_where_single_tests_were_asked_for_no_row_has_to_come_true(tmp_path: Path, processes: tuple[str, ...]) -> None:
    rows = "Skip('test_some.py', 'something else', 'why', True)"
    single = str(tmp_path / "test_some.py::test_that_runs")
    assert run(tmp_path, rows, *processes, at=[single])[0] == 0
    assert run(tmp_path, rows, *processes, at=[single, str(tmp_path / "test_some.py")])[0] == 1, "and the whole file"
    status, shown = run(tmp_path, "", *processes, at=[str(tmp_path / "test_some.py::test_that_is_skipped")])
    assert (status, "was skipped, and no row allows it" in shown) == (1, True), "but no other skip is allowed"


def test_a_row_that_is_not_due_here_allows_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, ALLOWED.format(due=False))[0] == 1


def test_a_row_is_about_a_folder_a_file_or_a_test() -> None:
    row = Skip("tests/jax", "", "", None)
    assert [row.covers(path) for path in ("tests/jax", "tests/jax/test_a.py", "tests/jax/test_a.py::test_b")] == [
        True
    ] * 3
    assert not row.covers("tests/jax_more/test_a.py")
    assert Skip("tests/test_a.py", "", "", None).covers("tests/test_a.py::test_b")


def test_the_place_of_every_row_exists() -> None:
    assert [row.place for row in SKIPS if not (ROOT / row.place).exists()] == []


def test_the_environments_of_the_checks_run_what_is_skipped_without_them() -> None:
    script = (ROOT / ".ci/run").read_text("utf-8")
    for environment in (TORCH, JAX):
        assert f"tests/{environment}" in [row.place for row in SKIPS if row.why == environment]
        assert re.search(rf"^ +framework {environment}\b", script, re.MULTILINE)


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_a_run_writes_down_what_another_environment_is_to_run(
    tmp_path: Path, processes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDP2_SKIPPED", str(tmp_path / "skipped"))
    row = ALLOWED.replace("'why'", "'torch'").format(due=None)
    other = "Skip('test_some.py', 'no such', 'by hand', None)"
    assert run(tmp_path, f"{row}, {other}", *processes)[0] == 0
    assert (tmp_path / "skipped").read_text() == "torch\ttest_some.py::test_that_is_skipped\n"

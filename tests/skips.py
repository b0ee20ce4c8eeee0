"""Which tests may be skipped where ``CI`` is set, and why; every other skip fails the run there.

A run with less in it than it should have looks like one in which all is well. So a skip that no row of :data:`SKIPS`
allows fails the run, and so does a row whose skips are due in this environment and do not come: it is to be deleted.
Where a run is asked for single tests of a file, no row of that file has to come true.

Where ``PYDP2_SKIPPED`` names a file, the run writes there what another environment of ``.ci/run`` has to run: a line
for each test or file that was skipped, the name of the environment, a tab, and the place as pytest takes it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Skip:
    """Skips of tests below ``place``, a folder or a file, whose reason contains ``reason``. ``why``: why CI does
    without them, or TORCH or JAX, the environment of ``.ci/run`` that runs them. ``due``: whether this environment
    skips them; None where only the tests know."""

    place: str
    reason: str
    why: str
    due: bool | None

    def allows(self, path: str, reason: str) -> bool:
        """Whether it is about this skip, and the skip may be."""
        return self.due is not False and self.covers(path) and self.reason in reason

    def covers(self, path: str) -> bool:
        """Whether the test, or file of tests, ``path`` is below the place."""
        return f"{path}/".startswith(f"{self.place}/") or path.startswith(f"{self.place}::")


def lacks(module: str) -> bool:
    """Whether ``module`` is not installed."""
    return importlib.util.find_spec(module) is None


class SkipLedger:
    """The plugin of a run: what was looked at, what was skipped, and what is wrong with that."""

    def __init__(self, table: Sequence[Skip]) -> None:
        self._table = table
        self._seen: set[str] = set()
        self._skipped: dict[str, str] = {}
        self._in_part: set[str] = set()  # files of which single tests were asked for

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file or folder of tests may be skipped as a whole."""
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Also called, by pytest-xdist, for the tests that other processes ran."""
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        self._seen.add(report.nodeid)
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[report.nodeid] = reason_of(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that is green otherwise ends with 1."""
        self._note_parts(session.config)
        if file := os.environ.get("PYDP2_SKIPPED"):
            Path(file).write_text("".join(f"{line}\n" for line in self.elsewhere()), "utf-8")
        if session.exitstatus == pytest.ExitCode.OK and any(self.findings()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is wrong, before the closing line."""
        if found := list(self.findings()):
            terminalreporter.section("skips that tests/skips.py does not have, or has in vain", red=True)
            for line in found:
                terminalreporter.write_line(line)

    def _note_parts(self, config: pytest.Config) -> None:
        """Look at what was asked for."""
        asked = [arg.partition("::") for arg in config.args]
        root, here = config.rootpath, config.invocation_params.dir
        places = [(os.path.relpath(here / file, root), test) for file, _, test in asked]
        self._in_part = {file for file, test in places if test} - {file for file, test in places if not test}

    def elsewhere(self) -> Iterator[str]:
        """A line for each skip of a test that another environment runs."""
        for path, reason in sorted(self._skipped.items()):
            for why in sorted({row.why for row in self._table if row.allows(path, reason)} & {TORCH, JAX}):
                yield f"{why}\t{_GROUP.sub('', path)}"

    def findings(self) -> Iterator[str]:
        """A line for each skip that is not allowed, and for each row that is due and does not come true."""
        for path, reason in sorted(self._skipped.items()):
            if not any(row.allows(path, reason) for row in self._table):
                yield f"{path} was skipped, and no row allows it: {reason}"
        for row in self._table:
            came = any(row.allows(path, reason) for path, reason in self._skipped.items())
            looked_at = any(row.covers(path) for path in self._seen if path.partition("::")[0] not in self._in_part)
            if row.due and not came and looked_at:
                yield f"nothing of {row.place} was skipped because of {row.reason!r}: delete the row"


def reason_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why a report says that a test was skipped."""
    place_and_reason = report.longrepr
    return str(place_and_reason[2] if isinstance(place_and_reason, tuple) else place_and_reason)


def rows(places: str, reason: str, why: str, due: bool | None) -> list[Skip]:
    """A row for each of the places, which are parted by blanks."""
    return [Skip(f"tests/{place}", reason, why, due) for place in places.split()]


TORCH, JAX = "torch", "jax"
_GROUP = re.compile(r"@\w+$")  # of a test that pytest-xdist keeps beside others
_BY_HAND = "a command of CONTRIBUTING.md runs it, by hand"
_NO_GPU = "machines of CI have no GPU"
_ROOT = os.geteuid() == 0
_GPU = Path("/dev/nvidiactl").exists()

SKIPS = [
    *rows("torch", "could not import 'torch'", TORCH, lacks("torch")),
    *rows("benchmarks/test_tensors.py benchmarks/test_training.py", "could not import 'torch'", TORCH, lacks("torch")),
    *rows("fluid/test_buffering.py benchmarks/test_same_job.py", "could not import 'torch'", TORCH, lacks("torch")),
    *rows("workers/test_open_files.py", "could not import 'torch'", TORCH, lacks("torch")),
    *rows("test_docs.py", "torch is not installed", TORCH, lacks("torch")),
    *rows("resume/test_example.py", "torch is not installed", "slow, and CI runs no slow test", None),
    *rows("cli/test_demo.py cli/test_picture.py", "matplotlib is not installed", TORCH, lacks("matplotlib")),
    *rows("columns/test_batch.py packers/test_packer.py", "could not import 'ml_dtypes'", TORCH, lacks("ml_dtypes")),
    *rows("schema/test_input_types.py", "could not import 'ml_dtypes'", TORCH, lacks("ml_dtypes")),
    *rows("conformance/test_strings.py", "could not import 'ml_dtypes'", TORCH, lacks("ml_dtypes")),
    *rows("providers/test_notebook.py", "could not import 'ml_dtypes'", TORCH, lacks("ml_dtypes")),
    *rows("providers/test_notebook.py", "ipykernel is not installed", TORCH, lacks("ipykernel")),
    *rows("columns/test_strings.py", "could not import 'pyarrow'", TORCH, lacks("pyarrow")),
    *rows("packers/test_arrow_values.py", "could not import 'pyarrow'", TORCH, lacks("pyarrow")),
    *rows("formats/test_parquet.py formats/test_arrow.py", "could not import 'pyarrow'", TORCH, lacks("pyarrow")),
    *rows("formats/test_csv.py", "could not import 'pyarrow'", TORCH, lacks("pyarrow")),
    *rows("formats/test_hdf5.py", "could not import 'h5py'", TORCH, lacks("h5py")),
    *rows("formats/test_zarr.py", "could not import 'zarr'", TORCH, lacks("zarr")),
    *rows("formats/test_lmdb.py", "could not import 'lmdb'", TORCH, lacks("lmdb")),
    *rows("remote/test_azure.py", "azurite-blob is not installed", ".ci/run installs it later, with npm", None),
    *rows("page/test_browser.py", "not installed", ".ci/run installs Chromium later", None),
    *rows("formats/test_lance.py", "could not import 'lance'", _BY_HAND, lacks("lance")),
    *rows("sample_data/test_samples.py", "scikit-learn carries the source", TORCH, lacks("sklearn")),
    *rows("columns/test_batch.py", "torch is installed", "the environment without torch runs it", not lacks("torch")),
    *rows("jax", "could not import 'jax'", JAX, lacks("jax")),
    *rows("frameworks/test_loader_contract.py", "torch is not installed", TORCH, lacks("torch")),
    *rows("frameworks/test_loader_contract.py", "jax is not installed", JAX, lacks("jax")),
    *rows("frameworks/test_loader_contract.py", "tensorflow is not installed", _BY_HAND, lacks("tensorflow")),
    *rows("frameworks/test_loader_contract.py", "paddle is not installed", _BY_HAND, lacks("paddle")),
    *rows("test_docs.py", "pyarrow is not installed", TORCH, lacks("pyarrow")),
    *rows("test_docs.py", "jax is not installed", JAX, lacks("jax")),
    *rows("paddle", "could not import 'paddle'", _BY_HAND, lacks("paddle")),
    *rows("tf", "could not import 'tensorflow'", _BY_HAND, lacks("tensorflow")),
    *rows("ray", "could not import 'ray'", _BY_HAND, lacks("ray")),
    *rows("dropins/test_ray_train.py test_docs.py", "ray is not installed", _BY_HAND, lacks("ray")),
    *rows("dropins/test_nemo.py", "nemo_automodel is not installed", _BY_HAND, lacks("nemo_automodel")),
    *rows("dropins/test_maxtext.py", "maxtext is not installed", _BY_HAND, lacks("maxtext")),
    *rows("test_docs.py", "torchtitan is not installed", _BY_HAND, lacks("torchtitan") and not lacks("torch")),
    *rows("dropins/test_torchtitan.py", "torchtitan is not installed", _BY_HAND, lacks("torchtitan")),
    *rows("dropins/test_trainer.py", "datasets is not installed", _BY_HAND, lacks("datasets")),
    *rows("dropins/test_trainer.py", "trl is not installed", _BY_HAND, lacks("trl")),
    *rows("dropins", "torch is not installed", TORCH, lacks("torch")),
    *rows("test_docs.py", "paddle is not installed", _BY_HAND, lacks("paddle")),
    *rows("test_docs.py", "tensorflow is not installed", _BY_HAND, lacks("tensorflow")),
    *rows("test_docs.py", "keras is not installed", _BY_HAND, lacks("keras")),
    *rows("remote/test_s3.py", "could not import 'moto'", TORCH, lacks("moto")),
    *rows("remote/test_hugging_face.py", "could not import 'huggingface_hub'", TORCH, lacks("huggingface_hub")),
    *rows("torch/test_cuda.py", "no CUDA device", _NO_GPU, not _GPU and not lacks("torch")),
    *rows("torch/test_cuda.py", "the CPU has no streams", _NO_GPU, not lacks("torch")),
    *rows("jax/test_gpu.py", "jax has no GPU", _NO_GPU, not _GPU and not lacks("jax")),
    *rows("server/test_state_dir.py server/test_quarantine.py", "root may write everything", "not as root", _ROOT),
    *rows("cache/test_file_format.py", "only root can give a file", "as root", not _ROOT),
    *rows("api/test_access.py transport/test_strangers.py", "only root can be somebody else", "as root", not _ROOT),
    *rows("cli/test_completion.py", "zsh is not installed", "no shell of CI", shutil.which("zsh") is None),
    *rows("cli/test_completion.py", "fish is not installed", "no shell of CI", shutil.which("fish") is None),
    *rows("system/test_cgroups.py", "no control group for", "not where groups are read-only, as in a container", None),
    *rows("faults/test_battery.py", "no control group with a limit", "as above", None),
    *rows("faults/test_battery.py", "no rights for a network of its own", "as root, with ip and tc", None),
    *rows("faults/test_battery.py", "this machine cannot do it", "as above", None),
    *rows("restart/test_network.py", "this machine has no IPv6 loopback", "not where a container has none", None),
    *rows("options/test_file_list.py", "this file system has UTF-8 names only", "not on such file systems", None),
    *rows("diagnostics/test_bench.py", "other processes had the cores", "not while the machine is in use", None),
    *rows(
        "conformance/test_real_files.py fluid/test_recordio.py formats/test_comma.py formats/test_dmlc_recordio.py "
        "formats/test_idx.py formats/test_libsvm.py formats/test_paddle_recordio.py mx/test_mnist_iter.py "
        "reader/test_creators.py",
        "beside the checkout", "files that the project does not ship", None,
    ),
]  # fmt: skip

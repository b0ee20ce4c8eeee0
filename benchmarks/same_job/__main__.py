"""``python -m benchmarks.same_job``: the number of lines of the job for each loader, and whether it resumes exactly."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_DIGITS = _ROOT / "sample_data" / "digits"
LOADERS = ("pydp2", "torchdata", "mosaicml", "grain", "spdl")
_STOP = 60  # step at which the job is stopped, in the second epoch
_DEADLINE = 120.0  # seconds for one process
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def code_lines(source: str) -> int:
    """Return the number of lines of ``source`` with code, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    begins_statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _NO_CODE or token.type == tokenize.ENDMARKER:
            begins_statement = begins_statement or token.type == tokenize.NEWLINE
            continue
        if not (begins_statement and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins_statement = False
    return len(lines)


def lines_of(loader: str) -> int:
    """Return the number of lines of a job, with its provider if it has one."""
    files = [_HERE / f"with_{loader}.py"] + [_DIGITS / "digits_provider.py"] * (loader == "pydp2")
    return sum(code_lines(file.read_text()) for file in files)


def steps_of(loader: str, python: str, folder: Path, checkpoint: str, stop: int | None = None) -> list[str]:
    """Run the job in a separate process, and return the line that it prints for each step."""
    command = [python, "-m", "benchmarks.same_job.run", loader, "--checkpoint", checkpoint]
    command += [] if stop is None else ["--stop", str(stop)]
    paths = os.pathsep.join([str(_ROOT), str(folder)])
    out, errors = folder / "steps.txt", folder / "errors.txt"
    with out.open("w") as steps, errors.open("w") as stderr:  # files: workers that a stop leaves would keep a pipe open
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=steps,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = process.wait(_DEADLINE)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all processes have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status:
        raise SystemExit(f"{loader}: {errors.read_text().strip()[-2000:]}")
    return out.read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_job", description=__doc__)
    parser.add_argument("--loader", nargs="+", choices=LOADERS, default=LOADERS, help="default: all")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the loaders")
    given = parser.parse_args()
    for loader in given.loader:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in _DIGITS.iterdir():
                shutil.copy(file, folder)
            whole = steps_of(loader, given.python, folder, "none")
            parts = steps_of(loader, given.python, folder, "state", _STOP) + steps_of(
                loader, given.python, folder, "state"
            )
        samples = sum(int(step.split()[1]) for step in whole)
        resumed = "goes on with the same steps" if parts == whole else "goes on with other steps"
        print(f"{loader}: {lines_of(loader)} lines, {samples} samples in {len(whole)} steps; {resumed}", flush=True)


if __name__ == "__main__":
    main()

"""Lance: what pylance wrote is served, in parts, from any row on, single rows; else it is refused.

Nothing here uses pylance in the process of the tests, because it starts threads that stay.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError
from pydp2.file_parts import part_entries
from pydp2.formats import lance as lance_format

if importlib.util.find_spec("lance") is None:
    pytest.skip("could not import 'lance'", allow_module_level=True)

N = 500
WRITER = """
import sys
import lance, numpy as np, pyarrow as pa
count = 500
table = pa.table({
    "x": np.arange(count, dtype=np.float32),
    "text": [f"número {i}" for i in range(count)],
    "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * count, dtype=np.int16)), 2),
    "at": [{"a": i, "b": str(i)} for i in range(count)],
    "gap": [None if i == 7 else i for i in range(count)],
})
lance.write_dataset(table, sys.argv[1], max_rows_per_file=150)
"""


def run(code: str, *arguments: Path | str, seconds: float = 60) -> str:
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lance") / "a.lance"
    run(WRITER, path)
    return path


CHECK = """
import random, sys
import numpy as np
from pydp2.file_parts import FilePart
from pydp2.formats import lance
from unittest.mock import patch

def listed(**options):
    return [row for batch in lance.read(sys.argv[1], columns=["x", "at.b"], **options) for row in batch.to_pylist()]

whole = listed()
assert [row["x"] for row in whole] == list(range(500)), whole[:3]
draw = random.Random(0)
for round in range(12):
    with patch.object(lance, "rows_of_block", lambda *_: draw.choice([7, 100, 16384])):
        count = draw.randint(1, 5)
        parts = [listed(part=FilePart(i, count)) for i in range(count)]
        assert [row for part in parts for row in part] == whole
        index, start = draw.randrange(count), draw.randint(0, 200)
        assert listed(part=FilePart(index, count), start=start) == parts[index][start:]
        some = sorted(draw.sample(range(len(parts[index])), draw.randint(0, 40)))
        options = {"part": FilePart(index, count), "indices": np.array(some, np.int64)}
        assert listed(**options) == [parts[index][i] for i in some]
"""


def test_parts_are_complete_and_starts_and_single_rows_are_those_of_the_part(folder: Path) -> None:
    run(CHECK, folder)


def test_a_service_serves_all_rows_in_order(folder: Path) -> None:
    seen: dict[str, list[Any]] = {name: [] for name in ("x", "text", "vector", "at.a", "at.b", "gap")}
    with pydp2.load(
        list(part_entries(str(folder), 3)), args={"nulls": {"gap": -1}}, batch_size=64, shuffle=False, workers=2
    ) as data:
        for batch in data:
            for name, values in seen.items():
                values += batch[name].tolist() if hasattr(batch[name], "tolist") else batch[name].to_list()
    assert seen == {
        "x": list(range(N)),
        "text": [f"número {i}" for i in range(N)],
        "vector": [[2 * i, 2 * i + 1] for i in range(N)],
        "at.a": list(range(N)),
        "at.b": [str(i) for i in range(N)],
        "gap": [-1 if i == 7 else i for i in range(N)],
    }


def test_columns_choose_the_slots(folder: Path) -> None:
    with pydp2.load([str(folder)], args={"columns": ["at.b", "x"]}, batch_size=10, shuffle=False) as data:
        batch = next(iter(data))
        assert (batch["at.b"][3], batch["x"][3]) == ("3", 3.0)
    with pytest.raises(ProviderError, match="has no column y"):
        pydp2.load([str(folder)], args={"columns": ["y"]}, batch_size=10)


ERRORS = """
import json, sys
from pathlib import Path
from pydp2.errors import FormatError
from pydp2.formats import lance

def error():
    try:
        list(lance.read(sys.argv[1]))
    except (FormatError, OSError) as found:
        return f"{type(found).__name__}: {found}"
    return "none"

print(json.dumps(error()))
"""


def test_a_damaged_or_absent_table_is_an_error(folder: Path, tmp_path: Path) -> None:
    def error(path: Path) -> str:
        return str(json.loads(run(ERRORS, path)))

    assert error(tmp_path / "absent").startswith("FileNotFoundError")
    (tmp_path / "a").write_text("text")
    assert error(tmp_path / "a").endswith("a: expected a folder of Lance")
    (tmp_path / "b").mkdir()
    assert error(tmp_path / "b").startswith(f"FormatError: {tmp_path}/b: ")
    subprocess.run(["cp", "-r", folder, tmp_path / "c"], check=True)
    file = next((tmp_path / "c/data").iterdir())
    file.write_bytes(file.read_bytes()[:-30])
    assert error(tmp_path / "c").startswith(f"FormatError: {tmp_path}/c: ")
    file.unlink()
    assert error(tmp_path / "c").startswith(f"FormatError: {tmp_path}/c: ")


@pytest.mark.parametrize("where", ["imported", "used"])
def test_a_service_starts_again_and_again_without_a_hang(where: str, folder: Path) -> None:
    """Each start has a worker that is forked, or not, from a process that has imported pylance, or used it."""
    if where == "used":
        for _ in range(3):
            with pydp2.load([str(folder)], args={"columns": ["x"]}, batch_size=N, workers=2) as data:
                assert sum(len(batch) for batch in data) == N
        return
    code = """
import pydp2, sys, lance
if __name__ == "__main__":
    for _ in range(3):
        with pydp2.load([sys.argv[1]], args={"columns": ["x"]}, batch_size=500, workers=2) as data:
            assert sum(len(batch) for batch in data) == 500
"""
    script = folder.parent / "starts.py"
    script.write_text(code)
    command = [sys.executable, "-W", "ignore", str(script), str(folder)]
    subprocess.run(command, check=True, timeout=60, env={**os.environ})


def test_without_pylance_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ImportError, match="pip install 'pylance>=4'"):
        list(lance_format.read(tmp_path))

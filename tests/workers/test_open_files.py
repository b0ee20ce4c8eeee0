"""What the module or the hook leaves open: workers that would share its position prepare for themselves."""

from __future__ import annotations

import json
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pydp2
from pydp2.api.sources import resolve_source
from pydp2.diagnostics.local_provider import provider_spec
from pydp2.diagnostics.provider_bench import measure_alone
from pydp2.options.file_list import FileList

EACH = "pydp2: each worker imports the provider and runs its init_hook for itself: "
SHARED = "they leave {file} open, and forked workers would share one position in it\n"
SIZE = 20_000
NAMES = [f"part{number}" for number in range(24)]
PROVIDER = """
import ctypes, io, json, mmap, multiprocessing, os, sqlite3, tarfile, zipfile
import numpy as np
{module}

def hook(settings, **kwargs):
    {hook}

def read(settings, name):
    {read}

@provider(input_types=[dense_vector({size}, dtype="uint8")], init_hook=hook, should_shuffle=False)
def process(settings, filename):
    for _ in range(4):
        yield np.frombuffer(read(settings, filename), np.uint8)
"""
WAYS = {
    "ZipFile": ("", "settings.file = zipfile.ZipFile('data.zip')", "return settings.file.read(name)"),
    "TarFile": ("", "settings.file = tarfile.open('data.tar')", "return settings.file.extractfile(name).read()"),
    "open in the hook": (
        "index = json.load(open('index.json'))", "settings.file = open('data.bin', 'rb')",
        "settings.file.seek(index[name]); return settings.file.read(SIZE)"),
    "open in the module": (
        "index = json.load(open('index.json')); file = open('data.bin', 'rb', buffering=0)", "pass",
        "file.seek(index[name]); return file.read(SIZE)"),
    "C library": (
        "index = json.load(open('index.json')); c = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p",
        "settings.file = ctypes.c_void_p(c.fopen(b'data.bin', b'rb'))",
        "b = ctypes.create_string_buffer(SIZE); c.fseek(settings.file, ctypes.c_long(index[name]), 0); "
        "assert c.fread(b, 1, SIZE, settings.file) == SIZE; return b.raw"),
    "database": (
        "", "settings.file = sqlite3.connect('data.db')",
        "return settings.file.execute('select data from parts where name = ?', [name]).fetchone()[0]"),
}  # fmt: skip
HARMLESS = {
    "closed again": ("", "settings.data = {n: zipfile.ZipFile('data.zip').read(n) for n in kwargs['file_list']}",
                     "return settings.data[name]"),
    "memory maps": ("index = json.load(open('index.json'))",
                    "settings.data = np.memmap('data.bin', np.uint8, 'r'); settings.other = np.load('zeros.npy', 'r')",
                    "return settings.data[index[name] : index[name] + SIZE].tobytes()"),
    "a log and shared numbers": (
        "index = json.load(open('index.json')); import logging; logging.getLogger('own').addHandler("
        "logging.FileHandler('log'))",
        "settings.log = open('log2', 'w'); settings.count = multiprocessing.Value('q', 0)",
        "f = open('data.bin', 'rb'); f.seek(index[name]); return f.read(SIZE)"),
}  # fmt: skip
FILES = {"ZipFile": "data.zip", "TarFile": "data.tar", "database": "data.db"}


def _content(name: str) -> bytes:
    return bytes([NAMES.index(name) + 1]) * SIZE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive, tarfile.open(tmp_path / "data.tar", "w") as tar:
        for name in NAMES:
            (tmp_path / name).write_bytes(_content(name))
            archive.write(tmp_path / name, name)
            tar.add(tmp_path / name, name)
    (tmp_path / "data.bin").write_bytes(b"".join(map(_content, NAMES)))
    (tmp_path / "index.json").write_text(json.dumps({name: number * SIZE for number, name in enumerate(NAMES)}))
    np.save(tmp_path / "zeros.npy", np.zeros(1000))
    database = sqlite3.connect(tmp_path / "data.db")
    database.execute("create table parts(name, data)")
    database.executemany("insert into parts values(?, ?)", [(name, _content(name)) for name in NAMES])
    database.commit()
    database.close()
    return tmp_path


def _values(provider: str, folder: Path, start: str = "auto") -> list[int]:
    """The first value of each sample, whose values are all equal."""
    with pydp2.load(NAMES, provider, batch_size=8, workers=3, root=folder, start=start) as data:
        found = [row for batch in data for row in batch[0]]
    assert all((row == row[0]).all() for row in found)
    return [int(row[0]) for row in found]


def _code(way: tuple[str, str, str]) -> str:
    module, hook, read = way
    return PROVIDER.format(module=f"{module}\nSIZE = {SIZE}", hook=hook, read=read, size=SIZE)


@pytest.mark.parametrize("way", WAYS)
def test_workers_read_what_was_left_open_each_from_a_file_of_its_own(
    way: str, provider_file: Callable[[str], str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = _values(provider_file(_code(WAYS[way])), folder)
    assert sorted(values) == sorted([number + 1 for number in range(len(NAMES))] * 4)
    reason = SHARED.format(file=folder / FILES.get(way, "data.bin"))
    assert capfd.readouterr().err.count(EACH + reason) == 1


@pytest.mark.parametrize("way", HARMLESS)
def test_what_workers_may_share_is_prepared_once(
    way: str, provider_file: Callable[[str], str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = _values(provider_file(_code(HARMLESS[way])), folder)
    assert sorted(values) == sorted([number + 1 for number in range(len(NAMES))] * 4)
    assert EACH not in capfd.readouterr().err


def test_a_provider_that_imports_torch_is_prepared_once(
    provider_file: Callable[[str], str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    way = ("import torch", "settings.net = torch.nn.Linear(2, 2)", "return open(name, 'rb').read()")
    _values(provider_file(_code(way)), folder)
    assert EACH not in capfd.readouterr().err


def test_the_measure_of_a_provider_alone_has_a_file_for_each_process(
    provider_file: Callable[[str], str], folder: Path
) -> None:
    source = resolve_source(NAMES, provider_file(_code(WAYS["ZipFile"])), None, None, folder)
    spec = provider_spec(source, None)
    rates = measure_alone(spec, FileList.of(NAMES), units=3, seconds=0.5)
    assert rates.packed.samples > 0

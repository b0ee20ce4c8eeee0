"""Damaged files of every format: each is read or refused with a FormatError, within a bound of memory.

    python -m tests.formats.fuzz --count 100000

plays so many files of each kind and shows a table; a file on which something else happens is printed as bytes, with the
command that plays it again, and the exit code is 1. The suite plays some hundred of each kind.

What a header claims must not decide about memory. So for each file the most that Python and numpy had allocated at a
time is compared with 4 times what came out of it (or its own size, if that is more) and 1 MB; what libraries allocate
by themselves is held by a limit on the address space of the process, and by how far the process grew.

This program never stops its trace of memory: before 3.12.9, Python crashes if a thread of a library takes memory for
Python meanwhile (python/cpython#128679). The threads of pyarrow do, a moment after it gave what was asked for.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import os
import random
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import zstandard
from rich.console import Console

from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE
from pydp2.formats import (
    arrow,
    comma,
    csv,
    decoders,
    dmlc_recordio,
    hdf5,
    idx,
    irheader,
    jsonl,
    libsvm,
    lst,
    mds,
    paddle_recordio,
    parquet,
    record_index,
    row_arrays,
    snappy_frames,
    tar,
    tfrecord,
    tokens,
    zarr,
)
from pydp2.formats.arrow_tables import TableSlots
from pydp2.formats.crc32c import masked_crc32c
from pydp2.formats.paddle_recordio import Layout
from pydp2.providers.address import resolve

from . import mds_folders

LIMIT = 1 << 20
"""The cap on compressed input that the readers are given here."""
TIMES, SLACK = 4, 1 << 20
_ROOM = 256 << 20  # of address space, beyond what the process has when it begins
_GROWTH = 16 << 20  # of the process, over all files of a kind: what allocators keep


class Kind(NamedTuple):
    """How whole files look, and what comes out of one: its sizes in bytes. ``wrap`` puts on the outside what would
    otherwise refuse nearly every damaged file at once: a sum, or compression. ``has_threads``: the library that reads
    it has threads of its own, so only this program may play it."""

    seeds: list[bytes]
    read: Callable[[bytes], Iterator[int]]
    wrap: Callable[[bytes], bytes] | None = None
    has_threads: bool = False

    def whole_files(self) -> list[bytes]:
        return self.seeds if self.wrap is None else [self.wrap(seed) for seed in self.seeds]


def _made(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


_RECORDS = [
    b"",
    b"a",
    b"bcd" * 5,
    bytes(range(256)),
    dmlc_recordio.MAGIC,
    b"abcd" + dmlc_recordio.MAGIC * 2,
    b"\0" * 900,
]
_ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(4, 3, 2),
    np.linspace(-3, 3, 7, dtype=np.float64),
    np.arange(300, dtype=np.int32).reshape(100, 3),
    np.zeros((0, 5), np.int16),
]
_IDX = [_made(lambda f, a=a: idx.write(f, a)) for a in _ARRAYS]  # type: ignore[misc]  # a is one of them
_CSV = [
    b"1,2,3\n4,5,6\n",
    b"\xef\xbb\xbf1.5,-2e3\r\n\r\nnan,inf\r\n",
    b"7\r8\r9",
    _made(lambda f: comma.write(f, np.arange(300.0).reshape(60, 5))),
]
_QUOTED = [
    b'id,text,x\n1,"a, ""b""\nc",1.5\n2,,2.5\n3,d,-1e3\n',
    b"\xef\xbb\xbfa;b\r\n1;\xc3\xa9\r\n",
    b"word,n,flag\n" + b"".join(b'"%d ""x""",%d,true\n' % (i, i) for i in range(90)),
]
_SVM = [b"1 0:1 3:2.5\n0\n-1 7:1e-3 # c\n", b"+1 1:1\r\n" * 60]
_LST = [b"0\t1\ta.jpg\n7\t0.5\t2\tsome where/b.jpg\n", b"3\t1\t\xc3\xa4.png\r\n" * 100]
_INDEX = [b"0\t0\n1\t12\n", b"".join(b"%d\t%d\n" % (i, 12 * i) for i in range(60))]
_HEADERS = [
    irheader.pack(irheader.IRHeader(0, 1.0, 2), b"image"),
    irheader.pack(irheader.IRHeader(0, [1.0] * 254, 2), b""),
]
_JSON = [
    b'{"t": "x", "i": 1, "l": [1, 2], "o": {"f": 0.5}}\n{"t": "\xc3\xa9\\n", "i": -7, "l": [], "o": {"f": 1}}\n' * 9,
    b'\xef\xbb\xbf{"i": 1, "t": "", "l": [300], "o": {"f": 2e5, "g": null}}\r\n\r\n'
    b'{"o": {"f": 1}, "i": 1, "t": "", "l": []}',
]
_NPY = [_made(lambda f, d=d: np.save(f, np.arange(200, dtype=d))) for d in ("<u2", ">i4", "<i8")]  # type: ignore[misc]
_MEGATRON = [
    b"MMIDIDX\0\0"
    + struct.pack("<QBQQ", 1, 8, count, count + 1)
    + b"".join(np.array(numbers, kind).tobytes() for numbers, kind in (
        ([200 // count] * count, "<i4"), (np.arange(count) * (400 // count), "<i8"), (np.arange(count + 1), "<i8")
    ))
    for count in (1, 4, 50)
]  # fmt: skip
_PAYLOAD = b"".join(struct.pack("<I", len(r)) + r for r in _RECORDS)


def _paddle(layout: Layout, packing: paddle_recordio.Packing) -> list[bytes]:
    def write(file: io.BytesIO, many: int) -> None:
        with paddle_recordio.Writer(file, layout=layout, packing=packing, max_records=many) as writer:
            for record in _RECORDS:
                writer.write(record)

    return [_made(lambda f: write(f, 2)), _made(lambda f: write(f, 100))]


def _chunk(layout: Layout, packing: int) -> Callable[[bytes], bytes]:
    """A chunk around a payload, with the right sum."""

    def wrap(payload: bytes) -> bytes:
        count = len(_RECORDS)
        words = (zlib.crc32(payload), packing, len(payload), count)
        if layout == "fluid":
            words = (count, *words[:3])
        return struct.pack("<5I", paddle_recordio.MAGIC, *words) + payload

    return wrap


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _zstd(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=True)
    return packer.compress(data[:99]) + b"\x50\x2a\x4d\x18\2\0\0\0no" + packer.compress(data[99:])


@contextmanager
def _file(name: str, data: bytes) -> Iterator[str]:
    """A file that is there meanwhile. Its folder always has the same name: names of paths are interned, and the table
    of such texts would grow in the middle of a file."""
    folder = Path(tempfile.gettempdir(), f"pydp2-fuzz-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).write_bytes(data)
        yield str(folder / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _served(module: str, **args: Any) -> Callable[[bytes], Iterator[int]]:
    """What a ready-made provider yields of a file; a bad sample counts as refused once all others were read."""
    started = resolve(f"pydp2.formats.{module}").start(args=args)

    def read(data: bytes) -> Iterator[int]:
        with _file("a", data) as name:
            bad = None
            opened = started.open_file(name, file_index=0, seed=0, pass_id=0)
            for item in opened.iterator:
                if isinstance(item, BadSample):
                    bad = item
                else:
                    columns = item.columns(started.schema.slots, 0, len(item))
                    yield 0 if columns is None else columns.nbytes
        if bad is not None:
            raise FormatError(str(bad))

    return read


def _read_npy(data: bytes) -> Iterator[int]:
    with _file("a.npy", data) as name:
        yield from (block.nbytes for block in tokens.read(name, length=3))  # type: ignore[union-attr]  # windows


def _read_documents(data: bytes) -> Iterator[int]:
    with _file("a.idx", data), _file("a.bin", np.arange(200, dtype="<u2").tobytes()) as name:
        try:
            for block in tokens.read(name):
                yield block.values.nbytes + block.sequence_start_positions.nbytes  # type: ignore[union-attr]
        except OptionError:  # it is no index any more
            raise FormatError("no index") from None


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _example() -> bytes:
    """An Example with a list of each kind: the integers 1, 300 and -1, two floats, two texts."""
    integers = b"\x01\xac\x02" + b"\xff" * 9 + b"\x01"
    lists = {
        b"i": _field(3, _field(1, integers)),
        b"f": _field(2, _field(1, struct.pack("<2f", 0.5, 1e30))),
        b"b": _field(1, _field(1, b"xy") + _field(1, b"")),
        b"u": _field(3, b"\x08\x07\x08\x09"),
    }
    return _field(1, b"".join(_field(1, _field(1, name) + _field(2, value)) for name, value in lists.items()))


def _records(*data: bytes) -> bytes:
    lengths = (struct.pack("<Q", len(one)) for one in data)
    return b"".join(
        length + struct.pack("<I", masked_crc32c(length)) + one + struct.pack("<I", masked_crc32c(one))
        for length, one in zip(lengths, data, strict=True)
    )


def _read_tfrecord(data: bytes) -> Iterator[int]:
    return (len(repr(example)) for example in tfrecord.read(io.BytesIO(data)))


def _read_json(data: bytes) -> Iterator[int]:
    return (len(repr(record)) for record in jsonl.read(io.BytesIO(data)))


def _read_rows(data: bytes) -> Iterator[int]:
    yield idx.read(io.BytesIO(data), limit=LIMIT).nbytes


def _read_csv(data: bytes) -> Iterator[int]:
    return (rows.nbytes for rows in comma.read(io.BytesIO(data)))


def _read_svm(data: bytes) -> Iterator[int]:
    return (8 + row.indices.nbytes + row.values.nbytes for row in libsvm.read(io.BytesIO(data)))


def _read_lst(data: bytes) -> Iterator[int]:
    return (8 + 8 * len(entry.labels) + len(entry.path) for entry in lst.read(io.BytesIO(data)))


def _read_index(data: bytes) -> Iterator[int]:
    yield 16 * len(record_index.read(io.BytesIO(data)))


def _read_header(data: bytes) -> Iterator[int]:
    yield len(irheader.unpack(data)[1])


def _read_dmlc(data: bytes) -> Iterator[int]:
    return map(len, dmlc_recordio.read(io.BytesIO(data)))


def _read_paddle(data: bytes) -> Iterator[int]:
    return (4 + len(record) for record in paddle_recordio.read(io.BytesIO(data), limit=LIMIT))


def _tar(form: int) -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for i, record in enumerate(_RECORDS[1:4]):
                for name in (f"folder/{i}.bin", f"{'n' * 101}{i}.a.txt"):
                    info = tarfile.TarInfo(name)
                    info.size, info.mtime = len(record), i + 0.5
                    archive.addfile(info, io.BytesIO(record))

    return _made(write)


_TARS = [_tar(tarfile.GNU_FORMAT), _tar(tarfile.PAX_FORMAT)]


def _with_right_sums(data: bytes) -> bytes:
    """A tar archive in which the sum of each header is right."""
    blocks = [bytearray(data[at : at + 512]) for at in range(0, len(data), 512)]
    for block in blocks:
        if block[257:262] == b"ustar" and len(block) == 512:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
    return b"".join(blocks)


def _read_tar(data: bytes) -> Iterator[int]:
    for sample in tar.read(io.BytesIO(data), limit=LIMIT):
        yield sum(map(len, sample.values()))


_NPY = [_made(lambda f, a=a: np.save(f, a)) for a in _ARRAYS]  # type: ignore[misc]  # as above


def _read_npy(data: bytes) -> Iterator[int]:
    try:
        yield decoders.npy_array(data).nbytes
    except ValueError as error:
        raise FormatError(str(error)) from error


def _served_tables(name: str, schema: Any, batches: Iterator[Any]) -> Iterator[int]:
    """The bytes of tables as a provider serves them."""
    try:
        slots = TableSlots(name, schema, None, {})
    except (OptionError, OptionTypeError) as error:  # of a type that no slot takes
        raise FormatError(str(error), file=name) from error
    for batch in batches:
        for samples in slots.samples(batch):
            yield batch.nbytes * len(samples) // len(batch) if isinstance(samples, ManySamples) else 0


def _read_parquet(data: bytes) -> Iterator[int]:
    with parquet.Reader(io.BytesIO(data)) as reader:
        yield from _served_tables(reader.name, reader.schema, reader.batches(WHOLE_FILE, 0, None))


def _read_arrow(data: bytes) -> Iterator[int]:
    with arrow.Reader(io.BytesIO(data)) as reader:
        yield from _served_tables(reader.name, reader.schema, reader.batches(WHOLE_FILE))


def _read_quoted(data: bytes) -> Iterator[int]:
    dialect = csv.Dialect()
    with csv.Reader(io.BytesIO(data), dialect) as reader:
        try:
            types = csv.inferred_types(reader, dialect, {}, None)
        except OptionError as error:  # a column without values
            raise FormatError(str(error), file="") from error
        for item in reader.batches(WHOLE_FILE, 0, types, None) if reader.names else ():
            yield 0 if isinstance(item, FormatError) else item.nbytes


def kinds() -> dict[str, Kind]:
    """All of them by name."""
    any(_read_npy(_NPY[0]))  # what is imported at the first file is no memory that the file takes
    any(_read_documents(_MEGATRON[0]))
    made = {
        "idx": Kind(_IDX, _read_rows),
        "idx gzip": Kind([_packed(data) for data in _IDX], _read_rows),
        "idx in gzip": Kind(_IDX, _read_rows, _packed),
        "csv": Kind(_CSV, _read_csv),
        "csv in gzip": Kind(_CSV, _read_csv, _packed),
        "libsvm": Kind(_SVM, _read_svm),
        "lst": Kind(_LST, _read_lst),
        "index": Kind(_INDEX, _read_index),
        "IRHeader": Kind(_HEADERS, _read_header),
        "jsonl": Kind(_JSON, _read_json),
        "jsonl served": Kind(_JSON, _served("jsonl", fields={"t": "text", "i": "int", "l": "ints", "o.f": "float"})),
        "jsonl zstd": Kind([_zstd(data) for data in _JSON], _read_json),
        "jsonl in zstd": Kind(_JSON, _read_json, _zstd),
        "tfrecord": Kind([_records(*[_example()] * 9), _records(b"", _example())], _read_tfrecord),
        "tfrecord gzip": Kind([_packed(_records(*[_example()] * 9))], _read_tfrecord),
        "tfrecord, right sums": Kind([_example()], _read_tfrecord, _records),
        "tfrecord served, right sums": Kind(
            [_example()],
            _served("tfrecord", features={"i": "ints", "f": "float[2]", "b": "texts", "u": "ints"}),
            lambda data: _records(_example(), data),
        ),
        "tokens npy": Kind(_NPY, _read_npy),
        "tokens index": Kind(_MEGATRON, _read_documents),
        "tar": Kind(_TARS, _read_tar),
        "tar, right sums": Kind(_TARS, _read_tar, _with_right_sums),
        "tar in gzip, right sums": Kind(_TARS, _read_tar, lambda data: _packed(_with_right_sums(data))),
        "npy": Kind(_NPY, _read_npy),
        "mds": _mds_kind(mds_folders.ALL),
        "mds gzip": _mds_kind(mds_folders.FEW_GZ),
        "mds zstd": _mds_kind(mds_folders.FEW_ZSTD),
        "dmlc": Kind([_made(lambda f: dmlc_recordio.write(f, _RECORDS))], _read_dmlc),
    }
    for layout in ("go", "fluid"):
        blocks = layout == "fluid"
        snappy = snappy_frames.pack(_PAYLOAD, blocks=blocks)
        made |= {
            f"paddle {layout}": Kind(_paddle(layout, "none"), _read_paddle),
            f"paddle {layout} snappy": Kind(_paddle(layout, "snappy"), _read_paddle),
            f"paddle {layout}, right sum": Kind([_PAYLOAD], _read_paddle, _chunk(layout, 0)),
            f"paddle {layout} snappy, right sum": Kind([snappy], _read_paddle, _chunk(layout, 1)),
            # what is damaged lies inside snappy, whose own sums are right too
            f"paddle {layout} in snappy": Kind(
                [_PAYLOAD],
                _read_paddle,
                lambda data, layout=layout, blocks=blocks: _chunk(layout, 1)(snappy_frames.pack(data, blocks=blocks)),  # type: ignore[misc]
            ),
        }
    packed = zlib.compress(_PAYLOAD, wbits=31)
    made["paddle go gzip, right sum"] = Kind([packed], _read_paddle, _chunk("go", 2))
    made["paddle go in gzip"] = Kind(
        [_PAYLOAD], _read_paddle, lambda data: _chunk("go", 2)(zlib.compress(data, wbits=31))
    )
    return made | _arrow_kinds() | _hdf5_kinds() | _zarr_kinds()


def _hdf5_kinds() -> dict[str, Kind]:
    """Those of HDF5; none where h5py is not installed."""
    try:
        import h5py
    except ImportError:
        return {}

    def write(file: io.BytesIO, options: dict[str, Any]) -> None:
        with h5py.File(file, "w") as made:
            made.create_dataset("x", data=np.arange(400, dtype=np.float32).reshape(200, 2), **options)
            made.create_dataset("text", data=np.array([b"a", b"bc", b"", b"d"] * 50))  # others may hang HDF5
            made.create_dataset("t", data=np.zeros(200, np.dtype([("a", "i4"), ("b", "S3")])), **options)

    options: list[dict[str, Any]] = [{}, {"chunks": True, "compression": "gzip"}, {"chunks": True, "fletcher32": True}]
    seeds = [_made(lambda f, o=o: write(f, o)) for o in options]  # type: ignore[misc]  # o is one of them
    return {"hdf5": Kind(seeds, _read_arrays(hdf5.open_arrays, "a.h5"))}


_ZARR = {
    ".zgroup": b'{"zarr_format": 2}',
    "x/.zarray": b"""{"zarr_format": 2, "shape": [400, 2], "chunks": [400, 2], "dtype": "<i4", "fill_value": 0,
        "order": "C", "filters": null, "compressor": {"id": "zlib", "level": 1}}""",
    "x/0.0": zlib.compress(np.arange(800, dtype="<i4").tobytes()),
    "t/.zarray": b"""{"zarr_format": 2, "shape": [400], "chunks": [400], "dtype": "|O", "fill_value": "",
        "order": "C", "filters": [{"id": "vlen-utf8"}], "compressor": null}""",
    "t/0": struct.pack("<I", 400) + b"".join(struct.pack("<I", i % 3) + b"a" * (i % 3) for i in range(400)),
}


def _zarr_kinds() -> dict[str, Kind]:
    """A folder of zarr; none where zarr is not installed."""
    if importlib.util.find_spec("zarr") is None:
        return {}
    names = [name for name in _ZARR if name not in (".zgroup", "t/0")]  # the last one claims any memory
    read = _read_arrays(lambda path: zarr.open_arrays(_unpacked(path, _ZARR, names)), "a")
    kind = Kind(_damageable(_ZARR, names), read)
    any(kind.read(kind.seeds[0]))  # imports much
    return {"zarr": kind}


def _damageable(files: dict[str, bytes], names: list[str]) -> list[bytes]:
    """The files that are damaged in turn, each behind a byte with its number."""
    return [bytes([number]) + files[name] for number, name in enumerate(names)]


def _unpacked(path: str, files: dict[str, bytes], names: list[str]) -> str:
    """Make a folder of ``files`` in the place of a file, whose content is one of them, damaged."""
    data = Path(path).read_bytes()
    Path(path).unlink()
    damaged = names[data[0] % len(names)] if data else ""
    for name, content in files.items():
        file = Path(path, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data[1:] if name == damaged else content)
    return path


def _mds_kind(packed: str) -> Kind:
    with tempfile.TemporaryDirectory() as folder:
        files = {file.name: file.read_bytes() for file in sorted(mds_folders.unpack(Path(folder), packed).iterdir())}
    names = ["index.json", min(name for name in files if name.startswith("shard"))]

    def read(data: bytes) -> Iterator[int]:
        with _file("a", data) as path:
            settings: Any = SimpleNamespace()
            try:
                mds._hook(settings, file_list=[_unpacked(path, files, names)], is_train=True, input_order=None)
                for samples in mds.process(settings, path, 0, None):
                    yield 4096 * len(samples) if isinstance(samples, ManySamples) else 0
            except OSError as error:  # the index names another file
                raise FormatError(str(error)) from error

    return Kind(_damageable(files, names), read)


def _read_arrays(open_file: Callable[[str], Any], name: str) -> Callable[[bytes], Iterator[int]]:
    """The bytes of the arrays of a file as a provider serves them, with chunks of at most :data:`LIMIT` bytes."""

    def read(data: bytes) -> Iterator[int]:
        with _file(name, data) as path, patch.object(row_arrays, "MOST_BYTES", LIMIT), open_file(path) as file:
            for block in file.blocks(WHOLE_FILE, 0, None):
                rows(**{key: slot.values(block) for key, slot in file.slots.items()})
                yield sum(array.nbytes for array in block.values())

    return read


def _arrow_kinds() -> dict[str, Kind]:
    """Those of formats that pyarrow reads; none where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return {}
    table = pa.table(
        {
            "x": np.arange(400, dtype=np.float32),
            "text": ["a", "bc", "é", ""] * 100,
            "word": pa.array(["one", "two"] * 200).dictionary_encode(),
            "tags": [list(range(i % 4)) for i in range(400)],
            "at": [{"flag": i % 3 == 0, "code": bytes([i % 7])} for i in range(400)],
        }
    )

    def ipc(new: Callable[..., Any], rows: int, compression: str | None = None) -> bytes:
        file = io.BytesIO()
        with new(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table, max_chunksize=rows)
        return file.getvalue()

    list(_read_quoted(_QUOTED[0]))  # the first time it imports modules, and starts a thread of pyarrow, which stays
    options: list[dict[str, Any]] = [
        {"compression": name, "row_group_size": 250} for name in ("none", "snappy", "zstd")
    ]
    options.append({"compression": "none", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 256})
    found = {
        "parquet": Kind(
            [_made(lambda f, o=o: pq.write_table(table, f, **o)) for o in options],  # type: ignore[misc]
            _read_parquet,
        ),
        "quoted csv": Kind(_QUOTED, _read_quoted),
        "quoted csv in zstd": Kind(_QUOTED, _read_quoted, lambda data: pa.Codec("zstd").compress(data).to_pybytes()),
        "arrow file": Kind([ipc(pa.ipc.new_file, 250)], _read_arrow),
        "arrow stream": Kind([ipc(pa.ipc.new_stream, 250)], _read_arrow),
        "arrow lz4": Kind([ipc(pa.ipc.new_file, rows, "lz4") for rows in (60, 400)], _read_arrow),
    }
    return {name: kind._replace(has_threads=True) for name, kind in found.items()}


_WORDS = [struct.pack(order + kind, value) for order in "<>" for kind, value in (
    ("I", 0), ("I", 1), ("I", 0x7FFFFFFF), ("I", 0x80000000), ("I", 0xFFFFFFFF), ("I", 0xFFFFFFFE), ("I", 0xFFFF),
    ("H", 0xFFFF), ("H", 0x8000), ("Q", 2**64 - 1), ("Q", 2**63), ("I", 0xCED7230A), ("I", 0x01020304),
)]  # fmt: skip
_TEXTS = [
    b",",
    b"\n",
    b"\r",
    b":",
    b"\t",
    b"#",
    b" ",
    b"-",
    b"e",
    b"nan",
    b"1e999",
    b"\xff",
    b"\0",
    b"9" * 30,
    b"\x1f\x8b",
    b'"',
    b"[[{",
    b"null",
]


def damaged(kind: Kind, draw: random.Random) -> bytes:
    """One file of ``kind`` with one to four things wrong."""
    data = bytearray(draw.choice(kind.seeds))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 1, 2, 4, 8, 60)))
        match draw.randrange(8):
            case 0:
                data[at:end] = bytes(byte ^ 1 << draw.randrange(8) for byte in data[at:end])
            case 1:
                word = draw.choice(_WORDS)
                data[at : at + len(word)] = word
            case 2:
                data[at - at % 4 : at - at % 4 + 4] = draw.choice(_WORDS)
            case 3:
                del data[at:]
            case 4:
                del data[at:end]
            case 5:
                data[at:at] = data[at:end] * draw.choice((1, 2, 50))
            case 6:
                data[at:at] = draw.choice(_TEXTS)
            case _:
                other = draw.choice(kind.seeds)
                data[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(data) if kind.wrap is None else kind.wrap(bytes(data))


class Played(NamedTuple):
    """What became of one file: whether it was read, what came out of it, the most memory meanwhile."""

    whole: bool
    out: int
    most: int


def play(kind: Kind, data: bytes) -> Played:
    """Read ``data``. Raises AssertionError for too much memory; what is no FormatError passes. Needs tracemalloc."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    out, whole = 0, True
    try:
        for size in kind.read(data):
            out += size
    except FormatError:
        whole = False
    most = tracemalloc.get_traced_memory()[1] - before
    allowed = TIMES * max(out, len(data)) + SLACK
    assert most <= allowed, f"{most} bytes were allocated, {allowed} allowed"
    return Played(whole, out, most)


def _play_again(kind: Kind, data: bytes) -> Played:
    """Play a file, and once more if it took too much: a table of the interpreter, as that of all names, may have grown
    meanwhile."""
    try:
        return play(kind, data)
    except AssertionError:
        return play(kind, data)


def rounds(
    name: str, kind: Kind, seed: int, first: int, count: int
) -> Iterator[tuple[int, bytes, Played | BaseException]]:
    """(number, file, what became of it) of each; the number and the seed make the same file again."""
    for number in range(first, first + count):
        data = damaged(kind, random.Random(f"{seed} {name} {number}"))
        try:
            yield number, data, _play_again(kind, data)
        except Exception as error:
            yield number, data, error


def _grown() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_address_space() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formats.fuzz")
    parser.add_argument("--count", type=int, default=1000, help="files of each kind; default: 1000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file; default: 0")
    parser.add_argument("--only", help="the kind; default: all")
    given = parser.parse_args(arguments)
    warnings.simplefilter("error")
    every: dict[str, Any] = {name: kind for name, kind in kinds().items() if given.only in (None, name)}
    _limit_address_space()
    tracemalloc.start()
    failed = 0
    out, notes = Console(width=120, highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    out.print(f"{'kind':34} {'files':>8} {'read':>8} {'refused':>8} {'most MB':>8} {'grew MB':>8} {'seconds':>8}")
    for name, kind in every.items():
        began, grown, read, most = time.perf_counter(), _grown(), 0, 0
        for whole_file in kind.whole_files():
            if not _play_again(kind, whole_file).whole:
                failed += 1
                notes.print(f"{name}: a file that is not damaged was refused\n  {whole_file!r}", markup=False)
        for number, data, became in rounds(name, kind, given.seed, given.first, given.count):
            if isinstance(became, Played):
                read += became.whole
                most = max(most, became.most)
                continue
            failed += 1
            notes.print(f"{name}, number {number}: {type(became).__name__}: {became}\n  {data!r}", markup=False)
            notes.print(f"  --only {name!r} --seed {given.seed} --first {number} --count 1", markup=False)
        grew = _grown() - grown
        if grew > _GROWTH:
            failed += 1
            notes.print(f"{name}: the process grew by {grew} bytes")
        seconds = time.perf_counter() - began
        refused = given.count - read
        out.print(f"{name:34} {given.count:8} {read:8} {refused:8} {most / 1e6:8.2f} {grew / 1e6:8.1f} {seconds:8.1f}")
    return 1 if failed else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's end would stop the trace

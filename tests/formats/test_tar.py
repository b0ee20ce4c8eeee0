"""WebDataset: samples in tar archives, read whole, in parts, from any sample on, and decoded."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import pydp2
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import tar, tar_headers
from pydp2.providers import resolve

PROVIDER = resolve("pydp2.formats.tar")
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "n" * 110

# GNU tar 1.34 wrote all of them but the last, with --format= their names, or with --sparse, of links, of a folder;
# TarWriter of webdataset 1.0.2 wrote the last. They are compressed by zlib.
WRITTEN = {
    "folder": (
        "c-rmPK@P$o07Oxa!U+mUfvpGVC2HEJF`-Gt=<#h_5~C}yvHxvgKN%(rN))FT!MWGD$j>)-Z>$#5i3)Dl)X!3ijT%(nq(>^Azi-<Q"
        "`P(f2VDwH%P5#AAaTM6DK^@lFe@p*sNcV{nY*?cjweO~Q?9TD>qy8K3^8Sb5gzV^lh4(*JReWr)y8OTIf7X9%jW_InmHj`>BR>ED"
        "000000002~%M+iartA"
    ),
    "gnu": (
        "c-rmPK@P$o6h%>%!U_sV3sV=+P1LkeV**LV=<-EJhKZwMWAB-K@~7nS!l;HOJ(5_G&RpBRXI9S4ew<%>Z}d(`Eh@NO(=baZHY$cm"
        "V7o?jSZDq%`L7|}BO%zZMm1{R$8hY=;qs&W8`qWj_r4RdC;t`R|4`N9WrNk-|M&hc@^7tihW@Y8|EGE42LJ#700000008hmo*A5)"
        "N&"
    ),
    "hard": (
        "c-rmMK@LDL5QX76N>9L)hVwLPOF|`%udJkdLi&H3_cHr8q4rhWqdZBI&bcd-Jd^g;&wFpR5u@^gZH<00MhZ1gqo7=&9zL-DtXpl>"
        "iLv2@=T!Lq0RR910000000000@NWmHtsvU"
    ),
    "pax": (
        "c-rmQy$*sf6b0bUJOxjHw?DLWaCh_-sx;BTpJ0tVz7+?R#2Aeb(DN-N+<}nh<RrJ8%w0Y6uJqMm;<8W&_H`6#rJ6HppF~F8o-gk?"
        "m!w%*vmP7|!Bz3|>_16LU084YlpC8DGS|Auh?B^zG&YIT<>S<3))vjQNEnP>*;VM@$v??f{z;KwDUB)r?VlTo-PR)nf1Urk{$C8J"
        "{|)+onEh`|Gu7z--^l-BnEfx&|9uFj9YTQqzxMyO8?W*&jCjnyjP=ja|9#*>r+XJx)3U4Ef8x?Q$tT+fh3&&v^WXhdzwZCMm4Br)"
        "NB{TI|EtPl0{{R3000000PwrcfPfp8"
    ),
    "soft": ("c-rmGu?>JA6h+ZL3KJ;UFpr572qum%vDDha<ecWd@@;dQ`q|@4d8oDC9iDyfl1nL(mi6;%5l8Fmo>Bk+000000002Mk6hZk5RL"),
    "sparse_gnu": (
        "c-rmIJqiLr3<l5~WlrEa680jVV8zD9VpUi?{f<`RPbDhCd(9V;A|%`Hyx8pa@kz_3&%9=HpH01~TfgS2&nWBog45wRjHSfSTu#mx"
        "AIT@*d1FC+98LiM000000002MKbiq!xfy-"
    ),
    "sparse_pax": (
        "c-rmM%}T^D6b0a{^Avr8^ya@^bgQ!xL41H{v#88eNoJtT(;Hfpp)TBvLYebXNVzu<()6USAH%eZp^quoXYn$O?CPj+#>``}9!VMX"
        "{XW;FRL-($V*lWjk0F)i*=<s)x_@{U`6Hwp#UZ@Cr%v)!br?&Pxbm0PF&tvoFaHeJ^0Jj;*yrIKJ4vRo-g8Y=I1XjL^sQ~Qb*>R)"
        "lvj?H?(2^(Ib~bz8_wVl^>sP7r}^0KhJ6%TwynMLMes}hWqDTl*T!j9(U$VR-rQF5&zFokF8Nnl37NYY6Fva|000000000000000"
        "0Kn#b0=G_Fng"
    ),
    "ustar": (
        "c-rmLF%E)25CzaZiYI^-Hr@w=tt7fej?cu3SSykEUh^l@Os4o_J2Z8!>6>ymmGa8)o}pjOu|MXLyL8BD1CM(hZgKt-Pp+TaiRpSt"
        "{I9V+|7QPt{og`;PD%g(00000006LK3wA6eF#"
    ),
    "v7": (
        "c-rmLF%E+;5ClL!g%<=+EO-wQX>nr-o{y6X(Fet1rrFbWSM1zQkG$pZOI<O<_|4*+#q)4~`mrxn6KZmPt`cc^2kvWbU;nxPX#ZEp"
        "Ycc`=00000004lB?M$v8y8"
    ),
    "webdataset": (
        "c-rln!Aiq09EY<VeTuM46~;`mbixqq$(!QEgD2^>ZcauwnkbVo*gN<XzJ=h68K(zX5kc^uXnr5<+Gb-tl&_^<YYKZPgy;-shW!@q"
        "|Ap3iyL9X>9rDw<8<(n^9x*N$0e8mcmD~MbIvM3Q|MGX=eg8)h48)B2@c-7#OK<*5vFm@T;XethR@v%vv4#n8`(G{|yj}m5s`;-4"
        "{3qe@{POJLs=@BrDj5}KSS5X)9FKL<=E-<o*(xuu=hdiq8$Zowrf}otCSMe8dtbG=I%xAX|1o<oFbw}qG3gAZr5FEe>#{4Ag8!7q"
        "-!84c`#)K`|I@OE<4=JtmX-_t@`O`i#OHq*T>t3__)md^0`TAYA6oxO;Xh&jk?22>`yX2Wk?=pF{<Ar8ADNpn80p7<zx_wn`;UhI"
        "6f~d!{CEBb*Z=VRhlFkaljwhO`>(?5e-i#vpr8Q!cm4<0|KL9f@BL4q|3&V9aQzSdlMu-JUm0T?H$P`E(vSas`=6@!KfM1#LbC}6"
        ";J*s4|0z8GBVpVB6#5?k000000000000000@Sk`E%bl#U"
    ),
}


def written(name: str) -> io.BytesIO:
    """The archive called ``name`` that another program wrote."""
    return io.BytesIO(zlib.decompress(base64.b85decode(WRITTEN[name])))


def packed(members: list[tuple[str, bytes]], form: str = "gnu", **fields: Any) -> bytes:
    """An archive of ``members``, as Python's tarfile writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[form]) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def some_members(count: int) -> list[tuple[str, bytes]]:
    return [(f"{i}.{kind}", f"{kind} {i}".encode()) for i in range(count) for kind in ("txt", "bin")]


def some_samples(count: int) -> list[dict[str, Any]]:
    return [{"key": str(i), "txt": f"txt {i}".encode(), "bin": f"bin {i}".encode()} for i in range(count)]


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


# -- archives of others ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["gnu", "pax", "ustar", "v7", "folder"])
def test_what_gnu_tar_wrote_is_read(name: str) -> None:
    have = [(sample["key"], sample["txt"]) for sample in tar.read(written(name))]
    long = [(f"d/{LONG}", b"three")] if name not in ("ustar", "v7") else []
    assert have == [("d/a", b"one"), ("d/b", b"two"), *long]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("hard", "byte 1024: the member 'd/c.txt' is a hard link: pack with tar --hard-dereference"),
        ("soft", "byte 0: the member 'd/s.txt' is a symbolic link: pack with tar --dereference"),
        ("sparse_gnu", "byte 0: the member 'd/z.bin' is a sparse file: pack without --sparse"),
        ("sparse_pax", "byte 512: a member is a sparse file: pack without --sparse"),
    ],
)
def test_a_member_whose_bytes_are_not_in_the_archive_is_refused(name: str, what: str) -> None:
    with pytest.raises(FormatError, match=re.escape(what)):
        list(tar.read(written(name)))


def test_what_webdataset_wrote_is_read_and_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", written("webdataset").getvalue())
    args = {"decode": {"cls": "int", "json": "json", "npy": "array", "txt": "text"}}
    key, cls, record, array, raw, text = zip(*PROVIDER.samples(path, args=args), strict=True)
    assert key == ("set/000", "set/001", "set/002")
    assert [int(number) for number in cls] == [0, 1, 2]
    assert [json.loads(content) for content in record] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [values.tolist() for values in array] == [[[0, i], [2 * i, 3 * i]] for i in range(3)]
    assert raw == (b"", b"\1", b"\2\2")
    assert text == ("text 0 é", "text 1 é", "text 2 é")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["a.b", f"{LONG}/{LONG}.b", "ä/é.b", f"{'ü' * 90}.b"])
def test_what_tarfile_wrote_is_read_in_each_form(form: str, name: str) -> None:
    if form == "ustar" and len(name.rpartition("/")[2].encode()) > 100:
        with pytest.raises(ValueError, match="name is too long"):
            packed([(name, b"")], form)
        return
    members = [(name, b"x" * 600), (name.replace(".b", ".c"), b"")]
    (sample,) = tar.read(io.BytesIO(packed(members, form, mtime=1.5 if form == "pax" else 1)))
    assert sample == {"key": name.removesuffix(".b"), "b": b"x" * 600, "c": b""}


# -- keys --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "key", "extension"),
    [
        ("a.jpg", "a", "jpg"),
        ("a.seg.PNG", "a", "seg.png"),
        ("v1.0/a.jpg", "v1.0/a", "jpg"),
        ("../../a.jpg", "../../a", "jpg"),
        ("/etc/passwd.txt", "/etc/passwd", "txt"),
        ("./a.", "./a", ""),
    ],
)
def test_the_key_is_the_name_up_to_the_first_dot_of_its_last_part(name: str, key: str, extension: str) -> None:
    assert list(tar.read(io.BytesIO(packed([(name, b"x")])))) == [{"key": key, extension: b"x"}]


@pytest.mark.parametrize("name", ["README", "a/.DS_Store", "a/._b.jpg", "__index__/a.b", "__meta__", "v1.0/README"])
def test_members_that_belong_to_no_sample_are_left_out(name: str) -> None:
    members = [("a.txt", b"1"), (name, b"x"), ("a.bin", b"2")]
    assert list(tar.read(io.BytesIO(packed(members)))) == [{"key": "a", "txt": b"1", "bin": b"2"}]


def test_members_that_do_not_lie_together_are_several_samples() -> None:
    members = [("a.txt", b"1"), ("b.txt", b"2"), ("a.bin", b"3")]
    assert [sample["key"] for sample in tar.read(io.BytesIO(packed(members)))] == ["a", "b", "a"]


def test_an_extension_twice_in_a_sample_is_an_error() -> None:
    with pytest.raises(FormatError, match="the sample b'a' has the extension b'jpg' twice"):
        list(tar.read(io.BytesIO(packed([("a.jpg", b"1"), ("a.JPG", b"2")]))))


def test_the_extension_key_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", packed([("a.key", b"1"), ("a.txt", b"2")]))
    with pytest.raises(FormatError, match="has the extension 'key', the name of the slot of the key"):
        list(tar.read(path))


# -- parts, starts, chosen samples -------------------------------------------------------------------------------------
texts = st.text("abc/.Ä", min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMATS)),
    members=st.lists(st.tuples(texts, st.binary(max_size=1200)), max_size=12),
    data=st.data(),
)
def test_starts_parts_and_chosen_samples_are_those_of_a_whole_reading(
    form: str, members: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    named = [(f"{i}{name}.{i}", content) for i, (name, content) in enumerate(members)]
    whole = packed(named, form)
    samples = list(tar.read(io.BytesIO(whole)))
    start = data.draw(st.integers(0, len(samples)))
    assert list(tar.read(io.BytesIO(whole), start=start)) == samples[start:]
    assert list(tar.read(io.BytesIO(gzip.compress(whole)), start=start)) == samples[start:]
    chosen = sorted(data.draw(st.sets(st.integers(0, len(samples) - 1)))) if samples else []
    for file in (whole, gzip.compress(whole)):
        have = list(tar.read(io.BytesIO(file), indices=np.array(chosen, np.int64)))
        assert have == [samples[i] for i in chosen]
    count = data.draw(st.integers(1, 5))
    parts = [list(tar.read(io.BytesIO(whole), part=FilePart(i, count))) for i in range(count)]
    assert [sample for part in parts for sample in part] == samples
    last = parts[-1]
    begin = data.draw(st.integers(0, len(last)))
    assert list(tar.read(io.BytesIO(whole), part=FilePart(count - 1, count), start=begin)) == last[begin:]


@pytest.mark.parametrize("compressed", [False, True])
def test_the_provider_begins_at_any_sample_and_chooses_any(compressed: bool, tmp_path: Path) -> None:
    data = packed([*some_members(30), ("x.txt", b"t" * 2_000_000), ("x.bin", b"b"), *some_members(30)])
    path = write(tmp_path / "a.tar", gzip.compress(data, 1) if compressed else data)
    started = PROVIDER.start(file_list=[path])

    def keys(**more: Any) -> list[str]:
        opened = started.open_file(path, file_index=0, seed=0, pass_id=0, **more)
        return [sample["key"] for sample in opened]

    every = [*map(str, range(30)), "x", *map(str, range(30))]
    assert keys() == every
    assert keys(start=29) == every[29:]
    assert keys(indices=np.array([0, 1, 30, 31, 60])) == [every[i] for i in (0, 1, 30, 31, 60)]


def test_a_sample_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OptionError, match="has 3 samples in this part, and no sample 3"):
        list(tar.read(io.BytesIO(packed(some_members(3))), indices=np.array([1, 3])))


def test_an_archive_that_was_written_anew_gets_a_new_index(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", packed(some_members(3)))
    assert len(list(tar.read(path, start=1))) == 2
    write(tmp_path / "a.tar", packed(some_members(40)))
    assert len(list(tar.read(path, start=1))) == 39


def test_an_archive_in_gzip_has_no_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar.gz", gzip.compress(packed(some_members(3))))
    with pytest.raises(OptionError, match="is gzip, which cannot be read in parts"):
        list(tar.read(path, part=FilePart(0, 2)))


@pytest.mark.parametrize("form", FORMATS)
def test_a_service_serves_archives_and_parts_of_them(form: str, tmp_path: Path) -> None:
    count = 700
    path = write(tmp_path / "a.tar", packed([(n, d * 50) for n, d in some_members(count)], form))
    packed_path = write(tmp_path / "b.tgz", gzip.compress(packed([(n, d * 50) for n, d in some_members(count)], form)))
    keys, texts = [], []
    with pydp2.load(
        [*part_entries(path, 3), packed_path], "pydp2.formats.tar", batch_size=64, shuffle=False, workers=2
    ) as data:
        for batch in data:
            keys += batch["key"].to_list()
            texts += batch["txt"].to_list()
    samples = some_samples(count) * 2
    assert keys == [sample["key"] for sample in samples]
    assert texts == [sample["txt"] * 50 for sample in samples]


# -- what is damaged ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [1, 511, 512, 515, 1024, 1536, 2048, 3000])
def test_an_archive_that_ends_early_is_an_error_wherever_it_ends(cut: int) -> None:
    data = packed(some_members(2))[:4096]
    with pytest.raises(FormatError, match="did a download or a copy stop early"):
        list(tar.read(io.BytesIO(data[:cut])))


def test_more_bytes_behind_the_end_are_an_error() -> None:
    data = packed(some_members(2))
    with pytest.raises(FormatError, match="expected only zeros behind the end of the archive; were archives joined"):
        list(tar.read(io.BytesIO(data + data)))


def test_one_block_of_zeros_ends_an_archive() -> None:
    assert list(tar.read(io.BytesIO(packed(some_members(2))[: 4 * 1024 + 512]))) == some_samples(2)


def changed(at: int, field: bytes, *, right_sum: bool = True) -> io.BytesIO:
    """An archive whose second header has ``field`` at ``at``."""
    data = bytearray(packed(some_members(2)))
    data[1024 + at : 1024 + at + len(field)] = field
    if right_sum:
        header = data[1024 : 1024 + 512]
        header[148:156] = b" " * 8
        data[1024 + 148 : 1024 + 156] = b"%06o\0 " % sum(header)
    return io.BytesIO(bytes(data))


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (changed(0, b"z", right_sum=False), "byte 1024: expected the header of a member of a tar archive, got a wrong"),
        (changed(124, b"77777777777\0"), "byte 1536: a member has 8589934591 bytes, 8704 are left in the file"),
        (changed(124, b"\x80" + b"\xff" * 11), "bytes, 8704 are left in the file"),
        (changed(124, b"12345678\0"), r"byte 1148: expected the size of a member in octal digits, got b'12345678"),
        (changed(124, b"\xff" * 12), "byte 1148: expected the size of a member in octal digits"),
        (changed(156, b"3"), "byte 1024: the member '0.bin' is a device"),
        (changed(156, b"6"), "byte 1024: the member '0.bin' is a named pipe"),
        (changed(156, b"Z"), "byte 1024: the member '0.bin' is of the type b'Z', which is unknown"),
        (changed(156, b"x"), "byte 1536: expected a record of a pax header, got b'bin 0'"),
        (changed(156, b"g"), "byte 1536: expected a record of a pax header, got b'bin 0'"),
    ],
)
def test_a_damaged_header_is_an_error_that_says_where(file: io.BytesIO, what: str) -> None:
    with pytest.raises(FormatError, match=re.escape(what)):
        list(tar.read(file))


def test_a_header_with_a_sum_of_signed_bytes_is_read() -> None:
    file = changed(0, "é".encode("latin-1"), right_sum=False).getvalue()
    header = bytearray(file[1024:1536])
    header[148:156] = b" " * 8
    signed = sum(byte - 256 * (byte > 127) for byte in header)
    header[148:156] = b"%06o\0 " % signed
    with pytest.raises(FormatError, match="is not UTF-8"):
        list(tar.read(io.BytesIO(file[:1024] + bytes(header) + file[1536:])))


def test_a_long_name_needs_a_member_behind_it() -> None:
    data = packed([(f"{LONG}.a", b"")])
    cut = data[: 2 * 512] + bytes(1024)
    with pytest.raises(FormatError, match="byte 0: expected a member behind its long name"):
        list(tar.read(io.BytesIO(cut)))


def test_a_name_has_a_limit() -> None:
    data = packed([(f"{'n' * (tar_headers.MOST_NAME + 1)}.a", b"")])
    with pytest.raises(FormatError, match="a long name or a pax header has at most 1048576 bytes"):
        list(tar.read(io.BytesIO(data)))


@pytest.mark.parametrize("keys", [{"path": "a"}, {"size": "1"}])
def test_one_name_or_size_for_all_members_is_refused(keys: dict[str, str], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers=keys) as archive:
        archive.addfile(tarfile.TarInfo("a.b"))
    with pytest.raises(FormatError, match="a pax header gives all members one name or size"):
        list(tar.read(tmp_path / "a.tar"))


def test_other_headers_for_all_members_are_ignored(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as archive:
        archive.addfile(tarfile.TarInfo("a.b"))
    assert list(tar.read(tmp_path / "a.tar")) == [{"key": "a", "b": b""}]


@pytest.mark.parametrize("data", [b"", b"<html>", b"PK\3\4" + bytes(600), b"x" * 5000])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"byte 0: expected .*tar archive"):
        list(tar.read(io.BytesIO(data)))


def test_a_compressed_archive_has_a_limit_for_a_sample() -> None:
    data = gzip.compress(packed([("a.txt", bytes(3_000_000)), ("a.bin", b"")]))
    assert len(list(tar.read(io.BytesIO(data)))) == 1
    with pytest.raises(FormatError, match="of a compressed archive has at most 1000000 bytes"):
        list(tar.read(io.BytesIO(data), limit=1_000_000))


# -- the provider ------------------------------------------------------------------------------------------------------
def served(tmp_path: Path, members: list[tuple[str, bytes]], **args: Any) -> list[Any]:
    return list(PROVIDER.samples(write(tmp_path / "a.tar", packed(members)), args=args))


def outcomes(tmp_path: Path, members: list[tuple[str, bytes]], **args: Any) -> list[Any]:
    """Samples, and the texts of errors in their places."""
    path = write(tmp_path / "a.tar", packed(members))
    opened = PROVIDER.start(args=args, file_list=[path]).open_file(path, file_index=0, seed=0, pass_id=0)
    return [str(sample) if isinstance(sample, BadSample) else sample["key"] for sample in opened]


def test_a_sample_that_lacks_an_extension_of_the_first_is_bad_and_the_rest_is_served(tmp_path: Path) -> None:
    members = [*some_members(2), ("x.txt", b""), ("y.bin", b""), ("y.txt", b""), ("z.txt", b""), ("z.txt", b"")]
    have = outcomes(tmp_path, members)
    absent = "bin: expected a member with this extension, as the first sample has it, got txt of 'x'"
    assert have[:2] == ["0", "1"]
    assert have[2].startswith(absent)
    assert "pack with tar --sort=name" in have[2]
    assert have[3:] == ["y", "z: the extension 'txt' comes twice"]


def test_only_the_extensions_that_are_asked_for_become_slots(tmp_path: Path) -> None:
    assert served(tmp_path, some_members(2), extensions=["bin"]) == [["0", b"bin 0"], ["1", b"bin 1"]]
    large = [("a.txt", bytes(3_000_000)), ("a.bin", b"1"), ("b.txt", bytes(3_000_000)), ("b.bin", b"2")]
    assert served(tmp_path, large, extensions=["bin"]) == [["a", b"1"], ["b", b"2"]]
    assert served(tmp_path, some_members(2), extensions=[]) == [["0"], ["1"]]


def picture(width: int, height: int, kind: str = "PNG", **more: Any) -> bytes:
    """A picture whose left half is red, and its right half blue."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **more)
    return file.getvalue()


def test_pictures_are_decoded_to_one_size(tmp_path: Path) -> None:
    members = [("a.png", picture(8, 4)), ("b.png", picture(40, 20)), ("c.png", b"no picture")]
    path = write(tmp_path / "a.tar", packed(members))
    args = {"decode": {"png": "image"}, "image": {"size": [2, 4]}}
    with pydp2.load([path], "pydp2.formats.tar", args=args, batch_size=9, shuffle=False, on_error="skip") as data:
        (batch,) = data
    assert batch["key"].to_list() == ["a", "b"]
    assert batch["png"].shape == (2, 2, 4, 3)
    assert batch["png"][1, 0, 0].tolist() == [255, 0, 0]
    assert batch["png"][1, 0, 3].tolist() == [0, 0, 255]


def test_random_crops_are_those_of_the_sample_wherever_a_reading_begins(tmp_path: Path) -> None:
    noise = io.BytesIO()
    Image.effect_noise((40, 10), 80).save(noise, "PNG")
    path = write(tmp_path / "a.tar", packed([(f"{i}.png", noise.getvalue()) for i in range(6)]))
    started = PROVIDER.start(
        args={"decode": {"png": "image"}, "image": {"size": 5, "crop": "random"}}, file_list=[path]
    )

    def drawn(start: int) -> list[Any]:
        return [s["png"].tolist() for s in started.open_file(path, file_index=0, seed=0, pass_id=0, start=start)]

    assert drawn(4) == drawn(0)[4:]
    assert drawn(0)[0] != drawn(0)[1]


def test_members_that_cannot_be_decoded_are_bad_samples(tmp_path: Path) -> None:
    array, other = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros(3, np.int16))
    np.save(other, np.zeros(4, np.int16))
    right = {"cls": b" -7\n", "json": b'{"a": [1e9]}', "npy": array.getvalue()}
    wrong = [
        ("cls", b"1.5"),
        ("cls", b"9" * 19),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b'"\xff"'),
        ("json", b"[" * 100_000),
        ("npy", other.getvalue()),
        ("npy", b"x"),
        ("npy", array.getvalue()[:-1]),
    ]
    members = [(f"0.{name}", content) for name, content in right.items()]
    for i, (bad, damaged) in enumerate(wrong, 1):
        members += [(f"{i}.{name}", damaged if name == bad else content) for name, content in right.items()]
    have = outcomes(tmp_path, members, decode={"cls": "int", "json": "json", "npy": "array"})
    assert have[0] == "0"
    for i, (name, _) in enumerate(wrong, 1):
        assert have[i].startswith(f"{i}.{name}: "), have[i]


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], object), allow_pickle=True)
    with pytest.raises(ProviderError, match="an array of objects is a pickle, which is not read"):
        served(tmp_path, [("a.npy", file.getvalue())], decode={"npy": "array"})


def test_text_that_is_not_utf8_is_a_bad_sample(tmp_path: Path) -> None:
    with pytest.raises(BadSample, match="txt"):
        served(tmp_path, [("a.txt", b"ok"), ("b.txt", b"\xff")], decode={"txt": "text"})


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"decode": "image"}, "decode must be a dict such as"),
        (
            {"decode": {"txt": "picture"}},
            "decode must be one of image, int, text, json, array, got 'picture' for 'txt'",
        ),
        ({"decode": {"jpg": "image"}}, "image needs the height and width of pictures, as"),
        ({"decode": {"jpg": "int"}}, "decode names the extension 'jpg', samples have txt, bin"),
        ({"decode": {"a.pth": "array"}}, "'a.pth' is a pickle, which may run any code, and is never unpickled"),
        ({"image": {"size": 3}}, "image is for pictures: write decode="),
        ({"decode": {"txt": "image"}, "image": {"width": 3}}, "image has no option 'width'; it has size, crop, mode"),
        ({"decode": {"txt": "image"}, "image": {"size": [3, 0]}}, "size must be from 1 to 89478485 pixels, got 3 x 0"),
        (
            {"decode": {"txt": "image"}, "image": {"size": 3, "crop": "left"}},
            "crop must be one of center, random",
        ),
        ({"decode": {"txt": "image"}, "image": {"size": 3, "mode": "CMYK"}}, "mode must be one of L, RGB"),
        ({"extensions": "jpg"}, "extensions must be a list such as"),
        ({"extensions": ["jpg"]}, "its first sample has no 'jpg', it has txt, bin"),
        ({"extensions": ["txt", "txt"]}, "extensions must name each once"),
        ({"decode": {"txt": "array"}}, "txt of its first sample: EOF: reading magic string"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_write(args: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=re.escape(what)):
        served(tmp_path, some_members(1), **args)


def test_the_first_file_that_has_a_sample_decides_the_slots(tmp_path: Path) -> None:
    files = [write(tmp_path / "0.tar", packed([])), write(tmp_path / "1.tar", packed(some_members(1)))]
    assert PROVIDER.start(file_list=files).schema.slots.names == ("key", "txt", "bin")
    assert PROVIDER.start(file_list=files[:1]).schema.slots.names == ("key",)

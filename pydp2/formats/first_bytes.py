"""Recognize the kind of a file by its first bytes, for the error of a reader that expected another format.

Downloads, archives and version control may leave other content under the expected name: an error page, a pointer, a
compressed file. A reader that shows only the bytes in hexadecimal leaves the search to the user.
"""

from __future__ import annotations

import re
import struct

from pydp2.formats.crc32c import masked_crc32c

COUNT = 512
"""Number of bytes at the beginning of a file that :func:`looks_like` needs: a tar archive has its mark at byte 257."""
CUT_SHORT = "; did a download or a copy stop early?"
"""Question behind an error about a file that ends too early."""

_DECOMPRESS = "decompress it first"
_LOADED = "write a provider that reads it"
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xfe\0\0", "text in UTF-32; save it as UTF-8"),
    (b"\0\0\xfe\xff", "text in UTF-32; save it as UTF-8"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; save it as UTF-8"),
    (b"version https://git-lfs.github.com/", "a pointer of Git LFS and not the file; run git lfs pull"),
    (b"/annex/objects/", "a pointer of git-annex and not the file; run git annex get"),
    (b"HTTP/1.", "the answer of a web server, with its headers"),
    (b"\x1f\x8b", f"a gzip file; {_DECOMPRESS}"),
    (b"\x28\xb5\x2f\xfd", f"a zstd file; {_DECOMPRESS}"),
    (b"BZh", f"a bzip2 file; {_DECOMPRESS}"),
    (b"\xfd7zXZ\0", f"an xz file; {_DECOMPRESS}"),
    (b"\x04\x22\x4d\x18", f"an LZ4 file; {_DECOMPRESS}"),
    (b"\xff\x06\0\0sNaPpY", f"a snappy file; {_DECOMPRESS}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it first"),
    (b"PAR1", "a Parquet file; read it with pydp2.formats.parquet"),
    (b"ARROW1", "an Arrow file; read it with pydp2.formats.arrow"),
    (b"\xff\xff\xff\xff", "an Arrow stream; read it with pydp2.formats.arrow"),
    (b"ORC", f"an ORC file; {_LOADED}"),
    (b"Obj\x01", f"an Avro file; {_LOADED}"),
    (b"\x89HDF\r\n\x1a\n", f"an HDF5 file; {_LOADED}"),
    (b"SQLite format 3\0", f"an SQLite database; {_LOADED}"),
    (b"\x93NUMPY", f"an array of numpy (.npy); {_LOADED}, with numpy.load; pydp2.formats.tokens reads tokens"),
    (b"\x89PNG\r\n\x1a\n", "a picture (PNG); serve its folder with pydp2.formats.images"),
    (b"\xff\xd8\xff", "a picture (JPEG); serve its folder with pydp2.formats.images"),
    (b"GIF8", "a picture (GIF); serve its folder with pydp2.formats.images"),
    (b"%PDF-", "a PDF document"),
    (b"\n\x23\xd7\xce", "RecordIO of MXNet; read it with pydp2.formats.dmlc_recordio"),
    (b"\r\n\x23\xd7\xce", "RecordIO that was copied as text, which changes bytes; copy it in binary mode"),
    (b"\n\x23\xef\xbf\xbd", "RecordIO that was decoded as text, which loses bytes; copy it in binary mode"),
    (b"\x04\x03\x02\x01", "RecordIO of Paddle; read it with pydp2.formats.paddle_recordio"),
)
_IDX = re.compile(rb"\0\0[\x08\x09\x0b-\x0e][\x01-\x20]")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_RIFF = re.compile(rb"RIFF.{4}(WEBP|WAVE)", re.DOTALL)
_PAGE = re.compile(rb"<(!--|(!doctype html|html|head|body)\b)", re.IGNORECASE)
_JSON = re.compile(rb"[{\[]\s*[\"{}\[\]]")
_INDEX = re.compile(rb"-?\d{1,18}\t\d{1,18}[ \t]*[\r\n]")
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]+")
_POINTERS = (b"version https://git-lfs.github.com/", b"/annex/objects/", b"HTTP/1.")  # texts in place of a file
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")  # no text of a format has them, but a name in it may
_TFRECORD = struct.Struct("<QI")
_TAR_MARK = 257
_SHOWN = 40


def looks_like(head: bytes) -> str:
    """Return the kind of a file by its first :data:`COUNT` bytes, with a remedy; '' if it is not known."""
    if not head:
        return f"an empty file{CUT_SHORT}"
    for signature, meaning in _SIGNATURES:
        if head.startswith(signature):
            return meaning
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(head)
    return _marked(head) or _text(head.removeprefix(b"\xef\xbb\xbf").lstrip()) or _padded(head)


def is_no_table(head: bytes) -> bool:
    """Return True if the file is known, and is neither CSV nor any other text of numbers and names.

    A reader of text asks before the first line: a page on one line would pass for the names of columns, and a record
    that begins with a line feed and ``#`` for a comment.
    """
    if not head or not looks_like(head):
        return False
    is_text = head.startswith(_POINTERS) or bool(_text(head.removeprefix(b"\xef\xbb\xbf").lstrip()))
    return is_text or _CONTROL.search(head) is not None


def described(head: bytes, count: int) -> str:
    """Describe bytes for an error, behind "got": :func:`looks_like`, the text, or ``count`` bytes in hexadecimal."""
    if known := looks_like(head):
        return known
    if _INDEX.match(head):
        return "an index of records (MXNet's .idx); give the .rec file beside it"
    if _TEXT.fullmatch(head[:_SHOWN]) and _is_utf8(head):
        return f"text that begins with {head[:_SHOWN].decode(errors='ignore')!r}"  # a sign may be cut at the end
    return head[:count].hex()


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3 and len(head) == COUNT  # the last sign is cut
    return True


def _zip(head: bytes) -> str:
    if b".npy" in head[:200]:
        return f"arrays of numpy (.npz); {_LOADED}, with numpy.load"
    if b"data.pkl" in head[:200]:
        return f"a file of torch.save; {_LOADED}, with torch.load"
    return "a zip archive; unpack it first"


def _marked(head: bytes) -> str:
    """Return the kind of a binary file whose mark is not only a text at its beginning."""
    if head[_TAR_MARK:].startswith(b"ustar"):
        return "a tar archive; read it with pydp2.formats.tar"
    if _IDX.match(head):
        return "an idx file of arrays; read it with pydp2.formats.idx"
    if _PICKLE.match(head):
        return f"a pickle; {_LOADED}"
    if found := _RIFF.match(head):
        return (
            "a picture (WebP); serve its folder with pydp2.formats.images" if found[1] == b"WEBP" else "a sound (WAV)"
        )
    if len(head) >= _TFRECORD.size:
        length, checksum = _TFRECORD.unpack_from(head)
        if length < 1 << 40 and checksum == masked_crc32c(head[:8]):
            return "a TFRecord file of TensorFlow; read it with pydp2.formats.tfrecord"
    return ""


def _text(text: bytes) -> str:
    if _PAGE.match(text):
        return "an HTML page, such as a server sends with an error or for a login; download the file again"
    if text.startswith((b"<?xml", b"<Error>")):
        return "an XML document, such as a server sends with an error; download the file again"
    if _JSON.match(text):
        return "JSON, such as a server sends with an error, or lines of JSON; read them with pydp2.formats.jsonl"
    return ""


def _padded(head: bytes) -> str:
    if len(head) >= 8 and not any(head):
        return f"zeros{CUT_SHORT}"
    for zeros, signs in ((head[1::2], head[::2]), (head[::2], head[1::2])):
        if len(head) >= 8 and not any(zeros[:20]) and _TEXT.fullmatch(signs[:20]):
            return "text in UTF-16; save it as UTF-8"
    if b"\xef\xbf\xbd" in head[:16]:
        return "bytes that were decoded as text, which loses some; copy the file in binary mode"
    return ""

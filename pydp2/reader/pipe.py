"""``PipeReader``: read the output of a command as lines."""

from __future__ import annotations

import contextlib
import io
import subprocess
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any, SupportsIndex

from pydp2.errors import OptionTypeError, ReaderError
from pydp2.reader.contract import check_size
from pydp2.reader.decoding import LineCutter, decoder_of, texts_of

_PIECE = 1 << 20  # bytes that are decompressed at a time
_END = 2.0  # seconds in which a command must end after it has closed its output


class PipeReader:
    """Reader of the output of ``command`` as text: ``PipeReader("hadoop fs -cat /data/part-0").get_line()``.

    The command is split at blanks and runs without a shell; its stderr is that of this program. Each call of
    :meth:`get_line` runs it anew, so ``pipe.get_line`` is a reader. See docs/readers.md (RD-26 to RD-28).

    Args:
        command: the command and its arguments.
        bufsize: the most bytes that are read at a time.
        file_type: "plain", or "gzip" for compressed output.
        encoding: the encoding of the output; "latin-1" turns each byte into one character.

    Raises OptionTypeError, OptionError: ``command`` is not a str or is empty, ``file_type`` or ``encoding`` is unknown,
    or ``bufsize`` is below 1.
    """

    def __init__(
        self, command: str, bufsize: SupportsIndex = 8192, file_type: str = "plain", *, encoding: str = "utf-8"
    ) -> None:
        if not isinstance(command, str) or not command.split():
            raise OptionTypeError(f"command must be a text with a command in it, got {command!r:.80}")
        if file_type not in ("plain", "gzip"):
            raise OptionTypeError(f"file_type must be 'plain' or 'gzip', got {file_type!r:.80}")
        self._command = command
        self._bufsize = check_size("bufsize", bufsize, 1)
        self._gzip = file_type == "gzip"
        self._decoder = decoder_of(encoding)

    def get_line(self, cut_lines: bool = True, line_break: str = "\n") -> Iterator[str]:
        """Yield the lines of the output, without ``line_break``; or with ``cut_lines=False`` its pieces as they come.

        The command ends when the pass ends or the consumer leaves it.

        While iterating, after the lines that came before the error, it raises ReaderError if the exit code is not 0 or
        the output is damaged or incomplete gzip, UnicodeDecodeError, which names the command, and OSError if the
        command does not exist.

        Raises OptionTypeError: ``line_break`` is empty or not a str.
        """
        if not isinstance(line_break, str) or not line_break:
            raise OptionTypeError(f"line_break must be a text that lines end with, got {line_break!r:.80}")
        return self._lines(line_break) if cut_lines else self._texts()

    def _lines(self, line_break: str) -> Iterator[str]:
        cutter = LineCutter(line_break)
        with closing(self._texts()) as texts:
            for text in texts:
                yield from cutter.lines(text)
        if rest := cutter.rest():
            yield rest

    def _texts(self) -> Generator[str]:
        with closing(self._pieces()) as pieces:
            try:
                yield from texts_of(pieces, self._decoder())
            except UnicodeDecodeError as error:
                error.reason += f" (in the output of {self._command!r})"
                raise

    def _pieces(self) -> Generator[bytes]:
        """Yield the output, decompressed, in pieces. Raises ReaderError after it if the command has failed."""
        with subprocess.Popen(self._command.split(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            try:
                yield from self._unpacked(process)
                code = process.wait(_END)
            except subprocess.TimeoutExpired:
                raise ReaderError(f"command {self._command!r} has closed its output and does not end") from None
            finally:
                process.kill()  # this does nothing if the command has ended
        if code:
            how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            raise ReaderError(f"command {self._command!r} {how}: its output may not be whole")

    def _unpacked(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield the output, decompressed, in pieces."""
        assert isinstance(process.stdout, io.BufferedReader)
        pieces = iter(partial(process.stdout.read1, self._bufsize), b"")
        if not self._gzip:
            yield from pieces
            return
        inflate = None  # None between two gzip members
        ended = False  # True after the first member: zeros may follow it, to fill a block
        for packed in pieces:
            if ended and inflate is None:
                packed = packed.lstrip(b"\0")
            while packed:
                inflate = zlib.decompressobj(wbits=31) if inflate is None else inflate
                intact = inflate.copy()
                try:
                    plain = inflate.decompress(packed, _PIECE)
                except zlib.error as error:
                    yield _before_damage(packed, intact)
                    raise ReaderError(f"the output of {self._command!r} is no gzip: {error}") from None
                yield plain
                packed = inflate.unconsumed_tail or inflate.unused_data.lstrip(b"\0")
                if inflate.eof:
                    inflate = None
                    ended = True
        if inflate is not None:
            raise ReaderError(f"the output of {self._command!r} ends within its gzip: it is not whole")


def _before_damage(packed: bytes, inflate: Any) -> bytes:
    """Return the bytes of ``packed`` before its damage: zlib drops all that one call has decompressed when it fails."""
    plain = []
    with contextlib.suppress(zlib.error):
        for i in range(len(packed)):
            plain.append(inflate.decompress(packed[i : i + 1]))
    return b"".join(plain)

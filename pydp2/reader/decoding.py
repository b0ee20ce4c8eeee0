"""Decode text that comes in pieces, and cut it into lines: what precedes an error comes before the error."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

from pydp2.errors import OptionError, OptionTypeError

Decoder = codecs.IncrementalDecoder


def decoder_of(encoding: str) -> Callable[[], Decoder]:
    """Return the function that makes decoders of ``encoding``.

    Raises OptionTypeError, OptionError: ``encoding`` is not a str, or not the name of an encoding of text.
    """
    if not isinstance(encoding, str):
        raise OptionTypeError(f"encoding must be the name of one, as 'utf-8', got {encoding!r:.80}")
    try:
        make = codecs.getincrementaldecoder(encoding)
        is_text = isinstance(make().decode(b""), str)
    except (LookupError, TypeError, ValueError):  # there is none; it takes text; its name is no name
        is_text = False
    if not is_text:
        raise OptionError(f"encoding must be the name of one, as 'utf-8', got {encoding!r:.80}")
    return make


def texts_of(pieces: Iterable[bytes], decoder: Decoder) -> Iterator[str]:
    """Yield ``pieces`` as text. Raises UnicodeDecodeError, after the text before it."""
    for piece in pieces:
        yield from _decoded(piece, decoder)
    yield from _decoded(b"", decoder, final=True)


def _decoded(piece: bytes, decoder: Decoder, final: bool = False) -> Iterator[str]:
    state = decoder.getstate()
    try:
        text = decoder.decode(piece, final)
    except UnicodeDecodeError as error:
        # Its object begins with what the decoder had kept of earlier pieces, so count from the end.
        before = len(piece) - (len(error.object) - error.start)
        decoder.setstate(state)
        if text := decoder.decode(piece[: max(before, 0)]):
            yield text
        raise
    if text:
        yield text


class LineCutter:
    """Cutter of a text that comes in pieces into lines, which end with ``line_break``."""

    def __init__(self, line_break: str) -> None:
        self._break = line_break
        self._begun: list[str] = []  # pieces of a line whose end has not come; they are joined only once
        self._rest = ""  # the text after them, which may be the beginning of a line break

    def lines(self, text: str) -> list[str]:
        """Return the lines that end in ``text``, the next piece, without their line breaks."""
        *lines, rest = (self._rest + text).split(self._break)
        if lines:
            lines[0] = "".join([*self._begun, lines[0]])
            self._begun.clear()
        sure = max(len(rest) - len(self._break) + 1, 0)
        self._begun.append(rest[:sure])
        self._rest = rest[sure:]
        return lines

    def rest(self) -> str:
        """Return the text after the last line break."""
        return "".join([*self._begun, self._rest])

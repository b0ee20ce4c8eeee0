"""Define the messages of a trace: who asks for one, who records for it (docs/watching.md, "A trace")."""

from __future__ import annotations

from typing import ClassVar

from pydp2.protocol.messages.base import Message, message


@message
class AskTrace(Message):
    """Client: record for ``duration_ms`` what all processes do, and send it then."""

    duration_ms: int


@message
class Trace(Message):
    """Server: what was recorded. The first frame is a dict of plain data with the "sources"; the others are the spans
    of each, five int64 for each span (:mod:`pydp2.protocol.spans`)."""

    has_body: ClassVar[bool] = True


@message
class RecordSpans(Message):
    """Server: record spans from now on, or (``on`` false) no more."""

    on: bool


@message
class RecordedSpans(Message):
    """Worker or client: spans in frames of at most 64 KiB, also none as an answer to RecordSpans. ``lost``: number of
    those that there was no room for. ``sent_ns`` is its own clock. ``is_last``: it does not record any more."""

    has_body: ClassVar[bool] = True
    lost: int
    sent_ns: int
    is_last: bool

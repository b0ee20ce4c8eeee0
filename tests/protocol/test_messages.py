"""Messages and their wire form: what is sent arrives equal; what nobody sends is refused before it can do harm."""

from __future__ import annotations

import contextlib
import pickle  # noqa: TID251  # to see it refused
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.figures import FIGURES, MAX_FIGURE
from tests.protocol.conftest import EXAMPLES, messages

GOLDEN = Path(__file__).parent / "golden"


@contextlib.contextmanager
def little_memory(most: int = 36 << 20) -> Iterator[None]:
    """Fails when the block took more than ``most`` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def packed(*values: Any) -> bytes:
    data = msgpack.packb(list(values))
    assert isinstance(data, bytes)
    return data


@given(messages)
def test_what_is_sent_arrives_equal(message: m.Message) -> None:
    again, body = m.decode([m.encode(message)])
    assert again == message
    assert type(again) is type(message)
    assert list(body) == []


@given(messages)
def test_a_header_may_come_in_any_kind_of_buffer(message: m.Message) -> None:
    header = m.encode(message)
    for frame in (header, bytearray(header), memoryview(header)):
        assert m.decode([frame])[0] == message


def test_raw_frames_pass_untouched_where_they_are_allowed() -> None:
    frames = [memoryview(b"abc"), memoryview(b"")]
    for message in EXAMPLES:
        if message.has_body:
            _, body = m.decode([m.encode(message), *frames])
            assert [id(frame) for frame in body] == [id(frame) for frame in frames]
        else:
            with pytest.raises(RemoteProtocolError, match=f"{type(message).__name__} carries 2 raw frames"):
                m.decode([m.encode(message), *frames])


def test_every_message_has_an_example() -> None:
    assert [type(example).__name__ for example in EXAMPLES] == list(m.MESSAGES)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_the_bytes_of_a_message_are_those_of_the_golden_file(message: m.Message) -> None:
    """On a difference the file is rewritten: look at it, and raise WIRE_VERSION if it was meant."""
    file = GOLDEN / f"{type(message).__name__}.hex"
    data = m.encode(message).hex()
    lines = "".join(f"{data[i : i + 64]}\n" for i in range(0, len(data), 64))
    before = file.read_text() if file.exists() else None
    if lines != before:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(lines)
    assert lines == before


def test_there_is_no_golden_file_without_a_message() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(m.MESSAGES)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_header_cut_short_or_followed_by_anything_is_refused(message: m.Message) -> None:
    header = m.encode(message)
    for broken in (*(header[:n] for n in range(len(header))), header + b"\0", header + header):
        with pytest.raises(RemoteProtocolError):
            m.decode([broken])


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_field_of_another_type_is_refused_by_its_name(message: m.Message) -> None:
    name, *values = msgpack.unpackb(m.encode(message))
    others: list[Any] = [None, True, 1, -1, 1 << 63, 0.5, "text", b"bytes", [], {}]
    refused = 0
    for i, value in enumerate(values):
        for other in others:
            if type(other) is type(value) and not (type(other) is int and not 0 <= other < 1 << 62):
                continue
            if isinstance(message, m.BeginDispatch) and i == 2 and other == 1 << 63:
                continue  # the one field that takes all 64 bits
            if fields(message)[i].name in FIGURES and type(other) is int:
                continue  # clipped
            with pytest.raises(RemoteProtocolError, match=rf"^{name}\.\w+: "):
                m.decode([packed(name, *values[:i], other, *values[i + 1 :])])
            refused += 1
    assert refused >= 8 * len(values)


@pytest.mark.parametrize(
    "message", [m.Chunk(0, [], [], 1, 1), m.Need(1, 1, 0, 1, 1), m.HostBeat(1, [], {}, []), m.HostReceived(0, 1)],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
@pytest.mark.parametrize(("figure", "read"), [(-1, 0), (-(1 << 63), 0), ((1 << 64) - 1, MAX_FIGURE)])
def test_a_figure_out_of_range_is_clipped_and_refuses_no_message(message: m.Message, figure: int, read: int) -> None:
    """Clocks make figures, and a clock may go backward."""
    name, *values = msgpack.unpackb(m.encode(message))
    names = [each.name for each in fields(message)]
    found = [figure if field in FIGURES else value for field, value in zip(names, values, strict=True)]
    decoded, _ = m.decode([packed(name, *found)])
    assert {getattr(decoded, field) for field in FIGURES.intersection(names)} == {read}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_field_too_many_or_too_few_is_refused(message: m.Message) -> None:
    name, *values = msgpack.unpackb(m.encode(message))
    for wrong in ([*values, 1], values[:-1] if values else [1, 2]):
        with pytest.raises(RemoteProtocolError, match=f"^{name} has {len(wrong)} fields, needs {len(values)}$"):
            m.decode([packed(name, *wrong)])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (packed(), "begins with the message's name"),
        (packed(1, 2), "begins with the message's name"),
        (packed(b"Quit"), "begins with the message's name"),
        (msgpack.packb("Quit"), "must be a list"),
        (msgpack.packb({"Quit": 1}), "must be a list"),
        (packed("quit"), "unknown message 'quit'"),
        (packed("Message"), "unknown message"),
        (packed("__class__"), "unknown message"),
        (packed("x" * 60_000), "unknown message 'x{40}'$"),
        (packed("Closing", b"\xff", {}, False), "expected str, got bytes"),
        (b"\x92\xa7Closing\xa2\xff\xfe", "not msgpack: UnicodeDecodeError"),
        (packed("Broken", {1: 2}), "not msgpack"),
        (packed("Broken", {b"a": 2}), "Broken.error: a key that is no text"),
        (packed("Broken", {"a": [{b"a": 2}]}), "Broken.error: a key that is no text"),
        (packed("Broken", {"a": msgpack.Timestamp(1, 2)}), "not msgpack"),
        (packed("Broken", {"a": msgpack.ExtType(5, b"")}), "not msgpack: ValueError: extension 5"),
        (packed("Broken", {"a": msgpack.ExtType(5, b"body")}), "not msgpack: ValueError: "),
        (packed("Need", 1 << 62, 1, 1, 1, 1), "Need.request_id: 4611686018427387904 is out of range"),
        (packed("EndDispatch", -1), "EndDispatch.dispatch_id: -1 is out of range"),
        (pickle.dumps(m.Quit(), 0), "not msgpack|must be a list"),
        (pickle.dumps(m.Quit(), 5), "not msgpack|must be a list"),
        (b"cos\nsystem\n(S'true'\ntR.", "not msgpack|must be a list"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        m.decode([data])


def test_a_message_without_frames_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without a header"):
        m.decode([])


def test_a_header_larger_than_the_limit_is_refused_before_it_is_decoded() -> None:
    largest = "a" * (m.HEADER_LIMIT - len(m.encode(m.Closing("a" * 1000, {}))) + 1000)
    assert m.decode([m.encode(m.Closing(largest, {}))])[0] == m.Closing(largest, {})
    with pytest.raises(LocalProtocolError, match=r"the header of Closing needs 65537 bytes, .* at most 65536"):
        m.encode(m.Closing(largest + "a", {}))
    nested = b"\x91" * (100 << 20)  # decoding even its beginning would make thousands of lists
    with little_memory(1 << 16), pytest.raises(RemoteProtocolError, match="at most 65536 are allowed"):
        m.decode([nested])


@pytest.mark.parametrize(
    "lie",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1
        b"\xdf\xff\xff\xff\xff",  # a dict of as many
        b"\xdb\xff\xff\xff\xff",  # a text of as many bytes
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xc9\xff\xff\xff\xff\x01",  # an extension
        b"\xdc\xff\xff",  # a list of 2**16 - 1
        b"\xdd\x00\x00\x10\x00",  # a list of as many as are allowed
        b"\xde\xff\xff",
        b"\xd9\xff",
    ],
)
def test_a_length_that_lies_takes_little_memory(lie: bytes) -> None:
    for data in (lie, b"\x92\xa6Broken" + lie, b"\x92\xa6Broken\x81\xa1a" + lie, (lie * 20_000)[: m.HEADER_LIMIT]):
        with little_memory(), pytest.raises(RemoteProtocolError):  # a list inside a list inside a list, 1024 deep
            m.decode([data])


def test_deep_nesting_is_refused_at_any_depth() -> None:
    for depth in (13, 100, 500, 60_000):
        for data in (b"\x91" * depth + b"\x90", b"\x81\xa1a" * (depth // 3 + 13) + b"\x80"):
            header = (b"\x92\xa6Broken\x81\xa1a" + data)[: m.HEADER_LIMIT]
            with little_memory(), pytest.raises(RemoteProtocolError):
                m.decode([header])
    assert m.decode([packed("Broken", {"a": [[[[[1]]]]]})])[0] == m.Broken({"a": [[[[[1]]]]]})


def test_the_largest_headers_take_little_memory_and_time() -> None:
    many = msgpack.packb([[]] * 4096)
    assert isinstance(many, bytes)
    for filling in (b"\x90", b"\x80", b"\xc0", b"\xa1a", many):
        body = b"\x92\xa6Broken\x81\xa1a\xdc\x00\x0f" + b"".join(
            b"\xdc\x0f\x00" + filling * 3840 for _ in range(15)
        )  # 15 lists of 3840
        with little_memory(), contextlib.suppress(RemoteProtocolError):
            m.decode([body[: m.HEADER_LIMIT]])


def test_a_number_beyond_the_limit_is_refused_however_it_is_written() -> None:
    for raw in (struct.pack(">BQ", 0xCF, 1 << 63), struct.pack(">Bq", 0xD3, -1), b"\xff"):
        with pytest.raises(RemoteProtocolError, match="out of range"):
            m.decode([b"\x92\xabEndDispatch" + raw])


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        m.decode([data])

"""Exceptions: the drawn hierarchy is the real one, and each travels between processes as what it was."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle  # noqa: TID251  # what is pickled here is our own
import re
import traceback
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import errors
from pydp2.errors import (
    BadSample,
    Error,
    FileCondemned,
    FormatError,
    LocalError,
    ProtocolError,
    ProviderError,
    RemoteError,
    ServiceError,
    builtin_name,
    builtin_name_of_mixed,
    count_text,
    from_user,
    from_wire,
    provider_error,
    sendable,
    shorten,
    to_wire,
    user_traceback,
)

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Error)]
BUILTINS = [
    c for c in vars(builtins).values() if isinstance(c, type) and issubclass(c, BaseException)
]  # fmt: skip
HEADER_ROOM = 32_000  # of the 65,536 bytes of a header, so that other texts fit beside it


def travelled(error: Error) -> Error:
    """``error`` after a way over the wire."""
    data = msgpack.packb(to_wire(error))
    assert isinstance(data, bytes)
    assert len(data) < HEADER_ROOM
    return from_wire(msgpack.unpackb(data))


def drawn() -> dict[str, tuple[str, list[str]]]:
    """Of each class in the module's drawing: the class above it, and the builtins in brackets."""
    found: dict[str, tuple[str, list[str]]] = {}
    above: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)( |$)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while above and above[-1][0] >= depth:
            above.pop()
        bases = re.search(r"\((\w+(?:, \w+)*)\)", line)
        found[name] = (above[-1][1] if above else "Exception", bases[1].split(", ") if bases else [])
        above.append((depth, name))
    return found


def test_the_hierarchy_is_the_one_that_is_drawn() -> None:
    real = {
        c.__name__: (c.__bases__[0].__name__, [b.__name__ for b in c.__bases__[1:]]) for c in CLASSES
    }  # fmt: skip
    assert drawn() == real
    assert len(real) == 31


@pytest.mark.parametrize("kind", [errors.OptionError, errors.ServiceUnreachable, errors.ListError])
@pytest.mark.parametrize("text", ["tcp://a:1?token={}", "tpc://a:1&TOKEN={}", "'ipc://tcp://a:1?token={}'"])
def test_no_text_of_an_error_has_a_token(kind: type[Error], text: str) -> None:
    token = "0123456789abcdefABCDEF0123456789"
    error = kind(f"an address is needed, got {text.format(token)}; use another")
    for shown in (str(error), repr(error), "".join(traceback.format_exception(error))):
        assert token[:10] not in shown
        assert text.format("…") in shown
    assert str(from_wire(to_wire(error))) == str(error)


def test_every_class_says_what_it_is() -> None:
    assert all(c.__doc__ and c.__doc__.strip() for c in CLASSES)


def test_what_you_did_and_what_they_did_are_different_families() -> None:
    families = (LocalError, RemoteError, ServiceError, ProtocolError)
    for c in CLASSES:
        assert sum(issubclass(c, family) for family in families) == (c is not Error)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_arrives_as_itself(kind: type[Error]) -> None:
    again = travelled(kind("what\nhappened 😀"))
    assert type(again) is kind
    assert str(again) == "what\nhappened 😀"
    assert to_wire(again) == to_wire(kind("what\nhappened 😀"))


def test_a_subclass_arrives_as_the_nearest_class_that_is_known() -> None:
    class Special(errors.ServiceLost):
        pass

    assert type(travelled(Special("gone"))) is errors.ServiceLost


def test_a_bad_sample_keeps_slot_expected_and_got() -> None:
    again = travelled(BadSample("file a, sample 3", slot="pixel", expected="2 numbers", got="3"))
    assert isinstance(again, BadSample)
    assert (again.slot, again.expected, again.got) == ("pixel", "2 numbers", "3")
    assert isinstance(again, AssertionError)
    assert isinstance(again, ValueError)


def test_what_an_error_says_beside_its_text_arrives() -> None:
    condemned = travelled(FileCondemned("three workers died", sample_timeout=0.1))
    assert isinstance(condemned, FileCondemned)
    assert condemned.sample_timeout == 0.1
    damaged = travelled(FormatError("cut off", file="a.rec", offset=1 << 40))
    assert isinstance(damaged, FormatError)
    assert (damaged.file, damaged.offset) == ("a.rec", 1 << 40)


@pytest.mark.parametrize("value", [None, "soon", 3, [1.0], {}])
def test_a_value_of_another_type_is_left_out(value: object) -> None:
    again = from_wire(to_wire(FileCondemned("three workers died", sample_timeout=0.1)) | {"timeout": value})
    assert isinstance(again, FileCondemned)
    assert again.sample_timeout is None


@pytest.mark.parametrize("kind", BUILTINS, ids=lambda kind: kind.__name__)
def test_every_builtin_exception_survives_the_way(kind: type[BaseException]) -> None:
    """It can be caught by its builtin class, unless that one is for the interpreter, or would end the loop of a
    trainer as if the pass were over."""
    error = provider_error("file a, sample 3: process raised", kind.__name__)
    again = travelled(error)
    for each in (error, again):
        assert isinstance(each, ProviderError)
        assert str(each) == "file a, sample 3: process raised"
        assert not isinstance(each, StopIteration | StopAsyncIteration)
    if issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration):
        assert isinstance(again, kind)
        with pytest.raises(kind):
            raise again
        with pytest.raises(ProviderError):
            raise again
    else:
        assert type(again) is ProviderError


def test_the_class_of_a_mixed_error_is_shown_by_the_builtin_s_name() -> None:
    error = provider_error("no such file", "FileNotFoundError")
    assert type(error).__name__ == "FileNotFoundError"
    assert builtin_name_of_mixed(error) == "FileNotFoundError"
    assert builtin_name_of_mixed(ProviderError("x")) == ""
    assert str(provider_error("'a' is missing", "KeyError")) == "'a' is missing", "KeyError would quote it"


@pytest.mark.parametrize("kind", [*CLASSES, *BUILTINS], ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_after_pickling(kind: type[BaseException]) -> None:
    error = kind("why") if issubclass(kind, Error) else provider_error("why", kind.__name__)
    error.add_note("and more")
    for each in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(each).__mro__[1:] == type(error).__mro__[1:]
        assert str(each) == str(error)
        assert each.__dict__ == error.__dict__


def test_what_an_error_says_beside_its_text_is_pickled() -> None:
    for error in (BadSample("why", slot="s", expected="e", got="g"), FormatError("why", file="f", offset=3)):
        assert errors.fields(pickle.loads(pickle.dumps(error))) == errors.fields(error)


@pytest.mark.parametrize("name", ["", "open", "print", "None", "__import__", "Nonsense", "__name__", "int", "object"])
def test_a_name_that_is_no_exception_mixes_nothing_in(name: str) -> None:
    assert type(provider_error("x", name)) is ProviderError


def test_the_nearest_builtin_of_a_user_s_exception_is_found() -> None:
    class Mine(KeyError):
        pass

    class ValueErrorish(Exception):
        pass

    class ZeroDivisionError(RuntimeError):  # noqa: A001  # a user may do that
        pass

    class Both(Mine, FileNotFoundError):  # type: ignore[misc]  # layouts agree
        pass

    assert builtin_name(Mine()) == "KeyError"
    assert builtin_name(ValueErrorish()) == ""
    assert builtin_name(ZeroDivisionError()) == "RuntimeError"
    assert builtin_name(FileNotFoundError(2, "x")) == "FileNotFoundError"
    assert builtin_name(Exception()) == ""
    assert builtin_name(StopIteration()) == builtin_name(StopAsyncIteration()) == "RuntimeError", "as in a generator"
    assert builtin_name(KeyboardInterrupt()) == ""
    assert builtin_name(SystemExit()) == ""
    assert builtin_name(ExceptionGroup("g", [ValueError()])) == "ExceptionGroup"
    assert builtin_name(BaseExceptionGroup("g", [KeyboardInterrupt()])) == ""
    assert builtin_name(UnicodeDecodeError("utf-8", b"x", 0, 1, "no")) == "UnicodeDecodeError"


def test_an_error_made_of_several_parts_can_be_looked_at_without_them() -> None:
    """What is asked of one that was caught by its name gives its text, or nothing."""
    error = travelled(raise_and_wrap(UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte")))
    assert isinstance(error, UnicodeDecodeError)
    assert "invalid start byte" in str(error)
    assert "invalid start byte" in error.reason
    assert (error.encoding, error.object, error.start, error.end) == ("", b"", 0, 0)
    group = travelled(raise_and_wrap(ExceptionGroup("two", [KeyError("a"), ValueError("b")])))
    assert isinstance(group, ExceptionGroup)
    assert "KeyError: 'a'" in str(group)
    assert [type(each) for each in group.exceptions] == [ProviderError]


def test_a_number_has_its_noun() -> None:
    assert [count_text(n, "slot") for n in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
    assert count_text(1, "entry", "entries") == "1 entry"
    assert count_text(2000, "entry", "entries", ",") == "2,000 entries"


def raise_and_wrap(error: BaseException) -> ProviderError:
    try:
        raise error
    except BaseException as caught:
        return from_user("process raised", caught)


def test_the_user_s_traceback_stands_in_the_text() -> None:
    error = raise_and_wrap(ValueError("too small"))
    assert str(error).startswith("process raised\n\nTraceback (most recent call last):\n")
    assert "raise_and_wrap" in str(error)
    assert str(error).endswith("ValueError: too small")
    assert isinstance(error, ValueError)


def test_exceptions_that_misbehave_are_still_told() -> None:
    class Mute(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Manyfold(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one, two)

    for error, words in (
        (Mute(), "Mute"),
        (Manyfold(1, 2), "Manyfold: (1, 2)"),
        (ValueError(), "ValueError"),
        (ValueError("a" * 10_000_000), "characters left out"),
        (ValueError("\udcff\ud800"), "ValueError: "),
        (ValueError(b"\xff", object), "ValueError: "),
        (OSError(2, "No such file", "\udcff"), "No such file"),
        (ExceptionGroup("many", [ValueError(str(i)) for i in range(1000)]), "many"),
        (RecursionError("deep"), "deep"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (UnicodeDecodeError("utf-8", b"x" * 100_000, 0, 1, "bad"), "UnicodeDecodeError"),
    ):
        again = travelled(raise_and_wrap(error))
        assert words in str(again)
        assert "Traceback" in str(again)


def test_a_traceback_that_cannot_be_made_leaves_the_name() -> None:
    class Worse(Exception):
        __module__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

    with pytest.raises(Worse) as caught:
        raise Worse
    assert "Worse" in user_traceback(caught.value)


def test_frames_at_the_head_can_be_left_out_up_to_the_text_of_the_exception_alone() -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x") as caught:
        outer()
    assert ", in outer" not in user_traceback(caught.value, 2)
    assert ", in inner" in user_traceback(caught.value, 2)
    assert user_traceback(caught.value, 100) == "ValueError: x"  # all of them were ours: none says anything to the user


@given(st.text(), st.integers(2, 50))
def test_a_short_text_stays_and_of_a_long_one_both_ends(text: str, limit: int) -> None:
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        half = limit // 2
        assert short.startswith(text[:half])
        assert short.endswith(text[-half:])
        assert f"{len(text) - limit} characters left out" in short
        assert len(short) < limit + 50


@pytest.mark.parametrize("letter", ["a", "é", "一", "😀", "\udcff", "\0", "\n"])
@pytest.mark.parametrize("kind", [ProviderError, BadSample])
def test_an_error_fits_into_half_a_header_whatever_it_is_written_in(letter: str, kind: type[Error]) -> None:
    long = letter * 1_000_000
    error = kind(long, slot=long, expected=long, got=long) if kind is BadSample else kind(long)  # type: ignore[call-arg]
    again = travelled(error)
    assert type(again) is kind
    assert "characters left out" in str(again)


@given(st.text(st.characters(), max_size=20))
def test_any_text_can_be_sent(text: str) -> None:
    sent = sendable(text)
    assert sent.encode().decode() == sent
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert sent == text


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"kind": 5, "message": 6},
        {"kind": "Nonsense", "message": "x"},
        {"kind": "Exception", "message": "x"},
        {"kind": "ProviderError", "message": None, "builtin": ["a"]},
        {"kind": "ProviderError", "message": "x", "builtin": "BaseException"},
        {"kind": "ProviderError", "message": "x", "builtin": "SystemExit"},
        {"kind": "BadSample", "slot": 1, "exp": [], "got": {}},
        {"kind": "__class__", "message": "x", "more": 1},
    ],
)
def test_whatever_comes_is_made_an_error_of_ours(wire: dict[str, Any]) -> None:
    error = from_wire(wire)
    assert isinstance(error, RemoteError)
    assert isinstance(str(error), str)

"""Records that travel as dicts by name: what their fields take, and that an error names the field."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.plain_records import from_dict


@dataclass(frozen=True)
class Inner:
    seconds: float
    name: str = ""


@dataclass(frozen=True)
class Outer:
    count: int
    names: tuple[str, ...]
    pair: tuple[str, str] | None
    inner: Inner
    roles: dict[str, str] = field(default_factory=dict)
    blob: bytes = b""


RECORD = Outer(-1, ("a", "b"), ("x", "y"), Inner(1, "n"), {"k": "v"})
PLAIN: dict[str, Any] = asdict(RECORD) | {"names": ["a", "b"], "pair": ["x", "y"]}  # as msgpack brings them
del PLAIN["blob"]


def test_a_record_comes_back_with_what_is_given_beside_it() -> None:
    assert from_dict(Outer, PLAIN, "Outer", blob=b"") == RECORD
    assert from_dict(Outer, PLAIN | {"pair": None}, "Outer", blob=b"1").blob == b"1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": True}, r"Outer\.count must be int, got True \(bool\)"),
        ({"count": 1.0}, r"Outer\.count must be int, got 1\.0 \(float\)"),
        ({"names": "ab"}, r"Outer\.names must be tuple.*, got 'ab' \(str\)"),
        ({"names": ["a", 1]}, r"Outer\.names\[1\] must be str, got 1 \(int\)"),
        ({"pair": 0}, r"Outer\.pair must be tuple\[str, str\] \| None, got 0 \(int\)"),
        ({"inner": {"seconds": "1", "name": ""}}, r"Outer\.inner\.seconds must be float, got '1' \(str\)"),
        ({"inner": 3}, r"Outer\.inner must have exactly \['name', 'seconds'\], got 3"),
        ({"more": 1}, r"Outer must have exactly \['count', .*, got \['count', .*'more'"),
    ],
)
def test_an_error_names_the_field(change: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^{text}"):
        from_dict(Outer, PLAIN | change, "Outer", blob=b"")


@pytest.mark.parametrize("plain", [None, [], "text", {1: 2, "name": ""}, {}])
def test_what_is_no_dict_by_name_is_refused(plain: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^Inner must have exactly"):
        from_dict(Inner, plain, "Inner")

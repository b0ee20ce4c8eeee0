"""Checksums are those of zlib, whoever makes them."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns import checksum


@given(st.binary(max_size=3000), st.binary(max_size=300))
def test_they_are_those_of_zlib_and_can_be_carried_on(first: bytes, second: bytes) -> None:
    assert checksum.crc32(second, checksum.crc32(memoryview(first))) == zlib.crc32(first + second)


def test_where_the_extra_is_not_installed_zlib_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.delitem(sys.modules, "isal.isal_zlib", raising=False)
    monkeypatch.delitem(sys.modules, checksum.__name__)
    without = importlib.import_module(checksum.__name__)
    assert (without.crc32, without.checksums()) == (zlib.crc32, "zlib")


def test_it_is_said_whose_they_are() -> None:
    assert checksum.checksums() == ("zlib" if checksum.crc32 is zlib.crc32 else "isal")

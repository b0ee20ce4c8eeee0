"""Which requests an HTTP endpoint of a service answers: those of its user, and none of a web page that the user has
open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.system.http_guard import host_of, is_loopback, machine_names, refusal

LOOPBACK = machine_names("127.0.0.1")


def status(method: str = "GET", bound: str = "127.0.0.1", **headers: str) -> int:
    return answer([(name.replace("_", "-"), value) for name, value in headers.items()], method, bound)


def answer(headers: list[tuple[str, str]], method: str = "GET", bound: str = "127.0.0.1", path: str = "/") -> int:
    refused = refusal(method, path, headers, machine_names(bound, ["node7"]), bound)
    return 200 if refused is None else refused.status


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost", "LOCALHOST:8080", "[::1]:9", "node7"])
def test_the_own_names_are_answered(host: str) -> None:
    assert status(host=host) == 200
    assert status(host=host, sec_fetch_site="same-origin", origin=f"http://{host}") == 200
    assert status(host=host, sec_fetch_site="none") == 200


@pytest.mark.parametrize(
    "host",
    ["evil.com", "127.0.0.1.evil.com", "localhost.evil.com", "", "evil.com:80", "[::2]", "10.0.0.7",
     "127.0.0.1@evil.com", "[::1", "[::1]evil", "127.0.0.1:80:80", "localhost:x"],
)  # fmt: skip
def test_another_name_that_leads_here_is_refused(host: str) -> None:
    assert status(host=host) == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_requests_of_other_pages_are_refused(site: str) -> None:
    assert status(host="localhost", sec_fetch_site=site) == 403


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "https://localhost.evil.com", "http://127.0.0.2"])
def test_another_origin_is_refused(origin: str) -> None:
    assert status(host="127.0.0.1:80", origin=origin) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "FOO", "get"])
def test_nothing_can_be_changed(method: str) -> None:
    assert status(method, host="localhost") == 405


@pytest.mark.parametrize("second", ["localhost", "evil.com"])
def test_a_request_has_one_host(second: str) -> None:
    for headers in ([("host", "localhost"), ("host", second)], [("host", second), ("host", "localhost")]):
        assert answer(headers) == 400


def test_a_request_is_no_larger_than_it_may_be() -> None:
    host = ("host", "localhost")
    assert answer([host, ("x", "a" * 15_000)]) == 200
    assert answer([host, ("x", "a" * 16_384)]) == 431
    assert answer([host, *[("x", "a" * 1000)] * 17]) == 431
    assert answer([host], path="/" + "a" * 16_384) == 431


def test_beyond_this_machine_an_address_is_answered_because_no_name_leads_to_it() -> None:
    assert status(bound="0.0.0.0", host="10.0.0.7:80") == 200
    assert status(bound="::", host="[fe80::1]:80") == 200
    assert status(bound="0.0.0.0", host="evil.com") == 421
    assert status(bound="node9.cluster", host="node9.cluster:9100") == 200


@given(st.text())
def test_no_text_of_a_request_is_an_accident(text: str) -> None:
    host_of(text)
    known = host_of(text) in LOOPBACK
    assert (refusal("GET", "/", [("host", text)], LOOPBACK, "127.0.0.1") is None) == known


def test_loopback_is_known() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "node7")))

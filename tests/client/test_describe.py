"""What a notebook shows of a client and of its service; neither waits for a service that does not answer."""

from __future__ import annotations

import html
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from tests.provider_code import yields
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS


def rows(shown: Any) -> dict[str, str]:
    found = re.findall("<tr><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>", shown._repr_html_())
    return {html.unescape(name): html.unescape(text) for name, text in found}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may take its time to answer."""
    monkeypatch.setattr("pydp2.api.service._LOOK_SECONDS", 30.0)


@pytest.mark.usefixtures("patient")
def test_a_client_shows_place_position_and_slots_and_no_token(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["1", "2"], provider_file(NUMBERS), workers=1, bind="tcp://127.0.0.1:*") as service:
        assert "token=" in service.address
        assert "token" not in service._repr_html_()
        with service.connect(job="<i>", **OPTIONS) as data:
            shown = rows(data)
            assert shown["job"] == "<i>: batches of 16"
            assert shown["service"] == service.address.partition("?")[0]
            assert shown["slot 0"] == "dim=100000, seq_type=NO_SEQUENCE, type=Index"
            assert shown["position"] == "a loop begins pass 0; 0 batches of it came, 0 samples in all"
            loop = iter(data)
            next(loop)
            assert rows(data)["position"] == "a loop is in pass 0; 1 batch of it came, 16 samples in all"
            place = service.address.partition("?")[0]
            assert repr(data) == (
                f"<pydp2.Client: service {place}; job <i>: batches of 16; position a loop is in pass 0>"
            )
            assert rows(service)["job <i>"].startswith("pass 0, batch ")
            assert rows(service)["workers"].startswith("1, ")
        assert rows(data)["position"].startswith("closed in pass 0; ")
    assert rows(service) == {"state": "ended, exit status 0"}


@pytest.mark.usefixtures("patient")
def test_a_service_shows_how_much_of_a_resumed_pass_is_done(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["1", "2"], provider_file(NUMBERS), workers=1) as service:
        with service.connect(**OPTIONS) as data:
            batches = len([*data])  # from now on the files are counted
            loop = iter(data)
            for _ in range(batches - 1):
                next(loop)
            state = data.state_dict()
        with service.connect(job="resumed", **OPTIONS) as data:
            data.load_state_dict(state)
            assert len([*data]) == 1
            pattern = rf"pass 1, batch {batches}, 100 % done, "
            assert wait_until(lambda: re.match(pattern, rows(service)["job resumed"]) is not None), rows(service)


def test_a_mixture_and_packed_sequences_show_what_they_are_made_of(provider_file: Callable[[str], str]) -> None:
    address = provider_file(yields('{"tokens": integer_value_sequence(9)}', '({"tokens": [i] * 2} for i in range(9))'))
    mixed = pydp2.mix({"a": ["1"], "b": ["2"]}, address, weights={"a": 3, "b": 1}, batch_size=4, workers=1)
    shown = rows(mixed)
    assert shown["mixture"] == "a 0.75, b 0.25; random, all_exhausted_without_replacement"
    assert "tokens" in shown
    with pydp2.pack_sequences(mixed, slot="tokens", length=6, batch_size=2) as data:
        shown = rows(data)
        assert shown["job"] == "default.packed: batches of 2"
        assert shown["rows"] == "of 6 tokens, bfd_split"
        assert shown["mixture"].startswith("a 0.75, ")
        assert shown["position"].startswith("a loop begins pass 0; ")
        assert set(shown) > {"tokens", "position_ids", "segment_ids"}


def test_a_service_that_does_not_answer_is_not_waited_for(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service, service.connect(**OPTIONS) as data:
        os.kill(service.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert rows(service) == {"state": "it does not answer within 0.5 s; it is busy, stopped, or ending"}
            assert rows(data)["position"].startswith("a loop begins pass 0")
            assert time.monotonic() - began < 30
        finally:
            os.kill(service.pid, signal.SIGCONT)

"""Signals that end a command: the first in order, a second at once, and the same one again not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pydp2_cli.signals
import pytest
from pydp2_cli.signals import SignalWaiter


class Ended(BaseException):
    """What os._exit() raises here."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was done at once."""
    done: list[str] = []

    def end(status: int) -> None:
        done.append(f"exit {status}")
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_again_at_once_is_the_same_one(
    ends: list[str], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """coreutils' timeout sends it to its child, and then to the whole group."""
    monkeypatch.setattr(pydp2_cli.signals, "_REPEAT_SECONDS", 60.0)  # however slow the machine is
    with SignalWaiter(lambda: ends.append("at once")) as waiting:
        for _ in range(3):
            signal.raise_signal(number)
        assert waiting.wait(0) == number
    assert ends == []


def test_a_second_signal_ends_the_process_at_once(ends: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydp2_cli.signals, "_REPEAT_SECONDS", 0.0)
    with SignalWaiter(lambda: ends.append("at once")) as waiting:
        signal.raise_signal(signal.SIGINT)
        assert waiting.wait(0) == signal.SIGINT
        with pytest.raises(Ended):
            signal.raise_signal(signal.SIGTERM)
    assert ends == ["at once", f"exit {128 + signal.SIGTERM}"]


def test_without_a_signal_the_wait_ends_with_its_time() -> None:
    with SignalWaiter(lambda: None) as waiting:
        assert waiting.wait(0.01) is None

"""Tests over many seeds: some of them by default, all of them in the long run."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

_ASKED = os.environ.get("PYDP2_SIMULATIONS")


def each_seed(number: int, few: int = 20) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each ``seed`` from 0 on: ``few`` of them, and all ``number`` in a second item that is slow.

    ``PYDP2_SIMULATIONS`` says how many instead, in one item. The seed of a failure stands below its traceback.
    """
    if _ASKED is None:
        counts = [pytest.param(few, id="few"), pytest.param(number, id="all", marks=pytest.mark.slow)]
    else:
        counts = [pytest.param(int(_ASKED), id="asked")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def each(_seeds: int, **fixtures: Any) -> None:
            for seed in range(_seeds):
                with pytest.MonkeyPatch.context() as patch:
                    own = {"monkeypatch": patch} if "monkeypatch" in fixtures else {}
                    try:
                        test(seed=seed, **fixtures | own)
                    except BaseException as error:
                        error.add_note(f"with seed={seed}")
                        raise

        signature = inspect.signature(test)
        parameters = [p.replace(name="_seeds") if p.name == "seed" else p for p in signature.parameters.values()]
        each.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("_seeds", counts)(each)

    return decorate

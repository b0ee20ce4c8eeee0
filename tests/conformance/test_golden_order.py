"""The order of the sample sets, written down: a change of any rule of the order shows here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydp2_samples
import pytest

import pydp2

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.mark.parametrize(("name", "batch_size"), [("digits", 128), ("nested", 400)])
def test_the_seeded_order_of_a_sample_set_is_as_it_was(name: str, batch_size: int, exact: Any) -> None:
    """On a difference the file is written anew and the test fails. An order that is meant to change gets a new
    ORDER_VERSION: states saved under the old one must not be resumed under the new."""
    folder = pydp2_samples.path(name)
    passes = []
    with pydp2.load(
        "train.list", f"{name}_provider.process", root=folder, batch_size=batch_size, seed=2026, workers=2
    ) as data:
        for n in range(2):
            batches = exact(list(data))
            passes += [f"pass {n}: {json.dumps(dict(zip(FIELDS, batch, strict=True)))}" for batch in batches]
    path = GOLDEN / f"order-{name}.txt"
    found = "\n".join(passes) + "\n"
    if not path.exists() or path.read_text() != found:
        path.write_text(found)
        pytest.fail(f"the order of {name} is another than tests/golden/{path.name} had; it was rewritten, look at it")


FIELDS = ("batch", "rows", "size", "pool_weight", "crc32")

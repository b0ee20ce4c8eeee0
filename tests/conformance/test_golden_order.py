"""The order of the sample sets, written down: a change of any rule of the order shows here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydp2_samples
import pytest

import pydp2

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {"batch_size": 128}),
    "nested": ("nested", {"batch_size": 400}),
    "buckets": (
        "sequence", {"batch_size": 32, "bucket_by": "words", "args": {"dictionary": "dictionary.txt"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_the_seeded_order_of_a_sample_set_is_as_it_was(order: str, exact: Any) -> None:
    """On a difference the file is written anew and the test fails. An order that is meant to change gets a new
    ORDER_VERSION: states saved under the old one must not be resumed under the new."""
    name, options = ORDERS[order]
    folder = pydp2_samples.path(name)
    passes = []
    with pydp2.load("train.list", f"{name}_provider.process", root=folder, seed=2026, workers=2, **options) as data:
        for n in range(2):
            batches = exact(list(data))
            passes += [f"pass {n}: {json.dumps(dict(zip(FIELDS, batch, strict=True)))}" for batch in batches]
    path = GOLDEN / f"order-{order}.txt"
    found = "\n".join(passes) + "\n"
    if not path.exists() or path.read_text() != found:
        path.write_text(found)
        pytest.fail(f"the order of {order} is another than tests/golden/{path.name} had; it was rewritten, look at it")


FIELDS = ("batch", "rows", "size", "pool_weight", "crc32")

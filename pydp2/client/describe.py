"""Describe a stream, for a notebook or as text, without a request to its service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pydp2.client.progress import LoopState
from pydp2.client.session import ClientGuard
from pydp2.data.columns.html_table import html_table
from pydp2.data.schema.input_types import InputType, Slots
from pydp2.errors import count_text
from pydp2.protocol.messages import Attach
from pydp2.transport.service_address import without_token

Fact = tuple[object, object]
"""Name and value of one line of the table."""
_NEXT = {
    LoopState.BETWEEN: "a loop begins pass {}",
    LoopState.RUNNING: "a loop is in pass {}",
    LoopState.ENTERED: "pass {} goes on",
    LoopState.LEFT: "a loop begins the pass behind pass {}, which was left",
    LoopState.FAILED: "a loop begins the pass behind pass {}, which failed",
}


def client_facts(address: str, attach: Attach, batch_size: int) -> list[Fact]:
    """Return the facts about a client: its address, its job and its rank, and what its rows are made of."""
    rank = f"rank {attach.rank} of {attach.world_size}, " if attach.world_size * attach.peer_count > 1 else ""
    if attach.peer_count > 1:
        rank = f"peer {attach.peer} of {attach.peer_count} of {rank}"
    facts: list[Fact] = [
        ("service", without_token(address)),
        ("job", f"{attach.job}: {rank}batches of {batch_size}"),
    ]
    mix, pack = (attach.options.get(name) for name in ("mix", "pack"))
    if mix is not None:
        facts.append(("mixture", _mixture_text(mix)))
    if pack is not None:
        facts.append(("rows", f"of {pack['length']} tokens, {pack['strategy']}"))
    return facts


def _mixture_text(mix: Mapping[str, Any]) -> str:
    """Return the weights at the beginning of a pass of the mixture with the options ``mix``, and its rules."""
    shares = {name: Fraction(weight) for name, weight in mix["points"][0][1].items()}
    total = sum(shares.values())
    weights = ", ".join(f"{name} {float(share / total):.3g}" for name, share in shares.items())
    return f"{weights}; {mix['batching_method']}, {mix['stopping_strategy']}"


def stream_html(kind: str, facts: Sequence[Fact], slots: Slots, session: ClientGuard) -> str:
    """Return an HTML table of a stream: its ``facts``, its position and its slots."""
    now = session.progress
    came = count_text(now.position.batch, "batch", "batches")
    rows: list[Fact] = [
        *facts,
        ("position", f"{_state(session)}; {came} of it came, {count_text(now.samples, 'sample')} in all"),
        *((slots.label(i), _type_text(slots.types[i])) for i in range(len(slots))),
    ]
    return html_table(f"pydp2.{kind}", (), rows)


def stream_text(kind: str, facts: Sequence[Fact], session: ClientGuard) -> str:
    """Return one line with the ``facts`` of a stream and its position."""
    return f"<pydp2.{kind}: {'; '.join(f'{name} {value}' for name, value in (*facts, ('position', _state(session))))}>"


def _state(session: ClientGuard) -> str:
    now = session.progress
    state = LoopState.ENTERED if now.is_in_call else now.state
    return ("closed in pass {}" if session.closing else _NEXT[state]).format(now.position.pass_id)


def _type_text(declared: InputType) -> str:
    text = repr(declared).removeprefix("InputType(").removesuffix(")")
    return text.replace("SequenceType.", "").replace("DataType.", "")

"""Have a service pack the sequences of a job into rows of a fixed length (docs/mixing.md, "Packing")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from pydp2.client import Client
from pydp2.client.stream import Stream
from pydp2.errors import OptionTypeError
from pydp2.options.tables import check_keywords, takes
from pydp2.options.values import value_text

Strategy = Literal["wrapped", "bfd", "bfd_split"]
LastRow = Literal["pad", "drop"]
LastBatch = Literal["keep", "drop", "pad"]
Balance = Literal["tokens", "attention"]


class PackChoices(TypedDict, total=False):
    """More keywords of :func:`pack_sequences` for type checkers."""

    pad_token: int
    ragged: str | int | Sequence[str | int]


@takes(also=PackChoices.__annotations__)
def pack_sequences(
    stream: Stream,
    *,
    slot: str | int | Sequence[str | int],
    length: int,
    batch_size: int,
    strategy: Strategy = "bfd_split",
    last_row: LastRow = "pad",
    last_batch: LastBatch = "pad",
    balance: Balance | None = None,
    **more: Unpack[PackChoices],
) -> Client:
    """Return a client whose batches have rows of exactly ``length`` tokens, packed from the sequences of ``stream``.

    The service packs one stream of rows for all ranks of the job: batch n belongs to rank n mod ``world_size``, and all
    ranks have one state. Each batch is a :class:`PackedBatch`. See docs/mixing.md, "Packing".

    Args:
        stream: what :func:`load`, :func:`connect` or :func:`mix` returned, before its first loop; the client takes its
            place. Its ``batch_size`` is the number of sequences that are drawn at a time.
        slot: name or number of the slot with the tokens, a sequence of numbers; or several such slots, whose sequences
            have equal lengths in each sample, such as tokens, a loss mask and labels. Other slots are left out.
        length: number of tokens of a row.
        batch_size: number of rows of a batch.
        strategy: ``"bfd_split"``: each sequence goes whole into a row (best-fit decreasing), or in pieces if it is
            longer than ``length``. ``"bfd"``: the same, but a longer sequence loses its end. ``"wrapped"``: all
            sequences are one long row, which is cut.
        last_row: with ``"wrapped"``, decides about tokens at the end of a pass that do not fill a row. ``"pad"``: the
            row is filled up. ``"drop"``: they are left out.
        last_batch: ``"pad"`` fills up a last batch with fewer rows, and gives padding alone to ranks without one;
            ``"keep"``, ``"drop"``.
        balance: deals the rows of one step over the ranks so that each has about the same number of tokens, or with
            ``"attention"`` about the same sum of squared lengths; default: in their order.
        more: ``pad_token=0``, the value that fills up rows; ``segment_ids`` are 0 there. ``ragged``: slots with other
            sequences, such as the patches of the pictures of a text: in a batch they are a nested :class:`Ragged` with
            a sub-sequence for each segment, which has the whole sequence beside the first segment of its sample.

    Raises:
        OptionError, OptionTypeError: an argument is not valid, or does not suit the slots of ``stream``.
        ClientUseError: a loop over ``stream`` has begun, or a state was loaded into it.
    """
    check_keywords(pack_sequences, more)
    if not isinstance(stream, Client):
        raise OptionTypeError(
            f"pack_sequences() needs a stream, such as load(), connect() or mix() returns, got {value_text(stream)}"
        )
    pack = {
        "slots": list(slot) if isinstance(slot, list | tuple) else [slot],
        "length": length,
        "strategy": strategy,
        "last_row": last_row,
        "pad_token": more.get("pad_token", 0),
        "draw": stream.batch_size,
        "ragged": more.get("ragged", ()),
        "balance": balance,
    }
    return stream.with_options("packed", batch_size=batch_size, pack=pack, last_batch=last_batch)

"""Define the messages between a client and the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydp2.protocol.messages.base import Message, Plain, message


@message
class Attach(Message):
    """Client: attach as peer ``peer`` of the ``peer_count`` trainers of rank ``rank`` of the ``world_size`` ranks of
    ``job``; ``options`` are the job's.

    ``session`` is the client's own, so that it is known again when its connection breaks; ``connection_number`` grows
    with each connection, so that an older one, whose message comes late, does not take its place. ``host``: its host,
    if that may be another one. ``counting``: passes only count samples, of files not counted ("missing") or of "all".
    """

    version: int
    job: str
    rank: int
    world_size: int
    session: str
    options: Plain
    pid: int
    connection_number: int = 0
    host: str = ""
    counting: str = ""
    peer: int = 0
    peer_count: int = 1


@message
class Welcome(Message):
    """Server: the schema of the batches. ``service`` says what the stream depends on, and where this rank stands."""

    schema: Plain
    service: Plain


@message
class Refused(Message):
    """Server: the client may not attach, or the host may not join; ``error`` says why."""

    error: Plain


@message
class BeginPass(Message):
    """Client: send pass ``pass_id`` from batch ``first_batch`` on, leaving any other; ``credit`` batches may come.

    ``request_id`` numbers what a client asked for: everything about it carries this number. ``snapshot`` is the point
    from which the pass is taken up ({}: its start), its pool the raw frames, each of at most 64 KiB;
    ``checksum_frames`` more hold the checksums of files that were read since (:mod:`pydp2.data.columns.checksum_log`),
    and ``early_end_frames`` behind them early-end records (:mod:`pydp2.protocol.early_ends`). ``acknowledged_ahead``:
    later batches that are not wanted either. ``state_name`` names the state that this is (empty: none, the rank goes on
    in its job); ``is_repeat``: it was named before, without an answer; ``after_pass``: ranks that are in a pass end it
    first. ``buckets``: what the last batch said of them, "bounds" and, in its pass, "group", and the "weights" of a
    mixture that were set. ``was_answered``: a request before it was.
    """

    has_body: ClassVar[bool] = True
    request_id: int
    pass_id: int
    first_batch: int
    credit: int
    snapshot: Plain
    early_end_frames: int
    acknowledged_ahead: list[Any]
    state_name: str
    buckets: Plain = field(default_factory=dict)
    is_repeat: bool = False
    after_pass: bool = False
    was_answered: bool = False
    checksum_frames: int = 0


@message
class LeavePass(Message):
    """Client: the rest of run ``request_id`` is not wanted; its first ``used_batches`` batches are used."""

    request_id: int
    used_batches: int


@message
class Need(Message):
    """Client: ``count`` more batches of run ``request_id`` may come, its first ``used_batches`` are used. If ``count``
    is 0, the trainer has read all that came, and waits. ``waited_us``, ``worked_us``: its time, in us."""

    request_id: int
    count: int
    used_batches: int
    waited_us: int
    worked_us: int


@dataclass(slots=True, eq=False, repr=False)  # not @message: what its rows are is filled in when it is packed
class BatchHead(Message):
    """Server: batch ``batch_index``; its columns are the frames.

    ``position_after``: the position of the trainer once it has this batch, before that batch of the pass;
    ``acknowledged_ahead``: batches after it that are used already. ``snapshot`` is a new point from which the pass can
    be taken up ({}: none), its pool then the last frame. ``tail_consumed``: how many samples of the tail are gone at
    ``position_after``. ``early_end_frames``: number of frames of new early-end records that stand behind all others.
    ``checksum_records``: so many records of checksums (:mod:`pydp2.data.columns.checksum_log`) are new since the batch
    before, all since the point if that is new; those of all batches of the message are a frame before the pool.
    ``bucket``: "longest", the bound of its bucket (0: none), "group_longest", the greatest of the batches that the
    ranks get beside it (0: one has none), the "bounds" of all, and the "group" of batches that come from one; of a
    mixture the "weights" that were set; {} without both. ``following``: batches that come with it, their rows
    behind its own in the columns; see :mod:`pydp2.protocol.batch_packing`. ``shared_rows``: instead of the columns,
    one frame has the numbers of their rows, int64; the service has so many rows in the memory that it shows, its
    cache or cells, where this client gathers them (0: the columns are here). ``elsewhere``: ``[address, rows]`` for
    each address at which rows are fetched, and ``nbytes`` of all rows. Two frames, int64, come behind the columns
    of the others then: for each row its place among these and those elsewhere, in this order, and the handles of
    the rows elsewhere. ``has_origins``: behind all these frames, and before the checksums, a frame has the origins
    of the rows, if there are any, int64: of each row the number of its list entry, then its sample index.
    """

    has_body: ClassVar[bool] = True
    request_id: int
    batch_index: int
    rows: int
    size: int
    pool_weight: int
    padding: int
    tail_consumed: int
    position_after: int
    acknowledged_ahead: list[Any]
    snapshot: Plain
    early_end_frames: int
    bucket: Plain = field(default_factory=dict)
    following: list[Any] = field(default_factory=list)
    shared_rows: int = 0
    elsewhere: list[Any] = field(default_factory=list)
    nbytes: int = 0
    checksum_records: int = 0
    has_origins: bool = False


@message
class PassEnd(Message):
    """Server: the pass is over; the fields count what it had. ``buckets``: its "bounds", for ranks without a batch."""

    request_id: int
    batches: int
    samples: int
    dropped: int
    uniform: bool
    buckets: Plain = field(default_factory=dict)


@message
class Failed(Message):
    """Server: the pass cannot go on; ``error`` says why. ``state_name``: of the state that the service went back to,
    if that is why. ``buckets``: as in PassEnd."""

    request_id: int
    error: Plain
    state_name: str = ""
    buckets: Plain = field(default_factory=dict)


@message
class BeginAgain(Message):
    """Server: no more comes of run ``request_id``. The client is to begin anew behind the last batch that it took."""

    request_id: int


@message
class Detach(Message):
    """Client: it leaves the job; of run ``request_id`` the first ``used_batches`` batches are used."""

    request_id: int
    used_batches: int


@message
class AskStats(Message):
    """Client: send the statistics of the service."""


@message
class Stats(Message):
    """Server: the statistics of the service. One frame, a dict of plain data, which may be larger than a header."""

    has_body: ClassVar[bool] = True


@message
class AskFiles(Message):
    """Client: send the entries of the file list."""


@message
class Files(Message):
    """Server: the entries of the file list. Two frames: the UTF-8 text of all entries, and where each of them begins
    and the last one ends, int64."""

    has_body: ClassVar[bool] = True


@message
class AskSamples(Message):
    """Client: send the first ``count`` rows of a batch that a trainer of ``job`` has now."""

    job: str
    count: int


@message
class Samples(Message):
    """Server: ``rows`` rows of batch ``batch_index`` of pass ``pass_id``, their columns as frames, and the ``schema``
    of the batches. 0 rows: there are none now that could be shown."""

    has_body: ClassVar[bool] = True
    schema: Plain
    rows: int
    pass_id: int
    batch_index: int


@message
class SetWeights(Message):
    """Client: let the ``weights`` of the mixture of ``job`` hold from the next step on. ``weights``: of each source by
    name, as the text of an exact fraction."""

    job: str
    weights: Plain


@message
class WeightsSet(Message):
    """Server: the weights hold from ``step`` of pass ``pass_id`` on."""

    pass_id: int
    step: int


@message
class Probe(Message):
    """Server: test whether the client is there. It needs no answer: that it can be sent is the answer."""


@message
class Closing(Message):
    """Server: the service ends, because of ``reason``. ``error``: the one that it could not survive ({}: none).
    ``will_restart``: it goes on where it was when it is started again. To a host also: its session is over, or (with
    ``will_restart``) it may join anew. To a client also: ``error`` is why it is not heard any more."""

    reason: str
    error: Plain
    will_restart: bool = False

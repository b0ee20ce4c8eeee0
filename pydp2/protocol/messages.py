"""Define the messages and their wire form: a msgpack header of at most 64 KiB, then raw frames.

A header is ``[name, field, field, ...]`` in the order of the dataclass. When a header is read, every field's type is
checked, and that plain data inside is shallow and has texts as keys; nothing is executed, and nothing is decoded before
its length was checked. The slots declare what the raw frames of a message mean (docs/architecture.md, "The wire").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias, cast

from msgpack import packb, unpackb

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol.figures import clip_figure

WIRE_VERSION = 7
HEADER_LIMIT = 64 * 1024
INT_LIMIT = 1 << 62  # all numbers on the wire are below it, so that sums and shared memory of 64 bits hold them
_MAX_ITEMS = 4096  # items in one list; msgpack makes room for as many as a list says it has, before it has seen one
_MAX_DEPTH = 12  # of lists and dicts; a deeper one would break code that shows or compares it by recursion

Buffer: TypeAlias = Any  # bytes, memoryview, zmq frame buffer or ndarray: all that offers its bytes
Plain: TypeAlias = dict[str, Any]
Word: TypeAlias = int  # unsigned, of 64 bits


class Message:
    """Base of all messages."""

    __slots__ = ()
    has_body: ClassVar[bool] = False


# -- worker and server -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """Worker: it runs."""

    version: int
    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Declared(Message):
    """Worker: provider imported, hook run; ``schema`` is what it declares.

    ``source_fingerprint``: that of the module that it is in; ``warnings``: warnings on the way, as texts;
    ``modules``: a fingerprint of each module below the working directory that was imported, by the path of its file.
    """

    schema: Plain
    source_fingerprint: str
    warnings: list[Any]
    modules: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken(Message):
    """Worker: the provider cannot be had, its hook failed, or there is no memory to go on. The worker ends after it."""

    error: Plain


@dataclass(frozen=True, slots=True)
class BeginDispatch(Message):
    """Server: dispatch number ``dispatch_id`` begins, of pass ``pass_id``; ``seed`` is for ``settings.rng``. There may
    be several at a time, one for each job that is in a pass. ``rows_stay``: rows may stay on the host."""

    dispatch_id: int
    pass_id: int
    seed: Word
    rows_stay: bool = False


@dataclass(frozen=True, slots=True)
class Assign(Message):
    """Server: run files for ``dispatch_id``. Items are :class:`FileAssignment` as lists, frames sample indices,
    int64."""

    has_body: ClassVar[bool] = True
    dispatch_id: int
    items: list[Any]


@dataclass(frozen=True, slots=True)
class Grant(Message):
    """Server: new limits. Items are ``[attempt, limit, pause, bound]``; attempts are numbered through all
    dispatches."""

    items: list[Any]


@dataclass(frozen=True, slots=True)
class Want(Message):
    """Server: a merge waits for the file of ``attempt``: send the samples of it that are there, and if it is running,
    as soon as it has come to sample index ``until_index``; of a file that is run by turns, as soon as there are as many
    samples of all files as it lacks to ``until_index``."""

    attempt: int
    until_index: int


@dataclass(frozen=True, slots=True)
class GrantCells(Message):
    """Server: rows may be put in these cells. One frame, the number of each, int64."""

    has_body: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class EndDispatch(Message):
    """Server: the pass of ``dispatch_id`` is over or was left; drop its generators."""

    dispatch_id: int


@dataclass(frozen=True, slots=True)
class Retire(Message):
    """Agent of a host that leaves, as the server of its workers: begin no more files, return those not begun."""


@dataclass(frozen=True, slots=True)
class ReturnFiles(Message):
    """Worker that retires: it has not begun these attempts, and will not."""

    attempts: list[Any]


@dataclass(frozen=True, slots=True)
class Quit(Message):
    """Server: end."""


@dataclass(frozen=True, slots=True)
class Chunk(Message):
    """Worker: ranges of files. ``parts`` are :class:`FileRange` as lists, of any dispatches; their rows lie in the
    frames, one after another. ``in_cells``: in place of their columns, one frame with the cell of each, int64.
    ``on_host``: in place of their columns, two frames, int64: the handle of each row in the row server of the host, and
    its bytes.

    ``blocked`` lists ``[file, attempt, y, need]``: the generator waits, with a sample held back that costs ``need`` (0:
    it reached its pause). ``busy_us``: time spent on samples so far, ``idle_us``: time without anything to do, in us.
    """

    has_body: ClassVar[bool] = True
    rows: int
    parts: list[Any]
    blocked: list[Any]
    busy_us: int
    idle_us: int
    in_cells: bool = False
    on_host: bool = False

    @property
    def naming_frames(self) -> int:
        """Number of frames that name the rows; 0: their columns come with the message."""
        return 2 if self.on_host else int(self.in_cells)


# -- host and server ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AskSpec(Message):
    """Host: send what the service is made from. ``version`` and ``release`` are those of the wire and of pydp2."""

    version: int
    release: str


@dataclass(frozen=True, slots=True)
class Spec(Message):
    """Server: what a host needs to run workers. ``digest`` is a checksum of it; to a host that has it already it comes
    without frames, else with five: args, state of the program, entries of the list, where each ends, its source."""

    has_body: ClassVar[bool] = True
    terms: Plain
    digest: str


@dataclass(frozen=True, slots=True)
class Join(Message):
    """Host: it can run ``worker_slots`` workers; it asks for :class:`Spec`. ``session`` is fresh for each time that it
    joins. ``about`` has the versions of Python and numpy, and the byte order; ``digest`` is of the spec that it has.
    ``codec``: what it compresses frames of workers with ("": none). ``row_server``: where trainers fetch rows ("": it
    sends all)."""

    version: int
    release: str
    name: str
    worker_slots: int
    session: str
    digest: str
    about: Plain
    codec: str = ""
    row_server: str = ""


@dataclass(frozen=True, slots=True)
class OpenData(Message):
    """Host: what workers send comes over this connection, for the ``session`` that joined over another one. There may
    be several; a worker stays on one."""

    session: str


@dataclass(frozen=True, slots=True)
class DataOpened(Message):
    """Server: the connection for data that the host opened last is there; one more may be opened."""


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """Host: workers can be started. ``opened`` says (1 or 0) which entries of a sample of the list are files here."""

    opened: list[Any]


@dataclass(frozen=True, slots=True)
class StartWorker(Message):
    """Server: start worker number ``worker`` on this status row."""

    worker: int
    status_row: int


@dataclass(frozen=True, slots=True)
class KillWorker(Message):
    """Server: end a worker at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class ToWorker(Message):
    """Server: pass on to ``worker`` the message in the frames, its header first."""

    has_body: ClassVar[bool] = True
    worker: int


@dataclass(frozen=True, slots=True)
class FromWorker(Message):
    """Host: ``worker`` sent the message in the frames, its header first. ``raw_sizes``: sizes of the other frames
    before they were compressed, 0 for one that was not; empty where none is."""

    has_body: ClassVar[bool] = True
    worker: int
    raw_sizes: list[Any]


@dataclass(frozen=True, slots=True)
class WorkerStarted(Message):
    """Host: worker number ``worker`` is process ``pid`` there."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerExited(Message):
    """Host: the process of a worker ended, with ``status`` as ``os.waitpid`` gives it; all that it sent came before.
    ``running`` is the sample that it was asking for, as ``[file, attempt, sample index]``, or empty. ``kill_reason``:
    why the host killed it, else empty; ``over_memory``: it had more memory than it may; ``timed_out``: a sample
    exceeded ``sample_timeout``."""

    worker: int
    status: int
    running: list[Any]
    kill_reason: str
    over_memory: bool
    timed_out: bool


@dataclass(frozen=True, slots=True)
class HostBeat(Message):
    """Host, every second: it is there. ``sent_ns`` is its own clock; ``running``: the samples that its workers ask for,
    as ``[worker, file, attempt, sample index]``; ``figures`` are statistics."""

    sent_ns: int
    running: list[Any]
    figures: Plain


@dataclass(frozen=True, slots=True)
class HostReceived(Message):
    """Server: it has taken ``data_bytes`` bytes of the session's data so far. ``sent_ns`` is that of the last beat."""

    data_bytes: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Drain(Message):
    """Host: it has to leave. It wants no new files, and to be told when the running ones are over."""


@dataclass(frozen=True, slots=True)
class RowReaders(Message):
    """Server: trainers with these public keys may fetch rows, and no others."""

    keys: list[Any]


@dataclass(frozen=True, slots=True)
class ReleaseRows(Message):
    """Server: rows on the host are not needed any more. One frame, their handles, int64."""

    has_body: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class SendRows(Message):
    """Server: no more rows are to stay on the host."""


# -- client and row server ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FetchRows(Message):
    """Client: send the rows with the handles in the frame, int64. ``request_id`` comes back with them."""

    has_body: ClassVar[bool] = True
    request_id: int


@dataclass(frozen=True, slots=True)
class FetchedRows(Message):
    """Row server: the columns of ``rows`` rows, in the order of their handles. ``gone``: it lacks some, none come."""

    has_body: ClassVar[bool] = True
    request_id: int
    rows: int
    gone: bool


# -- client and server -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Attach(Message):
    """Client: attach as trainer ``rank`` of the ``world_size`` trainers of ``job``; ``options`` are the job's.

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


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Server: the schema of the batches. ``service`` says what the stream depends on, and where this rank stands."""

    schema: Plain
    service: Plain


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Server: the client may not attach, or the host may not join; ``error`` says why."""

    error: Plain


@dataclass(frozen=True, slots=True)
class BeginPass(Message):
    """Client: send pass ``pass_id`` from batch ``first_batch`` on, leaving any other; ``credit`` batches may come.

    ``request_id`` numbers what a client asked for: everything about it carries this number. ``snapshot`` is the point
    from which the pass is taken up ({}: its start), its pool the raw frames, each of at most 64 KiB;
    ``checksum_frames`` more hold the checksums of files that were read since (:mod:`pydp2.data.columns.checksum_log`),
    and ``early_end_frames`` behind them early-end records (:mod:`.early_ends`). ``acknowledged_ahead``: later batches
    that are not wanted either. ``state_name`` names the state that this is (empty: none, the rank goes on in its job);
    ``is_repeat``: it was named before, without an answer; ``after_pass``: ranks that are in a pass end it first.
    ``buckets``: what the last batch said of them, "bounds" and, in its pass, "group". ``unreachable``: row servers from
    which this rank could not fetch rows. ``was_answered``: a request before it was.
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
    unreachable: list[Any] = field(default_factory=list)
    was_answered: bool = False
    checksum_frames: int = 0


@dataclass(frozen=True, slots=True)
class LeavePass(Message):
    """Client: the rest of run ``request_id`` is not wanted; its first ``used_batches`` batches are used."""

    request_id: int
    used_batches: int


@dataclass(frozen=True, slots=True)
class Need(Message):
    """Client: ``count`` more batches of run ``request_id`` may come, its first ``used_batches`` are used. If ``count``
    is 0, the trainer has read all that came, and waits. ``waited_us``, ``worked_us``: its time, in us."""

    request_id: int
    count: int
    used_batches: int
    waited_us: int
    worked_us: int


@dataclass(slots=True)  # not frozen: one is made for each batch, at a fifth of the time
class BatchHead(Message):
    """Server: batch ``batch_index``; its columns are the frames.

    ``position_after``: the position of the trainer once it has this batch, before that batch of the pass;
    ``acknowledged_ahead``: batches after it that are used already. ``snapshot`` is a new point from which the pass can
    be taken up ({}: none), its pool then the last frame. ``tail_consumed``: how many samples of the tail are gone at
    ``position_after``. ``early_end_frames``: number of frames of new early-end records that stand behind all others.
    ``checksum_records``: so many records of checksums (:mod:`pydp2.data.columns.checksum_log`) are new since the batch
    before, all since the point if that is new; those of all batches of the message are a frame before the pool.
    ``bucket``: "longest", the bound of its bucket (0: none), "group_longest", the greatest of the batches that the
    ranks get beside it (0: one has none), the "bounds" of all, and the "group" of batches that come from one; {}
    without buckets. ``following``: batches that come with it, their rows behind its own in the columns; see
    :mod:`.batch_packing`. ``shared_rows``: instead of the columns, one frame has the numbers of their rows, int64; the
    service has so many rows in the memory that it shows, its cache or cells, where this client gathers them (0: the
    columns are here). ``on_hosts``: ``[row server, rows]`` for each host with rows, and ``nbytes`` of all rows. Two
    frames, int64, come behind the columns of the others then: for each row its place among these and those of the
    hosts, in this order, and the handles of the rows on hosts.
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
    on_hosts: list[Any] = field(default_factory=list)
    nbytes: int = 0
    checksum_records: int = 0


@dataclass(frozen=True, slots=True)
class PassEnd(Message):
    """Server: the pass is over; the fields count what it had. ``buckets``: its "bounds", for ranks without a batch."""

    request_id: int
    batches: int
    samples: int
    dropped: int
    uniform: bool
    buckets: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """Server: the pass cannot go on; ``error`` says why. ``state_name``: of the state that the service went back to,
    if that is why. ``buckets``: as in PassEnd."""

    request_id: int
    error: Plain
    state_name: str = ""
    buckets: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BeginAgain(Message):
    """Server: no more comes of run ``request_id``. The client is to begin anew behind the last batch that it took."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Detach(Message):
    """Client: it leaves the job; of run ``request_id`` the first ``used_batches`` batches are used."""

    request_id: int
    used_batches: int


@dataclass(frozen=True, slots=True)
class AskStats(Message):
    """Client: send the statistics of the service."""


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Server: the statistics of the service. One frame, a dict of plain data, which may be larger than a header."""

    has_body: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Server: test whether the client is there. It needs no answer: that it can be sent is the answer."""


@dataclass(frozen=True, slots=True)
class Closing(Message):
    """Server: the service ends, because of ``reason``. ``error``: the one that it could not survive ({}: none).
    ``will_restart``: it goes on where it was when it is started again. To a host also: its session is over, or (with
    ``will_restart``) it may join anew. To a client also: ``error`` is why it is not heard any more."""

    reason: str
    error: Plain
    will_restart: bool = False


MESSAGES: dict[str, type[Message]] = {
    m.__name__: m
    for m in (
        Hello, Declared, Broken, BeginDispatch, Assign, Grant, Want, GrantCells, EndDispatch, Retire, ReturnFiles, Quit,
        Chunk, AskSpec, Spec, Join, OpenData, DataOpened, Prepared, StartWorker, KillWorker, ToWorker, FromWorker,
        WorkerStarted, WorkerExited, HostBeat, HostReceived, Drain, RowReaders, ReleaseRows, SendRows, FetchRows,
        FetchedRows, Attach, Welcome, Refused, BeginPass, LeavePass, Need, BatchHead, PassEnd, Failed, BeginAgain,
        Detach, AskStats, Stats, Probe, Closing,
    )
}  # fmt: skip
_TYPES: dict[str, tuple[type, int]] = {
    "int": (int, INT_LIMIT), "Word": (int, 1 << 64), "str": (str, 0), "bool": (bool, 0), "Plain": (dict, 0),
    "list[Any]": (list, 0),
}  # fmt: skip
_FIELDS: dict[type[Message], tuple[tuple[str, type, int], ...]] = {
    m: tuple((f.name, *_TYPES[str(f.type)]) for f in fields(cast(Any, m))) for m in MESSAGES.values()
}
_VALUES: dict[type[Message], Callable[[Message], Any]] = {
    m: attrgetter("__class__.__name__", *(name for name, _, _ in known)) for m, known in _FIELDS.items()
}


def encode(message: Message) -> bytes:
    """Return the header of ``message``. Raises LocalProtocolError if it would be larger than 64 KiB."""
    values = _VALUES[type(message)](message)
    header = cast(bytes, packb(values if _FIELDS[type(message)] else [values]))
    if len(header) > HEADER_LIMIT:
        name = type(message).__name__
        raise LocalProtocolError(f"the header of {name} needs {len(header)} bytes, it has at most {HEADER_LIMIT}")
    return header


def decode(frames: Sequence[Buffer]) -> tuple[Message, Sequence[Buffer]]:
    """Return the message and its raw frames. Raises RemoteProtocolError for anything that is not a message."""
    if not frames:
        raise RemoteProtocolError("a message without a header")
    if (size := memoryview(frames[0]).nbytes) > HEADER_LIMIT:
        raise RemoteProtocolError(f"a header of {size} bytes, at most {HEADER_LIMIT} are allowed")
    try:
        values = unpackb(  # a text is no longer than its header
            frames[0], max_array_len=_MAX_ITEMS, max_map_len=_MAX_ITEMS, max_ext_len=0, ext_hook=_refuse_extension
        )
    except Exception as exc:  # msgpack raises many kinds; all mean the same here
        raise RemoteProtocolError(f"a header that is not msgpack: {type(exc).__name__}: {exc}") from None
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise RemoteProtocolError("a header must be a list that begins with the message's name")
    kind = MESSAGES.get(values[0])
    if kind is None:
        raise RemoteProtocolError(f"unknown message {values[0][:40]!r}")
    fields = _FIELDS[kind]
    if len(values) - 1 != len(fields):
        raise RemoteProtocolError(f"{values[0]} has {len(values) - 1} fields, needs {len(fields)}")
    for at, ((name, want, limit), value) in enumerate(zip(fields, values[1:], strict=True), 1):
        if type(value) is not want:
            raise RemoteProtocolError(f"{values[0]}.{name}: expected {want.__name__}, got {type(value).__name__}")
        if type(value) is int and not 0 <= value < limit:
            values[at] = clip_figure(values[0], name, value)
        if type(value) is dict or type(value) is list:
            _check_plain(f"{values[0]}.{name}", value)
    body = frames[1:]
    if body and not kind.has_body:
        raise RemoteProtocolError(f"{values[0]} carries {len(body)} raw frames, none are allowed")
    return kind(*values[1:]), body


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code}, none is allowed")


def _check_plain(what: str, value: Any) -> None:
    """Refuse nesting beyond the limit, and keys that are no texts."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        if not all(type(key) is str for each in level if type(each) is dict for key in each):
            raise RemoteProtocolError(f"{what}: a key that is no text")
        items = [item for each in level for item in (each.values() if type(each) is dict else each)]
        level = [item for item in items if type(item) is list or type(item) is dict]
        if not level:
            return
    raise RemoteProtocolError(f"{what}: nested more than {_MAX_DEPTH} deep")

"""Feed TensorFlow: a loader of tensors, and ``tf.data`` (docs/tensorflow.md).

Needs the extra ``tf``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from pydp2.api.sources import Files, Source
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Csr, Ragged, row_splits
from pydp2.data.columns.columns import Array, aligned
from pydp2.data.schema.input_types import DataType, InputType, SequenceType, Slots
from pydp2.errors import OptionError
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.selection import Selected, Selection
from pydp2.frameworks.shared_service import LOADER_OPTIONS, Ranks, chosen_ranks, open_loader
from pydp2.frameworks.slot_visitor import PLAIN_TYPES, SlotVisitor, pads_of_all
from pydp2.frameworks.sparse_rows import sorted_rows
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider
from pydp2.system.single_pass import taken_over

try:
    import tensorflow as tf
except ImportError as missing:
    raise ImportError(
        "pydp2.tf needs TensorFlow, which is not installed: pip install 'tensorflow-cpu>=2.16' 'keras>=3.5'"
    ) from missing

Tensor: TypeAlias = Any
_MOST = np.iinfo(np.int64).max


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=LOADER_OPTIONS)
def loader(
    files: Files | Source | Stream,
    provider: str | Provider | None = None,
    *,
    x: Selected | None = None,
    y: Selected | None = None,
    pad: float | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    share_along: tuple[int, int] | None = None,
    **options: Any,
) -> TensorLoader:
    """Return a loader whose iterations are passes, and give each batch as tensors.

    Each batch is a dict by slot name, or a tuple if slots have no names. Dense and integer slots are tensors of their
    dtype, sparse slots ``tf.SparseTensor``, sequences ``tf.RaggedTensor``. A sequence of sparse elements is a
    ``tf.RaggedTensor`` of their indices, or a pair of ragged tensors, of indices and of values.

    Args:
        files, provider: a list and its provider, or without provider the address or the connection file of a service;
            or a stream: a client, a mixture, packed sequences.
        x, y: a slot, or a list of slots: each batch is then a pair ``(x, y)``, as Keras needs it.
        pad: value with which sequences are filled up to the longest of a batch; their lengths are left out.
        rank, world_size: rank of this process, and number of processes that train together. Default: those of
            ``TF_CONFIG``, which names the workers of ``tf.distribute``; without it this process reads all.
        share_along: with ``rank`` and ``world_size``, which peer of its rank this process is; see
            :func:`pydp2.connect`.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`.

    Raises:
        OptionError: see :func:`pydp2.load`; or ``pad`` with a sequence of sparse elements; ranks on several machines
            without a service.
    """
    check_keywords(loader, options)
    ranks = Ranks() if isinstance(files, Stream) else chosen_ranks(rank, world_size, find_ranks, share_along)
    return open_loader(files, provider, ranks, lambda client: TensorLoader(client, x, y, pad), **options)


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=(*LOADER_OPTIONS, "x", "y", "pad"))
def dataset(
    files: Files | Source | Stream | TensorLoader,
    provider: str | Provider | None = None,
    **options: Any,
) -> Any:
    """Return a ``tf.data.Dataset`` whose iterations are passes, with the batches of :func:`loader`.

    Its ``element_spec`` follows from the slots, and its ``cardinality()`` is known if ``len()`` of the loader is. A
    new iteration leaves the pass of the one before. An error of the data is raised as an error of TensorFlow with the
    same text.

    Args:
        files: a loader, which also has the state; or as for :func:`loader`.
        provider, options: as for :func:`loader`.

    Raises the errors of :func:`loader`.
    """
    check_keywords(dataset, options)
    if not isinstance(files, TensorLoader):
        return loader(files, provider, **options).dataset()
    if options or provider is not None:
        raise OptionError("a loader has its provider and its options already; give them where it is made")
    return files.dataset()


class TensorLoader(FrameworkLoader[Any]):
    """Loader of the passes of ``client`` as tensors; :func:`loader` makes it."""

    def __init__(self, client: Stream, x: Selected | None, y: Selected | None, pad: float | None) -> None:
        parts = Parts(client.slots, x, y, pad)
        super().__init__(
            client,
            lambda batch: parts.build([_to_tensor(array) for array in parts.arrays(batch)]),
            context=lambda: tf.executing_eagerly() if _is_cpu_alone() else None,
        )
        self._parts = parts

    def dataset(self) -> Any:
        """Return a ``tf.data.Dataset`` whose iterations are the passes of this loader; see :func:`dataset`."""
        made = stream(self, self._parts)
        if not getattr(self.client, "_is_steady", True):
            return made  # passes of a mixture differ in length, and TensorFlow would require the length of this one
        if self.client.state_dict()["batch"]:
            return made  # the rest of a pass has fewer batches
        try:
            return made.apply(tf.data.experimental.assert_cardinality(len(self)))
        except TypeError:  # the length is not known yet
            return made


class Parts(SlotVisitor):
    """Conversion of batches in two steps: ``arrays`` returns the arrays of the slots, ``build`` makes values of
    them."""

    def __init__(self, slots: Slots, x: Selected | None, y: Selected | None, pad: float | None) -> None:
        self._selection = Selection(slots, x, y)
        self._types = [slots.types[slot] for slot in self._selection.order]
        for slot, declared in zip(self._selection.order, self._types, strict=True):
            if pad is not None and declared.seq_type and declared.type not in PLAIN_TYPES:
                raise OptionError(f"pad cannot fill up {slots.label(slot)}: its elements are sparse; leave pad out")
        super().__init__(slots, self._selection.order, pads=pads_of_all(slots, pad))
        self.specs = [spec for declared in self._types for spec in self._specs(declared)]
        """``tf.TensorSpec`` of each array."""

    def arrays(self, batch: Batch) -> list[Array]:
        """Return the arrays of ``batch``, one for each spec."""
        return [array for of_slot in self.values(batch) for array in of_slot]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the values of the slots, made of ``tensors``, one for each spec, in the structure of the selection."""
        left = iter(tensors)
        return self._selection.arrange([self._build(left, declared) for declared in self._types])

    def array(self, array: Array) -> list[Array]:
        return [array]

    def sparse(self, value: Csr, slot: int, batch: Batch) -> list[Array]:
        value = sorted_rows(value)  # operations on a tf.SparseTensor need ascending indices
        rows = np.repeat(np.arange(len(value)), np.diff(value.indptr))
        entries = np.ones(len(rows), np.float32) if value.values is None else value.values
        return [np.stack([rows, value.indices], axis=1).astype(np.int64), entries, np.array(value.shape, np.int64)]

    def ragged(self, value: Ragged, slot: int, batch: Batch) -> list[Array]:
        splits = row_splits(batch, slot)
        if isinstance(value.values, np.ndarray):
            return [*splits, value.values]
        assert isinstance(value.values, Csr)
        floats = [] if value.values.values is None else [value.values.values]
        return [*splits, value.values.indptr.astype(np.int64), value.values.indices, *floats]

    def make_padded(self, values: list[Array], lengths: list[Array]) -> list[Array]:
        return values

    def _is_padded(self, declared: InputType) -> bool:
        return bool(self.pads) and declared.seq_type != SequenceType.NO_SEQUENCE

    def _specs(self, declared: InputType) -> Iterator[Any]:
        values = tf.TensorSpec([None, *_inner(declared)], declared.element_dtype)
        if self._is_padded(declared):
            yield tf.TensorSpec([None, None, *_inner(declared)], declared.element_dtype)
            return
        yield from [tf.TensorSpec([None], tf.int64)] * declared.seq_type
        if declared.type in PLAIN_TYPES:
            yield values
            return
        if declared.seq_type:
            yield tf.TensorSpec([None], tf.int64)
            yield values
        else:
            yield tf.TensorSpec([None, 2], tf.int64)
        if not declared.seq_type or declared.type == DataType.SparseValue:
            yield tf.TensorSpec([None], tf.float32)
        if not declared.seq_type:
            yield tf.TensorSpec([2], tf.int64)

    def _build(self, left: Iterator[Tensor], declared: InputType) -> Tensor:
        is_sparse = declared.type not in PLAIN_TYPES
        if self._is_padded(declared) or not (is_sparse or declared.seq_type):
            return next(left)
        if not declared.seq_type:
            indices, values, shape = next(left), next(left), next(left)
            made = tf.SparseTensor(indices, values, shape)
            made.set_shape([None, declared.dim])
            return made
        splits = [next(left) for _ in range(declared.seq_type + is_sparse)]

        def nested(values: Tensor) -> Tensor:
            for edges in reversed(splits):  # from_nested_row_splits() does the same, and takes twice as long
                values = tf.RaggedTensor.from_row_splits(values, edges, validate=False)
            return values

        ids = nested(next(left))
        return (ids, nested(next(left))) if declared.type == DataType.SparseValue else ids


def find_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return the rank of this process according to the environment variable ``TF_CONFIG``.

    Raises OptionError if the variable does not give one. See docs/tensorflow.md.
    """
    text = environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        task, cluster = config.get("task", {}), config.get("cluster", {})
        kind, index = task.get("type"), int(task.get("index", 0))
        chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
        if kind not in ("chief", "worker"):
            return Ranks()  # it is the only process, or an evaluator, which does not train
        return Ranks.at([*chiefs, *workers], index + (len(chiefs) if kind == "worker" else 0))
    except (ValueError, TypeError, AttributeError, IndexError):
        raise OptionError(
            "TF_CONFIG must name the workers and which of them this is, as "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}; got '
            f"{text:.200}"
        ) from None


def stream(source: FrameworkLoader[Any], parts: Parts) -> Any:
    """Return a ``tf.data.Dataset`` whose iterations are passes of ``source``, converted by ``parts``.

    ``from_generator`` would be as fast, but would leave an unfinished pass only when TensorFlow destroys its iterator,
    which may be after the next one has begun.
    """
    passes = _Passes(source, parts)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def begin(_: Tensor) -> Any:
        number = tf.numpy_function(passes.begin, [], tf.int64, stateful=True)
        return tf.data.Dataset.range(_MOST).map(lambda _: following(number)).take_while(goes_on).map(build)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def following(number: Tensor) -> Any:
        dtypes = [tf.bool, *(spec.dtype for spec in parts.specs)]
        more, *tensors = tf.numpy_function(passes.following, [number], dtypes, stateful=True)
        more.set_shape([])
        for tensor, spec in zip(tensors, parts.specs, strict=True):
            tensor.set_shape(spec.shape)
        return more, tuple(tensors)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def goes_on(more: Tensor, _: Any) -> Tensor:
        return more

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def build(_: Tensor, tensors: Sequence[Tensor]) -> Any:
        return parts.build(tensors)

    return tf.data.Dataset.range(1).flat_map(begin)


class _Passes:
    """Passes of ``source`` behind functions that TensorFlow calls, from any thread, one at a time."""

    def __init__(self, source: FrameworkLoader[Any], parts: Parts) -> None:
        self._source, self._parts = source, parts
        self._end = [
            np.zeros([0 if side is None else side for side in spec.shape], spec.dtype.as_numpy_dtype)
            for spec in parts.specs
        ]
        self._number = 0
        self._running: Any = None

    def begin(self) -> Any:
        """Begin a pass; leave a pass that another iterator has not read to its end."""
        if self._running is not None:
            self._running.close()
        self._running = self._source.iterate(self._parts.arrays, reads_ahead=True)
        self._number += 1
        return np.int64(self._number)

    def following(self, number: Any) -> list[Any]:
        """Return True and the arrays of the next batch of pass ``number``, or False and empty ones at its end."""
        if number != self._number:
            raise taken_over("dataset")
        if self._running is None:
            return [np.False_, *self._end]
        try:
            return [np.True_, *next(self._running)]
        except StopIteration:
            self._running = None
            return [np.False_, *self._end]


def _to_tensor(array: Array) -> Tensor:
    """Return ``array`` as a tensor: on the CPU over its memory, or over a copy if kernels cannot use its address."""
    if _is_cpu_alone():
        return tf.experimental.dlpack.from_dlpack(aligned(array).__dlpack__())
    return tf.convert_to_tensor(array)


@cache
def _is_cpu_alone() -> bool:
    """Return True if this process has no other device, on which :func:`tf.convert_to_tensor` would put tensors."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def _inner(declared: InputType) -> tuple[int, ...]:
    return declared.element_shape if declared.type == DataType.Dense else ()

"""Tensors on a device with memory of its own: what a step gets while copies or steps lag behind the program, states,
and frameworks that move batches. The same is done with the CPU as the device, so it is tried where there is no other.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydp2_samples import path

torch: Any = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import pydp2  # noqa: E402
import pydp2.torch  # noqa: E402
from pydp2 import fluid  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402

# Forks beside the threads of a driver, and frameworks, warn. The driver opens descriptors whenever it likes; Lightning
# asks mpi4py, where that is installed, how many processes there are, and that starts orted.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.may_leave(descriptors=False, besides="orted")]

IS_THERE = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not IS_THERE, reason="no CUDA device")
on_cuda = pytest.param("cuda", marks=needs_cuda)
everywhere = pytest.mark.parametrize("device", ["cpu", on_cuda])

_MILLISECOND = 1_800_000  # cycles of a kernel that does nothing, on an H100
_BATCHES = 240  # of four passes of `WIDE`, 256 KiB each

KINDS = """
    import numpy as np
    from pydp2 import text

    TYPES = {
        "pixel": dense_vector(64), "half": dense_vector(6, dtype="float16", shape=(2, 3)),
        "big": dense_vector(3, dtype="int64"), "flag": dense_vector(1, dtype="bool"),
        "brain": BRAIN, "label": integer_value(10), "line": text(),
        "bag": sparse_binary_vector(40), "weights": sparse_float_vector(40),
        "words": integer_value_sequence(50), "frames": dense_vector_sequence(3),
        "texts": integer_value_sub_sequence(9), "tags": sparse_binary_vector_sequence(8),
    }
    NAMES = [name for name in TYPES if TYPES[name] is not None and name not in LEFT_OUT]

    @provider(input_types={name: TYPES[name] for name in NAMES}, pool_size=64)
    def process(settings, filename):
        random = np.random.default_rng(int(filename))

        def ids(below, most):
            return random.permutation(below)[: random.integers(0, most)].tolist()

        for i in range(50):
            empty = i % 10 == 3  # batches of one sample have nothing at all then
            some = lambda most: 0 if empty else int(random.integers(0, most))
            sample = {
                "pixel": random.random(64, np.float32), "half": random.random(6).astype(np.float16),
                "big": random.integers(-(2**60), 2**60, 3), "flag": random.random(1) < 0.5,
                "brain": random.integers(0, 99, 4), "label": i % 10, "line": "" if empty else f"{filename} {i} é",
                "bag": [] if empty else ids(40, 20), "weights": [] if empty else [(k, k / 8) for k in ids(40, 20)],
                "words": random.integers(0, 50, some(30)), "frames": random.random((some(5), 3), np.float32),
                "texts": [random.integers(0, 9, some(4)).tolist() for _ in range(some(4))],
                "tags": [ids(8, 4) for _ in range(some(4))],
            }
            yield {name: sample[name] for name in NAMES}
"""
WIDE = """
    import numpy as np

    @provider(
        input_types={"row": dense_vector(1024), "label": integer_value(1000), "words": integer_value_sequence(500)},
        cache=CacheType.CACHE_PASS_IN_MEM,
    )
    def process(settings, filename):
        random = np.random.default_rng(int(filename))
        for i in range(64 * 15):
            yield {"row": random.random(1024, np.float32), "label": i, "words": random.integers(0, 500, 5 + i % 50)}
"""
FILES = [str(number) for number in range(4)]


@pytest.fixture(scope="module", autouse=True)
def _driver() -> None:
    """Have the driver start, with its threads, before a test looks at what there is."""
    if IS_THERE:
        some = torch.ones(64, 64).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.Stream().synchronize()
        assert float((some @ some).sum()) == 64**3


def kinds(provider_file: Callable[[str], str], *left_out: str) -> str:
    """A provider of all kinds of slots but those left out."""
    brain = 'dense_vector(4, dtype="bfloat16")' if find_spec("ml_dtypes") else "None"
    return provider_file(KINDS.replace("BRAIN", brain).replace("LEFT_OUT", repr(left_out)))


def leaves(value: Any) -> list[Any]:
    """The tensors of a value, those within it, and its lists of strings."""
    if isinstance(value, dict):
        return leaves(tuple(value.values()))
    if isinstance(value, tuple):
        return [leaf for part in value if part is not None for leaf in leaves(part)]
    if isinstance(value, list):
        return [value]
    if value.is_nested:
        return [value.values(), value.offsets()]
    if value.layout is torch.sparse_csr:
        return [value.crow_indices(), value.col_indices(), value.values()]
    return [value]


def kept(value: Any) -> list[Any]:
    """Copies of the leaves, made in turn with the steps: when they are made, the value may be gone for long."""
    return [leaf if isinstance(leaf, list) else leaf.clone() for leaf in leaves(value)]


def on_cpu(leaf: Any) -> Any:
    return leaf if isinstance(leaf, list) else leaf.cpu()


def differing(seen: list[list[Any]], expected: list[list[Any]]) -> list[int]:
    """The steps that got anything else."""
    assert len(seen) == len(expected)
    return [
        number
        for number, pair in enumerate(zip(seen, expected, strict=True))
        if not all(map(same, *pair)) or len(pair[0]) != len(pair[1])
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        return bool(one == other)
    return bool(one.dtype is other.dtype and torch.equal(one.cpu(), other.cpu()))


def devices(value: Any) -> set[str]:
    return {leaf.device.type for leaf in leaves(value) if not isinstance(leaf, list)}


def digest_of(step: Any) -> str:
    return digest({name: value.cpu() for name, value in step.items()})


def sleep(device: str, milliseconds: float, stream: Any = None) -> None:
    """Keep the stream busy, the present one by default, which the program does not wait for."""
    if device == "cuda":
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(milliseconds * _MILLISECOND))


@everywhere
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize(
    ("left_out", "options"),
    [
        ((), {}),
        ((), {"pad": {"words": -1, "frames": 0.5, "texts": 0}, "index_dtype": torch.int32}),
        (("tags", "texts"), {"nested": True}),
    ],
    ids=["ragged", "padded", "nested"],
)
def test_a_step_on_a_device_has_the_numbers_that_it_has_on_the_cpu_whatever_the_slots(
    provider_file: Callable[[str], str], device: str, size: int, left_out: tuple[str, ...], options: dict[str, Any]
) -> None:
    address = kinds(provider_file, *left_out)
    common: dict[str, Any] = {"batch_size": size, "seed": 3, "workers": 1, "last_batch": "keep"}
    with pydp2.torch.loader(FILES, address, **common, **options) as data:
        expected = [kept(step) for step in data]
    with pydp2.torch.loader(FILES, address, **common, **options, device=device) as data:
        seen = []
        for step in data:
            assert devices(step) == {device}
            seen.append(kept(step))
            del step
    assert not differing(seen, expected)


@pytest.fixture
def wide(provider_file: Callable[[str], str]) -> Iterator[str]:
    """The address of a service whose pass is in memory, so that it is faster than steps on a device."""
    with pydp2.launch(FILES, provider_file(WIDE), workers=1) as service:
        with service.connect(batch_size=64, seed=5, job="first") as client:
            assert sum(1 for _ in client) == _BATCHES // 4
        yield service.address


def expected_of(address: str, passes: int) -> list[list[Any]]:
    with pydp2.torch.loader(address, batch_size=64, seed=5, job="expected") as data:
        return [kept(step) for _ in range(passes) for step in data]


@everywhere
@pytest.mark.parametrize("late", ["nothing", "copies", "steps", "both"])
@pytest.mark.parametrize("stream", ["default stream", "own stream"])
def test_no_step_reads_what_is_not_copied_yet_or_what_the_next_copies_have_overwritten(
    wide: str, device: str, late: str, stream: str
) -> None:
    """The program waits for nothing: it drops each step at once, and all copies of steps are looked at in the end."""
    if device == "cpu" and (late, stream) != ("nothing", "default stream"):
        pytest.skip("the CPU has no streams")
    expected, seen = expected_of(wide, 4), []
    with pydp2.torch.loader(wide, batch_size=64, seed=5, job="seen", device=device) as data:
        copying = getattr(data._streams, "_stream", None)
        own = torch.cuda.stream(torch.cuda.Stream()) if stream == "own stream" else contextlib.nullcontext()
        with own:
            for _ in range(4):
                for step in data:
                    if late in ("copies", "both"):
                        sleep(device, 0.5, copying)
                    if late in ("steps", "both"):
                        sleep(device, 1)
                    seen.append(kept(step))
                    del step
            sleep(device, 0.01)
            if device == "cuda":
                torch.cuda.synchronize()
    assert len(seen) == _BATCHES
    assert not differing(seen, expected)


@everywhere
@pytest.mark.parametrize("is_late", [False, True], ids=["fast", "slow"])
def test_tensors_in_pinned_memory_may_be_dropped_before_their_copies_are_over(
    wide: str, device: str, is_late: bool
) -> None:
    """As Lightning moves what its loader gives: without waiting."""
    expected, moved = expected_of(wide, 4), []
    with pydp2.torch.loader(wide, batch_size=64, seed=5, job="seen", pin_memory=device == "cuda") as data:
        for _ in range(4):
            for step in data:
                assert all(leaf.is_pinned() == (device == "cuda") for leaf in leaves(step))
                if is_late:
                    sleep(device, 1)
                moved.append([leaf.to(device, non_blocking=True) for leaf in leaves(step)])
                del step
    assert not differing(moved, expected)


@everywhere
@pytest.mark.parametrize("pin", [False, True], ids=["pageable", "pinned"])
def test_a_batch_that_has_moved_itself_may_be_dropped_at_once(wide: str, device: str, pin: bool) -> None:
    expected, moved = expected_of(wide, 4), []
    with pydp2.connect(wide, batch_size=64, seed=5, job="seen") as client:
        for _ in range(4):
            for batch in client:
                sleep(device, 0.5)
                if pin and device == "cuda":
                    value = pydp2.torch.to_tensors(batch, device, pin_memory=True, non_blocking=True)
                else:
                    value = batch.to(device, non_blocking=True)
                assert devices(value) == {device}
                moved.append(leaves(value))
                del batch, value
    assert not differing(moved, expected)


@needs_cuda
def test_the_device_may_be_given_as_torch_takes_it() -> None:
    for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)):
        with pydp2.torch.loader(*TRAIN, **DIGITS, device=device) as data:
            step: Any = next(iter(data))
            assert {str(value.device) for value in step.values()} == {"cuda:0"}
            assert int(step["label"].sum()) == int(data.batch["label"].sum())  # type: ignore[union-attr,index]


@needs_cuda
def test_nothing_of_a_loop_that_was_left_stays_on_the_device(wide: str) -> None:
    def allocated() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # it looks which streams have done with a tensor
        return int(torch.cuda.memory_allocated())

    before = allocated()
    with pydp2.torch.loader(wide, batch_size=64, seed=5, job="seen", device="cuda") as data:
        for step in islice(data, 3):
            kept(step)
        del step
        assert allocated() <= before + (2 << 20), "what is ahead, one batch"
        data.load_state_dict(data.state_dict())
        assert allocated() == before
    del data
    assert allocated() == before


@everywhere
def test_the_state_is_that_of_the_step_in_hand_whatever_was_copied_ahead(passes: list[list[str]], device: str) -> None:
    both = passes[0] + passes[1]
    states, seen = [], []
    with pydp2.torch.loader(*TRAIN, **DIGITS, device=device) as data:
        states.append(data.state_dict())
        for _ in range(2):
            for step in data:
                seen.append(digest_of(step))
                states.append(data.state_dict())
        assert seen == both
        for done in (3, 14):  # back, with a batch ahead
            data.load_state_dict(states[done])
            assert [digest_of(step) for step in data] == passes[0][done:]
            data.load_state_dict(states[done])
            assert [digest_of(step) for step in islice(data, 2)] == both[done : done + 2][: len(passes[0]) - done]
    for done in (0, 1, len(passes[0]) - 1, len(passes[0]), len(passes[0]) + 1):
        for other in (device, "cpu"):
            with pydp2.torch.loader(*TRAIN, **DIGITS, device=other) as data:
                data.load_state_dict(states[done])
                rest = [digest_of(step) for _ in range(data.pass_id, 2) for step in data]
            assert rest == both[done:], (done, other)


@everywhere
def test_mixtures_and_packed_sequences_go_to_the_device(device: str) -> None:
    def streams() -> Iterator[Any]:
        for is_packed in (False, True):
            mixture = pydp2.mix(
                {"train.list": 0.7, "test.list": 0.3}, "sequence_provider.process", batch_size=16, seed=5, workers=1,
                root=path("sequence"), args={"dictionary": "dictionary.txt"},
            )  # fmt: skip
            yield pydp2.pack_sequences(mixture, slot="words", length=32, batch_size=4) if is_packed else mixture

    for one, other in zip(streams(), streams(), strict=True):
        with pydp2.torch.loader(one) as plain:
            expected = [kept(step) for step in plain]
        with pydp2.torch.loader(other, device=device) as data:
            seen = [kept(step) for step in data]
        assert not differing(seen, expected)


@everywhere
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_pins_what_a_dataset_gives(
    provider_file: Callable[[str], str], device: str, workers: int
) -> None:
    address = kinds(provider_file)
    options: dict[str, Any] = {"batch_size": 16, "seed": 3, "workers": 1}
    with pydp2.torch.loader(FILES, address, **options) as data:
        expected = [[kept(step) for step in data] for _ in range(2)]
    with pydp2.torch.dataset(FILES, address, **options) as dataset:
        steps = DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=True)
        for epoch in range(2):
            moved = []
            for step in steps:
                assert type(step["words"]) is pydp2.torch.RaggedTensor
                parts = [leaf for leaf in leaves(step) if not isinstance(leaf, list) and leaf.numel()]
                assert {leaf.is_pinned() for leaf in parts} == {IS_THERE}
                sleep(device, 1)
                moved.append([x if isinstance(x, list) else x.to(device, non_blocking=True) for x in leaves(step)])
                del step, parts
            assert not differing(moved, expected[epoch])
        del steps


class Batches(IterableDataset):  # type: ignore[misc]
    """Batches of a client, as a user may hand them on."""

    def __init__(self, client: pydp2.Client) -> None:
        self.client = client

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client)


@everywhere
def test_a_data_loader_pins_batches_of_a_client(passes: list[list[str]], device: str) -> None:
    with pydp2.load(*TRAIN, **DIGITS) as client:
        seen: list[Any] = []
        for step in DataLoader(Batches(client), batch_size=None, pin_memory=True):
            if IS_THERE:
                assert isinstance(step, dict)
                assert all(value.is_pinned() for value in step.values())
                seen.append({name: value.to(device, non_blocking=True) for name, value in step.items()})
            else:  # torch leaves them as they are
                seen.append(step.to(device))
        assert [digest_of(step) for step in seen] == passes[0]


@everywhere
@pytest.mark.parametrize("given", ["loader", "pinned loader", "loader on the device", "client"])
def test_lightning_trains_on_the_device_with_the_steps_of_the_cpu(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path, device: str, given: str
) -> None:
    lightning: Any = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = model()
            self.seen: list[Any] = []

        def training_step(self, step: Any, _: int) -> Any:
            self.seen.append({name: value.clone() for name, value in step.items()})
            return torch.nn.functional.cross_entropy(self.layer(step["pixel"] / 16), step["label"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    options: dict[str, Any] = {}
    if given == "pinned loader":
        options["pin_memory"] = device == "cuda"
    elif given == "loader on the device":
        options["device"] = device
    made = Classifier()
    source: Any = pydp2.load(*TRAIN, **DIGITS) if given == "client" else pydp2.torch.loader(*TRAIN, **DIGITS | options)
    trainer = lightning.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path, max_epochs=2,
    )  # fmt: skip
    with source:
        trainer.fit(made, source)
    assert {value.device.type for step in made.seen for value in step.values()} == {device}
    seen = [digest_of(step) for step in made.seen]
    if given == "client":  # it is asked for an iterator before, which begins a pass (docs/torch.md)
        assert seen[: len(passes[1])] == passes[1]
    else:
        assert seen == passes[0] + passes[1]


@everywhere
def test_accelerate_leaves_a_loader_alone_and_goes_on_where_it_saved(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path, device: str
) -> None:
    accelerate: Any = pytest.importorskip("accelerate")

    from tests.torch.test_accelerate import accelerated  # it needs Accelerate

    both = passes[0] + passes[1]
    try:
        first = accelerated(model(), tmp_path, stop=9, device=device)
        assert first + accelerated(model(), tmp_path, resume=True, device=device) == both
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


@everywhere
def test_accelerate_moves_batches_and_all_that_is_in_a_step(provider_file: Callable[[str], str], device: str) -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    send = accelerate.utils.send_to_device
    with pydp2.torch.loader(FILES, kinds(provider_file), batch_size=16, workers=1) as data:
        for step in islice(data, 4):
            for moved in (send(step, device, non_blocking=True), send(data.batch, device, non_blocking=True)):
                assert devices(moved) == {device}
                assert type(moved["words"]) is pydp2.torch.RaggedTensor
                assert not differing([leaves(moved)], [leaves(step)])


@everywhere
@pytest.mark.parametrize("stream", ["default stream", "own stream"])
def test_instances_of_a_double_buffer_are_whole_when_they_are_handed_over(device: str, stream: str) -> None:
    """The thread copies them on the default stream, beside steps that lag behind."""
    if device == "cpu" and stream == "own stream":
        pytest.skip("the CPU has no streams")
    rows = np.random.default_rng(1).random((120, 64, 256), np.float32)

    def source() -> Iterator[Any]:
        yield from ((row.copy(), np.arange(n, n + 3)) for n, row in enumerate(rows))

    seen: list[Any] = []
    own = torch.cuda.stream(torch.cuda.Stream()) if stream == "own stream" else contextlib.nullcontext()
    with (
        own,
        fluid.double_buffer(source, torch.device("cuda", 0) if device == "cuda" else torch.device(device)) as data,
    ):
        for row, numbers in data:
            assert row.data.device.type == device
            sleep(device, 1)
            seen.append([row.data.clone(), numbers.data.clone()])
            del row, numbers
        if device == "cuda":
            torch.cuda.synchronize()
    expected = [[torch.from_numpy(row), torch.arange(n, n + 3)] for n, row in enumerate(rows)]
    assert not differing(seen, expected)

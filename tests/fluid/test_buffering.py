"""double_buffer: order, how much is in flight, beginning anew, places."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import ClientUseError, OptionError, OptionTypeError

from ..runs import wait_until
from .conftest import SHAPES, flat, numbers, rest


@given(st.integers(0, 30), st.integers(1, 6), st.integers(0, 31))
def test_cf_24_order_and_content_are_those_below_also_after_beginning_anew(count: int, depth: int, read: int) -> None:
    with fluid.double_buffer(fluid.batch(numbers(*range(count)), 2), depth=depth) as reader:
        batches = [flat([batch]) for batch in reader]
        assert batches == [[*range(count)][i : i + 2] for i in range(0, count, 2)]
        reader.reinit()
        for _ in range(min(read, len(batches))):
            reader.read_next()
        reader.reinit()
        assert rest(reader) == [*range(count)]


def test_cf_24_lods_and_dtypes_are_kept() -> None:
    tensor = fluid.LoDTensor(np.zeros((3, 2), np.float16), [[0, 1, 3]])
    with fluid.double_buffer(lambda: iter([(tensor,)])) as reader:
        ((same,),) = reader
    assert same is tensor


def test_cf_24_beginning_anew_while_the_buffer_is_full(nums: Any) -> None:
    before = set(threading.enumerate())
    with fluid.double_buffer(fluid.open_files(nums(30), SHAPES, buffer_size=1), depth=2) as reader:
        for _ in range(5):
            assert reader.has_next()
            assert wait_until(lambda: len(reader._queue()._items) == 2)  # type: ignore[union-attr]
            reader.reinit()
            assert set(threading.enumerate()) <= before
        assert rest(reader) == [*range(30)]


def test_cf_24_beginning_anew_does_not_wait_for_a_slow_file() -> None:
    """The thread of the buffer waits for those of the files, whose file goes on only in the second pass."""
    go, passes = threading.Event(), []

    @fluid.register_file_reader("slow")
    def read(filename: str, shapes: Any) -> Any:
        passes.append(filename)
        if len(passes) == 1:
            yield [np.full((1, 1), 7)]
            assert go.wait(20)
        yield [np.full((1, 1), 8)]

    with fluid.double_buffer(fluid.open_files("x.slow", SHAPES)) as reader:
        assert flat([reader.read_next()]) == [7]
        below: Any = reader.underlying
        waiting = below._queue()._not_empty._waiters
        assert wait_until(lambda: len(waiting) == 1)
        threading.Timer(0.2, go.set).start()  # it is the file's own thread that is waited for
        reader.reinit()
        assert rest(reader) == [8]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_at_most_depth_instances_are_read_and_not_taken(depth: int) -> None:
    made = 0

    def source() -> Any:
        nonlocal made
        for i in range(50):
            made += 1
            yield (np.full((1, 1), i),)

    with fluid.double_buffer(source, depth=depth) as reader:
        for taken in range(1, 12):
            reader.read_next()
            assert wait_until(lambda taken=taken: made - taken == depth)  # type: ignore[misc]
            assert made - taken <= depth


def test_an_error_comes_behind_what_was_read_before_it() -> None:
    def source() -> Any:
        yield (np.zeros((1, 1)),)
        raise KeyError("broken")

    with fluid.double_buffer(source, depth=5) as reader:
        assert reader.read_next()
        with pytest.raises(KeyError, match="broken"):
            reader.read_next()


@pytest.mark.parametrize("place", [None, "cpu", "CPU"])
def test_arrays_on_the_cpu_need_no_torch(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with fluid.double_buffer(numbers(1, 2), place) as reader:
        assert flat(reader) == [1, 2]


def test_a_device_without_torch_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"needs torch, which is not installed: pip install 'torch>="):
        fluid.double_buffer(numbers(1), "cuda:0")


def test_a_new_pass_that_could_not_be_begun_is_not_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader below was not told of it: what follows would be the rest of the old pass."""
    inside, go = threading.Event(), threading.Event()

    def source() -> Any:
        yield np.full((1, 1), 1)
        inside.set()
        assert go.wait(20)
        yield np.full((1, 1), 2)
        yield np.full((1, 1), 3)

    with fluid.double_buffer(source) as reader:
        assert flat([reader.read_next()]) == [1]
        assert inside.wait(20)
        with monkeypatch.context() as short:
            short.setattr("pydp2.fluid.base.STOP_SECONDS", 0.05)
            with pytest.raises(TimeoutError, match=r"still inside a read 0\.05 s after being told to end"):
                reader.reinit()
        go.set()
        for use in (reader.has_next, reader.read_next):
            with pytest.raises(ClientUseError, match=r"could not be begun; reinit\(\) tries it again"):
                use()
        reader.reinit()
        assert rest(reader) == [1, 2, 3]


@pytest.mark.parametrize("depth", [0, -1, 1.5])
def test_depths_that_cannot_be_are_refused(depth: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match="depth must be"):
        fluid.double_buffer(numbers(1), depth=depth)


class Placed:
    """In place of a tensor of torch."""

    def __init__(self, array: Any, device: Any = None) -> None:
        self.array, self.device, self.thread = array, device, threading.current_thread()
        self.shape, self.dtype = array.shape, array.dtype
        self.used: list[Any] = []

    def record_stream(self, stream: str) -> None:
        self.used.append((stream, threading.current_thread()))

    def to(self, device: Any) -> Placed:
        return Placed(self.array, device)


class StandIn(ModuleType):
    """As much of torch as placing asks for, with one CUDA device: so this is tried where torch is not installed too."""

    class device:
        def __init__(self, name: str) -> None:
            if name not in ("cuda", "cuda:0"):
                raise RuntimeError(f"no device {name}\nand a second line")
            self.name, self.type = name, "cuda"

    class cuda:
        is_available = staticmethod(lambda: True)
        current_stream = staticmethod(lambda device: f"stream of {device.name}")

    @staticmethod
    def empty(size: int, device: Any) -> None:
        pass

    @staticmethod
    def from_numpy(array: Any) -> Placed:
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.dtype.isnative
        return Placed(array)


@pytest.mark.parametrize(("place", "device"), [("cuda:0", "cuda:0"), ("auto", "cuda")])
def test_cf_24_every_slot_is_copied_to_the_place_by_the_thread(
    place: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", StandIn("torch"))
    read_only = np.arange(6, dtype=np.float32).reshape(3, 2)
    read_only.flags.writeable = False

    def source() -> Any:
        yield fluid.LoDTensor(read_only, [[0, 1, 3]]), np.arange(4, dtype=">i4")[::2]

    with fluid.double_buffer(source, place) as reader:
        ((values, swapped),) = reader
    assert [slot.data.device.name for slot in (values, swapped)] == [device] * 2
    assert threading.current_thread() not in {values.data.thread, swapped.data.thread}
    used = [(f"stream of {device}", threading.current_thread())]
    assert values.data.used == swapped.data.used == used, "the stream of the trainer uses them"
    assert (values.data.array.tolist(), swapped.data.array.tolist()) == ([[0, 1], [2, 3], [4, 5]], [0, 2])
    assert values.lod[0].tolist() == [0, 1, 3]
    with pytest.raises(OptionError, match=r"place 'cuda:7' cannot be used: no device cuda:7$"):
        fluid.double_buffer(source, "cuda:7")


# -- with torch --------------------------------------------------------------------------------------------------------
def test_cf_24_a_torch_device_gets_tensors_of_the_same_numbers_and_lod() -> None:
    torch = pytest.importorskip("torch")
    read_only = np.arange(6, dtype=np.float32).reshape(3, 2)
    read_only.flags.writeable = False

    def source() -> Any:
        yield fluid.LoDTensor(read_only, [[0, 1, 3]]), np.array([True, False]), np.arange(4, dtype=">i4")[::2]

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with fluid.double_buffer(source, device) as reader:
        ((values, flags, swapped),) = reader
    assert values.data.device == device
    assert values.data.dtype == torch.float32
    assert values.data.cpu().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert values.lod[0].tolist() == [0, 1, 3]
    assert (len(values), values.shape) == (3, (3, 2))
    assert flags.data.cpu().tolist() == [True, False]
    assert swapped.data.cpu().tolist() == [0, 2]
    values.data += 1
    assert read_only[0, 0] == 0


def test_cf_24_auto_is_the_first_cuda_device_or_none() -> None:
    torch = pytest.importorskip("torch")
    with fluid.double_buffer(numbers(1), "auto") as reader:
        ((value,),) = reader
    assert isinstance(value.data, torch.Tensor) == torch.cuda.is_available()


@pytest.mark.parametrize(("place", "kind"), [("cuda:99", OptionError), ("nowhere", OptionError), (5, OptionTypeError)])
def test_places_that_are_not_there_are_refused_at_once(place: Any, kind: type[Exception]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(kind, match="place"):
        fluid.double_buffer(numbers(1), place)

"""Memory that is shared: what is written is read back, nothing is lent twice, everything comes back once."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError
from pydp2.transport import Line, line, owned_arrays, sockets
from pydp2.transport.fd_passing import FdReceiver, SentFd, send_fd
from pydp2.transport.slabs import MIN_SLAB_BYTES, Bytes, SlabReader, SlabWriter, create_slab, plain_frames, put_in_slab

from .conftest import Ends, gone

ROOM = 1 << 16
SIZES = st.lists(st.one_of(st.integers(0, 200), st.integers(0, ROOM // 2)), min_size=1, max_size=5)


def pair(size: int = ROOM) -> tuple[SlabWriter, SlabReader]:
    descriptor = create_slab(size)
    assert descriptor is not None
    return SlabWriter(os.dup(descriptor)), SlabReader(descriptor)


def put(filler: SlabWriter, frames: Sequence[bytes]) -> bytes | None:
    place = filler.reserve([len(frame) for frame in frames])
    if place is None:
        return None
    for into, frame in zip(place[1], frames, strict=True):
        into[:] = np.frombuffer(frame, np.uint8)
    return place[0]


def noise(seed: int, sizes: Sequence[int]) -> list[bytes]:
    return [np.random.default_rng([seed, i]).bytes(size) for i, size in enumerate(sizes)]


@given(st.lists(st.one_of(SIZES, st.integers(0, 7)), max_size=60))
def test_what_is_written_is_read_back_until_it_is_dropped(steps: list[list[int] | int]) -> None:
    """Some messages are put in, others dropped, in any order: those that are held never change."""
    filler, viewer = pair()
    held: list[tuple[list[bytes], list[memoryview]]] = []
    for n, step in enumerate(steps):
        if isinstance(step, int):
            if held:
                del held[step % len(held)]
            continue
        frames = noise(n, step)
        reference = put(filler, frames)
        taken = sum(-(-len(frame) // 64) * 64 for each, _ in held for frame in each)
        if reference is None:
            assert held or not sum(step) or sum(-(-size // 64) * 64 for size in step) > ROOM
            continue
        assert taken + sum(step) <= ROOM
        held.append((frames, viewer.frames(reference)))
        assert filler.lent_count == len(held)
        assert all([bytes(view) for view in views] == expected for expected, views in held)
    held.clear()
    assert filler.lent_count == 0
    assert put(filler, [bytes(ROOM)]) is not None, "all of it can be lent again, in one piece"


def test_one_view_of_a_view_keeps_the_memory() -> None:
    filler, viewer = pair()
    views = viewer.frames(put(filler, [bytes(1000), bytes(range(100))]) or b"")
    last = np.frombuffer(views[1], np.uint8)[10:].view(np.int16).reshape(3, 15)[1:]
    expected = last.copy()
    del views
    assert filler.lent_count == 1
    assert put(filler, [b"\xff" * (ROOM - 2048)])
    assert (last == expected).all()
    del last
    assert filler.lent_count == 1


def test_frames_cannot_be_written_to_by_who_reads_them() -> None:
    filler, viewer = pair()
    (view,) = viewer.frames(put(filler, [b"abc"]) or b"")
    assert view.readonly
    assert not np.frombuffer(view, np.uint8).flags.writeable
    (array,) = owned_arrays([view])
    array[:] = 0
    assert bytes(view) == b"abc"


def test_memory_that_was_used_is_used_first() -> None:
    filler, viewer = pair()
    places = set()
    for n in range(100):
        reference = put(filler, [bytes([n]) * 5000])
        assert reference is not None
        places.add(int.from_bytes(reference[4:12], "little"))
        viewer.frames(reference)
    assert places == {0}


def told(name: int, begin: int, *sizes: int) -> bytes:
    return name.to_bytes(4, "little") + begin.to_bytes(8, "little") + np.array(sizes, "<u8").tobytes()


@pytest.mark.parametrize(
    "reference",
    [
        b"", bytes(11), bytes(12), bytes(13), told(0, 0, 5)[:-1], told(0, 0, 0), told(0, 1, 5), told(0, ROOM, 5),
        told(0, 1 << 63, 5), told(0, 0, ROOM + 1), told(0, 0, 1 << 63, 1 << 63), told(0, 0, *[1 << 62] * 4),
        told(0, 64, ROOM), told(1024, 0, 5), told((1 << 32) - 1, 0, 5),
    ],
)  # fmt: skip
def test_what_does_not_lie_in_the_slab_is_refused(reference: bytes) -> None:
    _, viewer = pair()
    with pytest.raises(RemoteProtocolError):
        viewer.frames(reference)


def test_a_stretch_that_is_in_use_is_not_lent_a_second_time() -> None:
    filler, viewer = pair()
    reference = put(filler, [bytes(100)]) or b""
    held = viewer.frames(reference)
    with pytest.raises(RemoteProtocolError):
        viewer.frames(reference)
    del held


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_lead_into_the_slab(reference: bytes) -> None:
    _, viewer = pair()
    try:
        frames = viewer.frames(reference)
    except RemoteProtocolError:
        return
    assert sum(map(len, frames)) <= ROOM
    assert all(bytes(frame) == bytes(len(frame)) for frame in frames)


def test_a_file_that_can_be_cut_short_is_no_slab(tmp_path: Path) -> None:
    unsealed = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 1 << 20)
    ordinary = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(ordinary, 1 << 20)
    tiny = create_slab(0)
    assert tiny is not None
    for descriptor in (unsealed, ordinary, tiny):
        with pytest.raises(RemoteProtocolError):
            SlabWriter(os.dup(descriptor))
        with pytest.raises(RemoteProtocolError):
            SlabReader(descriptor)
    slab = create_slab(ROOM)
    assert slab is not None
    with pytest.raises(PermissionError):
        os.ftruncate(slab, 100)
    os.close(slab)


def test_a_slab_is_gone_when_nobody_has_it() -> None:
    """Also where views of it were dropped last."""
    before = open_slabs()
    filler, viewer = pair()
    views = viewer.frames(put(filler, [bytes(100)]) or b"")
    assert open_slabs() > before
    del filler, viewer
    del views
    assert open_slabs() == before


def open_slabs() -> int:
    return sum("memfd:pydp2" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_what_a_fork_drops_stays_with_its_parent() -> None:
    filler, viewer = pair()
    views = viewer.frames(put(filler, [b"parent" * 100]) or b"")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert put(filler, [bytes(100)]) is None
            del views
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert filler.lent_count == 1
    assert bytes(views[0]) == b"parent" * 100
    del views
    assert filler.lent_count == 0


class Made:
    """Two frames that are made when they are sent."""

    def __init__(self, size: int) -> None:
        self._size = size

    def sizes(self) -> list[int]:
        return [self._size, 0]

    def write(self, into: Sequence[Bytes]) -> None:
        into[0][:] = 7

    def frames(self) -> list[Any]:
        return [b"\7" * self._size, b""]


@pytest.mark.parametrize("size", [10, 2 * MIN_SLAB_BYTES, 4 * MIN_SLAB_BYTES])
def test_late_frames_are_made_where_they_shall_lie(size: int) -> None:
    """Small ones go into the message, and so do those for which there is no room."""
    filler, viewer = pair(3 * MIN_SLAB_BYTES)
    body = [b"before", Made(size), np.arange(4, dtype=np.int16)]
    reference, frames = put_in_slab(filler, body)
    assert (reference is not None) == (size == 2 * MIN_SLAB_BYTES)
    if reference is not None:
        assert frames == []
        frames = viewer.frames(reference)
    expected = [b"before", b"\7" * size, b"", np.arange(4, dtype=np.int16).tobytes()]
    assert [bytes(frame) for frame in frames] == expected
    assert [bytes(frame) for frame in plain_frames(body)] == expected


# -- between two processes ---------------------------------------------------------------------------------------------
class Sharing(Ends):
    """A hub and a line that share memory as far as they can."""

    def __init__(self, address: str, max_frame: int = -1) -> None:
        super().__init__(address, max_frame, lends=True)

    def lend(self) -> None:
        """Send something large: with it the hub learns of the slab, and before it has that nothing is lent."""
        self.line.send([b"first", bytes(MIN_SLAB_BYTES)])
        self.hub.open_message(*self.received())

    def up(self, *frames: bytes) -> tuple[bytes, list[memoryview], list[memoryview]]:
        """Line to hub: who sent it, what travelled, what it means."""
        self.line.send(frames)
        received = self.received()
        return received[0], received[1], self.hub.open_message(*received)

    def down(self, peer: bytes, *frames: bytes) -> list[memoryview]:
        self.hub.send(peer, frames)
        received = self.line.receive(30_000)
        assert received is not None
        return received


@pytest.fixture
def opened() -> Iterator[Callable[[str], Sharing]]:
    made: list[Sharing] = []

    def make(address: str, max_frame: int = -1) -> Sharing:
        made.append(Sharing(address, max_frame))
        return made[-1]

    yield make
    for ends in made:
        ends.close()


LARGE = bytes(range(256)) * 4096


def test_a_large_message_travels_as_a_reference(opened: Callable[[str], Sharing], tmp_path: Path) -> None:
    ends = opened(f"ipc://{tmp_path}/s")
    assert len(ends.up(b"small", b"x" * 100)[1]) == 2
    assert open_slabs() == 0, "nothing is lent before it is needed"
    ends.lend()
    peer, travelled, meant = ends.up(b"head", LARGE, b"", b"x")
    assert sum(map(len, travelled)) < 200
    assert [bytes(frame) for frame in meant] == [b"head", LARGE, b"", b"x"]
    ends.line.share_receive_slab()
    ends.up(b"small")  # before it nothing is known of the slab
    received = ends.down(peer, b"head", LARGE, b"y")
    assert received[1].readonly
    assert [bytes(frame) for frame in received] == [b"head", LARGE, b"y"]


def test_who_keeps_everything_gets_everything(
    opened: Callable[[str], Sharing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all of the slab is lent, the bytes go through the socket."""
    monkeypatch.setattr(line, "_SEND_SLAB_BYTES", 16 << 20)
    ends = opened(f"ipc://{tmp_path}/s")
    ends.lend()
    kept = [ends.up(b"%d" % i, LARGE + b"%d" % i) for i in range(40)]
    assert [bytes(meant[1]) for _, _, meant in kept] == [LARGE + b"%d" % i for i in range(40)]
    assert {len(travelled) for _, travelled, _ in kept} == {2, 3}
    kept.clear()
    assert len(ends.up(b"", LARGE)[1]) == 3


@pytest.mark.parametrize("lack", ["no memfd", "no seals", "other host", "nobody takes descriptors", "no descriptors"])
def test_without_shared_memory_the_socket_carries_all(
    lack: str, opened: Callable[[str], Sharing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"ipc://{tmp_path}/s"
    if lack == "no memfd":
        monkeypatch.delattr("pydp2.system.stdlib.os.memfd_create")
    elif lack == "no seals":
        monkeypatch.delattr("pydp2.system.stdlib.fcntl.F_ADD_SEALS")
    elif lack == "other host":
        address = "tcp://127.0.0.1:*"
    elif lack == "nobody takes descriptors":
        (tmp_path / "s.fd").mkdir()
    elif lack == "no descriptors":  # so it is where the receiving process can have no more
        monkeypatch.setattr("pydp2.system.stdlib.socket.recv_fds", without_descriptors)
    ends = opened(address)
    ends.line.share_receive_slab()
    ends.up(b"first", LARGE)
    peer, travelled, meant = ends.up(b"head", LARGE)
    assert travelled is meant
    assert bytes(meant[1]) == LARGE
    assert bytes(ends.down(peer, b"head", LARGE)[1]) == LARGE


def without_descriptors(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int], int, Any]:
    return connection.recv(size), [], socket.MSG_CTRUNC, None


def test_a_reference_to_what_nobody_handed_over_is_refused(opened: Callable[[str], Sharing], tmp_path: Path) -> None:
    ends = opened(f"ipc://{tmp_path}/s")
    peer, _, _ = ends.up(b"hello")
    for frames in ([b"", bytes(40), b"head"], [b"", bytes(3), b"head"], [b"", b"", b"", b""], [b"", LARGE, b"head"]):
        with pytest.raises(RemoteProtocolError):
            ends.hub.open_message(peer, [memoryview(frame) for frame in frames])


def test_the_limit_of_frames_holds_for_shared_memory_too(opened: Callable[..., Sharing], tmp_path: Path) -> None:
    ends = opened(f"ipc://{tmp_path}/s", MIN_SLAB_BYTES)
    ends.lend()
    assert bytes(ends.up(b"head", bytes(MIN_SLAB_BYTES))[2][1]) == bytes(MIN_SLAB_BYTES)
    with pytest.raises(RemoteProtocolError, match="above"):
        ends.up(b"head", bytes(MIN_SLAB_BYTES + 1))


def test_an_offer_that_was_never_handed_over_changes_nothing(opened: Callable[[str], Sharing], tmp_path: Path) -> None:
    ends = opened(f"ipc://{tmp_path}/s")
    ends.line.send([b"", bytes(16)])
    peer, _, _ = ends.up(b"hello")
    assert bytes(ends.down(peer, b"head", LARGE)[1]) == LARGE


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # numbers, no paths


def handed_over(address: str) -> SentFd:
    """A slab that was handed over; it is not named."""
    descriptor = create_slab(ROOM)
    assert descriptor is not None
    handed = send_fd(address, descriptor)
    os.close(descriptor)
    assert handed is not None
    return handed


def test_a_descriptor_is_taken_once_by_its_name(tmp_path: Path) -> None:
    receiver = FdReceiver(f"ipc://{tmp_path}/s")
    handed = handed_over(f"ipc://{tmp_path}/s")
    found = receiver.claim(handed.token)
    assert found is not None
    assert receiver.claim(handed.token) is None, "once"
    os.close(found)
    handed.connection.close()
    receiver.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_handed_over_by_who_has_died_is_closed(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    receiver = FdReceiver(address)
    before = descriptors()
    for _ in range(3):
        for _ in range(60):
            handed_over(address).connection.close()  # as the kernel does for a process that is killed
        assert receiver.claim(bytes(16)) is None
        assert descriptors() == before
    receiver.close()


def test_who_lives_is_not_thrown_out_by_those_who_died(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    receiver = FdReceiver(address)
    living = handed_over(address)
    assert receiver.claim(bytes(16)) is None
    for _ in range(3):
        for _ in range(60):
            handed_over(address).connection.close()
        assert receiver.claim(bytes(16)) is None
    found = receiver.claim(living.token)
    assert found is not None
    os.close(found)
    living.connection.close()
    receiver.close()


def test_many_who_live_and_name_nothing_are_bounded(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    receiver = FdReceiver(address)
    before = descriptors()
    living = []
    for _ in range(100):
        living.append(handed_over(address))
        assert receiver.claim(bytes(16)) is None
    assert descriptors() - before - len(living) <= 2 * 64
    found = receiver.claim(living[0].token)
    assert found is not None, "the first ones keep their place"
    os.close(found)
    for each in living:
        each.connection.close()
    receiver.close()


def test_memory_that_is_lent_by_who_is_gone_is_not_kept(opened: Callable[[str], Sharing], tmp_path: Path) -> None:
    """Its last words may come when it is known to be gone."""
    ends = opened(f"ipc://{tmp_path}/s")
    before = open_slabs()
    peer, _, _ = ends.up(b"hello")
    ends.line.send([b"first", bytes(MIN_SLAB_BYTES)])
    ends.line.close(1000)
    assert gone(ends, peer)
    while ends.hub.receive() is not None:
        pass
    assert open_slabs() == before


def test_what_a_killed_peer_had_lent_is_let_go(opened: Callable[[str], Sharing], tmp_path: Path) -> None:
    """What came from it can be read as long as somebody refers to it, and not longer."""
    ends = opened(f"ipc://{tmp_path}/s")
    before = open_slabs()
    child = os.fork()
    if child == 0:
        try:
            line = Line(sockets.new_context(), ends.hub.address, share_send_slab=True)
            line.send([b"first", LARGE])
            line.receive(-1)
            line.send([b"head", LARGE])
            signal.pause()
        finally:
            os._exit(1)
    peer, _ = ends.received()
    ends.hub.send(peer, [b"go on"])
    received = ends.received()
    assert len(received[1][0]) == 0, "it came as a reference"
    frames = ends.hub.open_message(*received)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ends.hub.forget_peer(received[0])
    assert bytes(frames[1]) == LARGE
    assert open_slabs() > before
    del frames
    assert open_slabs() == before


def test_progress_is_read_without_a_message_and_after_the_peer_was_killed(
    opened: Callable[[str], Sharing], tmp_path: Path
) -> None:
    ends = opened(f"ipc://{tmp_path}/s")
    child = os.fork()
    if child == 0:
        try:
            line = Line(sockets.new_context(), ends.hub.address)
            assert not line.write_progress(3), "there is no slab"
            line.share_receive_slab()
            line.send([b"hello"])
            line.receive(-1)
            assert line.write_progress(5), "the hub has the slab"
            line.write_progress((1 << 64) - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    peer, _ = ends.received()
    assert ends.hub.progress_of(peer) == ends.hub.progress_of(b"a stranger") == 0
    ends.hub.send(peer, [b"go on"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert ends.hub.progress_of(peer) == (1 << 64) - 1
    ends.hub.forget_peer(peer)
    assert ends.hub.progress_of(peer) == 0


def test_over_tcp_nothing_shows_progress(opened: Callable[[str], Sharing]) -> None:
    ends = opened("tcp://127.0.0.1:*")
    ends.line.share_receive_slab()
    peer, _, _ = ends.up(b"hello")
    assert not ends.line.write_progress(5)
    assert ends.hub.progress_of(peer) == 0


def test_who_hands_over_nothing_takes_no_place_and_few_descriptors(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    receiver = FdReceiver(address)
    before = descriptors()
    silent = []
    for _ in range(100):
        silent.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        silent[-1].connect(f"{tmp_path}/s.fd")
    handed = handed_over(address)
    found = receiver.claim(handed.token)
    assert found is not None
    assert descriptors() - before - len(silent) - 2 <= 8
    os.close(found)
    for each in (*silent, handed.connection):
        each.close()
    receiver.close()

"""Batches as Paddle's tensors, directly and through its DataLoader.

``pip install -e '.[test]' -r tests/paddle/requirements.txt && pytest tests/paddle tests/frameworks``; skipped
where Paddle is not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydp2_samples import path

import pydp2
from pydp2.data.columns.array_likes import as_array, tensor_hint
from pydp2.errors import ClientUseError, OptionError, OptionTypeError
from tests.resume.test_example import whole_and_killed
from tests.runs import NUMBERS

paddle: Any = pytest.importorskip("paddle")
import pydp2.paddle  # noqa: E402  # its extra is there
from tests.provider_code import yields  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("paddle"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.may_leave(descriptors=False, threads=False),
]
SENTENCES: dict[str, Any] = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "batch_size": 16}
FILES = [str(n) for n in range(8)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5, "workers": 1}
DIGITS: dict[str, Any] = {"root": path("digits"), "batch_size": 128, "seed": 7, "workers": 1}
KINDS = """
@provider(
    input_types={
        "dense": dense_vector(6, shape=(2, 3)),
        "double": dense_vector(2, dtype="float64"),
        "short": dense_vector(2, dtype="uint16"),
        "label": integer_value(5),
        "words": integer_value_sequence(9),
        "frames": dense_vector_sequence(2),
        "nested": integer_value_sub_sequence(7),
        "weights": sparse_float_vector(20),
        "tags": sparse_binary_vector(20),
        "tag_lists": sparse_binary_vector_sequence(11),
    },
    should_shuffle=False,
)
def process(settings, filename):
    for i in range(10):
        n = i % 4
        yield {
            "dense": [i * 1.0 + j for j in range(6)], "double": [i / 3, i], "short": [i, 65535], "label": i % 5,
            "words": list(range(n)), "frames": [[i, j] for j in range(n)], "nested": [[1] * n, [2]],
            "weights": [(j, 0.5 + i) for j in range(n)], "tags": list(range(n)), "tag_lists": [[0, i + 1]] * n,
        }
"""


@pytest.fixture
def kinds(provider_file: Callable[[str], str]) -> str:
    return provider_file(KINDS)


@pytest.fixture
def numbers(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


def same(tensor: Any, array: Any, dtype: Any) -> None:
    assert tensor.dtype == dtype
    assert tensor.numpy().tolist() == np.asarray(array).tolist()


def test_packed_tokens_are_indices() -> None:
    sentences = pydp2.load("train.list", "sequence_provider.process", **SENTENCES, workers=1)
    packed = pydp2.pack_sequences(sentences, slot="words", length=32, batch_size=4)
    with pydp2.paddle.loader(packed) as data:
        step = next(iter(data))
        assert {value.dtype for value in step.values()} == {paddle.int64}
        assert step["words"].shape == [4, 32]
        assert (step["words"].numpy() == data.batch["words"]).all()  # type: ignore[index]


def test_each_kind_of_slot_becomes_its_tensor(kinds: str) -> None:
    with (
        pydp2.load(["a"], kinds, workers=1, batch_size=4) as expected,
        pydp2.paddle.loader(["a"], kinds, workers=1, batch_size=4) as data,
    ):
        for batch, found in zip(expected, data, strict=True):
            assert list(found) == list(batch.keys())
            same(found["dense"], batch["dense"], paddle.float32)
            same(found["double"], batch["double"], paddle.float64)
            same(found["short"], batch["short"], paddle.int32)
            same(found["label"], batch["label"], paddle.int64)
            words, nested, frames = batch["words"], batch["nested"], batch["frames"]
            assert isinstance(words, pydp2.Ragged)
            assert isinstance(nested, pydp2.Ragged)
            assert isinstance(frames, pydp2.Ragged)
            same(found["words"].values, words.values, paddle.int64)
            same(found["words"].offsets, words.sequence_start_positions, paddle.int64)
            assert found["words"].sub_offsets is None
            same(found["frames"].values, frames.values, paddle.float32)
            same(found["nested"].offsets, nested.sequence_start_positions, paddle.int64)
            same(found["nested"].sub_offsets, nested.sub_sequence_start_positions, paddle.int64)
            for name in ("weights", "tags"):
                same(found[name].to_dense(), batch[name].to_scipy().toarray(), paddle.float32)  # type: ignore[union-attr]
            lists = batch["tag_lists"]
            assert isinstance(lists, pydp2.Ragged)
            if len(lists.values):
                same(found["tag_lists"].values.to_dense(), lists.values.to_scipy().toarray(), paddle.float32)  # type: ignore[union-attr]


def test_a_tensor_on_the_cpu_is_the_memory_of_its_batch(kinds: str) -> None:
    with pydp2.paddle.loader(["a"], kinds, workers=1, batch_size=4) as data:
        for found in data:
            assert data.batch is not None
            data.batch["dense"][0, 0, 0] = 77  # type: ignore[index, call-overload]
            assert float(found["dense"][0, 0, 0]) == 77


def test_pairs_for_fit_and_sequences_that_are_padded(kinds: str) -> None:
    with pydp2.paddle.loader(["a"], kinds, workers=1, batch_size=4, x=["dense", "words"], y="label", pad=-1) as data:
        (dense, words), label = next(iter(data))
        assert dense.shape == [4, 2, 3]
        assert words.values.tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert words.lengths.tolist() == [0, 1, 2, 3]
        assert label.tolist() == [0, 1, 2, 3]


def test_what_paddle_has_no_type_for_is_refused_before_anything_is_read(provider_file: Callable[[str], str]) -> None:
    unsigned = provider_file(yields("{'big': dense_vector(2, dtype='uint64')}", "[{'big': [1, 2]}]"))
    for make in (pydp2.paddle.loader, pydp2.paddle.dataset):
        with pytest.raises(OptionTypeError, match=r"big is uint64.*int64"):
            make(["a"], unsigned, **OPTIONS)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (3, 2)])
def test_a_batch_of_a_data_loader_carries_the_state_behind_it(numbers: str, before: int, after: int) -> None:
    with pydp2.paddle.dataset(FILES, numbers, state="state", **OPTIONS) as dataset:
        reading = paddle.io.DataLoader(dataset, batch_size=None, num_workers=before)
        found, following = [*iter(reading)], [*iter(reading)]  # its len() raises
        through = paddle.io.DataLoader(dataset, batch_size=None, num_workers=after)
        for taken in (1, 2, len(found) // 2, len(found)):
            dataset.load_state_dict(dataset.state_dict(found[taken - 1]))
            rest = found[taken:] or following  # no iteration is empty
            assert [each[0].tolist() for each in through] == [each[0].tolist() for each in rest]


def test_a_dataset_whose_batches_carry_no_state_says_so(numbers: str) -> None:
    with pydp2.paddle.dataset(FILES, numbers, **OPTIONS) as dataset:
        batch = next(iter(paddle.io.DataLoader(dataset, batch_size=None)))
        with pytest.raises(ClientUseError, match="state='state'"):
            dataset.state_dict(batch)


def test_every_kind_of_slot_passes_through_a_data_loader(kinds: str) -> None:
    with (
        pydp2.paddle.loader(["a"], kinds, workers=1, batch_size=4) as data,
        pydp2.paddle.dataset(["a"], kinds, workers=1, batch_size=4) as dataset,
    ):
        for num_workers in (0, 2):
            through = paddle.io.DataLoader(dataset, batch_size=None, num_workers=num_workers)
            for expected, found in zip(data, through, strict=True):
                assert found["dense"].numpy().tolist() == expected["dense"].numpy().tolist()
                assert found["words"][1].tolist() == expected["words"].offsets.tolist()
                assert [each.tolist() for each in found["nested"]] == [each.tolist() for each in expected["nested"]]
                made = paddle.sparse.sparse_csr_tensor(*found["weights"])
                assert made.to_dense().tolist() == expected["weights"].to_dense().tolist()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("said", ["a number that uint8 can hold, got -1", "has no arrays for Paddle: OverflowError"])
def test_a_batch_that_has_no_arrays_is_an_error_and_no_hang(
    provider_file: Callable[[str], str], num_workers: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object) -> Any:
        raise OverflowError("too large")

    if "Overflow" in said:
        monkeypatch.setattr(pydp2.paddle._ArrayMaker, "__call__", overflow)
    small = provider_file(
        yields("{'x': dense_vector_sequence(2, dtype='uint8')}", "({'x': [[1, 2]] * (i % 3 + 1)} for i in range(100))")
    )
    with pydp2.paddle.dataset(["a"], small, pad=-1, **OPTIONS) as dataset:
        through = iter(paddle.io.DataLoader(dataset, batch_size=None, num_workers=num_workers))
        with pytest.raises(OptionError, match=said):
            next(through)


def test_a_model_fits_from_a_loader_and_from_a_data_loader() -> None:
    network = paddle.nn.Linear(64, 10)
    spec = paddle.static.InputSpec
    inputs = [spec([None, 64], name="pixel")], [spec([None], "int64", name="label")]
    model = paddle.Model(network, *inputs)
    model.prepare(
        paddle.optimizer.Adam(0.01, parameters=network.parameters()),
        paddle.nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    with (
        pydp2.paddle.loader("train.list", "digits_provider.process", x="pixel", y="label", **DIGITS) as data,
        pydp2.paddle.dataset(
            "test.list", "digits_provider.process", x="pixel", y="label", is_train=False, **DIGITS
        ) as held,
    ):
        model.fit(data, epochs=6, verbose=0)
        found = model.evaluate(paddle.io.DataLoader(held, batch_size=None, num_workers=2), verbose=0)
    assert found["acc"] > 0.85


RANK = """
import contextlib, json, os, sys, time
import paddle
import pydp2.paddle

if __name__ == "__main__":
    files, provider, num_workers, out = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    rank = paddle.distributed.get_rank()
    options = {"batch_size": 16, "seed": 5, "workers": 1}
    if num_workers < 0:
        data = through = pydp2.paddle.loader(files, provider, **options)
    else:
        data = pydp2.paddle.dataset(files, provider, **options)
        through = paddle.io.DataLoader(data, batch_size=None, num_workers=num_workers)
    seen = []
    with data if sys.argv[5] == "close" else contextlib.nullcontext():
        for _ in range(2):
            seen.append([])
            for found in through:
                seen[-1].append(found[0].tolist())
                time.sleep(0.1 * rank)
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(seen, file)
"""


@pytest.mark.parametrize(("num_workers", "end"), [(-1, "close"), (2, "close"), (0, "exit")])
def test_ranks_that_paddle_launches_share_one_service_however_they_end(
    numbers: str, tmp_path: Path, num_workers: int, end: str
) -> None:
    """The second one is slower than the first, which has the service."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    words = [",".join(FILES), numbers, str(num_workers), str(tmp_path), end]
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(tmp_path / "log")]
    done = subprocess.run(
        [sys.executable, *launch, str(script), *words], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    of_rank = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    with pydp2.load(FILES, numbers, last_batch="pad", **OPTIONS) as data:
        for number in range(2):
            expected = [batch[0].tolist() for batch in data]
            steps = zip(of_rank[0][number], of_rank[1][number], strict=True)
            assert [batch for step in steps for batch in step][: len(expected)] == expected


def test_the_example_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    """Bit by bit, and the optimizer and the place in the data too."""
    uninterrupted, killed, kills = whole_and_killed("train_digits_paddle.py", tmp_path, seed=3, every=12)
    assert kills >= 2
    assert json.loads(killed.read_text()) == json.loads(uninterrupted.read_text())


def test_ranks_on_several_machines_need_a_service(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6170,10.0.0.2:6170")
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "10.0.0.2:6170")
    with pytest.raises(OptionError, match="1 of 2 ranks"):
        pydp2.paddle.loader(FILES, numbers, **OPTIONS)


def test_the_bits_of_a_bfloat16_tensor_are_not_taken_as_ints() -> None:
    x = paddle.to_tensor([1.0, 2.5]).astype("bfloat16")
    assert as_array(x) is None
    assert tensor_hint(x) == " (write x.float())"
    assert x.float().numpy().tolist() == [1.0, 2.5]

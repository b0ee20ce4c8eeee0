"""Batches as TensorFlow's tensors, through tf.data, and in Keras.

``pip install -e '.[test]' -r tests/tf/requirements.txt && pytest tests/tf tests/frameworks``; skipped where TensorFlow
or Keras is not installed. Keras is also tried with torch and JAX where these are installed.
"""

from __future__ import annotations

import importlib.util
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
from pydp2.errors import ClientUseError, OptionError
from tests.faults.relay import free_port
from tests.resume.test_example import arrays_of, whole_and_killed
from tests.runs import NUMBERS

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")
import pydp2.keras  # noqa: E402  # its extra is there
import pydp2.tf  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("tf"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.may_leave(descriptors=False, threads=False),
]
FILES = [str(n) for n in range(8)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5, "workers": 1}
KINDS = """
@provider(
    input_types={
        "dense": dense_vector(6, shape=(2, 3)),
        "short": dense_vector(2, dtype="uint16"),
        "label": integer_value(5),
        "words": integer_value_sequence(9),
        "frames": dense_vector_sequence(2),
        "nested": integer_value_sub_sequence(7),
        "weights": sparse_float_vector(20),
        "tags": sparse_binary_vector(20),
        "tag_lists": sparse_binary_vector_sequence(11),
        "weight_lists": sparse_float_vector_sequence(11),
    },
    should_shuffle=False,
)
def process(settings, filename):
    for i in range(10):
        n = i % 4
        yield {
            "dense": [i * 1.0 + j for j in range(6)], "short": [i, 65535], "label": i % 5, "words": list(range(n)),
            "frames": [[i, j] for j in range(n)], "nested": [[1] * n, [], [2]][: n + 1], "tags": list(range(n)),
            "weights": [(j, 0.5 + i) for j in range(n)], "tag_lists": [[0, i + 1]] * n,
            "weight_lists": [[(i, 0.25)], []][:n],
        }
"""


@pytest.fixture
def kinds(provider_file: Callable[[str], str]) -> str:
    return provider_file(KINDS)


@pytest.fixture
def numbers(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


def uninterrupted(provider: str, passes: int) -> list[list[list[int]]]:
    with pydp2.load(FILES, provider, **OPTIONS) as data:
        return [[batch[0].tolist() for batch in data] for _ in range(passes)]


def rows_of(found: Any) -> list[list[Any]]:
    """Rows of the ten samples, as :data:`KINDS` yields them, from a batch of all of them."""
    return [
        found["dense"].numpy().reshape(10, 6).tolist(), found["short"].numpy().tolist(),
        found["label"].numpy().tolist(), found["words"].to_list(), found["frames"].to_list(),
        found["nested"].to_list(), tf.sparse.to_dense(found["weights"]).numpy().tolist(),
        tf.sparse.to_dense(found["tags"]).numpy().tolist(), found["tag_lists"].to_list(),
        [each.to_list() for each in found["weight_lists"]],
    ]  # fmt: skip


def expected_rows() -> list[list[Any]]:
    made: list[list[Any]] = [[] for _ in range(9)]
    ids, values = [], []
    for i in range(10):
        n = i % 4
        dense, tags = [0.0] * 20, [0.0] * 20
        for j in range(n):
            dense[j], tags[j] = 0.5 + i, 1.0
        rows: list[Any] = [
            [i * 1.0 + j for j in range(6)], [i, 65535], i % 5, list(range(n)), [[i, j] for j in range(n)],
            [[1] * n, [], [2]][: n + 1], dense, tags, [[0, i + 1]] * n,
        ]  # fmt: skip
        for column, row in zip(made, rows, strict=True):
            column.append(row)
        ids.append([[i], []][:n])
        values.append([[0.25], []][:n])
    return [*made, [ids, values]]


def test_a_mixture_is_a_dataset_with_its_cardinality() -> None:
    digits: dict[str, Any] = {"root": path("digits"), "workers": 1, "seed": 7}
    known = []
    for _ in range(2):  # in the first pass the samples are counted
        mixed = pydp2.mix({"train.list": 0.7, "test.list": 0.3}, "digits_provider.process", batch_size=64, **digits)
        with pydp2.tf.loader(mixed, x="pixel", y="label") as data:
            known.append(int(data.dataset().cardinality()))
            steps = [(x.shape, y.dtype) for x, y in data.dataset()]
    assert known[1] == len(steps) == 29
    assert steps[0] == ((64, 64), tf.int32)


def test_a_mixture_whose_passes_differ_in_length_is_a_dataset_of_unknown_cardinality() -> None:
    """TensorFlow would want all to be as long as the first."""
    digits: dict[str, Any] = {"root": path("digits"), "workers": 1, "seed": 7, "batch_size": 16}

    def mixture() -> pydp2.Client:
        lists = {"train.list": 0.7, "test.list": 0.3}
        return pydp2.mix(lists, "digits_provider.process", stopping_strategy="first_exhausted", **digits)

    with mixture() as plain:
        lengths = [sum(1 for _ in plain) for _ in range(3)]
    assert len(set(lengths)) > 1
    with pydp2.tf.loader(mixture()) as data:
        made = data.dataset()
        assert made.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert [sum(1 for _ in made) for _ in range(3)] == lengths


def test_each_kind_of_slot_becomes_its_tensor_directly_and_through_tf_data(kinds: str) -> None:
    with pydp2.tf.loader(["a"], kinds, workers=1, batch_size=10) as data:
        assert rows_of(next(iter(data))) == expected_rows()
        assert rows_of(next(iter(data.dataset()))) == expected_rows()


def test_sparse_rows_ascend_although_a_provider_yields_them_in_any_order(
    provider_file: Callable[[str], str],
) -> None:
    """TensorFlow refuses to make a dense tensor of others."""
    bags = provider_file("""
        @provider(
            input_types={"tags": sparse_binary_vector(10), "weights": sparse_float_vector(10)}, should_shuffle=False
        )
        def process(settings, filename):
            yield {"tags": [7, 2], "weights": [(9, 0.5), (3, 2.0), (4, 1.5)]}
            yield {"tags": [0, 5, 1], "weights": [(6, 4.0)]}
        """)
    with pydp2.tf.loader(["a"], bags, workers=1, batch_size=2) as data:
        for found in (next(iter(data)), next(iter(data.dataset()))):
            assert tf.sparse.to_dense(found["tags"]).numpy().tolist() == [
                [0, 0, 1, 0, 0, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0, 0, 0, 0],
            ]  # fmt: skip
            assert tf.sparse.to_dense(found["weights"]).numpy().tolist() == [
                [0, 0, 0, 2, 1.5, 0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0, 0, 4, 0, 0, 0],
            ]  # fmt: skip


def test_tensors_lie_in_the_memory_of_the_batch_where_kernels_can_use_it(kinds: str) -> None:
    with pydp2.tf.loader(FILES, kinds, **OPTIONS) as data:
        kept, expected = [], []
        for values in data:
            for name in ("dense", "short", "label"):
                array = data.batch[name]
                memory = np.asarray(memoryview(values[name]))
                assert memory.ctypes.data % 64 == 0, "TensorFlow ends the process where it is not"
                assert np.shares_memory(memory, array) == (array.ctypes.data % 64 == 0)
                kept.append(values[name])
                expected.append(array.copy())
    assert all((tensor.numpy() == array).all() for tensor, array in zip(kept, expected, strict=True))


def test_the_element_spec_follows_from_the_slots(kinds: str) -> None:
    ids, values = tf.RaggedTensorSpec([None, None, None], tf.int32), tf.RaggedTensorSpec([None, None, None], tf.float32)
    with pydp2.tf.loader(["a"], kinds, workers=1, batch_size=4) as data:
        assert data.dataset().element_spec == {
            "dense": tf.TensorSpec([None, 2, 3], tf.float32),
            "short": tf.TensorSpec([None, 2], tf.uint16),
            "label": tf.TensorSpec([None], tf.int32),
            "words": tf.RaggedTensorSpec([None, None], tf.int32),
            "frames": tf.RaggedTensorSpec([None, None, 2], tf.float32, ragged_rank=1),
            "nested": tf.RaggedTensorSpec([None, None, None], tf.int32),
            "weights": tf.SparseTensorSpec([None, 20], tf.float32),
            "tags": tf.SparseTensorSpec([None, 20], tf.float32),
            "tag_lists": ids,
            "weight_lists": (ids, values),
        }


def test_pairs_for_keras_and_sequences_that_are_padded(kinds: str) -> None:
    with pydp2.tf.loader(["a"], kinds, workers=1, batch_size=4, x=["dense", "words"], y="label", pad=-1) as data:
        (dense, words), label = next(iter(data.dataset()))
        assert dense.shape == (4, 2, 3)
        assert words.numpy().tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert label.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="tag_lists"):
        pydp2.tf.loader(["a"], kinds, workers=1, batch_size=4, pad=0)


def test_each_iteration_of_a_dataset_is_a_pass(numbers: str) -> None:
    passes = uninterrupted(numbers, 4)
    with pydp2.tf.loader(FILES, numbers, **OPTIONS) as data:
        made = pydp2.tf.dataset(data)
        assert [found[0].numpy().tolist() for found in made] == passes[0]
        assert [found[0].numpy().tolist() for found in made.repeat(2)] == passes[1] + passes[2]
        for found in made:
            assert found[0].numpy().tolist() == passes[3][0]
            break
        assert data.state_dict(taken=1)["pass"] == 3


def test_a_dataset_of_a_list_has_a_service_that_ends_with_the_program(numbers: str) -> None:
    code = (
        "import json, pydp2.tf\n"
        f"made = pydp2.tf.dataset({FILES!r}, {numbers!r}, **{OPTIONS!r})\n"
        "print(json.dumps([found[0].numpy().tolist() for found in made]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout) == uninterrupted(numbers, 1)[0]


def test_the_cardinality_is_known_once_the_length_is(numbers: str) -> None:
    with pydp2.tf.loader(FILES, numbers, **OPTIONS) as data:
        assert data.dataset().cardinality() == tf.data.UNKNOWN_CARDINALITY
        seen = sum(1 for _ in data)
        made = data.dataset()
        assert made.cardinality() == seen
        assert sum(1 for _ in made) == seen


def test_an_iteration_that_another_took_over_says_so(numbers: str) -> None:
    with pydp2.tf.loader(FILES, numbers, **OPTIONS) as data:
        made = data.dataset()
        first = iter(made)
        next(first)
        second = iter(made)
        next(second)
        with pytest.raises(tf.errors.OpError, match="a newer loop over this dataset"):
            for _ in first:  # tf.data may have read some ahead
                pass
        next(second)


def keras_passes(numbers: str, count: int) -> list[list[list[int]]]:
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        return [[value[0].tolist() for value in data] for _ in range(count)]


def test_a_look_at_the_first_batch_of_keras_costs_none(numbers: str) -> None:
    passes = keras_passes(numbers, 3)
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        assert next(iter(data))[0].tolist() == passes[0][0]
        assert [value[0].tolist() for value in data] == passes[0], "Keras looks, and trains then"
        assert next(iter(data))[0].tolist() == passes[1][0]
        data.set_epoch(2)
        assert [value[0].tolist() for value in data] == passes[2], "all of it"


def test_a_batch_that_keras_only_looked_at_is_not_in_the_state(numbers: str) -> None:
    passes = keras_passes(numbers, 2)
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        before = data.state_dict()
        next(iter(data))
        assert data.state_dict() == before
        states = []
        for value in data:
            states.append(data.state_dict())
            assert value[0].tolist() == passes[0][len(states) - 1]
        assert [state["batch"] for state in states] == [*range(1, len(states)), states[-1]["batch"]]
        between = data.state_dict()
        next(iter(data))
        assert data.state_dict() == between
        for state, rest in ((before, passes[0]), (states[0], passes[0][1:]), (between, passes[1])):
            data.load_state_dict(state)
            next(iter(data))
            assert data.state_dict() == state
            assert [value[0].tolist() for value in data] == rest


def test_a_state_behind_which_keras_only_looked_at_a_batch_is_still_the_loaded_one(numbers: str) -> None:
    """For ``set_epoch``, which a callback calls when an epoch begins."""
    passes = keras_passes(numbers, 3)
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        for _ in data:
            pass
        for step, _ in enumerate(data, 1):
            if step == 4:
                state = data.state_dict()
                break
        for _ in range(2):
            data.load_state_dict(state)
            for _ in range(2):
                next(iter(data))
                data.set_epoch(1)
                assert data.state_dict() == state
            seen = []
            for value in data:
                seen.append(value[0].tolist())
                assert data.state_dict(taken=len(seen)) == data.state_dict()
            assert seen == passes[1][4:]
        data.load_state_dict(state)
        next(iter(data))
        with pytest.warns(UserWarning, match=r"set_epoch\(0\) drops the state that was loaded, which is in pass 1"):
            data.set_epoch(0)
        assert [value[0].tolist() for value in data] == passes[0]
        data.load_state_dict(state)
        next(iter(data))
        data.set_epoch(2)
        assert [value[0].tolist() for value in data] == passes[2]


def test_a_pass_that_keras_only_looked_at_begins_again_with_set_epoch(numbers: str) -> None:
    passes = keras_passes(numbers, 2)
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        for epoch, expected in enumerate(passes):
            next(iter(data))
            data.set_epoch(epoch)
            assert [value[0].tolist() for value in data] == expected


def test_an_older_loop_of_keras_neither_takes_from_a_newer_one_nor_ends_it(numbers: str) -> None:
    passes = keras_passes(numbers, 1)
    with pydp2.keras.loader(FILES, numbers, x=0, **OPTIONS) as data:
        older = iter(data)
        next(older)
        newer = iter(data)
        seen = [next(newer)[0].tolist() for _ in range(3)]
        with pytest.raises(ClientUseError, match="newer loop"):
            next(older)
        del older
        assert seen + [value[0].tolist() for value in newer] == passes[0]


def test_the_state_behind_any_batch_that_was_taken_continues_there(numbers: str) -> None:
    """However far tf.data has read ahead. Behind the last one, the next pass begins."""
    passes = uninterrupted(numbers, 2)
    for taken in (1, 7, len(passes[0])):
        with pydp2.tf.loader(FILES, numbers, **OPTIONS) as data:
            made = data.dataset()
            for number, _ in enumerate(made.prefetch(5), 1):
                if number == taken:
                    state = data.state_dict(taken=taken)
                    break
            data.load_state_dict(state)
            assert [found[0].numpy().tolist() for found in data.dataset()] == (passes[0][taken:] or passes[1])


def test_a_state_without_the_number_that_was_taken_is_refused_while_tf_data_reads(numbers: str) -> None:
    with pydp2.tf.loader(FILES, numbers, **OPTIONS) as data:
        running = iter(data.dataset())
        next(running)
        with pytest.raises(ClientUseError, match="taken="):
            data.state_dict()
        with pytest.raises(ClientUseError, match="behind value 5"):
            data.state_dict(taken=5)


def test_an_error_of_the_data_has_its_text(provider_file: Callable[[str], str]) -> None:
    broken = provider_file("""
        @provider(input_types={"label": integer_value(10)}, should_shuffle=False)
        def process(settings, filename):
            for i in range(100):
                if i == 60:
                    raise KeyError("nothing there")
                yield {"label": i % 10}
        """)
    with pydp2.tf.loader(["a"], broken, **OPTIONS) as data:
        running = iter(data.dataset())
        for _ in range(3):
            next(running)
        with pytest.raises(tf.errors.OpError, match="sample 60"):
            next(running)


def test_ranks_that_nobody_has_started_need_a_service(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"worker": ["10.0.0.1:99", "10.0.0.2:99"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(OptionError, match=r"1 of 2 ranks run on this machine.*pydp2 serve"):
        pydp2.tf.loader(FILES, numbers, **OPTIONS)
    with pydp2.tf.loader(FILES, numbers, world_size=1, **OPTIONS) as data:
        assert sum(1 for _ in data) == len(uninterrupted(numbers, 1)[0])


@pytest.mark.parametrize(
    ("text", "rank", "world_size", "local"),
    [
        ("", 0, 1, 1),
        ('{"task": {"type": "worker", "index": 0}, "cluster": {"worker": ["a:1"]}}', 0, 1, 1),
        ('{"task": {"type": "worker", "index": 1}, "cluster": {"worker": ["a:1", "a:2", "b:1"]}}', 1, 3, 2),
        ('{"task": {"type": "worker", "index": 1}, "cluster": {"worker": ["a:1", "b:1"], "chief": ["b:2"]}}', 2, 3, 2),
        ('{"task": {"type": "chief", "index": 0}, "cluster": {"worker": ["a:1"], "chief": ["b:1"]}}', 0, 2, 1),
        ('{"task": {"type": "evaluator", "index": 0}, "cluster": {"worker": ["a:1", "b:1"]}}', 0, 1, 1),
    ],
)
def test_the_rank_is_that_of_tf_config(text: str, rank: int, world_size: int, local: int) -> None:
    found = pydp2.tf.find_ranks({"TF_CONFIG": text})
    assert (found.rank, found.world_size, found.local_world_size) == (rank, world_size, local)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"task": {"type": "worker", "index": 1}, "cluster": {"worker": ["a:1"]}}']
)
def test_a_tf_config_that_does_not_say_which_worker_this_is_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match=r'TF_CONFIG must name the workers.*"index": 0'):
        pydp2.tf.find_ranks({"TF_CONFIG": text})


RANK = """
import json, os, sys
import numpy as np
address, which, port = sys.argv[1:4]
rank = int(sys.argv[4])
files, options = [str(n) for n in range(8)], {"batch_size": 16, "seed": 5, "workers": 1}
if __name__ == "__main__":
    if which == "tf":
        import pydp2.tf
        with pydp2.tf.loader(files, address, **options) as data:
            seen = [[batch.numpy().tolist() for (batch,) in data] for _ in range(2)]
    else:
        import keras
        if which == "jax":
            keras.distribution.initialize(f"127.0.0.1:{port}", 2, rank)
        import pydp2.keras
        with pydp2.keras.loader(files, address, x=0, **options) as data:
            seen = [[batch.tolist() for (batch,) in data] for _ in range(2)]
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("which", ["tf", "tensorflow", "torch", "jax"])
def test_two_processes_of_a_framework_share_one_service(numbers: str, tmp_path: Path, which: str) -> None:
    """With pydp2.tf, and with Keras over each of its backends."""
    if which != "tf" and importlib.util.find_spec(which) is None:
        pytest.skip(f"{which} is not installed")
    (tmp_path / "rank.py").write_text(RANK)
    port = str(free_port())
    shared = {"tf": "tensorflow"}.get(which, which)
    environment = os.environ | {"KERAS_BACKEND": shared, "JAX_PLATFORMS": "cpu"}
    running = []
    for rank in range(2):
        if shared == "tensorflow":
            config = {"cluster": {"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}}
            environment["TF_CONFIG"] = json.dumps(config | {"task": {"type": "worker", "index": rank}})
        elif shared == "torch":
            environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = [str(tmp_path / "rank.py"), numbers, which, port, str(rank)]
        running.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", *words], env=dict(environment), cwd=tmp_path,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        ended = [process.communicate(timeout=150) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    for process, (out, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, out + errors
    of_rank = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    for first, second, expected in zip(*of_rank, uninterrupted(numbers, 2), strict=True):
        assert len(first) == len(second), "all take equally many steps"
        found = [batch for step in zip(first, second, strict=True) for batch in step]
        assert found[: len(expected) - 1] == expected[:-1]


def test_keras_takes_sequences_padded_and_sparse_slots_as_matrices(kinds: str) -> None:
    with pydp2.keras.loader(["a"], kinds, workers=1, batch_size=4, x=["words", "weights"], y="label", pad=0) as data:
        (words, weights), label = next(iter(data))
        assert words.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]
        assert weights.shape == (4, 20)
        assert label.tolist() == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="pad=0"):
        pydp2.keras.loader(["a"], kinds, workers=1, batch_size=4, x="words")
    with pytest.raises(OptionError, match="sparse"):
        pydp2.keras.loader(["a"], kinds, workers=1, batch_size=4, x="tag_lists", pad=0)


FIT = """
import json, sys
import keras
import pydp2.keras

class Seen(keras.callbacks.Callback):
    def __init__(self, data):
        super().__init__()
        self.data, self.steps = data, []

    def on_train_batch_end(self, batch, logs=None):
        state = self.data.state_dict(taken=batch + 1)
        self.steps.append([state["pass"], state["batch"]])
        if len(self.steps) == 17:
            self.state = state

    def on_epoch_end(self, epoch, logs=None):
        state = self.data.state_dict()
        self.steps.append([state["pass"], state["batch"]])

if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Rescaling(1 / 16), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    options = {"root": sys.argv[1], "x": "pixel", "y": "label", "batch_size": 128, "seed": 7, "workers": 1}
    with (
        pydp2.keras.loader("train.list", "digits_provider.process", **options) as data,
        pydp2.keras.loader("test.list", "digits_provider.process", is_train=False, **options) as unseen,
    ):
        seen = Seen(data)
        told = model.fit(data, epochs=4, callbacks=[seen], validation_data=unseen, verbose=0)
        data.load_state_dict(seen.state)
        again = Seen(data)
        model.fit(data, initial_epoch=1, epochs=3, callbacks=[again], verbose=0)
        rows = model.predict(unseen, verbose=0).shape[0]
    print(json.dumps([seen.steps, again.steps, told.history["val_accuracy"][-1], rows]))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_each_epoch_of_keras_is_a_pass_and_its_states_are_those_of_its_steps(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    (tmp_path / "fit.py").write_text(FIT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "fit.py"), path("digits")],
        env=os.environ | {"KERAS_BACKEND": backend}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps, again, accuracy, rows = json.loads(done.stdout.splitlines()[-1])
    of_passes = [[[number, batch] for batch in range(1, 13)] + [[number + 1, 0]] for number in range(4)]
    assert steps == [step for each in of_passes for step in each]
    assert again == of_passes[1][4:] + of_passes[2]
    assert accuracy > 0.8
    assert rows == 359


def test_the_example_that_is_killed_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    """Bit by bit, and the optimizer and the place in the data too."""
    uninterrupted, killed, kills = whole_and_killed("train_digits_tf.py", tmp_path, seed=3, every=12)
    assert kills >= 2
    assert arrays_of(killed) == arrays_of(uninterrupted)

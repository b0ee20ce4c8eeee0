"""The loader of tensors: options, devices, states, places among the ranks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from pydp2_samples import path

torch: Any = pytest.importorskip("torch")

import pydp2  # noqa: E402
import pydp2.torch  # noqa: E402
from pydp2.errors import OptionError, OptionTypeError  # noqa: E402
from pydp2.frameworks.shared_service import Ranks  # noqa: E402
from pydp2.torch.ranks import find_ranks  # noqa: E402
from pydp2.torch.tensors import TensorConverter  # noqa: E402
from tests.frameworks.conftest import long_step  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402


def test_a_state_has_the_same_keys_at_every_place_and_that_of_a_client_as_text() -> None:
    """torch.distributed.checkpoint reads only those keys that the loader has when it loads."""
    with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
        keys = set(data.state_dict())
        for _ in islice(data, 4):
            state = data.state_dict()
        assert set(state) == keys == {"pass", "batch", "stream"}
        assert json.loads(state["stream"]) == data.client.state_dict()


def test_steps_get_dicts_or_tuples_and_the_batch_says_what_is_padding(provider_file: Callable[[str], str]) -> None:
    address = provider_file(
        "@provider(input_types=[integer_value(9), dense_vector(1)], should_shuffle=False)\n"
        "def process(settings, filename):\n    yield from ((n, [n / 2]) for n in range(5))"
    )
    with pydp2.torch.loader(["x"], address, batch_size=3, last_batch="pad", workers=1) as data:
        seen = [(number.tolist(), half.flatten().tolist(), data.batch.padding) for number, half in data]  # type: ignore[union-attr]
    assert seen == [([0, 1, 2], [0.0, 0.5, 1.0], 0), ([3, 4, 3], [1.5, 2.0, 1.5], 1)]


SENTENCES: dict[str, Any] = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "workers": 1}


def sentences() -> pydp2.Client:
    lists = {"train.list": 0.7, "test.list": 0.3}
    return pydp2.mix(lists, "sequence_provider.process", batch_size=16, seed=5, **SENTENCES)


def test_a_mixture_gives_tensors_and_its_batch_says_where_each_row_is_from() -> None:
    with pydp2.torch.loader(sentences()) as data:
        step = next(iter(data))
        assert isinstance(step, dict)
        assert step["words"].values.dtype == step["label"].dtype == torch.int64
        assert len(step["label"]) == 16 == len(data.batch.source)  # type: ignore[union-attr]
        assert len([*data]) == len(data), "every file is counted once it was read"


def test_packed_tokens_are_indices_and_go_on_from_a_state() -> None:
    """int32 tokens would be no target of cross_entropy."""

    def rows() -> pydp2.torch.Loader:
        packed = pydp2.pack_sequences(sentences(), slot="words", length=32, batch_size=4)
        return pydp2.torch.loader(packed)

    with rows() as data:
        state, seen = None, []
        for step in data:
            assert {value.dtype for value in step.values()} == {torch.int64}  # type: ignore[union-attr]
            seen.append(step["words"])  # type: ignore[call-overload]
            if len(seen) == 3:
                state = json.loads(json.dumps(data.state_dict()))
                batch = data.batch
                assert batch is not None
                assert torch.equal(pydp2.torch.to_tensors(batch)["words"], step["words"])  # type: ignore[call-overload]
                assert pydp2.torch.to_tensors(batch, index_dtype=torch.int32)["words"].dtype == torch.int32  # type: ignore[call-overload]
                assert batch.to("meta")["words"].dtype == torch.int64
    words = int(max(tokens.max() for tokens in seen)) + 1
    logits = torch.nn.Embedding(words, words)(seen[0])
    assert torch.nn.functional.cross_entropy(logits.flatten(0, 1), seen[0].flatten()) > 0
    with rows() as data:
        assert state is not None
        data.load_state_dict(state)
        assert all(map(torch.equal, [step["words"] for step in data], seen[3:]))  # type: ignore[call-overload]


def test_a_device_that_there_is_not_is_an_error_of_the_call_and_ends_the_service() -> None:
    with pytest.raises((RuntimeError, OptionError), match=r"(?i)cuda|device|nvidia"):
        pydp2.torch.loader(*TRAIN, **DIGITS, device="cuda:99")
    with pydp2.torch.loader(*TRAIN, **DIGITS, device="meta") as data:
        assert next(iter(data))["pixel"].device.type == "meta"  # type: ignore[call-overload]


def test_unknown_options_are_named() -> None:
    with pytest.raises(OptionTypeError, match="no option 'padd_to', did you mean 'pad_to'"):
        pydp2.torch.loader(*TRAIN, **DIGITS, padd_to=3)  # type: ignore[call-arg]
    with pytest.raises(OptionTypeError, match="no option 'indexdtype', did you mean 'index_dtype'"):
        pydp2.torch.dataset(*TRAIN, **DIGITS, indexdtype=3)  # type: ignore[call-arg]


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, memory is pinned")
def test_pinned_memory_without_a_gpu_is_a_warning_and_the_tensors_are_those_without_it() -> None:
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: torch finds no GPU"):
        data = pydp2.torch.loader(*TRAIN, **DIGITS, pin_memory=True)
    with data:
        steps = [step["pixel"] for step in data]  # type: ignore[call-overload]
    with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
        assert all(torch.equal(a, b["pixel"]) for a, b in zip(steps, data, strict=True))  # type: ignore[call-overload]


TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/t/a/attempt_0/3/e.json",
}  # fmt: skip


def test_the_place_of_a_rank_is_that_of_the_environment_and_each_run_has_a_name_of_its_own() -> None:
    assert find_ranks({}) == Ranks()
    found = find_ranks(TORCHRUN)
    assert found[:3] == (3, 4, 2)
    beside = find_ranks(TORCHRUN | {"RANK": "2", "TORCHELASTIC_ERROR_FILE": "/t/a/attempt_0/2/e.json"})
    assert beside.run == found.run
    later = [{"TORCHELASTIC_ERROR_FILE": "/t/b/attempt_0/3/e.json"}, {"TORCHELASTIC_RESTART_COUNT": "1"}]
    assert found.run not in [find_ranks(TORCHRUN | each).run for each in later]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "2"}, "no RANK says which this is"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "does not say how many of them run on this machine"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a number, got 'two'"),
    ],
)
def test_an_environment_that_says_half_of_it_is_an_error(environment: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        find_ranks(environment)


# -- beside long steps -------------------------------------------------------------------------------------------------
KINDS = """
@provider(input_types={"ids": sparse_binary_vector(3000), "words": integer_value_sequence(3000),
                       "pixel": dense_vector(WIDTH), "label": integer_value(10)}, pool_size=64,
          cache=CacheType.CACHE_PASS_IN_MEM)
def process(settings, filename):
    for i in range(2000 if WIDTH < 100 else 300):
        yield {"ids": [i, i + 1, i + 7], "words": [i] * (i % 5), "pixel": [i] * WIDTH, "label": i % 10}
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that batches are converted in."""
    found: list[int] = []
    convert_next = TensorConverter.convert_next

    def noted(self: TensorConverter, batch: Any) -> Any:
        found.append(threading.get_ident())
        return convert_next(self, batch)

    monkeypatch.setattr(TensorConverter, "convert_next", noted)
    return found


@pytest.mark.parametrize("width", [4, 20_000], ids=["small batches that come together", "large ones"])
def test_beside_long_steps_batches_are_converted_ahead_and_the_steps_are_the_same(
    width: int, threads: list[int], provider_file: Callable[[str], str]
) -> None:
    provider = provider_file(KINDS.replace("WIDTH", str(width)))
    options: dict[str, Any] = {"batch_size": 16, "workers": 1, "seed": 4}
    with pydp2.load(["a", "b"], provider, **options) as client:
        list(client)  # from here on, batches wait for nobody: they are in the cache
        expected = [digest(pydp2.torch.to_tensors(batch)) for batch in client]
        client.set_epoch(1)
        data = pydp2.torch.loader(client)
        found, state = [], {}
        for number, step in enumerate(data):
            found.append(digest(step))
            if number == 20:
                state = data.state_dict()
            long_step(client)
        assert found == expected
        ahead = len(threads) - threads.count(threading.get_ident())
        assert ahead > len(expected) / 2
        data.load_state_dict(state)
        assert [digest(step) for step in data] == expected[21:]
        assert all(data.batch._ready is None for _ in data), "the batch keeps nothing of the step"  # type: ignore[union-attr]


def test_another_loader_of_the_same_client_converts_for_itself(provider_file: Callable[[str], str]) -> None:
    provider = provider_file(KINDS.replace("WIDTH", "20000"))
    with pydp2.load(["a"], provider, batch_size=16, workers=1) as client:
        narrow = pydp2.torch.loader(client, index_dtype=torch.int32)
        pydp2.torch.loader(client)
        for step in narrow:
            assert isinstance(step, dict)
            assert step["label"].dtype == torch.int32
            long_step(client)


@pytest.mark.parametrize("is_on", [False, True])
def test_beside_long_steps_tensors_are_those_of_the_mode_of_the_loop(
    is_on: bool, provider_file: Callable[[str], str]
) -> None:
    provider = provider_file(KINDS.replace("WIDTH", "20000"))
    with torch.inference_mode(is_on), pydp2.torch.loader(["a"], provider, batch_size=16, workers=1, pad=0) as data:
        for step in data:
            assert isinstance(step, dict)
            assert step["words"].values.is_inference() == is_on
            long_step(data.client)


NESTED = """
@provider(input_types={"words": integer_value_sequence(3000), "pixel": dense_vector(20000)}, pool_size=64,
          cache=CacheType.CACHE_PASS_IN_MEM)
def process(settings, filename):
    for i in range(300):
        yield {"words": [i] * (i % 5 + 1), "pixel": [i] * 20000}
"""


@pytest.mark.parametrize("why", ["checks", "nested", "pad"])
def test_what_another_thread_must_not_convert_is_left_to_the_call(
    why: str, threads: list[int], provider_file: Callable[[str], str]
) -> None:
    provider = provider_file(NESTED if why == "nested" else KINDS.replace("WIDTH", "20000"))
    more: dict[str, Any] = {"checks": {}, "nested": {"nested": True}, "pad": {"pad": 0}}[why]
    with (
        torch.sparse.check_sparse_tensor_invariants(why == "checks"),
        pydp2.torch.loader(["a"], provider, batch_size=16, workers=1, **more) as data,
    ):
        list(data)  # from here on, batches wait for nobody
        for step in data:
            assert isinstance(step, dict)
            assert len(step["pixel"])
            long_step(data.client)
    assert (set(threads) == {threading.get_ident()}) == (why != "pad"), "what is padded may be made anywhere"


def test_a_gpu_that_torch_cannot_use_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match=r"device='cuda' needs a GPU .*; leave device out, or install"):
        pydp2.torch.loader(*TRAIN, device="cuda", **DIGITS)

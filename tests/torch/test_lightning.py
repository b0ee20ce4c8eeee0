"""Lightning's Trainer with a loader of tensors, neither of which knows of the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
lightning: Any = pytest.importorskip("lightning")
callbacks: Any = pytest.importorskip("lightning.pytorch.callbacks")

import pydp2.torch  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield
    logging.getLogger("lightning.pytorch").setLevel(logging.NOTSET)


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """Notes what each step got, and of which epoch."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.seen: list[tuple[int, str]] = []
        self.validated: list[str] = []

    def training_step(self, step: Any, _: int) -> Any:
        self.seen.append((self.current_epoch, digest(step)))
        return torch.nn.functional.cross_entropy(self.layer(step["pixel"] / 16), step["label"])

    def validation_step(self, step: Any, _: int) -> None:
        self.validated.append(digest(step))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def fit(made: Any, data: Any, folder: Path, *, validate: Any = None, start: str | None = None, **options: Any) -> None:
    keeper = callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False
    )
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[keeper],
        default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(made, data, validate, ckpt_path=start)


@pytest.mark.parametrize("known", [False, True])
def test_a_run_that_goes_on_from_any_step_ends_with_the_same_weights(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path, known: bool
) -> None:
    """Also from the last step of an epoch, whether or not the samples were counted before."""
    caches = ({} if known else {"cache_dir": tmp_path / f"cache-{run}"} for run in range(9))
    expected = [(epoch, step) for epoch in range(2) for step in passes[epoch]]
    uninterrupted = Classifier(model())
    with pydp2.torch.loader(*TRAIN, **DIGITS, **next(caches), reads_ahead=1) as data:
        fit(uninterrupted, data, tmp_path / "all", max_epochs=2)
    assert uninterrupted.seen == expected
    for done in (7, 14, 15, 16, 29):
        made = Classifier(model())
        with pydp2.torch.loader(*TRAIN, **DIGITS, **next(caches), reads_ahead=1) as data:
            fit(made, data, tmp_path / "rest", start=str(tmp_path / f"all/step={done}.ckpt"), max_epochs=2)
        assert made.seen == expected[done:], done
        assert torch.equal(made.layer.weight, uninterrupted.layer.weight)


def test_the_sanity_check_and_limits_lose_no_pass(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path
) -> None:
    made = Classifier(model())
    with (
        pydp2.torch.loader(*TRAIN, **DIGITS) as data,
        pydp2.torch.loader("test.list", TRAIN[1], **DIGITS, shuffle=False) as validate,
    ):
        fit(made, data, tmp_path, validate=validate, max_steps=20)
    assert [step for _, step in made.seen] == (passes[0] + passes[1])[:20]
    with pydp2.load("test.list", TRAIN[1], **DIGITS, shuffle=False) as client:
        length = sum(1 for _ in client)
    sanity, uninterrupted = made.validated[:2], made.validated[2:]
    assert len(uninterrupted) == length, "one validation, of all of it"
    assert uninterrupted[:2] == sanity

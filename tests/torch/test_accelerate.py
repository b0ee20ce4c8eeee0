"""Hugging Face's Accelerate and Trainer with a loader of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
accelerate: Any = pytest.importorskip("accelerate")

import pydp2.torch  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    """Accelerate has one state in a process; the next test begins with a new one."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def accelerated(made: Any, folder: Path, *, stop: int = -1, resume: bool = False, device: str = "cpu") -> list[str]:
    """What the steps of two epochs got; behind ``stop`` of them all is saved, and that is the end."""
    accelerator = accelerate.Accelerator(cpu=device == "cpu")
    assert accelerator.device.type == device
    seen: list[str] = []
    with pydp2.torch.loader(*TRAIN, **DIGITS, device=accelerator.device) as loader:
        made, optimizer, data = accelerator.prepare(made, torch.optim.SGD(made.parameters(), 0.1, momentum=0.9), loader)
        assert data is loader, "it is left alone"
        accelerator.register_for_checkpointing(data)
        if resume:
            accelerator.load_state(str(folder))
        for _ in range(data.pass_id, 2):
            for step in data:
                accelerator.backward(torch.nn.functional.cross_entropy(made(step["pixel"] / 16), step["label"]))
                optimizer.step()
                optimizer.zero_grad()
                seen.append(digest({name: value.cpu() for name, value in step.items()}))
                if len(seen) == stop:
                    accelerator.save_state(str(folder))
                    return seen
    return seen


@pytest.mark.parametrize("stop", [7, 15, 20])
def test_a_state_of_accelerate_has_the_place_in_the_data(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path, stop: int
) -> None:
    uninterrupted, rest = model(), model()
    assert accelerated(uninterrupted, tmp_path) == passes[0] + passes[1]
    accelerated(model(), tmp_path, stop=stop)
    assert accelerated(rest, tmp_path, resume=True) == (passes[0] + passes[1])[stop:]
    assert torch.equal(uninterrupted.weight, rest.weight)


class Steps:
    """A loader of which the Trainer does not know the length, nor that it has epochs."""

    def __init__(self, loader: pydp2.torch.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


@pytest.mark.parametrize("is_counted", [True, False], ids=["epochs", "max_steps"])
def test_the_trainer_of_transformers_goes_on_from_a_checkpoint(
    passes: list[list[str]], model: Callable[[], Any], tmp_path: Path, is_counted: bool
) -> None:
    transformers: Any = pytest.importorskip("transformers")

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = model(), []

        def forward(self, pixel: Any, label: Any) -> dict[str, Any]:
            self.seen.append(digest({"pixel": pixel, "label": label}))
            return {"loss": torch.nn.functional.cross_entropy(self.layer(pixel / 16), label)}

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        data: Any

        def get_train_dataloader(self) -> Any:
            return self.data

    class SavePlace(transformers.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            place = getattr(train_dataloader, "loader", train_dataloader).state_dict()
            torch.save(place, f"{args.output_dir}/checkpoint-{state.global_step}/data.pt")

    def run(resume: Path | None = None) -> Any:
        until: dict[str, int] = {"num_train_epochs": 2} if is_counted else {"max_steps": 2 * len(passes[0]) + 3}
        options = transformers.TrainingArguments(
            str(tmp_path / "run"), use_cpu=True, report_to=[], disable_tqdm=True, save_steps=1,
            ignore_data_skip=True, logging_strategy="no", remove_unused_columns=False, **until,
        )  # fmt: skip
        with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
            assert len(data) == len(passes[0])
            trainer = Trainer(Classifier(), options, callbacks=[SavePlace()])
            trainer.data = data if is_counted else Steps(data)
            if resume is not None:
                data.load_state_dict(torch.load(resume / "data.pt", weights_only=True))
            trainer.train(resume_from_checkpoint=resume and str(resume))
        return trainer.model

    uninterrupted, expected = run(), passes[0] + passes[1] + ([] if is_counted else passes[2][:3])
    assert uninterrupted.seen == expected
    stops = (7, 15, 16) if is_counted else (7, 15, 16, 30, 31)
    for done in stops:
        (tmp_path / f"run/checkpoint-{done}").rename(tmp_path / f"kept-{done}")
    for done in stops:
        rest = run(tmp_path / f"kept-{done}")
        assert rest.seen == expected[done:]
        assert torch.equal(rest.layer.weight, uninterrupted.layer.weight)

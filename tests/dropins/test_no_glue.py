"""Lightning and Accelerate take a loader of pydp2 as it is."""

from __future__ import annotations

from pathlib import Path

from tests.dropins.trained import VOCABULARY, Training, check_killed_and_resumed, skip_without

skip_without("torch")

COMMON = f"""
import glob, os
import torch
import pydp2.torch
from record import FOLDER, record

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Embedding({VOCABULARY}, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, {VOCABULARY})
)

def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

options = dict(args={{"dtype": "uint16", "length": 32}}, batch_size=8, seed=7)
"""
NO_DROPOUT = COMMON.replace("Dropout(0.1)", "Dropout(0.0)")
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, step, _):
        return loss_of(self.model, step["tokens"].long())
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

class Record(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        record(trainer.global_step, outputs["loss"])

with pydp2.torch.loader(["train.bin"], "pydp2.formats.tokens", **options, reads_ahead=1) as data:
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_steps=24,
        callbacks=[Record(), ModelCheckpoint(FOLDER, "{step:02d}", every_n_train_steps=5, save_top_k=-1)],
    )
    trainer.fit(Module(), data, ckpt_path=max(glob.glob(f"{FOLDER}/*.ckpt"), default=None))
"""
ACCELERATE = """
import accelerate

step = 0
accelerator = accelerate.Accelerator(cpu=True)
with pydp2.torch.loader(["train.bin"], "pydp2.formats.tokens", **options) as loader:
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    accelerator.register_for_checkpointing(data)
    saved = max(glob.glob(f"{FOLDER}/step-*"), default=None)
    if saved:
        accelerator.load_state(saved)
        step = int(saved[-2:])
    while step < 24:
        for batch in data:
            loss = loss_of(model, batch["tokens"].long())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            record(step, loss)
            if step % 5 == 0:
                accelerator.save_state(f"{FOLDER}/step-{step:02d}")
            if step == 24:
                break
"""


def test_lightning_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 10 steps, and the second checkpoint is at the end of the first one. Lightning does not save the state
    of torch's generator, so dropout would differ after a resume, with any loader."""
    skip_without("lightning")
    check_killed_and_resumed(Training(tmp_path, NO_DROPOUT + LIGHTNING), 24, [(10, 12), (15, 17)])


def test_accelerate_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """Also with dropout, because Accelerate saves the state of torch's generator."""
    skip_without("accelerate")
    check_killed_and_resumed(Training(tmp_path, COMMON + ACCELERATE), 24, [(10, 12), (15, 17)])

"""The recipes of NeMo Automodel keep a loader of pydp2 as they keep any other stateful object."""

from __future__ import annotations

from pathlib import Path

from tests.dropins.trained import VOCABULARY, Training, check_killed_and_resumed, skip_without

skip_without("nemo_automodel", "torch")

# The class of all recipes, their step scheduler and their checkpointer, with the loop of run_train_validation_loop().
PROGRAM = f"""
import torch
from nemo_automodel.components.checkpoint.checkpointing import Checkpointer, CheckpointingConfig
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.components.training.step_scheduler import StepScheduler
from nemo_automodel.recipes.base_recipe import BaseRecipe

import pydp2.torch
from record import FOLDER, record

class Recipe(BaseRecipe):
    def __init__(self, dataloader):
        self.cfg = ConfigNode({{}})
        torch.manual_seed(1)
        self.model_parts = [torch.nn.Sequential(
            torch.nn.Embedding({VOCABULARY}, 16), torch.nn.Linear(16, {VOCABULARY})
        )]
        self.optimizer = [torch.optim.AdamW(self.model_parts[0].parameters(), lr=0.01)]
        self.dataloader = dataloader
        self.step_scheduler = StepScheduler(
            global_batch_size=16, local_batch_size=8, dp_size=1, dataloader=dataloader, max_steps=14,
            ckpt_every_steps=3, save_checkpoint_every_epoch=False, preemption_signal=None,
        )
        self.peft_config = None
        self.checkpointer = Checkpointer(
            CheckpointingConfig(
                enabled=True, checkpoint_dir=FOLDER, model_save_format="torch_save", model_cache_dir=FOLDER,
                model_repo_id="none", save_consolidated=False, is_peft=False,
            ),
            dp_rank=0, tp_rank=0, pp_rank=0,
        )

    def train(self):
        self.load_checkpoint()
        for epoch in self.step_scheduler.epochs:
            self.step_scheduler.set_epoch(epoch)
            for batches in self.step_scheduler:
                self.optimizer[0].zero_grad()
                total = 0
                for batch in batches:
                    tokens = batch["tokens"].long()
                    scores = self.model_parts[0](tokens[:, :-1]).flatten(0, 1)
                    loss = torch.nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
                    loss.backward()
                    total += loss.item()
                self.optimizer[0].step()
                record(self.step_scheduler.step + 1, total)
                if self.step_scheduler.is_ckpt_step:
                    self.save_checkpoint(epoch, self.step_scheduler.step, total)

args = {{"dtype": "uint16", "length": 32}}
with pydp2.torch.loader(["train.bin"], "pydp2.formats.tokens", args=args, batch_size=8, seed=7) as data:
    Recipe(data).train()
"""


def test_a_recipe_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 10 batches, which are 5 updates."""
    check_killed_and_resumed(Training(tmp_path, PROGRAM), 14, [(6, 8), (12, 13)])

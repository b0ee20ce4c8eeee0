"""torchtitan's Trainer and CheckpointManager with the loader of docs/drop-ins.md, in two ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.dropins.trained import VOCABULARY, Training, check_killed_and_resumed, skip_without

skip_without("torch", "torchtitan", "triton")

# torchtitan 0.3.0 is for accelerators, and for a newer torch. The program gives it the CPU as a device, attention that
# has a backward pass there, replicas in place of shards, which gloo cannot average, and no change of timeouts.
PROGRAM = f"""
import os
import types
from dataclasses import dataclass
import torch
from torchtitan.tools import utils

utils.device_type, utils.device_module = "cpu", torch.cpu
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda device: "cpu"
torch.cpu.get_device_properties = lambda device: types.SimpleNamespace(total_memory=1 << 34)
torch.cpu.memory_stats = lambda device: {{}}
torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None

import torchtitan.distributed.utils
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

from record import FOLDER, record
from titan_data import TokenLoader

torchtitan.distributed.utils.set_pg_timeouts = lambda **_: None

class NoTokenizer(BaseTokenizer):
    "The files have tokens already."
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass
    def __init__(self, config, **_):
        super().__init__()
    encode = decode = get_vocab_size = None

class Metrics(MetricsProcessor):
    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass
    def log(self, step, global_avg_loss, *rest, **extra):
        record(step, global_avg_loss)
        super().log(step, global_avg_loss, *rest, **extra)

spec = model_registry("debugmodel")
spec.model.layers = spec.model.layers[:1]
spec.model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
trainer = Trainer.Config(
    model_spec=spec,
    loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
    dump_folder=FOLDER,
    tokenizer=NoTokenizer.Config(),
    optimizer=default_adamw(lr=8e-4),
    training=TrainingConfig(
        local_batch_size=4, global_batch_size=8, seq_len=32, steps=14, disable_cuda_graphs=True,
        mixed_precision_param="float32",
    ),
    parallelism=ParallelismConfig(
        spmd_backend="partial_dtensor", data_parallel_replicate_degree=int(os.environ["WORLD_SIZE"]),
        data_parallel_shard_degree=1
    ),
    dataloader=TokenLoader.Config(files=["train.bin"], vocabulary={VOCABULARY}, seed=7),
    metrics=Metrics.Config(log_freq=1),
    checkpoint=CheckpointManager.Config(enable=True, interval=3, last_save_model_only=False),
    activation_checkpoint=None,
    debug=DebugConfig(seed=1),
).build()
trainer.train()
trainer.close()
"""


def test_a_run_that_is_killed_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 80 windows, which are 10 steps of two ranks with 4 rows each."""
    [uninterrupted, _] = check_killed_and_resumed(Training(tmp_path, PROGRAM, ranks=2), 14, [(12, 13)])
    shutil.rmtree(tmp_path / "killed/checkpoint/step-14")
    [rest] = Training(tmp_path, PROGRAM, ranks=1).run("killed")  # from step 12, of two batches each
    assert losses_of(rest) == pytest.approx(losses_of(uninterrupted[12:]), rel=1e-5), (
        "floats are added in another order"
    )


def losses_of(lines: list[str]) -> list[float]:
    return [float.fromhex(line.split()[1]) for line in lines]

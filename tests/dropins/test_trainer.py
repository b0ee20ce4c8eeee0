"""The trainers of transformers and TRL with the files of docs/drop-ins.md."""

from __future__ import annotations

from pathlib import Path

from tests.dropins.trained import VOCABULARY, Training, check_killed_and_resumed, skip_without

skip_without("torch", "transformers", "datasets", "trl")

COMMON = f"""
import os
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import pydp2
import pydp2.torch
from record import FOLDER, record
from trainer_data import DataStateCallback, Steps, packed_columns

class Record(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            record(state.global_step, logs["loss"])

def small_model(vocabulary={VOCABULARY}):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.1,
    ))

def train(trainer):
    trainer.train(resume_from_checkpoint=get_last_checkpoint(trainer.args.output_dir))

os.makedirs(os.path.join(FOLDER, "run"), exist_ok=True)  # ranks look into it at once
options = dict(
    output_dir=os.path.join(FOLDER, "run"), save_steps=4, logging_steps=1, learning_rate=0.01, use_cpu=True,
    report_to=[], disable_tqdm=True, ignore_data_skip=True,
)
"""
TRAINER = """
class TokenTrainer(Trainer):
    def get_train_dataloader(self):
        return Steps(data, columns)

def columns(step):
    tokens = step["tokens"].long()
    return {"input_ids": tokens, "labels": tokens}

args = {"dtype": "uint16", "length": 32}
with pydp2.torch.loader(["train.bin"], "pydp2.formats.tokens", args=args, batch_size=4, seed=7) as data:
    train(TokenTrainer(
        small_model(), TrainingArguments(max_steps=14, gradient_accumulation_steps=2, **options),
        callbacks=[DataStateCallback(data), Record()],
    ))
"""
SFT = """
import pydp2_samples
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

class PackedTrainer(SFTTrainer):
    def get_train_dataloader(self):
        return Steps(rows, lambda step: packed_columns(step, "words"))

def check_documents_are_apart(model):
    "A document in a row sees nothing of the one before it."
    row = {"tokens": torch.tensor([[5, 6, 7, 8, 9]]), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    with torch.no_grad():
        packed = model.eval()(**packed_columns(row)).logits[:, 3:]
        alone = model(input_ids=row["tokens"][:, 3:]).logits
    torch.testing.assert_close(packed, alone)
    return model.train()

words = {"root": pydp2_samples.path("sequence"), "args": {"dictionary": "dictionary.txt"}, "workers": 1}
documents = pydp2.load("train.list", "sequence_provider.process", batch_size=64, seed=7, **words)
with pydp2.torch.loader(pydp2.pack_sequences(documents, slot="words", length=128, batch_size=4)) as rows:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>"))
    train(PackedTrainer(
        check_documents_are_apart(small_model(documents.slots.types[0].dim)),
        SFTConfig(max_steps=40, bf16=False, dataset_kwargs={"skip_prepare_dataset": True}, **options),
        train_dataset=Dataset.from_dict({"input_ids": [[0]]}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>"),
        callbacks=[DataStateCallback(rows), Record()],
    ))
"""


def test_two_ranks_of_transformers_go_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 80 windows, which are 5 updates of two batches of 4 rows in each of two ranks."""
    check_killed_and_resumed(Training(tmp_path, COMMON + TRAINER, ranks=2), 14, [(8, 11)])


def test_packed_rows_in_trl_go_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 35 steps or so."""
    check_killed_and_resumed(Training(tmp_path, COMMON + SFT), 40, [(12, 13), (36, 38)])

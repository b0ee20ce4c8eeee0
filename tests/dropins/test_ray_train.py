"""Ray Train starts the ranks of torch, and starts them again from the last checkpoint after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dropins.trained import VOCABULARY, Training, skip_without

skip_without("ray", "torch", "pandas", "pyarrow")

pytestmark = pytest.mark.xdist_group("ray")
PROGRAM = f"""
import os
import ray.train
from ray.train.torch import TorchTrainer

def train():
    import torch
    from ray.train.torch import prepare_model

    import pydp2.torch
    import record
    from ray_state import report, restore

    started = f"{{record.FOLDER}}/started.{{os.environ['RANK']}}"
    if os.environ["RANK"] == "0" or os.path.exists(started):
        record.STOP = -1  # rank 1 is killed, and once
    open(started, "w").close()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = prepare_model(torch.nn.Sequential(torch.nn.Embedding({VOCABULARY}, 16), torch.nn.Linear(16, {VOCABULARY})))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    files, args = [f"{{record.FOLDER}}/../train.bin"], {{"dtype": "uint16", "length": 32}}
    step = 0
    with pydp2.torch.loader(files, "pydp2.formats.tokens", args=args, batch_size=4, seed=7) as data:
        if saved := restore(data):
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            step = saved["step"]
        while step < 14:
            for batch in data:
                tokens = batch["tokens"].long()
                scores = model(tokens[:, :-1]).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                record.record(step, loss)
                if step % 3 == 0:
                    report({{}}, data, model=model.state_dict(), optimizer=optimizer.state_dict(), step=step)
                if step == 14:
                    break

TorchTrainer(
    train,
    scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={{"CPU": 0.5}}),
    run_config=ray.train.RunConfig(
        name="run", storage_path=os.environ["TRAINED_FOLDER"], failure_config=ray.train.FailureConfig(max_failures=1)
    ),
).fit()
"""


def test_a_rank_that_is_killed_changes_no_loss(tmp_path: Path) -> None:
    """Ray Train starts both ranks again, from the last checkpoint that it has seen."""
    training = Training(tmp_path, PROGRAM)
    _, uninterrupted = training.run("uninterrupted")
    assert len({line.split()[1] for line in uninterrupted}) == len(uninterrupted) == 14
    _, killed = training.run("killed", 8, restarts=True)
    begin = int(killed[8].split()[0]) - 1
    assert begin in (3, 6)
    assert killed == uninterrupted[:8] + uninterrupted[begin:]

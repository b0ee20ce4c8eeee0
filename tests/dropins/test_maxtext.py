"""The iterator of docs/drop-ins.md in MaxText's DataLoader, and in a checkpoint as MaxText writes it.

MaxText 0.2.5 wants Python 3.12 and many packages that its training needs. These two modules need few of them.
"""

from __future__ import annotations

from pathlib import Path

from tests.dropins.trained import VOCABULARY, Training, check_killed_and_resumed, skip_without

skip_without("maxtext", "jax")

# The loop is that of train_loop() in maxtext/trainers/pre_train/train.py, and the checkpoint that of save_checkpoint()
# and load_state_if_possible() in maxtext/common/checkpointing.py, with a model that is a table.
PROGRAM = f"""
from types import SimpleNamespace
import jax
import jax.numpy as jnp
from maxtext.common import grain_utility
from maxtext.common.data_loader import DataLoader
from orbax.checkpoint import v1 as ocp

from maxtext_data import TokenIterator
from record import FOLDER, record

config = SimpleNamespace(
    global_batch_size_to_load=8, max_target_length=32, vocab_size={VOCABULARY}, data_sharding=[["data"]],
    input_data_sharding_logical_axes=["batch", "length"], logical_axis_rules=[("batch", "data"), ("length", None)],
    reuse_example_batch=0, enable_diloco=False, max_checkify=False,
)
mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
data_iterator = TokenIterator(["train.bin"], config, mesh, seed=7)
data_loader = DataLoader(config, mesh, data_iterator, None)

@jax.jit
def train_step(state, batch):
    def loss_of(table):
        scores = jax.nn.log_softmax(table[batch["inputs"]])
        return -jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1).mean()
    loss, gradient = jax.value_and_grad(loss_of)(state["table"])
    return {{"table": state["table"] - 10 * gradient}}, loss

state = {{"table": jax.random.normal(jax.random.key(1), (config.vocab_size, config.vocab_size))}}
state = jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
with ocp.training.Checkpointer(FOLDER) as manager:
    step = 0
    if manager.latest is not None:
        step = manager.latest.step
        wanted = {{"items": state, "iter": grain_utility.for_restore(manager, step, data_iterator, -1)}}
        state = manager.load_checkpointables(step, wanted)["items"]
    while step < 24:
        batch = data_loader.load_next_batch()
        assert batch["inputs"].shape == batch["targets_segmentation"].shape == (8, 32)
        state, loss = train_step(state, batch)
        step += 1
        record(step, jax.block_until_ready(loss))
        if step % 5 == 0:
            saved = {{"items": state, "iter": grain_utility.for_save(step, data_iterator, -1)}}
            manager.save_checkpointables(step, saved)
data_iterator.data.close()
"""


def test_an_iterator_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """A pass has 10 steps, and the second checkpoint is at the end of the first one."""
    training = Training(tmp_path, PROGRAM, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")
    check_killed_and_resumed(training, 24, [(10, 12), (15, 17)])

"""A trainer of the battery, as a program: ``python -m tests.faults.trainer CONFIG``, in the checkout.

It writes down every batch that it was given, saves its checkpoint every few steps, and kills itself with SIGKILL at the
step that CONFIG names: there, and not at the step that the load of the machine would choose. Its model is one number
that depends on all batches and on their order. "pause": seconds that a step takes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pydp2

from .data import sign_batch


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """All of it, or nothing."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(checkpoint))
    temporary.replace(path)


def learn(model: int, pass_id: int, index: int, signature: int) -> int:
    """The model after one more batch."""
    return zlib.crc32(f"{pass_id} {index} {signature}".encode(), model)


def die() -> None:
    """Like `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(config: dict[str, Any]) -> None:
    """Train as ``config`` says: from the checkpoint on, where there is one, to the end of the last pass."""
    if config["address"]:
        client = pydp2.connect(config["address"], **config["job"])
    else:
        client = pydp2.load(config["files"], config["provider"], **config["service"], **config["job"])
    path, model, steps = Path(config["checkpoint"]), 0, 0
    log = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with client:
        for _ in range(config["loads"]):  # a second time right after the first: nothing may be skipped by that
            if path.exists():
                checkpoint = json.loads(path.read_text())
                client.load_state_dict(checkpoint["data"])
                model = checkpoint["model"]
        if config["die_at"] == 0:
            die()
        for _ in range(client.state_dict()["pass"], config["passes"]):
            for batch in client:
                signature = sign_batch(batch)
                model = learn(model, batch.pass_id, batch.index, signature)
                steps += 1
                os.write(log, f"{batch.pass_id} {batch.index} {signature} {batch.pool_weight}\n".encode())
                if steps == config["die_at"] and config["before_saving"]:
                    die()
                if steps % config["every"] == 0:
                    save(path, {"data": client.state_dict(), "model": model})
                if steps == config["die_at"]:
                    die()
                time.sleep(config.get("pause", 0.0))
        save(path, {"data": client.state_dict(), "model": model})
    os.close(log)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

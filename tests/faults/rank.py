"""One of several trainers of a job, as a program: ``python -m tests.faults.rank CONFIG``, in the checkout.

It writes a batch down once it has used it, that is, when it was given the next one or the end. At the step that CONFIG
names it kills itself with a batch in its hand, or stops itself as if it hung. Exit code 3: its place was taken.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pydp2
from pydp2.errors import JobTaken, Rewound

from .data import sign_batch

TAKEN = 3


def connect(config: dict[str, Any]) -> pydp2.Client:
    """As soon as the place is free."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return pydp2.connect(config["address"], **config["job"])
        except JobTaken:
            if time.monotonic() > deadline:
                raise


def main(config: dict[str, Any]) -> int:
    """Train as ``config`` says, from wherever the rank is to the end of the last pass."""
    steps, hand = 0, None
    log = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with connect(config) as client:
        sys.stdout.write("connected\n")
        sys.stdout.flush()
        try:
            for _ in range(client.state_dict()["pass"], config["passes"]):
                for batch in client:
                    if hand is not None:
                        os.write(log, hand)
                    hand = f"{batch.pass_id} {batch.index} {sign_batch(batch)} {batch.pool_weight}\n".encode()
                    steps += 1
                    if steps == config["at"]:
                        sys.stdout.write(f"{config['what']}\n")
                        sys.stdout.flush()
                        os.kill(os.getpid(), signal.SIGKILL if config["what"] == "kill" else signal.SIGSTOP)
                if hand is not None:
                    os.write(log, hand)
                hand = None
        except Rewound:
            return TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))

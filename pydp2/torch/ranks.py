"""Find the rank of this process in a run: from torch.distributed, or from the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from pydp2.errors import OptionError
from pydp2.frameworks.shared_service import Ranks
from pydp2.torch.run_store import store_of_run

_OF_RUN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def find_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return the rank of this process. If the launcher does not say which ranks share a machine, the ranks exchange
    their host names, so all of them must call this.

    Raises OptionError if the environment has a number of ranks, but not the rank of this process.
    """
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        rank, world_size = _of_environment(environ)
    if world_size == 1:
        return Ranks()
    if "LOCAL_WORLD_SIZE" in environ and "MASTER_PORT" in environ:
        return Ranks(
            rank,
            world_size,
            _number("LOCAL_WORLD_SIZE", environ),
            _name_of_run(environ),
            _number("LOCAL_RANK", environ) if "LOCAL_RANK" in environ else 0,
            store_of_run(environ),
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            f"this is rank {rank} of {world_size}, and the environment does not say how many of them run on this "
            "machine (LOCAL_WORLD_SIZE, MASTER_PORT); start them with torchrun, or call "
            "torch.distributed.init_process_group() before"
        )
    return _ask_others(rank, world_size, environ)


def _of_environment(environ: Mapping[str, str]) -> tuple[int, int]:
    world_size = _number("WORLD_SIZE", environ) if "WORLD_SIZE" in environ else 1
    if world_size == 1:
        return 0, 1
    if "RANK" not in environ:
        raise OptionError(
            f"WORLD_SIZE={world_size} says that there are several ranks, and no RANK says which this is; make the "
            "loader after torch.distributed.init_process_group(), with Lightning in train_dataloader()"
        )
    return _number("RANK", environ), world_size


def _number(name: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise OptionError(f"the environment variable {name} must be a number, got {environ[name]!r:.80}") from None


def _name_of_run(environ: Mapping[str, str]) -> str:
    """Return a text that is the same for all ranks of this machine, and differs from that of every other run."""
    named = [environ.get(name, "") for name in _OF_RUN]
    if "TORCHELASTIC_ERROR_FILE" in environ:  # …/RANDOM/attempt_N/RANK/error.json; runs often use the same address
        named.append(str(Path(environ["TORCHELASTIC_ERROR_FILE"]).parent.parent))
    return repr(named)


def _ask_others(rank: int, world_size: int, environ: Mapping[str, str]) -> Ranks:
    answers: list[tuple[str, str] | None] = [None] * world_size
    dist.all_gather_object(answers, (socket.gethostname(), os.urandom(8).hex()))
    complete = [answer for answer in answers if answer is not None]
    on_machine = [number for number, (host, _) in enumerate(complete) if host == complete[rank][0]]
    store = store_of_run(environ)
    return Ranks(rank, world_size, len(on_machine), complete[0][1], on_machine.index(rank), store)

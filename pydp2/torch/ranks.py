"""Find the place of this process among the ranks of a run: from torch.distributed, else from the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from pydp2.errors import OptionError
from pydp2.frameworks.shared_service import Ranks

_OF_RUN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def find_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return where this process stands. Where the launcher does not say which ranks share a machine, the ranks ask each
    other, so all of them must call this.

    Raises OptionError where the environment names a number of ranks and not which one this is.
    """
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        rank, world_size = _of_environment(environ)
    if world_size == 1:
        return Ranks()
    if "LOCAL_WORLD_SIZE" in environ and "MASTER_PORT" in environ:
        return Ranks(rank, world_size, _number("LOCAL_WORLD_SIZE", environ), _name_of_run(environ))
    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            f"this is rank {rank} of {world_size}, and the environment does not say how many of them run on this "
            "machine (LOCAL_WORLD_SIZE, MASTER_PORT); start them with torchrun, or call "
            "torch.distributed.init_process_group() before"
        )
    return _ask_others(rank, world_size)


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
    """Return what all ranks of this machine have in common, and no run before or beside this one."""
    named = [environ.get(name, "") for name in _OF_RUN]
    if "TORCHELASTIC_ERROR_FILE" in environ:  # …/RANDOM/attempt_N/RANK/error.json; the address is often that of before
        named.append(str(Path(environ["TORCHELASTIC_ERROR_FILE"]).parent.parent))
    return repr(named)


def _ask_others(rank: int, world_size: int) -> Ranks:
    told: list[tuple[str, str] | None] = [None] * world_size
    dist.all_gather_object(told, (socket.gethostname(), os.urandom(8).hex()))
    known = [each for each in told if each is not None]
    here = sum(host == known[rank][0] for host, _ in known)
    return Ranks(rank, world_size, here, known[0][1])

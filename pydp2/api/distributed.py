"""Find out from the environment whether a launcher of distributed training started this process as one of several."""

from __future__ import annotations

import os
from typing import NamedTuple

# Pairs of variables that only a launcher sets, in each of its processes: torchrun and others with its names, Open MPI,
# other MPIs. Slurm's variables are also set in the shell of a batch script, and LOCAL_RANK comes without a size.
_RANK_VARIABLES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


class DistributedEnvironment(NamedTuple):
    """Rank of this process, ``rank`` of ``world_size``; ``named``: the environment variables that give it."""

    rank: int
    world_size: int
    named: str

    @property
    def right_call(self) -> str:
        """Text with the calls by which such processes share one service."""
        return (
            "start one service for all (`pydp2 serve LIST --provider ADDRESS`, or launch() in one process) and read "
            f"from it in each with pydp2.connect(address, rank={self.rank}, world_size={self.world_size}, …); in the "
            "place of load(), pydp2.torch.loader(LIST, PROVIDER, …) does both for all ranks of torchrun"
        )

    def __str__(self) -> str:
        return f"this process is rank {self.rank} of {self.world_size} ({self.named})"


def distributed_environment() -> DistributedEnvironment | None:
    """Return the rank that the environment gives; None if this process is the only one, or the environment is
    ambiguous."""
    for rank_name, size_name in _RANK_VARIABLES:
        try:
            rank, size = int(os.environ[rank_name]), int(os.environ[size_name])
        except (KeyError, ValueError):
            continue
        if size > 1 and 0 <= rank < size:
            return DistributedEnvironment(rank, size, f"{rank_name} and {size_name}")
    return None

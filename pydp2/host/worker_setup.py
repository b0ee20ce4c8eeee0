"""Set up the workers of one machine: the server does so for its own, the agent for those of another host."""

from __future__ import annotations

from pydp2.engine.local import DUMP_SIGNAL
from pydp2.file_list import FileList
from pydp2.protocol import plain_data
from pydp2.server.spec import WorkerTerms
from pydp2.worker.loop import LoopOptions
from pydp2.worker.main import WorkerSpec

_FEW_WORKERS = 4  # fewer have several files open each that no merge waits for yet


def worker_spec(
    terms: WorkerTerms, files: FileList, *, workers: int, address: str, root: str, path: tuple[str, ...]
) -> WorkerSpec:
    """Return the parameters of each of ``workers`` workers under ``terms``, which connect to ``address`` and run in
    the working directory ``root``."""
    args = plain_data.decode_plain(terms.args)
    assert isinstance(args, dict)
    return WorkerSpec(
        address=address,
        provider=terms.provider,
        args=args,
        is_train=terms.is_train,
        input_order=terms.input_order,
        files=files,
        root=root,
        path=path,
        loop=LoopOptions(
            max_unbound=max(1, _FEW_WORKERS // workers),
            times_samples=terms.sample_timeout is not None,
            allows_changed_samples=terms.warn_changed,
        ),
        dump_signal=DUMP_SIGNAL,
    )

"""What a merge reads from, over a dispatcher of a test."""

from __future__ import annotations

import numpy as np

from pydp2.data.columns.checksum_log import NO_CHECKSUMS
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.dispatch.ledger_source import LedgerSource
from pydp2.server.dispatch.losses import Losses
from pydp2.server.dispatch.pass_checksums import PassChecksums


def losses_of(dispatcher: FileDispatcher, error_budget: float | None = None) -> Losses:
    """The losses of a pass from its start."""
    return Losses(dispatcher.pass_id, dispatcher.label, error_budget, {}, None, np.arange(0))


def source_of(dispatcher: FileDispatcher, losses: Losses | None = None) -> LedgerSource:
    """The source of a pass from its start."""
    return LedgerSource(dispatcher, losses or losses_of(dispatcher), PassChecksums(NO_CHECKSUMS))

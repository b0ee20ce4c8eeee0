"""Wait for a service that went away: one with a ``state_dir`` goes on where it was when it is started again, and one on
another host may only be cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydp2.client.connection import Connection, NotAdmitted, parse_welcome
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ServiceLost, ServiceUnreachable, StateMismatch
from pydp2.protocol import messages as m
from pydp2.protocol.stream_identity import differences
from pydp2.system.log_writer import write_stderr
from pydp2.system.stdlib import time


def reconnect(
    connection: Connection, attach: m.Attach, identity: Mapping[str, Any], patience: float, shown: Slots | None = None
) -> None:
    """Wait ``patience`` seconds for the service of ``connection`` and take the old place there, as ``attach`` says.
    ``shown``: the slots of samples that lie in memory which it shows.

    Raises:
        ServiceLost: it did not come back. NotAdmitted: it does not let us in. JobTaken: another trainer has the place.
        StateMismatch: it came back with another stream; ``identity`` is what this one depended on.
    """
    began = time.monotonic()
    secured = connection.target.is_secured  # so it may be on another host
    begin = "pydp2: " if attach.job == "default" else f"pydp2: job {attach.job!r}: "
    write_stderr(
        f"{begin}the connection to {connection.name} was lost; trying for {patience:g} s to connect again"
        if secured
        else f"{begin}the service at {connection.name} went away; waiting {patience:g} s for it to be started again"
    )
    try:
        answer = parse_welcome(connection.renew(attach, began + patience))
    except NotAdmitted:
        raise
    except ServiceUnreachable:
        if secured:
            raise ServiceLost(
                f"the service at {connection.name} could not be reached for {patience:g} s; check that it runs and the "
                "network between, or raise lease for more patience"
            ) from None
        raise ServiceLost(
            f"the service at {connection.name} went away and was not started again within {patience:g} s; start it "
            "with the same state_dir, or raise lease for more patience"
        ) from None
    if wrong := differences(identity, answer.service.get("stream_identity", {})):
        raise StateMismatch(
            f"the service at {connection.name} came back with another stream: {'; '.join(wrong)}; start it with "
            "the same arguments as before"
        )
    connection.map_shared_rows(shown)
    loss = answer.service.get("loss", "")
    write_stderr(
        f"{begin}the service at {connection.name} is back after {time.monotonic() - began:.1f} s"
        + (f", but could not go on from where it was: {loss!s:.2000}" if loss else "")
    )

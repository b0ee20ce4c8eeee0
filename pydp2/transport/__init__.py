"""Carry frames from one process to another, without a meaning. This is the only part that knows ZeroMQ."""

from pydp2.transport.admission import AdmissionRefused, HubUnavailable
from pydp2.transport.hub import Hub
from pydp2.transport.line import Line
from pydp2.transport.shared_region import SharedRegion
from pydp2.transport.slabs import DeferredFrames, array_views, owned_arrays
from pydp2.transport.sockets import PeerGone, Poller

__all__ = [
    "AdmissionRefused",
    "DeferredFrames",
    "Hub",
    "HubUnavailable",
    "Line",
    "PeerGone",
    "Poller",
    "SharedRegion",
    "array_views",
    "owned_arrays",
]

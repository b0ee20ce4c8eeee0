"""What the user wrote, as pydp2 sees it: ``@provider``, its settings, its address, a started one and its open files.

It imports and runs the user's code, and is therefore used in workers (and in a user's own tests), never in the server.
It knows what a sample is (:mod:`pydp2.inputs`), and nothing of processes, sockets or order.
"""

from pydp2.inputs.declaration import Declaration
from pydp2.providers.address import address_of, resolve
from pydp2.providers.decorator import Provider, provider
from pydp2.providers.options import CacheType, ProviderOptions
from pydp2.providers.running import OpenFile, Running
from pydp2.providers.settings import Context, Settings
from pydp2.providers.where import own_frames, place, raised

__all__ = [
    "CacheType",
    "Context",
    "Declaration",
    "OpenFile",
    "Provider",
    "ProviderOptions",
    "Running",
    "Settings",
    "address_of",
    "own_frames",
    "place",
    "provider",
    "raised",
    "resolve",
]

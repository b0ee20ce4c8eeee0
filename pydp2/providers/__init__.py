"""Find and run the user's code: ``@provider``, its settings, its address, a started provider and its open files.

This part imports and runs the user's code, and is therefore used in workers (and in a user's own tests), never in the
server. It knows the form of samples (:mod:`pydp2.data.schema`), and nothing of processes, sockets or order.
"""

from pydp2.providers.address import address_of, resolve
from pydp2.providers.decorator import Provider, provider
from pydp2.providers.error_location import count_own_frames, user_error, with_location
from pydp2.providers.options import CacheType, ProviderOptions
from pydp2.providers.settings import GeneratorContext, Settings
from pydp2.providers.started_provider import OpenFile, StartedProvider

__all__ = [
    "CacheType",
    "GeneratorContext",
    "OpenFile",
    "Provider",
    "ProviderOptions",
    "Settings",
    "StartedProvider",
    "address_of",
    "count_own_frames",
    "provider",
    "resolve",
    "user_error",
    "with_location",
]

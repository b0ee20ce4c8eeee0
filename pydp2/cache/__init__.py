"""A source of files for later passes: what workers read once is kept. Never touches order."""

from pydp2.cache.disk import DiskCache
from pydp2.cache.memory import PassCache

__all__ = ["DiskCache", "PassCache"]

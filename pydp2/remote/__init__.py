"""Read files that lie in object stores and on web servers as if they were here (docs/remote.md).

One process on each machine, the *fetch process*, talks to the stores. It puts blocks of remote files into a cache on
disk (:mod:`.object_cache`), each once for all workers and jobs, ahead of those who read in order (:mod:`.fetcher`).
Readers open the copies there (:mod:`.remote_file`).
"""

from pydp2.remote.remote_file import RemoteFile, list_remote, read_remote
from pydp2.remote.urls import has_remote, is_remote, is_remote_pattern, shown_url, without_query

__all__ = [
    "RemoteFile",
    "has_remote",
    "is_remote",
    "is_remote_pattern",
    "list_remote",
    "read_remote",
    "shown_url",
    "without_query",
]

"""Find the folders of this user, who may have none, as in a container with an unknown user id."""

from __future__ import annotations

import os
from pathlib import Path

from pydp2.errors import OptionError


def cache_home() -> Path:
    """Return the folder for caches of this user: ``$XDG_CACHE_HOME``, or ``~/.cache``. Raise OptionError if there is no
    home folder either."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise OptionError(
            f"a folder for what is kept on disk is needed, and user {os.getuid()} has no home folder: HOME is not set, "
            "and the system does not know this user; set HOME or XDG_CACHE_HOME to a folder that can be written, or "
            "give cache_dir if it is for a cache"
        ) from None

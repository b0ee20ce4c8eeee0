"""Read files of repositories of Hugging Face, ``hf://datasets/NAMESPACE/NAME[@REVISION]/PATH``, and of models without
``datasets/``.

The package huggingface_hub finds the token and lists files; :class:`.ObjectStore` reads them, as from any HTTP server.
A revision is resolved to a commit once, so all files are those of one commit, whatever is pushed meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from huggingface_hub import HfApi, constants
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import HfHubHTTPError, build_hf_headers

from pydp2.remote.object_store import ObjectStore
from pydp2.remote.store import Failure, ObjectInfo, RequestFailed, Response

_KINDS = {"datasets": "dataset", "spaces": "space"}
_PAGE = 1000
_LOOKED = "the token was looked for in HF_TOKEN and in what `hf auth login` has saved"


class RepositoryPath(NamedTuple):
    """Place in a repository. ``root``: the URL before ``path``, without a revision."""

    kind: str
    name: str
    revision: str
    path: str
    root: str


class HuggingFaceStore:
    """Store of all repositories of one server (``HF_ENDPOINT``)."""

    def __init__(self) -> None:
        self._api = HfApi()
        self._lock = threading.Lock()
        self._commits: dict[tuple[str, str, str], str] = {}
        self._files = self._new_files()

    def _new_files(self) -> ObjectStore:
        return ObjectStore(constants.ENDPOINT, headers=build_hf_headers(), looked=_LOOKED)

    def head(self, url: str) -> ObjectInfo:
        """Return size and version of ``url``. Raises RequestFailed."""
        return self._files.head(self._file_url(url))

    def read(self, url: str, start: int, stop: int, version: str | None) -> Response:
        """Request bytes ``start`` to ``stop`` of ``url``. Raises RequestFailed."""
        return self._files.read(self._file_url(url), start, stop, version)

    def files(self, folder: str) -> Iterator[list[str]]:
        """Yield the URLs below ``folder``. Raises RequestFailed."""
        page: list[str] = []
        for url in self._tree(folder, recursive=True):
            if not url.endswith("/"):
                page.append(url)
            if len(page) == _PAGE:
                yield page
                page = []
        yield page

    def children(self, folder: str) -> list[str]:
        """Return the URLs of files and folders in ``folder``. Raises RequestFailed."""
        return list(self._tree(folder, recursive=False))

    def _tree(self, folder: str, *, recursive: bool) -> Iterator[str]:
        at = split_repository(folder)
        try:
            for item in self._api.list_repo_tree(
                at.name,
                at.path.rstrip("/") or None,
                recursive=recursive,
                revision=self._commit(at),
                repo_type=_KINDS.get(at.kind),
            ):
                yield f"{at.root}{item.path}{'' if isinstance(item, RepoFile) else '/'}"
        except Exception as error:
            raise _failed(error) from None

    def renew(self) -> None:
        """Read the token again."""
        self._files = self._new_files()
        self._api = HfApi()

    def _file_url(self, url: str) -> str:
        at = split_repository(url)
        kind = f"{at.kind}/" if at.kind in _KINDS else ""
        return f"{constants.ENDPOINT}/{kind}{at.name}/resolve/{self._commit(at)}/{quote(at.path)}"

    def _commit(self, at: RepositoryPath) -> str:
        """Return the commit of a revision: the same one for the life of this process. Raises RequestFailed."""
        key = at.kind, at.name, at.revision
        with self._lock:
            if key not in self._commits:
                try:
                    info = self._api.repo_info(at.name, repo_type=_KINDS.get(at.kind), revision=at.revision)
                except Exception as error:
                    raise _failed(error) from None
                self._commits[key] = str(info.sha)
            return self._commits[key]


def split_repository(url: str) -> RepositoryPath:
    """Return the parts of ``url``. Raises RequestFailed if it names no repository."""
    parts = url.removeprefix("hf://").split("/")
    kind = parts.pop(0) if parts[0] in (*_KINDS, "models") else ""
    if len(parts) < 2 or not all(parts[:2]):
        raise RequestFailed(
            Failure.REFUSED, "expected hf://datasets/NAMESPACE/NAME/PATH, got a URL without the name of a repository"
        )
    name, _, revision = parts[1].partition("@")
    root = "/".join(["hf:/", *([kind] if kind else []), parts[0], parts[1], ""])
    return RepositoryPath(kind, f"{parts[0]}/{name}", revision.replace("%2F", "/") or "main", "/".join(parts[2:]), root)


def _failed(error: Exception) -> RequestFailed:
    if isinstance(error, RequestFailed):
        return error
    response: Any = getattr(error, "response", None)
    status = int(getattr(response, "status_code", 0) or 0)
    if status in (401, 403) or type(error).__name__ in ("RepositoryNotFoundError", "GatedRepoError"):
        what = f"answered {status}: there is no such repository, or not for this token; {_LOOKED}"
        return RequestFailed(Failure.DENIED, what)
    if status == 404:
        return RequestFailed(Failure.MISSING, "no such revision or folder")
    if status == 429 or status >= 500 or (not status and not isinstance(error, HfHubHTTPError | ValueError)):
        return RequestFailed(Failure.BUSY, f"{status or 'no connection'} ({type(error).__name__})")
    return RequestFailed(Failure.REFUSED, f"answered {status} ({type(error).__name__})")

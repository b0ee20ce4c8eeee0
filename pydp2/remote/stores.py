"""Choose the store of a URL by its scheme; the packages of stores are imported only in the fetch process."""

from __future__ import annotations

from pydp2.remote.store import Failure, RequestFailed, Store
from pydp2.remote.urls import scheme_of, shown_url


def open_store(url: str) -> Store:
    """Return the store of ``url``. Raises RequestFailed if the package for it is not installed."""
    scheme = scheme_of(url)
    try:
        if scheme == "hf":
            from pydp2.remote.hugging_face import HuggingFaceStore

            return HuggingFaceStore()
        from pydp2.remote.object_store import ObjectStore

        return ObjectStore(url)
    except ImportError as error:
        package = "huggingface_hub>=1.0" if scheme == "hf" else "obstore>=0.8"
        raise RequestFailed(
            Failure.REFUSED,
            f"{shown_url(url)} needs a package that cannot be imported ({error}): pip install '{package}'",
        ) from None

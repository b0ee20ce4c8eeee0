"""Read objects of S3, Google Cloud Storage, Azure and HTTP servers with the package obstore.

obstore finds credentials as the tools of each store do (docs/remote.md), renews those that expire, and does not hold
the interpreter's lock while it reads. Its own retries are turned off: :mod:`.fetcher` retries, because it shows what it
waits for, and goes on behind the last byte that arrived.

Texts of obstore may hold a URL with its signature, so a reason names the status alone, or the first line without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from pydp2.errors import without_secrets
from pydp2.remote.store import Failure, ObjectInfo, RequestFailed, Response
from pydp2.remote.urls import scheme_of

REQUEST_SECONDS = 60.0
"""Seconds that one request may take. What has arrived by then stays, and another request goes on behind it."""
_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 20  # bytes of a body that are handed on at a time
_PAGE = 1000
_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z ]*)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Decode|Request)\b")
_KINDS = {"Timeout": "no answer in time", "Connect": "no connection", "Interrupted": "the connection broke"}
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "AuthenticationFailed")
_BUSY = (408, 425, 429)
_METADATA = re.compile(r"169\.254\.\d+\.\d+|metadata\.google\.internal|login\.microsoftonline", re.IGNORECASE)
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "STORAGE_EMULATOR_HOST")
_LOOKED = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity token, the role of this container or machine"
    "{boto}; for a public bucket set AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the application default credentials of gcloud, the account of this machine; "
    "for a public bucket set GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID with a secret or a token file, the "
    "identity of this machine",
}


class ObjectStore:
    """Store of the bucket, container or host of ``url``. ``headers``: those of each request; ``looked``: where
    credentials were looked for, as a sentence."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, looked: str = "") -> None:
        self._headers, self._looked = headers, looked
        self._scheme = scheme_of(url)
        self._bucket = urlsplit(url).netloc
        self._lock = threading.Lock()
        self._open: Any = None  # one store for all threads, made when it is needed

    def head(self, url: str) -> ObjectInfo:
        """Return size and version of ``url``. Raises RequestFailed."""
        store, path = self._located(url)
        with self._translated():
            return _info(obstore.head(store, path))

    def read(self, url: str, start: int, stop: int, version: str | None) -> Response:
        """Request bytes ``start`` to ``stop`` of ``url``. Raises RequestFailed."""
        store, path = self._located(url)
        options: Any = {"range": (start, stop)}
        if version is not None and not version.startswith("modified "):
            options["if_match"] = version
        with self._translated():
            try:
                result = obstore.get(store, path, options=options)
            except exceptions.NotSupportedError:  # the server does not know ranges
                del options["range"]
                result = obstore.get(store, path, options=options)
            info = _info(result.meta)
        return Response(info, result.range[0], self._chunks(result.stream(min_chunk_size=_CHUNK)))

    def files(self, folder: str) -> Iterator[list[str]]:
        """Yield the URLs below ``folder``. Raises RequestFailed."""
        self._require_listing()
        store, prefix = self._located(folder)
        root = f"{self._scheme}://{self._bucket}/"
        with self._translated():
            for page in obstore.list(store, prefix or None, chunk_size=_PAGE):
                yield [f"{root}{item['path']}" for item in page if not item["path"].endswith("/")]

    def children(self, folder: str) -> list[str]:
        """Return the URLs of files and folders in ``folder``. Raises RequestFailed."""
        self._require_listing()
        store, prefix = self._located(folder)
        root = f"{self._scheme}://{self._bucket}/"
        with self._translated():
            found = obstore.list_with_delimiter(store, prefix or None)
        folders = [f"{root}{name.rstrip('/')}/" for name in found["common_prefixes"]]
        files = [f"{root}{item['path']}" for item in found["objects"]]
        return folders + [url for url in files if not url.endswith("/")]

    def _require_listing(self) -> None:
        if self._scheme in ("http", "https"):
            raise RequestFailed(
                Failure.REFUSED, "an HTTP server has no listing of its files; write a list with the URL of each file"
            )

    def renew(self) -> None:
        """Make the store anew, which reads the credentials again."""
        self._open = None

    def _located(self, url: str) -> tuple[Any, str]:
        """Return the store and the path in it. A URL with a query is a store of its own, because obstore would take the
        query as a part of the name."""
        if self._scheme in ("http", "https"):
            if "?" in url:
                return _http_store(url, self._headers), ""
            root, path = f"{self._scheme}://{self._bucket}", url.split("/", 3)[3:]
        else:
            root, path = "", url.split("/", 3)[3:]
        with self._lock:  # one of the threads that begin together reads the credentials
            if self._open is None:
                with self._translated():
                    self._open = self._new_store(root)
            return self._open, path[0] if path else ""

    def _new_store(self, root: str) -> Any:
        options = _options()
        match self._scheme:
            case "s3":
                return S3Store(self._bucket, **_s3_credentials(), **options)
            case "gs":
                return GCSStore(self._bucket, **options)
            case "az":
                return AzureStore(self._bucket, **options)
            case _:
                return _http_store(root, self._headers)

    def _chunks(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        with self._translated():
            yield from stream

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise RequestFailed in place of the errors of obstore."""
        try:
            yield
        except FileNotFoundError as error:
            raise _missing(str(error)) from None
        except exceptions.PreconditionError:
            raise RequestFailed(Failure.CHANGED, "412 Precondition Failed") from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> RequestFailed:
        text = str(error)
        status, code, kind = _STATUS.search(text), _CODE.search(text), _KIND.search(text)
        if _METADATA.search(text):
            return RequestFailed(Failure.DENIED, self._without_credentials("needs credentials, and there are none"))
        if status is None:
            if isinstance(error, exceptions.GenericError) and (kind is not None or "HTTP error" in text):
                return RequestFailed(Failure.BUSY, _KINDS.get(kind[1] if kind else "", "the request failed"))
            # the first line says what is wrong; a URL in it may have a signature
            what = without_secrets(re.sub(r"\?\S*", "?…", text.partition("\n")[0]))
            return RequestFailed(Failure.REFUSED, f"gives no usable answer: {what:.200}")
        number = int(status[1])
        reason = f"{number} {status[2].strip()}{f' ({code[1]})' if code else ''}"
        if number == 404:
            return _missing(text)
        if number == 301:
            return RequestFailed(Failure.REFUSED, f"answered {reason}; set AWS_REGION to the region of the bucket")
        if number == 416:
            return RequestFailed(Failure.EMPTY, reason)
        if number >= 500 or number in _BUSY:
            return RequestFailed(Failure.BUSY, reason)
        if number in (401, 403) or (code is not None and code[1] in _EXPIRED):
            return RequestFailed(Failure.DENIED, self._without_credentials(f"answered {reason}"))
        return RequestFailed(Failure.REFUSED, f"answered {reason}")

    def _without_credentials(self, what: str) -> str:
        if self._looked:
            return f"{what}; {self._looked}"
        if self._scheme not in _LOOKED:
            return what
        has_boto = importlib.util.find_spec("boto3") is not None
        boto = ", and what boto3 knows (profiles, SSO)" if has_boto else " (install boto3 for profiles and SSO)"
        return f"{what}; credentials were looked for in {_LOOKED[self._scheme].format(boto=boto)}"


def _missing(text: str) -> RequestFailed:
    code = _CODE.search(text)
    kinds = [kind for kind in ("Bucket", "Container") if code is not None and kind in code[1]]
    return RequestFailed(Failure.MISSING, f"there is no such {kinds[0].lower() if kinds else 'file'}")


def _options() -> Any:
    # plain http only where the user has named such a server, as with AWS_ENDPOINT_URL
    endpoints = [os.environ.get(name, "") for name in _ENDPOINTS]
    return {
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)},
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints),
        },
    }


def _http_store(url: str, headers: Mapping[str, str] | None) -> Any:
    options = _options()
    options["client_options"]["allow_http"] = True
    if headers:
        options["client_options"]["default_headers"] = dict(headers)
    return HTTPStore.from_url(quote(url, safe="%/:=&?~#+!$,;'@()*[]"), **options)


def _s3_credentials() -> Any:
    """Return the credentials that boto3 finds, if it is installed: it knows profiles and SSO."""
    if importlib.util.find_spec("boto3") is None or os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1"):
        return {}
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = {} if session.region_name is None else {"region": session.region_name}
    return {"credential_provider": Boto3CredentialProvider(session), **region}


def _info(meta: Any) -> ObjectInfo:
    version = meta["e_tag"] or f"modified {meta['last_modified'].isoformat()}, {meta['size']} bytes"
    return ObjectInfo(meta["size"], version)

"""Tell which entries of a list are URLs of remote files, and take their patterns apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

SCHEMES = {
    "s3": "Amazon S3",
    "gs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "hf": "Hugging Face",
    "http": "HTTP",
    "https": "HTTP",
}
"""Schemes of URLs that pydp2 opens, and the names of their stores."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MARK = re.compile(rb"://")
_WILDCARD = re.compile(r"[*\[]")


class Pattern(NamedTuple):
    """Pattern of URLs. ``folder``: the URL before its first segment with wildcards, which ends in ``/``. ``rest``:
    regular expression for what follows."""

    folder: str
    rest: str

    def matches(self, url: str) -> bool:
        """Return True if the pattern stands for ``url``, which is in its folder."""
        return re.fullmatch(self.rest, url[len(self.folder) :], re.DOTALL) is not None


def scheme_of(entry: str) -> str:
    """Return the scheme of a URL in small letters, '' for an entry that is no URL."""
    found = _SCHEME.match(entry)
    return found[1].lower() if found else ""


def is_remote(entry: str) -> bool:
    """Return True if ``entry`` is the URL of a remote file."""
    return scheme_of(entry) in SCHEMES


def has_remote(entries: Iterable[str], text: memoryview) -> bool:
    """Return True if one of ``entries``, which are together ``text``, is a remote file."""
    return _MARK.search(text) is not None and any(map(is_remote, entries))


def is_remote_pattern(entry: str) -> bool:
    """Return True if ``entry`` is the URL of a remote file with ``*`` or ``[`` in its path."""
    return is_remote(entry) and _WILDCARD.search(without_query(entry)) is not None


def without_query(url: str) -> str:
    """Return a URL without its query, if it can have one: in a store, ``?`` is a character of a name."""
    return url.partition("?")[0] if scheme_of(url) in ("http", "https") else url


def shown_url(url: str) -> str:
    """Return ``url`` as a log or an error may show it: without its query, which may be a signature, and without a user
    and a password."""
    scheme = scheme_of(url)
    if scheme not in ("http", "https"):
        return url
    before, mark, _ = url.partition("?")
    _, at, rest = before.removeprefix(f"{scheme}://").partition("/")[0].rpartition("@")
    if at:
        before = f"{scheme}://{rest}{before.partition('@')[2].removeprefix(rest)}"
    return f"{before}?…" if mark else before


def store_name(url: str) -> str:
    """Return the name of the store of ``url`` for messages: its scheme, and for HTTP the host."""
    scheme = scheme_of(url)
    return f"{scheme}://{urlsplit(url).hostname or ''}" if scheme in ("http", "https") else scheme


def split_pattern(url: str) -> Pattern:
    """Return the parts of a pattern, in which ``*`` stands for any characters but ``/``, ``**`` as a whole segment for
    any number of segments, and ``[…]`` for one of the characters in it. As in a shell, a wildcard does not stand for a
    dot at the beginning of a name."""
    head = url[: _WILDCARD.search(url).start()]  # type: ignore[union-attr]  # the caller has asked is_remote_pattern
    folder = head[: head.rindex("/") + 1]
    segments = url[len(folder) :].split("/")
    *before, last = segments
    text = "".join("(?:(?!\\.)[^/]+/)*" if segment == "**" else f"{_segment(segment)}/" for segment in before)
    text += "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+" if last == "**" else _segment(last)
    return Pattern(folder, text)


def _segment(pattern: str) -> str:
    """Return the regular expression of one segment of a pattern."""
    text, at = "" if pattern.startswith(".") else "(?!\\.)", 0
    while at < len(pattern):
        end = pattern.find("]", at + 2) if pattern[at] == "[" else -1
        if pattern[at] == "*":
            text += "[^/]*"
        elif end >= 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            text += f"[^/{inner[1:]}]" if inner.startswith("!") else f"(?!/)[{inner.replace('^', chr(92) + '^')}]"
            at = end
        else:
            text += re.escape(pattern[at])
        at += 1
    return text

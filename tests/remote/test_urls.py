"""URLs of remote files, and patterns of them."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.remote.urls import is_remote, is_remote_pattern, shown_url, split_pattern, store_name

NAMES = ["a.bin", "b.bin", "ab.txt", ".hidden", "x/a.bin", "x/.y/c.bin", "x/y/d.bin", "x/y/z/e1", "x/y/z/e2", "[q]"]


@pytest.mark.parametrize(
    "url", ["s3://b/k", "gs://b/k", "az://c/k", "hf://datasets/o/n/f", "HTTP://h/f", "https://h/f"]
)
def test_urls_of_known_stores_are_remote_files(url: str) -> None:
    assert is_remote(url)


@pytest.mark.parametrize("entry", ["a/b", "/s3/x", "ipc:///tmp/x", "tcp://h:1", "sqlite://x", "query 3 s3://b/k", ""])
def test_other_entries_are_not(entry: str) -> None:
    assert not is_remote(entry)


@pytest.mark.parametrize(
    ("entry", "is_pattern"),
    [
        ("s3://b/*.bin", True),
        ("s3://b/x[12]", True),
        ("s3://b/a?b", False),
        ("https://h/f?x=*", False),
        ("https://h/*.bin?x", True),
        ("*.bin", False),
    ],
)
def test_a_pattern_has_a_wildcard_in_its_path(entry: str, is_pattern: bool) -> None:
    assert is_remote_pattern(entry) is is_pattern


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/f?X-Amz-Signature=secret", "https://h/f?…"),
        ("https://user:secret@h:8/f", "https://h:8/f"),
        ("https://user:secret@h/f?secret", "https://h/f?…"),
        ("https://h/a@b", "https://h/a@b"),
        ("s3://b/a?b@c", "s3://b/a?b@c"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert "secret" not in store_name(url)


WILD = st.text("ab*[]!^.12-", min_size=1, max_size=5)


@given(st.lists(WILD | st.sampled_from(["**", "x", "y", "*", "*.bin"]), min_size=1, max_size=4))
def test_a_pattern_stands_for_what_a_shell_finds(tmp_path_factory: pytest.TempPathFactory, segments: list[str]) -> None:
    root = tree(tmp_path_factory)
    pattern = "/".join(segments)
    if not is_remote_pattern(f"s3://b/{pattern}") or any(part in (".", "..") for part in segments):
        return
    here = {
        name
        for name in glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207
        if (root / name).is_file()
    }
    wanted = split_pattern(f"s3://b/{pattern}")
    assert wanted.folder.endswith("/")
    found = {name for name in NAMES if (url := f"s3://b/{name}").startswith(wanted.folder) and wanted.matches(url)}
    assert found == here


def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of NAMES, the same one for all examples."""
    root = tmp_path_factory.getbasetemp() / "tree"
    if not root.exists():
        for name in NAMES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    return root

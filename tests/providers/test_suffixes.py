"""Without a provider, the suffix of the entries chooses a format."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydp2_cli import main

import pydp2
from pydp2.errors import OptionTypeError
from pydp2.providers import Provider
from pydp2.providers.suffixes import SUFFIXES, is_data, provider_of, suffix_of

from ..formats.written_by_others import write


@pytest.mark.parametrize(
    ("entry", "suffix"),
    [
        ("a/b.parquet", ".parquet"),
        ("a.jsonl.gz", ".jsonl"),
        ("A.JSONL.ZST", ".jsonl"),
        ("a.b/c", ""),
        ("a.csv?part=3/12", ".csv"),
        ("train.tar.gz", ".tar"),
        (".parquet", ""),
    ],
)
def test_the_suffix_of_an_entry_is_that_before_a_compression_and_a_part(entry: str, suffix: str) -> None:
    assert suffix_of(entry) == suffix


@pytest.mark.parametrize("name", sorted(set(SUFFIXES.values())))
def test_each_suffix_leads_to_a_provider(name: str) -> None:
    assert isinstance(importlib.import_module(f"pydp2.formats.{name}").process, Provider)


def test_entries_of_one_format_choose_it() -> None:
    assert provider_of(["a.jsonl", "b.ndjson.gz", "c.jsonl.zst?part=0/1"]) == "pydp2.formats.jsonl"


@pytest.mark.parametrize(
    ("entries", "shown"),
    [
        (["a.jsonl", "b.jsonl", "c.parquet"], r"they have .jsonl \(2 entries\), .parquet \(1 entry\)$"),
        (["a.txt"], r"they have .txt \(1 entry\)$"),
        (["a", "b.csv"], r"they have no suffix \(1 entry\), .csv \(1 entry\)$"),
        ([f"a.{number}" for number in range(8)], r"and 3 more$"),
    ],
)
def test_other_entries_are_refused_with_the_suffixes_that_they_have(entries: list[str], shown: str) -> None:
    with pytest.raises(OptionTypeError, match=shown):
        provider_of(entries)


def test_a_pattern_of_data_is_no_file_of_data() -> None:
    assert is_data("train.parquet")
    assert not is_data("*.parquet")
    assert not is_data("train.list")


@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
def test_a_folder_that_save_to_disk_wrote_is_data_below_its_root(name: str, tmp_path: Path) -> None:
    for folder in ("saved", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "saved" / name).write_text("{}")
    assert is_data("saved", str(tmp_path))
    assert not is_data("saved")
    assert not is_data("other", str(tmp_path))
    assert provider_of(["saved", "saved?part=1/2", "a.arrow"], str(tmp_path)) == "pydp2.formats.arrow"
    with pytest.raises(
        OptionTypeError, match=r"they have a folder of save_to_disk \(1 entry\), no suffix \(1 entry\)$"
    ):
        provider_of(["saved", "other"], str(tmp_path))


def test_such_a_folder_is_served_in_place_of_a_list(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write(tmp_path, "hf")
    with pydp2.load("hf", root=tmp_path, batch_size=6, shuffle=False, workers=1) as data:
        assert [batch["num"].tolist() for batch in data] == [[1, 2, 3, 4, 5, 6]]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.jsonl" for number in range(3)]
    for number, name in enumerate(names):
        Path(name).write_text("".join(f'{{"n": {10 * number + i}}}\n' for i in range(10)))
    return names


@pytest.mark.parametrize("form", ["pattern", "entries", "list", "file"])
def test_a_service_needs_no_provider(form: str, shards: list[str]) -> None:
    pytest.importorskip("msgspec")
    Path("train.list").write_text("\n".join(shards))
    files = {"pattern": "*.jsonl", "entries": shards, "list": "train.list", "file": "1.jsonl"}[form]
    with pydp2.load(files, batch_size=8, shuffle=False, workers=1) as data:
        seen = [number for batch in data for number in batch["n"].tolist()]
    assert seen == (list(range(10, 20)) if form == "file" else list(range(30)))


def test_commands_need_none_either(shards: list[str]) -> None:
    pytest.importorskip("msgspec")
    shown = CliRunner().invoke(main, ["check", "*.jsonl"])
    assert shown.exit_code == 0, shown.output
    assert "30 good samples in 3 files" in shown.output
    Path("b.txt").write_text("")
    shown = CliRunner().invoke(main, ["check", "*"])
    assert shown.exit_code
    assert "they have .jsonl (3 entries), .txt (1 entry)" in shown.output

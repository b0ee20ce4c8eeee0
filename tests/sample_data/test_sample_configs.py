"""The configs in ``configs/``: they work as they are, and lead to the sample sets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS
from pydp2.options.toml_file import load_config

TWO_SIDED = ("digits", "nested", "sequence", "sparse")
ONE_SIDED = ("mnist", "sentiment")


def test_there_is_a_config_for_each_set_and_no_other(samples: ModuleType, configs: Path) -> None:
    names = sorted(file.stem for file in configs.glob("*.toml"))
    assert names == sorted(TWO_SIDED + ONE_SIDED) == list(samples.names())


@pytest.mark.parametrize("name", TWO_SIDED + ONE_SIDED)
@pytest.mark.parametrize("side", ["train", "test"])
def test_a_config_leads_to_the_list_and_the_provider_of_its_set(
    samples: ModuleType, configs: Path, name: str, side: str
) -> None:
    if side == "test" and name in ONE_SIDED:
        with pytest.raises(ValueError, match="the test side needs list"):
            load_config(configs / f"{name}.toml", side)
        return
    config = load_config(configs / f"{name}.toml", side)
    sets = configs.parent / "sample_data"
    assert config.root.relative_to(sets) == samples.path(name).relative_to(samples.path("digits").parent)
    assert config.list == config.root / f"{side}.list"
    assert config.list.is_file()
    assert config.is_train == (side == "train")
    module, attribute = config.provider.split(".")
    assert f"\ndef {attribute}(settings, filename):" in (config.root / f"{module}.py").read_text("utf-8")


def test_the_dictionaries_in_the_configs_are_those_of_the_sets(samples: ModuleType, configs: Path) -> None:
    args = json.loads((samples.path("sentiment") / "args.json").read_text("utf-8"))
    assert load_config(configs / "sentiment.toml").args == args
    assert sorted(args["dictionary"].values()) == list(range(60))
    sequence = load_config(configs / "sequence.toml")
    assert (sequence.root / sequence.args["dictionary"]).is_file()


def test_the_config_of_the_digits_shows_every_option_in_a_form_that_works(configs: Path, tmp_path: Path) -> None:
    text = (configs / "digits.toml").read_text("utf-8")
    everything = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    root = (configs / "../sample_data/digits").resolve().as_posix()
    (tmp_path / "all.toml").write_text(everything.replace("../sample_data/digits", root), encoding="utf-8")
    config = load_config(tmp_path / "all.toml")
    assert set(config.service) == set(SERVICE_OPTIONS)
    assert set(config.job) == set(JOB_OPTIONS)
    defaults = {
        name: JOB_OPTIONS[name].default
        for name in ("order", "interleave", "pool_bytes", "last_batch", "prefetch", "prefetch_bytes", "share", "lease")
    }
    assert {name: config.job[name] for name in defaults} == defaults

"""``pydp2 completion``: the shells themselves complete what they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

# What begins a script, and what prints one completion of {words} with {last} of them before the cursor.
SCRIPTS = {
    "bash": (
        'eval "$(pydp2 completion bash)"',
        "COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=(); _pydp2_completion pydp2; echo ${{COMPREPLY[@]}}",
    ),
    "zsh": (
        'autoload -U compinit; compinit -u -D; eval "$(pydp2 completion zsh)"\n'
        "[[ $_comps[pydp2] == _pydp2_completion ]] || exit 3\n"
        'compadd() { print -r -- "${(P)5[@]}" }\n'
        '_describe() { print -r -- "${(P)3[@]%%:*}" }',
        "words=({words}); CURRENT=$(({last} + 1)); _pydp2_completion",
    ),
    "fish": ("pydp2 completion fish | source", 'complete -C "{words}"'),
}


def shell(name: str, script: str, folder: Path) -> list[str]:
    """What ``script`` prints in that shell, with ``pydp2`` on its path; skipped where there is no such shell."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    bin_ = folder / "bin"
    bin_.mkdir()
    (bin_ / "pydp2").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pydp2 "$@"\n')
    (bin_ / "pydp2").chmod(0o755)
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    done = subprocess.run(
        [program, *options, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]  # fish tells a help text, too


CASES = [
    ("pydp2 s", "serve stats"),
    ("pydp2 serve --sa", "--sample_timeout"),
    ("pydp2 serve x --on_error s", "skip"),
    ("pydp2 completion z", "zsh"),
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_shell_completes_commands_flags_and_values(name: str, tmp_path: Path) -> None:
    begin, complete = SCRIPTS[name]
    script = [begin, *(complete.format(words=words, last=words.count(" ")) for words, _ in CASES)]
    assert shell(name, "\n".join(script), tmp_path) == [expected for _, expected in CASES]


def test_the_list_is_completed_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.list").touch()
    begin, complete = SCRIPTS["fish"]
    assert shell("fish", f"{begin}\n{complete.format(words='pydp2 serve tr')}", tmp_path) == ["train.list"]


def test_another_shell_is_a_usage_error(cli: Callable[..., Result]) -> None:
    result = cli("completion", "csh")
    assert result.exit_code == 2
    assert "bash" in result.stderr

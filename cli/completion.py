"""``pydp2 completion SHELL``: the script that makes a shell complete commands, options and files."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes `pydp2` in a shell.

    \b
    bash   eval "$(pydp2 completion bash)"      in ~/.bashrc
    zsh    eval "$(pydp2 completion zsh)"       in ~/.zshrc, after compinit
    fish   pydp2 completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "pydp2", "_PYDP2_COMPLETE").source())

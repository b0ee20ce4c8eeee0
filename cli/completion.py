"""``pydp2 completion SHELL``: print the script with which a shell completes commands, options and files."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print a script for completion in a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script for the shell to complete pydp2's commands and options.

    \b
    bash   eval "$(pydp2 completion bash)"      in ~/.bashrc
    zsh    eval "$(pydp2 completion zsh)"       in ~/.zshrc, after compinit
    fish   pydp2 completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "pydp2", "_PYDP2_COMPLETE").source())

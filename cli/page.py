"""``pydp2 page``: show a running service in a browser."""

from __future__ import annotations

import threading
from pathlib import Path

import click
from pydp2_cli.options import require_folder, service_address
from pydp2_cli.signals import signals_call


@click.command("page", params=service_address(), short_help="Show a running service in a browser.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:0",
    show_default=True,
    help="Address of the page; port 0 is a free one. Beyond this machine nothing but its token protects it, which "
    "travels unencrypted.",
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what was seen in FILE, and go on with it at the next start.",
)
@click.option("--samples", is_flag=True, help="Show samples of the batches, too: anybody with the URL sees them.")
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="End after so many seconds without a service.",
)
def command(
    address: str | None, key: Path | None, listen: str, history: Path | None, samples: bool, patience: float
) -> None:
    """Show the service at ADDRESS in a browser: who waits for whom, since when, and what to change.

    The command prints the URL of the page, which has a token in it. ADDRESS is what the service prints, or the path of
    its connection file; without it, the file that PYDP2_CONNECTION names is used. The service is asked once a second,
    however many pages are open. Needs pip install 'starlette>=0.37' 'uvicorn>=0.29'.

    \b
    pydp2 page run.json
    pydp2 page run.json --listen 127.0.0.1:8080
    """
    import pydp2
    from pydp2.options.values import host_and_port
    from pydp2.page.samples import samples_of
    from pydp2.page.serving import PageServer

    try:
        host_and_port("listen", listen)
    except pydp2.errors.OptionError as error:
        raise click.BadParameter(str(error), param_hint="'--listen'") from None
    if history is not None:
        _check_history(history)
    stop = threading.Event()
    server = PageServer(listen)
    pydp2.stats(address, key=key)  # an error now is better than an empty page
    click.echo(f"page: {server.url}")
    with signals_call(stop.set):
        look_at_samples = samples_of(address, key) if samples else None
        server.run(lambda: pydp2.stats(address, key=key), history, patience, stop, look_at_samples)


def _check_history(file: Path) -> None:
    """Refuse the command unless what was seen can be kept in ``file``."""
    from pydp2.page.history import require_place

    require_folder(file, "'--history'")
    try:
        require_place(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.BadParameter(
            f"{file} cannot be written: {reason}; name another file", param_hint="'--history'"
        ) from None

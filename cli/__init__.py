"""The command line: ``pydp2 serve | worker | stats | check | peek | batch | count | bench | convert | parts | list |
page | demo | cache | keys | completion``. Installed as ``pydp2_cli``.

Each module defines one command, a click object called ``command``; they share ``options``, ``signals``, ``output``,
``live_line`` and ``stats_line``. This module sets the exit codes and shows errors. Results and the address go to
stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import warnings
from bdb import BdbQuit
from collections.abc import Iterator
from typing import Any, TextIO

import click
from pydp2_cli import (
    batch,
    bench,
    cache,
    check,
    completion,
    convert,
    count,
    demo,
    keys,
    page,
    parts,
    peek,
    serve,
    signals,
    stats,
    trace,
    worker,
)
from pydp2_cli import list as listing
from pydp2_cli.output import is_json_log, standard_streams, stdout_failure, write_failure, write_warning

FAILED = 1  # data or user error; usage is click's: 2
UNREACHABLE = 3
CLOSED_PIPE = 128 + signal.SIGPIPE  # the exit code of a program that this signal ends


class _CommandGroup(click.Group):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run with safe standard streams."""
        with standard_streams():
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments. Some options already print, such as ``--version``."""
        try:
            return super().make_context(*args, **kwargs)
        except OSError as error:
            _end_if_stdout_failed(error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and turn exceptions of a command into an exit code and one text on stderr."""
        with warnings.catch_warnings(), signals.signals_raise(), _own_arguments():
            warnings.simplefilter("default", UserWarning)  # show each once, even if the list is read twice
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as interrupt:
                number = signals.signal_number(interrupt)
                if sys.stderr.isatty():
                    click.echo(err=True)  # after ^C
                write_failure(f"ended by {signal.Signals(number).name}", mark="pydp2: ")
                ctx.exit(128 + number)
            except BdbQuit:
                ctx.exit(FAILED)
            except click.ClickException as error:
                if not is_json_log():
                    raise  # click writes it, and the usage
                write_failure(error.format_message())
                ctx.exit(error.exit_code)
            except Exception as error:
                _end_if_stdout_failed(error)
                import pydp2

                if not isinstance(error, pydp2.errors.Error):
                    raise
                write_failure(str(error))
                ctx.exit(UNREACHABLE if isinstance(error, pydp2.errors.ServiceUnreachable) else FAILED)


@contextlib.contextmanager
def _own_arguments() -> Iterator[None]:
    """Hide the arguments of the command from the user's code, here and in workers, which expects those of a script."""
    given = sys.argv
    sys.argv = given[:1]
    try:
        yield
    finally:
        sys.argv = given


def _end_if_stdout_failed(error: Exception) -> None:
    """Raise click's Exit if ``error`` comes from a stdout that cannot be written."""
    failure = stdout_failure(error)
    if failure is None:
        return
    if failure.errno == errno.EPIPE:  # its reader wants no more output
        raise click.exceptions.Exit(CLOSED_PIPE)
    write_failure(f"stdout cannot be written: {failure.strerror}; make room, or send it elsewhere")
    raise click.exceptions.Exit(FAILED)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    origin = "" if issubclass(category, UserWarning) else f"{filename}:{lineno}: {category.__name__}: "
    write_warning(f"{origin}{message}")


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import pydp2

        click.echo(f"pydp2 {pydp2.__version__} (packing: {pydp2.packing()}; checksums: {pydp2.checksums()})")
        ctx.exit()


@click.group(
    cls=_CommandGroup,
    # Options have two spellings: --sample_timeout and --sample-timeout.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("-", "_"),
    },
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)
def main() -> None:
    """Serve the samples of a list of files to trainers, each sample exactly once per pass.

    Options have the same names as in Python and TOML: --sample_timeout, or --sample-timeout.

    Exit codes: 0 success, 1 error in the data or in the request, 2 wrong usage, 3 address cannot be reached or bound,
    130 Ctrl-C, 141 stdout closed by its reader, 143 SIGTERM.
    """


for _module in (
    serve, worker, stats, page, trace, check, peek, batch, count, bench, convert, parts, listing, demo, cache, keys,
    completion,
):  # fmt: skip
    main.add_command(_module.command)

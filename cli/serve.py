"""``pydp2 serve``: run a service until it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource
from pydp2_cli.live_line import LiveLine
from pydp2_cli.options import SourceArguments, SourceCommand, log_format
from pydp2_cli.output import StderrRelay, can_redraw, stderr_console, write_warning
from pydp2_cli.signals import SignalWaiter
from pydp2_cli.stats_line import StatsLine

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2 import Service
    from pydp2.ray import RayService

_POLL_SECONDS = 0.5  # seconds between two requests for statistics
_END_SECONDS = 3.0  # seconds for the server process to end
_WRITE_TIMEOUT = 1.0  # longest time to wait for the terminal, in seconds
_LINE_SECONDS = 5.0  # seconds between two lines if the terminal cannot redraw one
_STALLED_LINE_SECONDS = 30.0  # the same while a trainer is attached and nothing is delivered


@click.command(
    "serve",
    cls=SourceCommand,
    tables={"service": None},
    params=[log_format()],
    short_help="Serve the samples of a list until stopped.",
)
@click.option("--json", "as_json", is_flag=True, help="Print address and process id as one line of JSON.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where workers run: on this machine and hosts that join, or on the hosts of a Ray cluster.",
)
@click.option("--hosts", default="1", show_default=True, help="Ray: number of hosts, or auto.")
@click.option(
    "--workers-per-host", type=click.IntRange(1), default=1, show_default=True, help="Ray: worker processes on each."
)
@click.option("--name", default="default", show_default=True, help="Ray: name of the service.")
def command(
    source_args: SourceArguments, as_json: bool, engine: str, hosts: str, workers_per_host: int, name: str
) -> None:
    """Serve the samples of LIST, the path of a file list, until stopped with Ctrl-C.

    Prints the address for pydp2.connect() on stdout, and its progress on stderr.

    \b
    pydp2 serve train.list --provider my_provider.process
    pydp2 serve --config configs/digits.toml --workers 4
    """
    from pydp2 import launch
    from pydp2.system.log_events import LogEvent
    from pydp2.system.log_writer import is_json, write_event

    given = [name for name in ("hosts", "workers_per_host", "name") if _is_given(name)]
    if engine == "local" and given:
        flag = "--" + given[0].replace("_", "-")
        raise click.UsageError(f"{flag} is for --engine ray; workers on other hosts join with `pydp2 worker`")
    if engine == "ray" and as_json:
        raise click.UsageError("--json is for --engine local: with Ray trainers connect by the name that is printed")
    if engine == "ray":
        _serve_on_ray(source_args, hosts, workers_per_host, name)
        return
    console = stderr_console()
    with contextlib.ExitStack() as stack:
        display = _display(console, stack)
        with display.starting():
            service = launch(**source_args.source, **source_args.service)
        stack.callback(service.close)

        def announce() -> None:
            addresses: dict[str, Any] = {
                "address": service.address,
                "host_address": service.host_address,
                "pid": service.pid,
            }
            if service.page_url is not None:
                addresses["page"] = service.page_url
            _print_address(json.dumps(addresses) if as_json else service.address)
            if is_json():
                write_event("the service is ready", LogEvent.SERVICE_READY, **{k: v for k, v in addresses.items() if v})
                return
            file = source_args.service.get("connection")
            where = file or ("" if "?token=" in service.address else service.address)  # the token is a secret
            display.print(_example_code(str(where), source_args.job), style="dim")
            if service.host_address:
                where = str(file or service.host_address)
                display.print(f"workers on other hosts: pydp2 worker --connect {shlex.quote(where)}\n", style="dim")

        comes_back = source_args.service.get("state_dir") is not None
        number = _watch_service(service, display, announce, will_restart=comes_back)
        if number is not None:
            click.get_current_context().exit(128 + number)
        rest = "; start it again as before, its trainers wait for it" if comes_back else ""
        raise click.ClickException(_why_ended(service) + rest)


def _is_given(name: str) -> bool:
    """Return True if the flag was given, with any value."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _serve_on_ray(source_args: SourceArguments, hosts: str, workers_per_host: int, name: str) -> None:
    """Serve on a Ray cluster until stopped. Prints the name of the service on stdout."""
    import pydp2.ray
    from pydp2.system.log_writer import is_json

    if hosts != "auto" and not (hosts.isascii() and hosts.isdecimal()):
        raise click.BadParameter(f"it must be a number or auto, got {hosts!r:.40}", param_hint="--hosts")
    count: Any = hosts if hosts == "auto" else int(hosts)
    figures = StatsLine()
    display: _Display = (_JsonDisplay if is_json() else _LineDisplay)(stderr_console())
    with (
        pydp2.ray.launch(
            **source_args.source, name=name, hosts=count, workers_per_host=workers_per_host, **source_args.service
        ) as service,
        SignalWaiter(lambda: None) as waiting,
    ):
        click.echo(service.name)
        display.print(f"pydp2: in the trainer: data = pydp2.ray.connect({name!r}, batch_size=128)")
        while (number := waiting.wait(_LINE_SECONDS)) is None:
            stats = _stats_on_ray(service, will_restart=source_args.service.get("state_dir") is not None)
            if stats is not None:
                figures.add_stats(stats)
                display.show(figures)
        display.log(f"ending the service ({signal.Signals(number).name})", "SERVICE_ENDS")
    click.get_current_context().exit(128 + number)


def _stats_on_ray(service: RayService, *, will_restart: bool) -> dict[str, Any] | None:
    """Return the statistics, or None while Ray starts the server; end the command once the service has ended.

    ``will_restart``: Ray starts a lost server again.
    """
    import pydp2
    from pydp2.ray import RayService

    try:
        return service.stats()
    except Exception as error:  # also errors of Ray itself while it restarts the actor
        if isinstance(error, pydp2.errors.ServiceLost) and not will_restart:
            raise click.ClickException(str(error)) from None
    try:
        RayService(service.name)  # raises if the actor has ended for good
    except pydp2.errors.ServiceUnreachable as error:
        raise click.ClickException(f"the service {service.name!r} has ended: {error}") from None
    return None


def _print_address(address: str) -> None:
    """Print the address. If stdout cannot be written, the service goes on, because trainers may know the address."""
    try:
        click.echo(address)
    except OSError as error:
        write_warning(f"stdout cannot be written ({error.strerror}); the service goes on at {address}")


def _watch_service(
    service: Service, display: _Display, announce: Callable[[], None], *, will_restart: bool
) -> int | None:
    """Show the progress until the service ends; return the signal that ended it, None if the server ended by itself.

    ``announce`` prints the address. It is called after the signal handlers are set, because a reader of the address may
    send a signal at once. ``will_restart``: trainers may wait until the service is started again.
    """
    import pydp2

    figures = StatsLine()

    def at_once() -> None:
        display.restore()
        os.kill(service.pid, signal.SIGKILL)

    with SignalWaiter(at_once) as waiting:
        announce()
        while service.poll() is None:
            number: int | None = waiting.wait(_POLL_SECONDS)
            if number is not None:
                display.log(f"ending the service ({signal.Signals(number).name})", "SERVICE_ENDS")
                if will_restart:
                    _end_resumable(service)
                service.close()  # here, so that a second signal is handled meanwhile
                return number
            if service.poll() is None:
                with contextlib.suppress(pydp2.errors.Error):  # it is busy, or has ended, which poll() reports
                    figures.add_stats(service.stats(timeout=_POLL_SECONDS))
                    display.show(figures)
    return None


def _end_resumable(service: Service) -> None:
    """End the server process with SIGTERM, which tells trainers that it may come back."""
    deadline = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(service.pid, signal.SIGTERM)
        while service.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def _why_ended(service: Service) -> str:
    """Return text that says why the server process has ended by itself."""
    error = service.failure()
    status = service.poll() or 0
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return f"the server process {how}" + ("" if error is None else f": {error}")


def _example_code(where: str, job: dict[str, Any]) -> str:
    """Return Python code that reads from the service at ``where``; "" stands for the printed address."""
    from pydp2.options.tables import JOB_OPTIONS

    options = {"batch_size": 128} | {name: value for name, value in job.items() if value != JOB_OPTIONS[name].default}
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    address = f'"{where}"' if where else "address"
    return (
        f"import pydp2\n\ndata = pydp2.connect({address}, {given})\n"
        "for epoch in range(10):\n    for batch in data:\n        print(batch)\n"
    )


# -- the display -------------------------------------------------------------------------------------------------------
class _Display(Protocol):
    """Display of the progress of a service."""

    def starting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which to start the service."""
        ...

    def show(self, figures: StatsLine) -> None:
        """Show the latest figures."""
        ...

    def print(self, text: str, style: str = "") -> None:
        """Print lines that are not erased, for the user to copy."""
        ...

    def log(self, text: str, event: str) -> None:
        """Write a line of the log, of the event with that name."""
        ...

    def restore(self) -> None:
        """Restore the terminal, because the process ends at once."""
        ...


def _display(console: Console, stack: contextlib.ExitStack) -> _Display:
    """Return the display for the form of the log and for the terminal, if there is one. ``stack`` closes it."""
    from pydp2.system.log_writer import is_json

    if is_json():
        return _JsonDisplay(console)
    return stack.enter_context(_live_display(console)) if can_redraw(console) else _LineDisplay(console)


class _LineDisplay:
    """Display that prints a line every few seconds while there is progress, and less often while a trainer is attached
    and there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0
        self._shown_progress: object = None

    def starting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def show(self, figures: StatsLine) -> None:
        now, progress = time.monotonic(), figures.progress
        is_attached, is_stalled = progress[0], progress == self._shown_progress
        if is_stalled and not is_attached:
            return
        if now - self._shown_at >= (_STALLED_LINE_SECONDS if is_stalled else _LINE_SECONDS):
            self._shown_at, self._shown_progress = now, progress
            self.log(", ".join(figures.parts()), "PROGRESS")

    def print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=True)

    def log(self, text: str, event: str) -> None:
        from pydp2.system.log_writer import with_times

        self.print(with_times(f"pydp2: {text}", self._console.file))

    def restore(self) -> None:
        pass


class _JsonDisplay(_LineDisplay):
    """Display that writes events of the log as JSON, and nothing else."""

    def print(self, text: str, style: str = "") -> None:
        pass  # it is for a user who copies it

    def log(self, text: str, event: str) -> None:
        from pydp2.system.log_events import LogEvent
        from pydp2.system.log_writer import write_event

        write_event(text, LogEvent[event])


class _LiveDisplay:
    """Display that redraws one line on the terminal; output of the service appears above it."""

    def __init__(self, console: Console) -> None:
        from rich.text import Text

        from pydp2.system.log_writer import log_stream

        self._console = console
        # A separate descriptor, because descriptor 2 is diverted while the service starts.
        self._descriptor = os.dup(2)
        console.file, self._writer = log_stream(self._descriptor, _WRITE_TIMEOUT)
        self._line = LiveLine(console.file, bold=True)
        self._relay = StderrRelay(lambda line: self._print(Text.from_ansi(line), overflow="fold"))

    def starting(self) -> contextlib.AbstractContextManager[None]:
        diverted: contextlib.AbstractContextManager[None] = self._relay.diverted()
        return diverted

    def show(self, figures: StatsLine) -> None:
        self._line.show(figures.parts())

    def print(self, text: str, style: str = "") -> None:
        self._print(text, style=style, soft_wrap=True)

    def log(self, text: str, event: str) -> None:
        self.print(f"pydp2: {text}")

    def _print(self, text: Any, **how: Any) -> None:
        with self._line.printing_above():
            self._console.print(text, **how)

    def restore(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, b"\n")

    def close(self) -> None:
        self._relay.close()
        self._line.clear()
        if self._writer.finish():
            os.close(self._descriptor)


@contextlib.contextmanager
def _live_display(console: Console) -> Iterator[_LiveDisplay]:
    display = _LiveDisplay(console)
    try:
        yield display
    finally:
        display.close()

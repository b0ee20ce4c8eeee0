"""``pydp2 check``: read a list once, without a service, and report statistics and errors."""

from __future__ import annotations

import faulthandler
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.live_line import LiveLine
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import can_redraw, count_text, size_text, stderr_console, stdout_console, user_output_to_stderr

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MAX_SHOWN_FILES = 20  # files that are shown one by one
_MAX_NAMES = 3  # names of files without samples in one line
_PROGRESS_SECONDS = 0.2  # seconds between two updates of the progress line
_MAX_NAME_LENGTH = 60  # characters of a file's name that are shown


@click.command(
    "check", cls=SourceCommand, tables={"service": ["input_order"]}, short_help="Read a list once and report errors."
)
@click.option("--limit", type=click.IntRange(1), metavar="NUMBER", help="Read only so many samples of each file.")
@click.option(
    "--max_errors",
    type=click.IntRange(0),
    default=10,
    metavar="NUMBER",
    help="Number of errors to show in full; the others are only counted; default: 10.",
)
@click.option(
    "--replay",
    metavar="QUARANTINE",
    type=click.Path(path_type=str),
    help="In place of LIST: run the files that this quarantine file of a service names, and report what is still bad.",
)
@click.option(
    "--repeat/--no_repeat", default=True, help="Run one file twice, in two processes, and compare; default: --repeat."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with all files.")
@click.pass_context
def command(
    ctx: click.Context,
    source_args: SourceArguments,
    limit: int | None,
    max_errors: int,
    replay: str | None,
    repeat: bool,
    as_json: bool,
) -> None:
    """Read the files of LIST once, and report their values and all errors.

    It runs the provider in this process, without a service, so breakpoint() works. It continues after a bad sample,
    and after a file whose generator raises. Then it runs one file twice, each time in a process of its own, and shows
    the first sample that differs. The exit code is 1 if there is any error, or a difference. Without --provider, or if
    the init_hook decides the slots, it prints them as an input_types that can be pasted into a provider.

    \b
    pydp2 check train.list --provider my_provider.process
    pydp2 check --config configs/digits.toml --test --limit 100
    pydp2 check --replay bad.jsonl --provider my_provider.process
    """
    import pydp2

    for name in ("limit", "max_errors", "repeat") if replay is not None else ():
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--{name} does not go with --replay, which looks at every line of the quarantine", ctx
            )
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # writes a stack if C code of the user crashes
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")  # as in a worker
    console = stderr_console()
    sign = _ProgressLine(console)
    with user_output_to_stderr(as_json):
        report: Any
        if replay is not None:
            source = {name: value for name, value in source_args.source.items() if name != "files"}
            order = source_args.service.get("input_order")
            report = pydp2.replay(replay, **source, input_order=order, progress=sign.progress)
        else:
            report = pydp2.check(
                **source_args.source,
                input_order=source_args.service.get("input_order"),
                limit=limit,
                max_errors=max_errors,
                repeat=repeat,
                progress=sign.progress,
            )
    sign.clear()
    if as_json:
        click.echo(json.dumps(report.plain(), indent=2))
    elif replay is not None:
        _show_replay(stdout_console(), report)
    else:
        _show(stdout_console(), report)
    if not report.ok:
        ctx.exit(1)


def _shortened(file: str) -> str:
    """Return the end of a file's name."""
    return file if len(file) <= _MAX_NAME_LENGTH else f"…{file[-_MAX_NAME_LENGTH:]}"


class _ProgressLine:
    """Progress line on a terminal. Only progress redraws it, so that it does not disturb a debugger."""

    def __init__(self, console: Console) -> None:
        self._line = LiveLine(console.file) if can_redraw(console) else None
        self._shown_at = time.monotonic()

    def progress(self, file: str, samples: int) -> None:
        """Show that ``file`` has yielded ``samples`` samples so far."""
        now = time.monotonic()
        if self._line is not None and now - self._shown_at > _PROGRESS_SECONDS:
            self._shown_at = now
            self._line.show([f"{count_text(samples, 'sample')} of {_shortened(file)}"])

    def clear(self) -> None:
        """Clear the line."""
        if self._line is not None:
            self._line.clear()


def _show(console: Console, report: Any) -> None:
    console.print(_table(report))
    if report.input_types:  # plain lines, for a paste: no indentation, no line is cut
        console.print(f"\n{_escaped(report.input_types)}\n", soft_wrap=True, highlight=False)
    _show_repeat(console, report)
    for finding in report.findings:
        console.print(f"[red]✗[/red] {_escaped(finding.text)}", soft_wrap=True)
    if report.found > len(report.findings):
        console.print(f"… and {report.found - len(report.findings):,} more")
    files = len(report.files)
    if without := [_escaped(_shortened(file.file)) for file in report.files if file.yielded_nothing]:
        names = ", ".join([*without[:_MAX_NAMES], *["…"] * (len(without) > _MAX_NAMES)])
        what = f"process yielded nothing for {len(without):,} of {count_text(files, 'file')}"
        console.print(f"[yellow]{what}[/yellow]: {names}", soft_wrap=True)
    seen = f"{count_text(report.samples, 'good sample')} in {count_text(files, 'file')}"
    total = sum(file.bytes for file in report.files)
    if report.ok:
        console.print(f"[green]ok[/green]: {seen}, {size_text(total)} as columns")
    else:
        console.print(f"[red]{report.found:,} found[/red], beside {seen}")


def _show_repeat(console: Console, report: Any) -> None:
    repeat = report.repeat
    if starts := sum(len(file.starts) for file in report.files):
        console.print(f"process was begun at {count_text(starts, 'sample')}, and compared with a whole reading")
    if repeat is None or repeat.difference is not None:
        return
    if repeat.skipped:
        console.print(f"[yellow]not run twice[/yellow]: {_escaped(repeat.skipped)}", soft_wrap=True)
    else:
        what = f"{count_text(repeat.samples, 'sample')} of {_escaped(_shortened(repeat.file))}"
        console.print(f"{what}: the same in two processes", soft_wrap=True)


_MARKS = {"still bad": "[red]✗[/red]", "file missing": "[red]✗[/red]", "now good": "[green]✓[/green]"}


def _show_replay(console: Console, report: Any) -> None:
    for verdict in report.verdicts:
        where = f" file {verdict.file}, sample {verdict.sample}" if verdict.file and not verdict.text else ""
        text = f"line {verdict.line}: {verdict.verdict}:{where}{' ' + verdict.text if verdict.text else ''}"
        console.print(f"{_MARKS.get(verdict.verdict, '·')} {_escaped(text)}", soft_wrap=True)
    parts = [f"{count:,} {verdict}" for verdict, count in report.counts.items() if count]
    console.print(f"{'[green]ok[/green]: ' * report.ok}{', '.join(parts) or 'the quarantine is empty'}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(report: Any) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("samples", justify="right")
    table.add_column("bad", justify="right")
    for name in ("slot", "yielded as", "values", "lengths"):
        table.add_column(name, overflow="fold")
    shown, rest = _files_to_show(report.files)
    for file in shown:
        _rows(table, _escaped(file.file), _count(file), _bad(file), file.slots)
    if rest:
        table.add_row(f"… {rest:,} more files: --json has them", style="dim")
    if len(report.files) != 1:
        samples, bad = f"{report.samples:,}", f"{report.found:,}" if report.found else "-"
        table.add_section()
        _rows(table, "all files", samples, bad, report.slots)
    return table


def _files_to_show(files: list[Any]) -> tuple[list[Any], int]:
    """Return the files to show, those with errors before the others, in the order of the list, and the number of the
    rest."""
    if len(files) <= _MAX_SHOWN_FILES:
        return files, 0
    numbers = sorted(range(len(files)), key=lambda i: not (files[i].bad or files[i].raised))[:_MAX_SHOWN_FILES]
    return [files[i] for i in sorted(numbers)], len(files) - _MAX_SHOWN_FILES


def _count(file: Any) -> str:
    return f"{file.samples:,}" if file.samples else "[yellow]none[/yellow]"


def _bad(file: Any) -> str:
    words = ([f"{file.bad:,}"] if file.bad else []) + (["raised"] if file.raised else [])
    return f"[red]{', '.join(words)}[/red]" if words else "-"


def _rows(table: Table, name: str, samples: str, bad: str, slots: list[Any]) -> None:
    for slot in slots:
        given = ", ".join(slot.given) or "-"
        table.add_row(name, samples, bad, _escaped(slot.slot), _escaped(given), _values(slot), _lengths(slot))
        name = samples = bad = ""


def _values(slot: Any) -> str:
    """Return text with the ranges of ids, indices and values."""
    parts = []
    for kind in ("ids", "indices", "values"):
        seen = slot.ranges.get(kind)
        if seen is not None and seen.count:
            text = f"{_number(seen.least)} … {_number(seen.most)}"
            text += f" ({seen.not_finite:,} not finite)" if seen.not_finite else ""
            parts.append(text if kind != "indices" else f"indices {text}")
    return ", ".join(parts) or "-"


def _lengths(slot: Any) -> str:
    """Return text with the ranges of the numbers of sub-sequences, steps, entries and bytes."""
    parts = []
    for kind, word in (("subs", "sub-sequences"), ("steps", "steps"), ("nnz", "entries"), ("nbytes", "bytes")):
        seen = slot.ranges.get(kind)
        if seen is not None and seen.count:
            many = f"{seen.least}" if seen.least == seen.most else f"{seen.least} … {seen.most}"
            parts.append(f"{many} {word}")
    return ", ".join(parts) or "-"


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"

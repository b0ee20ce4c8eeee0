"""Define the common parameters of commands that read a list: the list, its provider, and flags for options.

An option has one name, in Python, in TOML and as a flag, such as ``--sample_timeout``. The spelling with dashes,
``--sample-timeout``, is accepted too.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from pydp2.options.tables import Option
    from pydp2.options.toml_file import Config

_METAVARS = {"int": "NUMBER", "float": "SECONDS", "tuple[str, ...]": "NAME,NAME", "str": "TEXT"}
_METAVARS_BY_NAME = {
    "bind": "ADDRESS",
    "connection": "FILE",
    "keys": "DIRECTORY",
    "advertise": "HOST",
    "quarantine": "FILE",
    "block_list": "FILE",
    "state_dir": "DIRECTORY",
    "cache_dir": "DIRECTORY",
    "error_budget": "NUMBER|SHARE",
}


@dataclass(frozen=True)
class SourceArguments:
    """Input of a command, from configuration and command line together. ``files``: a list, or with --replay the
    quarantine file. ``provider``: None if the suffix of the entries is to choose it. ``service`` and ``job``: options,
    including those of the command's own flags."""

    files: str
    provider: str | None
    args: dict[str, Any]
    is_train: bool
    root: str | None
    service: dict[str, Any]
    job: dict[str, Any]

    @property
    def source(self) -> dict[str, Any]:
        """Arguments for ``launch``, ``check`` and ``peek``."""
        return {
            "files": self.files,
            "provider": self.provider,
            "args": self.args,
            "is_train": self.is_train,
            "root": self.root,
        }


# -- flags from tables -------------------------------------------------------------------------------------------------
class OptionType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """Type of the flag for the option ``name``: it parses the text and checks the value."""

    name = "text"

    def __init__(self, name: str, option: Option) -> None:
        self._name, self._option = name, option
        self._kind = option.kind.removesuffix(" | None")

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help."""
        if self._option.choices:
            return "|".join(self._option.choices)
        if self._name in _METAVARS_BY_NAME:
            return _METAVARS_BY_NAME[self._name]
        return "SIZE" if self._option.is_size else _METAVARS[self._kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text; return other values as they are."""
        import pydp2

        try:
            return self._option.check(self._name, self._parsed(value) if isinstance(value, str) else value)
        except pydp2.errors.Error as error:
            self.fail(str(error), param, ctx)

    def _parsed(self, text: str) -> Any:
        """Return ``text`` as a value of the option's type, or unchanged if it is none; the check then refuses it."""
        if self._kind == "tuple[str, ...]":
            return [part.strip() for part in text.split(",")]
        if self._kind in ("int", "float"):
            for number in (int, float):
                try:
                    return number(text)
                except ValueError:
                    continue
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the choices that begin with ``incomplete``; none if the option has no choices."""
        return [CompletionItem(word) for word in self._option.choices if word.startswith(incomplete)]


def service_address() -> list[click.Parameter]:
    """Return the parameters of a command for a running service: its address, and the folder with the user's keys."""
    return [
        click.Argument(["address"], required=False),
        click.Option(
            ["--key"],
            type=click.Path(path_type=Path),
            metavar="DIRECTORY",
            help="Folder with your keys, for an address with ?key=…",
        ),
    ]


def require_folder(file: Path, hint: str) -> None:
    """Refuse the parameter ``hint`` unless the folder of ``file`` is there."""
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {file.parent}; make it first", param_hint=hint)


def log_format() -> click.Option:
    """Return the option ``--log-format`` of commands that run a service or workers."""
    return click.Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        envvar="PYDP2_LOG_FORMAT",
        show_envvar=True,
        expose_value=False,
        callback=_set_log_format,
        help="Form of the lines on stderr; json: an object for each event. Default: text.",
    )


def _set_log_format(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Have this process, and those that it starts, write the log in the form ``value``."""
    if value is not None:
        from pydp2.system.log_writer import LOG_FORMAT

        os.environ[LOG_FORMAT] = value


def flags(table: str, names: Sequence[str] | None = None) -> list[click.Option]:
    """Return the options of ``table``, "service" or "job", as flags; with ``names`` only those."""
    from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS

    options = SERVICE_OPTIONS if table == "service" else JOB_OPTIONS
    return [_flag(name, options[name]) for name in names or options]


def _size_text(count: int) -> str:
    """Return a number of bytes in the form of an option, such as 64MiB."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def _flag(name: str, option: Option) -> click.Option:
    default = _size_text(option.default) if option.is_size and option.default else option.default
    text = option.help if default is None else f"{option.help}; default: {default}"
    if option.kind.startswith("bool"):
        return click.Option([f"--{name}/--no_{name}"], default=None, help=text)
    kind = OptionType(name, option)
    return click.Option([f"--{name}"], type=kind, metavar=kind.metavar, help=text)


# -- the list and its provider -----------------------------------------------------------------------------------------
def _source_params() -> list[click.Parameter]:
    path = click.Path(path_type=str)
    return [
        click.Argument(["list_"], metavar="[LIST]", type=path, required=False),
        click.Option(
            ["--provider"],
            metavar="ADDRESS",
            shell_complete=lambda ctx, param, incomplete: [CompletionItem(incomplete, type="file")],
            help="Provider that reads the files: module.process, module:process or file.py:process.",
        ),
        click.Option(
            ["--args"],
            metavar="NAME=VALUE",
            multiple=True,
            help="Argument of the provider's init_hook; may be repeated. The value is read as JSON or TOML if it is "
            "valid, otherwise as text: --args n=3, --args \"name='3'\", --args words=words.txt.",
        ),
        click.Option(
            ["--args-file"],
            metavar="FILE",
            type=path,
            help="Read arguments of the init_hook from a .toml or .json file.",
        ),
        click.Option(
            ["--config"],
            metavar="FILE",
            type=path,
            help="Read list, provider and options from a TOML file; flags override it.",
        ),
        click.Option(
            ["--side"],
            type=click.Choice(["train", "test"]),
            help="Table of the --config file that names the list; default: train, or test with --test.",
        ),
        click.Option(
            ["--is_train/--test"],
            default=None,
            help="Whether the provider reads for training or testing (is_train of its init_hook); default: as --side.",
        ),
        click.Option(
            ["--root"],
            metavar="FOLDER",
            type=click.Path(file_okay=False, path_type=str),
            help="Folder in which LIST, its entries and the provider are looked up; default: root in the --config "
            "file, or the working directory.",
        ),
    ]


@dataclass(frozen=True)
class _SourceParams:
    """Parsed values of the parameters that name the input."""

    list_: str | None
    provider: str | None
    args: Sequence[str]
    args_file: str | None
    config: str | None
    side: str | None
    is_train: bool | None
    root: str | None


class SourceCommand(click.Command):
    """Command that reads a list. Its parameters are LIST, the provider, and flags for the options in ``tables``: a dict
    from the name of a table to names of its options (None: all). The function gets them as its argument
    ``source_args``, a :class:`SourceArguments`.
    """

    def __init__(self, *args: Any, tables: Mapping[str, Sequence[str] | None], **kwargs: Any) -> None:
        self._tables = tables
        super().__init__(*args, **kwargs)
        arguments = [param for param in self._given if isinstance(param, click.Argument)]
        own = [param for param in self._given if param not in arguments]
        # LIST is the last argument, because it may be left out.
        self._all: list[click.Parameter] = [*arguments, *_source_params(), *own]
        self._table_flags: list[click.Option] | None = None

    # The tables are read late, so that listing the commands does not import pydp2.
    @property
    def params(self) -> list[click.Parameter]:
        """All parameters of the command."""
        if self._table_flags is None:
            self._table_flags = [flag for table, names in self._tables.items() for flag in flags(table, names)]
            self._all += self._table_flags
        return self._all

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._given = params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags of each table under a separate heading."""
        params, late = [p for p in self.get_params(ctx) if isinstance(p, click.Option)], self._table_flags or []
        for heading, some in (
            ("Options", [param for param in params if param not in late]),
            ("Options as in Python and TOML", late),
        ):
            rows = [row for param in some if (row := param.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with better errors: for a flag that belongs elsewhere or to another loader, name the
        right one; for several lists, name quotes, because a shell has probably expanded a pattern."""
        ctx.allow_extra_args = True  # to raise a better error about them than click does
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._explain_misplaced(ctx, error.option_name.lstrip("-").replace("-", "_"))
            raise
        if ctx.args and not ctx.resilient_parsing:
            raise click.UsageError(
                f"LIST is one path or one pattern, got {ctx.args[0]!r} behind it; put a pattern into quotes, so that "
                "the shell leaves it alone: 'docs-*.jsonl'",
                ctx,
            )
        return rest

    def _explain_misplaced(self, ctx: click.Context, name: str) -> None:
        from pydp2.options import tables

        own_names = {param.name for param in self.params if param.name}
        homes = dict.fromkeys(tables.PROVIDER_OPTIONS, "@provider(...), beside process")
        homes |= dict.fromkeys(tables.JOB_OPTIONS, "connect() or load()")
        homes |= dict.fromkeys(tables.SERVICE_OPTIONS, "pydp2 serve, launch() or load()")
        if name in homes and name not in own_names:
            raise click.UsageError(f"--{name} is not an option here: it belongs to {homes[name]}", ctx)
        if hint := tables.elsewhere(name, own_names, homes):
            raise click.UsageError(f"there is no option --{name}{hint}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Determine the input, and run."""
        params = _SourceParams(**{field.name: ctx.params.pop(field.name) for field in fields(_SourceParams)})
        own = {table: [flag.name for flag in flags(table, names)] for table, names in self._tables.items()}
        given = {
            table: {name: value for name in names if (value := ctx.params.pop(name)) is not None}
            for table, names in own.items()
        }
        ctx.params["source_args"] = _source_arguments(ctx, given, ctx.params.get("replay"), params)
        return super().invoke(ctx)


def _source_arguments(
    ctx: click.Context,
    flags_by_table: Mapping[str, dict[str, Any]],
    quarantine: str | None,
    params: _SourceParams,
) -> SourceArguments:
    if params.config is None and params.side is not None:
        raise click.UsageError("--side chooses a side of a --config, and there is none; did you mean --test?", ctx)
    side = params.side or ("test" if params.is_train is False else "train")
    base = _load_config(params.config, side)
    if quarantine is not None and params.list_ is not None:
        raise click.UsageError("--replay runs the files that the quarantine names, and no LIST; leave one out", ctx)
    files = quarantine or params.list_ or (None if base is None else str(base.list))
    provider = params.provider or (None if base is None else base.provider)
    if files is None:
        raise click.UsageError(
            "LIST is needed, the path of a train.list or a pattern such as 'docs-*.jsonl'; or --config FILE", ctx
        )
    if provider is None and quarantine is not None:
        raise click.UsageError("--provider is needed, as in --provider my_provider.process; or --config FILE", ctx)
    named: dict[str, Any] = {} if base is None else dict(base.args)
    named |= {} if params.args_file is None else _read_args_file(params.args_file)
    named |= dict(map(_parse_pair, params.args))
    return SourceArguments(
        files=files,
        provider=provider,
        args=named,
        is_train=side == "train" if params.is_train is None else params.is_train,
        root=params.root or (None if base is None else str(base.root)),
        service=({} if base is None else base.service) | flags_by_table.get("service", {}),
        job=({} if base is None else base.job) | flags_by_table.get("job", {}),
    )


def _load_config(file: str | None, side: str) -> Config | None:
    from pydp2.options.toml_file import load_config

    return None if file is None else load_config(file, side)


def _parse_pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"need NAME=VALUE, have {text!r}", param_hint="'--args'")
    return name.strip(), _parse_value(value)


def _parse_value(text: str) -> Any:
    """Return the value of ``text`` as JSON, or as TOML, or ``text`` itself. Dates of TOML stay text, because args
    cannot have dates."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        document = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = document["value"]
    return text if len(document) != 1 or isinstance(value, date | time) else value


_MAX_ARGS_BYTES = 256 << 20


def _read_args_file(name: str) -> dict[str, Any]:
    """Return the arguments in a file."""
    from pydp2.system.file_bytes import read_named

    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    path = Path(name)
    if path.suffix not in readers:
        raise click.BadParameter(f"need a .toml or .json file, have {name}", param_hint="'--args-file'")
    try:
        value = readers[path.suffix](read_named(path, _MAX_ARGS_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise click.ClickException(f"--args-file {name} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise click.ClickException(f"--args-file {name}: values are nested too deep; write fewer levels") from None
    except ValueError as error:  # errors of JSON, TOML and UTF-8 are ValueErrors
        raise click.ClickException(f"--args-file {name}: {error}") from None
    if not isinstance(value, dict):
        raise click.ClickException(
            f"--args-file {name}: need an object of names and values, have a {type(value).__name__}"
        )
    return value

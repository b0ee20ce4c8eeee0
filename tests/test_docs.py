"""What README.md and docs/ say is run: Python blocks, commands, tables, the site. See also tests/test_house.py."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
from pydp2_cli import main

import pydp2
from pydp2.host.agent.agent import AGENT_TRANSITIONS
from pydp2.host.engine import output
from pydp2.host.watchdog import WATCH_TRANSITIONS
from pydp2.host.worker import chunk_builder
from pydp2.options.tables import ELSEWHERE, JOB_OPTIONS, SERVICE_OPTIONS, Option
from pydp2.options.values import number_of_bytes
from pydp2.order.file_order import BLOCK_LENGTHS
from pydp2.order.pool import SNAPSHOT_MIN
from pydp2.order.random_bits import ORDER_VERSION
from pydp2.protocol import file_ranges, link_states, messages, plain_data
from pydp2.providers.decorator import provider
from pydp2.server.dispatch.file_state import FILE_TRANSITIONS
from pydp2.server.dispatch.ledger import MAX_DEATHS
from pydp2.server.jobs.membership import TRAINER_TRANSITIONS
from pydp2.server.tracing import TRACE_TRANSITIONS
from pydp2.server.workers.worker_pool import WORK_TRANSITIONS
from pydp2.system.log_events import LogEvent

from .formats.written_by_others import write
from .warm_starts import run_program

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/internals").glob("*.md")))
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "sample_data/README.md")
DEADLINE = 60.0


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in one language, with the line that each begins at."""
    text = page.read_text("utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start()) + 2, match[1]) for match in found]


def cases(language: str, pages: tuple[Path, ...] = PAGES) -> list[Any]:
    return [
        pytest.param(page, code, id=f"{page.name}:{line}") for page in pages for line, code in blocks(page, language)
    ]


def files_of(page: Path) -> Iterator[tuple[str, str]]:
    """Blocks that say in their first line which file they are, as in ``# my_provider.py``."""
    for language in ("python", "toml"):
        for _, code in blocks(page, language):
            if named := re.match(r"# (\w+\.(?:py|toml))\n", code):
                yield named[1], code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the digits, as the pages assume it."""
    shutil.copytree(ROOT / "sample_data/digits", tmp_path / "digits", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "digits"


def run(command: list[str], folder: Path, seconds: float = DEADLINE) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{shlex.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


# -- Python blocks -----------------------------------------------------------------------------------------------------
FRAMEWORKS = {
    "jax", "keras", "orbax", "paddle", "pyarrow", "ray", "tensorflow", "torch", "torchtitan", "transformers"
}  # fmt: skip
"""A block that imports one of them is skipped where it is not installed."""


def write_data(folder: Path) -> None:
    """Write the files of data that README.md and quickstart.md read. All libraries are in the extra ``test``."""
    import pyarrow.parquet
    import zstandard
    from PIL import Image

    for name in ("train", "docs", "shards"):
        (folder / name).mkdir()
    columns = {"age": [i / 2 for i in range(512)], "label": [i % 3 for i in range(512)]}
    table = pyarrow.table(columns, pyarrow.schema([("age", pyarrow.float32()), ("label", pyarrow.int64())]))
    lines = "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(100))
    picture = io.BytesIO()
    Image.new("RGB", (40, 30)).save(picture, "jpeg")
    for shard in range(2):
        pyarrow.parquet.write_table(table, folder / f"train/{shard}.parquet")
        (folder / f"docs/{shard}.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
        with tarfile.open(folder / f"shards/{shard}.tar", "w") as archive:
            for i in range(64):
                for extension, data in (("jpg", picture.getvalue()), ("cls", b"%d" % (i % 10))):
                    member = tarfile.TarInfo(f"{shard}{i:03d}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    write(folder, "hf").rename(folder / "my_dataset")


@pytest.mark.parametrize(("page", "code"), cases("python"))
def test_a_python_block_runs_in_a_folder_with_the_digits(page: Path, code: str, folder: Path) -> None:
    for name in sorted(FRAMEWORKS.intersection(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    for name, content in files_of(page):
        (folder / name).write_text(content, "utf-8")
    if page.name in ("README.md", "quickstart.md"):
        write_data(folder)
    (folder / "block.py").write_text(code, "utf-8")
    address = re.search(r'connect\("(ipc://[^"]+)"', code)
    if address is None:
        run_block(folder)
        return
    serve = next(line for line in commands(page) if line.startswith("pydp2 serve") and address[1] in line)
    with serving(serve, folder):
        run_block(folder)


def run_block(folder: Path) -> str:
    done = run_program(["block.py"], folder, DEADLINE)
    assert done.returncode == 0, f"it exited with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_figures_that_the_page_prints_say_what_the_trainer_waited_for(folder: Path) -> None:
    code = next(code for _, code in blocks(ROOT / "docs/serving.md", "python") if "bottleneck" in code)
    (folder / "block.py").write_text(code, "utf-8")
    assert run_block(folder).endswith("bottleneck: workers\n")


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    """The command runs beside the block; it has printed its address."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "://" in process.stdout.readline()
            yield
        finally:
            process.terminate()
        assert process.wait(DEADLINE) == 143


def test_every_block_of_a_page_is_in_a_form_that_is_looked_at() -> None:
    """A block that is indented, or in another language, would neither be run nor its commands looked up."""
    opened = {}
    for page in (*PAGES, *(ROOT / name for name in ALSO)):
        fences = re.findall(r"^(.*(?:```|~~~).*)$", page.read_text("utf-8"), re.MULTILINE)
        opened |= {f"{page.name}: {line}": line for line in fences}
    assert [at for at, line in opened.items() if not re.fullmatch(r"```(python|sh|toml|text|console)?", line)] == []


def test_the_readme_is_short_and_shows_code_that_is_run() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 125
    assert blocks(ROOT / "README.md", "python")
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 40


# -- commands ----------------------------------------------------------------------------------------------------------
def commands(page: Path) -> list[str]:
    """Each command of the shell blocks of a page, one by one, without comments and here-documents."""
    shown = [re.sub(r"<<'(\w+)'\n.*?^\1$", "", code, flags=re.DOTALL | re.MULTILINE) for _, code in blocks(page, "sh")]
    lines = [line for code in shown for line in code.replace("\\\n", " ").splitlines()]
    whole = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [part.strip() for line in whole if line and not line.startswith("#") for part in line.split("&&")]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    known = {
        "python",
        "python3",
        "torchrun",
        "mkdir",
        "pip",
        "pytest",
        "ruff",
        "mypy",
        "mkdocs",
        "git",
        "cd",
        ".ci/run",
        "eval",
    }
    for line in commands(page):
        name, *arguments = shlex.split(line)
        name = name.removeprefix(".venv/bin/")
        if name != "pydp2":
            assert name in known, line
            continue
        check_command(arguments, line)


def check_command(arguments: list[str], line: str) -> None:
    """The command and each option in ``arguments`` exist."""
    if not arguments or arguments[0].startswith("-"):
        return
    command = main.commands.get(arguments[0])
    assert command is not None, line
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for argument in arguments[1:]:
        if argument.startswith("-"):
            assert argument.partition("=")[0] in options | {"--help"}, line


def test_the_table_of_commands_is_that_of_the_program() -> None:
    table = tables(ROOT / "docs/commands.md")["command"]
    assert set(table) == {f"pydp2 {name}" for name in main.commands}
    assert all(isinstance(command, click.Command) for command in main.commands.values())


def test_the_run_of_checks_takes_the_test_command_from_the_readme(tmp_path: Path) -> None:
    script = (ROOT / ".ci/run").read_text("utf-8")
    extraction = next(line for line in script.splitlines() if "README.md" in line and line.startswith("tests="))
    shown = subprocess.run(
        ["bash", "-c", f'{extraction}\nprintf %s "$tests"'], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert shown in [line for _, code in blocks(ROOT / "README.md", "sh") for line in code.splitlines()]
    assert shown.rpartition("&& ")[2].split()[0] == ".venv/bin/pytest"
    assert os.access(ROOT / ".ci/run", os.X_OK)


# -- tables ------------------------------------------------------------------------------------------------------------
def tables(page: Path) -> dict[str, dict[str, list[str]]]:
    """The tables of a page by the heading of their first column: first cell of each row to the other cells."""
    found: dict[str, dict[str, list[str]]] = {}
    for block in re.findall(r"(?:^\|.*\|\n)+", page.read_text("utf-8"), re.MULTILINE):
        head, _, *rows = [
            [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()
        ]
        found[head[0]] = {row[0]: row[1:] for row in rows}
    return found


def raw_cells(page: Path, heading: str) -> list[str]:
    """The first column of one table, as it is written."""
    lines = page.read_text("utf-8").partition(f"| {heading} |")[2].splitlines()[2:]
    return [line.split("|")[1].strip() for line in takewhile(lambda line: line.startswith("|"), lines)]


SIZES = {"pool_bytes": "1GiB", "prefetch_bytes": "64MiB"}


def shown(name: str, option: Option) -> str:
    """The default of an option as the table writes it."""
    if option.required:
        return "needed"
    if name in SIZES:
        assert option.default == number_of_bytes(name, SIZES[name])
        return f'"{SIZES[name]}"'
    return repr(option.default).replace("'", '"')


def options_table(options: Mapping[str, Option]) -> str:
    """Names, values, defaults and help texts, from the table that Python, TOML and the command line use."""
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        values = ", ".join(f'`"{choice}"`' for choice in option.choices) or values_of(option)
        default = "needed" if option.required else f"`{shown(name, option)}`"
        lines.append(f"| `{name}` | {values} | {default} | {option.help} |")
    return "\n".join(lines)


def values_of(option: Option) -> str:
    """The values of an option without choices: its type, or how a number of bytes is written."""
    if option.is_size:
        return '`int`, or text as `"2GiB"`'
    kind = option.kind.removesuffix(" | None").replace("Mapping[str, Any]", "dict")
    kind = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", kind)
    return ", ".join(f"`{name}`" if " " not in name else name for name in kind.split(" | "))


def elsewhere_table() -> str:
    """What other loaders call an option, and what an error then says to write."""
    lines = ["| name elsewhere | here |", "|---|---|"]
    for name, (option, words) in ELSEWHERE.items():
        code, comma, rest = words.partition(", ") if option else ("", "", words)
        lines.append(f"| `{name}` | {f'`{code}`' if code else ''}{comma}{rest} |")
    return "\n".join(lines)


def test_the_table_of_provider_arguments_has_their_names_and_defaults() -> None:
    table = tables(ROOT / "docs/providers.md")["argument of @provider"]
    parameters = {
        name: parameter.default
        for name, parameter in inspect.signature(provider).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert list(table) == list(parameters)
    shown = {name: row[0] for name, row in table.items()}
    assert shown == {n: "NO_CACHE" if n == "cache" else repr(default) for n, default in parameters.items()}


def test_the_messages_under_troubleshooting_are_those_of_the_code() -> None:
    """Placeholders (one capital letter, y, 'x', …) stand for what differs; what is between them is compared."""
    texts = [
        node.value
        for file in (ROOT / "pydp2").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    quoted = [cell for cell in raw_cells(ROOT / "docs/troubleshooting.md", "you see") if cell.startswith("`")]
    assert len(quoted) >= 10
    for cell in quoted:
        fragments = [f.strip() for f in re.split(r"…|'x'|\b[A-Zy]\b", cell.strip("`")) if len(f) >= 9]
        assert fragments, f"{cell}: nothing in it is long enough to be looked for"
        for fragment in fragments:
            assert any(fragment in text for text in texts), f"{cell}: nobody says {fragment!r}"


FIGURES = [
    ("order.md", "drawn once per file from {}", ", ".join(map(str, BLOCK_LENGTHS))),
    ("order.md", "once max({}, a quarter of the pool)", SNAPSHOT_MIN),
    ("order.md", "the bytes of its columns and {} more", file_ranges.SAMPLE_COST),
    ("order.md", "more, a dropped sample {} (its reason", file_ranges.DROPPED_COST),
    ("order.md", "there are L of them (`interleave`, default {})", JOB_OPTIONS["interleave"].default),
    ("internals/wire.md", "| header | {} KiB", messages.HEADER_LIMIT >> 10),
    ("internals/wire.md", "its wire version (now {})", messages.WIRE_VERSION),
    ("internals/wire.md", "a version of its own (now {})", ORDER_VERSION),
    ("internals/wire.md", "| `args` | {} MiB", plain_data.MAX_BYTES >> 20),
    ("internals/wire.md", " MiB, {} levels", plain_data.MAX_DEPTH),
    ("architecture.md", "at most {} rows or", chunk_builder.MAX_ROWS),
    ("architecture.md", "rows or {} MiB", chunk_builder.MAX_BYTES >> 20),
    ("internals/memory.md", "| what workers print | {} MB/s", output.MAX_BYTES_PER_SECOND // 10**6),
]


@pytest.mark.parametrize(("page", "text", "figure"), FIGURES)
def test_the_figures_in_the_docs_are_those_of_the_code(page: str, text: str, figure: object) -> None:
    assert MAX_DEATHS == 3  # written out as a word, in many places
    assert text.format(figure) in " ".join((ROOT / "docs" / page).read_text("utf-8").split())


# -- tables that are written by this file ------------------------------------------------------------------------------
def messages_table() -> str:
    lines = ["| message | fields | meaning |", "|---|---|---|"]
    for name, message in messages.MESSAGES.items():
        named = ", ".join(f"`{field.name}`" for field in fields(message)) or "none"
        body = ", then frames" if message.has_body else ""
        meaning = " ".join((message.__doc__ or "").partition("\n\n")[0].split())
        meaning = re.sub(r":class:`(\w+)`", r"`\1`", meaning).replace("``", "`")
        lines.append(f"| `{name}` | {named}{body} | {meaning} |")
    return "\n".join(lines)


def moves_table(table: link_states.TransitionTable) -> str:
    """State by state what each side may say, and where the link stands then."""
    lines = ["| state | who | may send (→ state, where it changes) |", "|---|---|---|"]
    for state in link_states.LinkState:
        for role in link_states.LinkRole:
            sent = [
                f"`{message.__name__}`" + ("" if after is state else f" → {after.value}")
                for (before, sender, message), after in table.items()
                if (before, sender) == (state, role)
            ]
            if sent:
                lines.append(f"| {state.value} | {role.value} | {', '.join(sent)} |")
    return "\n".join(lines)


def states_table(table: Mapping[tuple[Enum, Enum], Enum]) -> str:
    """State by state the events that it allows, and the state after each."""
    lines = ["| state | event → next state |", "|---|---|"]
    for state in type(next(iter(table.values()))):
        events = [f"{event.value} → {after.value}" for (before, event), after in table.items() if before is state]
        lines.append(f"| {state.value} | {', '.join(events) or 'none'} |")
    return "\n".join(lines)


def events_table() -> str:
    lines = ["| event | level | meaning |", "|---|---|---|"]
    lines += [f"| `{event.event_name}` | {event.level} | {event.meaning} |" for event in LogEvent]
    return "\n".join(lines)


WRITTEN: list[tuple[str, str, Callable[[], str]]] = [
    ("internals/wire.md", "messages", messages_table),
    ("internals/wire.md", "moves: WORKER_LINK", lambda: moves_table(link_states.WORKER_LINK)),
    ("internals/wire.md", "moves: HOST_LINK", lambda: moves_table(link_states.HOST_LINK)),
    ("internals/wire.md", "moves: CLIENT_LINK", lambda: moves_table(link_states.CLIENT_LINK)),
    ("internals/wire.md", "moves: ROW_LINK", lambda: moves_table(link_states.ROW_LINK)),
    ("internals/states.md", "states: FILE_TRANSITIONS", lambda: states_table(FILE_TRANSITIONS)),
    ("internals/states.md", "states: WORK_TRANSITIONS", lambda: states_table(WORK_TRANSITIONS)),
    ("internals/states.md", "states: WATCH_TRANSITIONS", lambda: states_table(WATCH_TRANSITIONS)),
    ("internals/states.md", "states: AGENT_TRANSITIONS", lambda: states_table(AGENT_TRANSITIONS)),
    ("internals/states.md", "states: TRAINER_TRANSITIONS", lambda: states_table(TRAINER_TRANSITIONS)),
    ("logs.md", "events", events_table),
    ("internals/states.md", "states: TRACE_TRANSITIONS", lambda: states_table(TRACE_TRANSITIONS)),
    ("options.md", "options: service", lambda: options_table(SERVICE_OPTIONS)),
    ("options.md", "options: job", lambda: options_table(JOB_OPTIONS)),
    ("coming-from-torch.md", "elsewhere", elsewhere_table),
]


@pytest.mark.parametrize(("name", "mark", "make"), WRITTEN)
def test_a_table_that_is_written_from_the_code_is_that_of_the_code(
    name: str, mark: str, make: Callable[[], str]
) -> None:
    """On a difference the block is written anew and the test fails: look at the change, and keep it if it is meant."""
    page = ROOT / "docs" / name
    before, opening, rest = page.read_text("utf-8").partition(f"<!-- {mark} -->\n")
    assert opening, f"docs/{name} has no place for {mark}"
    written, closing, after = rest.partition("<!-- end -->")
    if written.strip() != make():
        page.write_text(f"{before}{opening}{make()}\n{closing}{after}", "utf-8")
        pytest.fail(f"docs/{name}, {mark}: was not that of the code, is now; read the difference")


def test_every_block_that_a_mark_encloses_is_compared_with_the_code() -> None:
    written = {mark for _, mark, _ in WRITTEN} | {"house", "tests"}  # two are compared in test_house.py
    marks = [mark for page in PAGES for mark in re.findall(r"^<!-- (.*) -->$", page.read_text("utf-8"), re.MULTILINE)]
    assert set(marks) - {"end"} == written
    assert marks.count("end") == len(written)


# -- links and words ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in ALSO)], ids=lambda p: p.name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {link}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {link}"


def test_a_test_that_a_page_names_is_in_the_file_that_it_links_to() -> None:
    links = [
        (page, name, (page.parent / target).resolve())
        for page in PAGES
        for name, target in re.findall(r"\[(test_\w+)\]\(([^)\s]+)\)", page.read_text("utf-8"))
    ]
    assert len(links) > 100
    text = {file: file.read_text("utf-8") for _, _, file in links}
    assert [f"{page.name}: {name}" for page, name, file in links if f"def {name}(" not in text[file]] == []


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    """As an entry, or in the table of older names where it is one of these."""
    page = ROOT / "docs/api.md"
    entries = set(re.findall(r"^::: pydp2\.(\w+)$", page.read_text("utf-8"), re.MULTILINE))
    older = {name for cell in raw_cells(page, "older name") for name in re.findall(r"`(\w+)`", cell)}
    public = {name for name in dir(pydp2) if not name.startswith("_") and not inspect.ismodule(getattr(pydp2, name))}
    assert entries - {"errors"} | older == public
    assert not entries & older
    for cell, (same,) in tables(page)["older name"].items():
        for name in re.findall(r"\w+", cell):
            assert getattr(pydp2, name) is getattr(pydp2, same)


# -- the site ----------------------------------------------------------------------------------------------------------
def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    """The site itself is built by ``.ci/run``, where a warning is an error."""
    navigation = (ROOT / "docs/site/mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]
    )


def site_hooks() -> Any:
    """The module of docs/site/ that mkdocs calls."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cells_of_a_wide_table_carry_the_heading_of_their_column() -> None:
    """A narrow screen shows them below each other."""
    heads = '<th>a</th>\n<th><code>b</code> &amp; "c"</th>\n<th></th>'
    wide = f"<table>\n<tr>\n{heads}\n</tr>\n<tr>\n<td>1</td>\n<td>2</td>\n<td>3</td>\n</tr>\n</table>"
    shown = site_hooks().on_page_content(f"<p>{wide}</p>")
    assert re.findall(r"<table.*>|<td.*>", shown) == [
        '<table data-columns="3">', '<td data-label="a">1</td>', '<td data-label="b &amp; &quot;c&quot;">2</td>',
        '<td data-label="">3</td>',
    ]  # fmt: skip
    narrow = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"
    assert site_hooks().on_page_content(narrow) == narrow


def test_nothing_keeps_the_warnings_of_the_site_from_its_strict_build() -> None:
    """``--quiet`` would: mkdocs then counts none."""
    built = [line for line in (ROOT / ".ci/run").read_text("utf-8").splitlines() if "mkdocs build" in line]
    assert len(built) == 1
    assert " --strict " in built[0]
    assert not re.search(r" (--quiet|-q) ", built[0])

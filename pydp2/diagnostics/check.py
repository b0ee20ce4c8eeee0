"""``check``: run a provider over a list without a service, continue after errors, and report all of them.

The verdicts are those of a worker, because packer, error texts and places are the same. This module prints nothing.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Never

from pydp2.api.service import search_path
from pydp2.api.sources import Files, ResolvedSource, Source
from pydp2.data.packers.packer import Packer
from pydp2.diagnostics.local_provider import NOT_THEIRS, foreground
from pydp2.diagnostics.provider_bench import ProviderSpec
from pydp2.diagnostics.repeat_check import Difference, RepeatCheck, check_repeats
from pydp2.diagnostics.slot_figures import SlotFigures, merge_figures
from pydp2.errors import AddressError, BadSample, Error, OptionError, ProviderError, builtin_name_of_mixed
from pydp2.options.tables import check_keywords, takes
from pydp2.protocol import plain_data
from pydp2.providers import Provider, StartedProvider, address_of, user_error, with_location

_ROWS, _BYTES = 1024, 1 << 20  # judged at once
_SHOW = 10


@dataclass(frozen=True)
class Finding:
    """One error. ``sample``: its number in the file, from 0. ``raised``: the generator raised, and the file ended
    there. ``slot``, ``expected``, ``got``: of a bad sample. ``text``: the whole message, with the traceback if there is
    one. ``exception``: the name of the builtin exception that was raised, '' if it was none of these."""

    file: str
    sample: int
    raised: bool
    slot: str
    expected: str
    got: str
    text: str
    exception: str = ""


@dataclass
class FileReport:
    """Statistics of one file. ``samples``: good ones; ``bad``: those that a service would refuse; ``raised``: the
    generator did not reach its end; ``weight``, ``bytes``: of the good samples; ``slots``: figures of each slot."""

    file: str
    slots: list[SlotFigures]
    samples: int = 0
    bad: int = 0
    raised: bool = False
    weight: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def yielded_nothing(self) -> bool:
        """True if the generator reached its end without any sample."""
        return not (self.samples or self.bad or self.raised)


@dataclass
class Report:
    """Result of :func:`check`. ``findings``: the first bad samples, and the first files whose generator raised;
    ``found``: how many there are of both. ``repeat``: of the file that ran twice; None if none was to. A difference is
    one more finding, with the values of both runs as ``expected`` and ``got``."""

    provider: str
    files: list[FileReport] = field(default_factory=list)
    slots: list[SlotFigures] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    found: int = 0
    repeat: RepeatCheck | None = None

    @property
    def ok(self) -> bool:
        """True if there is no finding."""
        return not self.found

    @property
    def samples(self) -> int:
        """Number of good samples in all files."""
        return sum(file.samples for file in self.files)

    def plain(self) -> dict[str, Any]:
        """Return the report as dicts, lists and numbers."""
        return {
            "ok": self.ok,
            "provider": self.provider,
            "samples": self.samples,
            "found": self.found,
            "findings": [vars(finding) for finding in self.findings],
            "repeat": None if self.repeat is None else asdict(self.repeat),
            "slots": [slot.plain() for slot in self.slots],
            "files": [vars(file) | {"slots": [slot.plain() for slot in file.slots]} for file in self.files],
        }


@takes()
def check(  # noqa: PLR0913 - a public function, all by keyword
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    input_order: Sequence[str] | None = None,
    limit: int | None = None,
    max_errors: int = _SHOW,
    repeat: bool = True,
    progress: Callable[[str, int], None] | None = None,
    **others: Never,
) -> Report:
    """Run ``process`` over every file of a list in this process, and report values and errors. Then run the beginning
    of one file twice, in two other processes, and report the first sample that differs.

    ``files``, ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.
    While it runs, ``root`` is the working directory.

    Args:
        limit: look at the first samples of each file only.
        max_errors: bad samples, and files whose generator raised, that are kept as findings; the others are counted.
        repeat: whether a file runs twice. It is the first one with good samples, and at most 1,000 of them.
        progress: called now and then with the file and its samples so far.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: what was asked for cannot be.
        ProviderError: the provider's module or its ``init_hook`` raised.
    """
    check_keywords(check, others)
    for name, value, least in (("limit", limit, 1), ("max_errors", max_errors, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise OptionError(f"{name} must be a whole number from {least}, got {value!r:.80}")
    began = time.perf_counter()
    with foreground(files, provider, args=args, is_train=is_train, root=root, input_order=input_order) as (
        source,
        running,
    ):
        started = time.perf_counter() - began
        generator = running.settings.generator
        report = Report(f"{generator.__module__}.{generator.__qualname__}")
        for number, name in enumerate(source.files):
            one = FileRun(running, name, number, max_errors, progress)
            one.run(limit)
            report.files.append(one.report)
            report.findings = _first(report.findings + one.findings, max_errors)
            report.found += one.found
        report.slots = merge_figures(running.schema.slots, [file.slots for file in report.files])
    if repeat:
        report.repeat = _run_twice(report, source, input_order, limit, started)
        if (difference := report.repeat.difference) is not None:
            report.findings.append(_finding(difference))
            report.found += 1
    return report


def _run_twice(
    report: Report, source: ResolvedSource, input_order: Sequence[str] | None, limit: int | None, started: float
) -> RepeatCheck:
    """Run the first file that has good samples twice, in two processes."""
    number = next((i for i, file in enumerate(report.files) if file.samples), None)
    if number is None:
        return RepeatCheck(skipped="no file has a good sample")
    try:
        address = address_of(source.provider)
    except AddressError as error:
        return RepeatCheck(report.files[number].file, skipped=str(error))
    spec = ProviderSpec(
        provider=address,
        args=plain_data.encode_plain(source.args),
        is_train=source.is_train,
        input_order=tuple(input_order or ()),
        root=str(source.root),
        path=tuple(search_path()),
    )
    seconds = started + report.files[number].seconds
    names = [slot.slot for slot in report.slots]
    return check_repeats(spec, source.files, number, limit=limit, seconds=seconds, slots=names)


def _finding(difference: Difference) -> Finding:
    return Finding(
        difference.file,
        difference.sample,
        False,
        difference.slot,
        difference.first,
        difference.second,
        difference.text,
    )


def _first(findings: list[Finding], most: int) -> list[Finding]:
    """Return the first ``most`` bad samples and the first ``most`` exceptions, so that neither kind hides the other."""
    kept: list[Finding] = []
    counts = {False: 0, True: 0}
    for finding in findings:
        counts[finding.raised] += 1
        if counts[finding.raised] <= most:
            kept.append(finding)
    return kept


class FileRun:
    """Run of one file. ``room``: how many findings are kept; None: only those at ``places``, and the first of each
    kind: bad values, and exceptions.

    ``at``: its first item is always the sample that is asked for.
    """

    def __init__(
        self,
        running: StartedProvider,
        name: str,
        number: int,
        room: int | None,
        progress: Callable[[str, int], None] | None = None,
        places: Collection[int] = (),
        at: MutableSequence[int] | memoryview | None = None,
    ) -> None:
        self._places = places
        self._at: Any = [0] if at is None else at
        self.length = 0
        """How many samples were yielded."""
        self._running = running
        self._name = name
        self._number = number
        self._progress = progress
        schema = running.schema
        self._packer = Packer(schema.slots, schema.check)
        # of what was packed since the last look: its sample index, and its weight (None: there was none to be had)
        self._rows: list[tuple[int, int | None]] = []
        self._news: list[Finding] = []  # since the last look, which finds some of them out of turn
        self._room = room
        self.findings: list[Finding] = []
        self.found = 0
        self.report = FileReport(name, merge_figures(schema.slots, []))
        logger, at_ = running.settings.logger, self._at
        running.slot_order.on_unknown = lambda text: logger.warning("file %s, sample %d: %s", name, at_[0], text)

    def run(self, limit: int | None) -> None:
        """Draw samples until the file ends, its generator raises, or ``limit`` is reached."""
        began = time.perf_counter()
        opened = self._running.open_file(self._name, file_index=self._number, seed=0, pass_id=0)
        y = 0
        try:
            self._at[0] = 0
            stop = None if limit is None else min(limit, sys.maxsize)  # islice takes no more
            with opened.user_code():
                for sample in itertools.islice(opened.located(NOT_THEIRS), stop):
                    self._take(sample, y)
                    self._at[0] = self.length = y = y + 1
                    if len(self._rows) >= _ROWS or self._packer.nbytes >= _BYTES:
                        self._judge()
        except Error as error:
            self._raised(error, y)
        finally:
            try:
                opened.close()
            except NOT_THEIRS:
                raise
            except BaseException as error:
                self._raised(user_error(error, self._name, y, self._running.settings.file_list), y)
            self._judge()
        self.report.seconds = time.perf_counter() - began

    def _take(self, sample: Any, y: int) -> None:
        running = self._running
        try:
            values = running.arrange(sample)
            for slot, value in zip(self.report.slots, values, strict=True):
                slot.add_value(value)
            self._packer.add(values)
            self._rows.append((y, 1))
            # calc_batch_size sees accepted samples only, so this one is judged to the end first
            if running.schema.weighted and not self._packer.verify():
                self._rows[-1] = (y, None)
                self._rows[-1] = (y, running.weight_of(values))
        except (BadSample, ProviderError) as error:
            self._note(with_location(error, self._name, y), y)
        except NOT_THEIRS:
            raise
        except Exception as error:  # raised by the value itself
            self._note(user_error(error, self._name, y, running.settings.file_list), y)

    def _judge(self) -> None:
        """Examine the packed values, count the good samples, and settle the findings so far."""
        report = self.report
        rows, self._rows = self._rows, []
        cut = self._packer.finish()
        bad = dict(cut.bad)
        for position, error in bad.items():
            y = rows[position][0]
            self._note(with_location(error, self._name, y), y)
        weights = [weight for position, (_, weight) in enumerate(rows) if position not in bad and weight is not None]
        report.samples += len(weights)
        report.weight += sum(weights)
        report.bytes += cut.columns.nbytes
        for slot, arrays in zip(report.slots, cut.columns.arrays, strict=True):
            slot.add(arrays)
        news, self._news = sorted(self._news, key=lambda finding: finding.sample), []
        if self._room is None:
            kinds, seen = {bool(finding.slot) for finding in self.findings}, news
            news = []
            for finding in seen:
                if finding.sample in self._places or finding.raised or bool(finding.slot) not in kinds:
                    news.append(finding)
                kinds.add(bool(finding.slot))
            self.findings += news
        else:
            self.findings = _first(self.findings + news, self._room)
        self.found += len(news)
        if self._progress is not None:
            self._progress(self._name, report.samples)

    def _note(self, error: BadSample | ProviderError, y: int) -> None:
        self.report.bad += 1
        self._found(error, y, raised=False)

    def _raised(self, error: Error, y: int) -> None:
        self.report.raised = True
        self._found(error, y, raised=True)

    def _found(self, error: Error, y: int, *, raised: bool) -> None:
        slot = expected = got = ""
        if isinstance(error, BadSample):
            slot, expected, got = error.slot, error.expected, error.got
        exception = builtin_name_of_mixed(error) if isinstance(error, ProviderError) else ""
        self._news.append(Finding(self._name, y, raised, slot, expected, got, str(error), exception))

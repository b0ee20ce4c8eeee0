"""``check``: run a provider over a list without a service, continue after errors, and report all of them.

The results are those of a worker, because packer, error texts and locations are the same. This module prints nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Never

from pydp2.api.sources import Files, ResolvedSource, Source
from pydp2.diagnostics.declaration import declaration_text
from pydp2.diagnostics.local_provider import foreground, provider_spec
from pydp2.diagnostics.repeat_check import Difference, RepeatCheck, check_repeats
from pydp2.diagnostics.slot_figures import SlotFigures, merge_figures
from pydp2.diagnostics.start_check import StartCheck
from pydp2.errors import AddressError, BadSample, Error, OptionError, ProviderError, builtin_name_of_mixed
from pydp2.options.tables import check_keywords, takes
from pydp2.providers import Provider, StartedProvider
from pydp2.providers.local_reader import LocalReader, LocalSamples

_SAMPLES = 1024  # samples that are checked together
_SHOW = 10


@dataclass(frozen=True)
class Finding:
    """One error. ``sample``: sample index in the file. ``raised``: True if the generator raised, which ended the file.
    ``slot``, ``expected``, ``got``: fields of a bad sample. ``text``: full text, with the traceback if there is one.
    ``exception``: name of the builtin exception that was raised, or ''."""

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
    """Statistics of one file. ``samples``: number of good samples; ``bad``: number of samples that a service would
    refuse; ``raised``: the generator did not reach its end; ``weight``, ``bytes``: sums over the good samples;
    ``slots``: figures of each slot; ``starts``: samples at which the file was begun again, if its provider can."""

    file: str
    slots: list[SlotFigures]
    starts: list[int] = field(default_factory=list)
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
    """Result of :func:`check`. ``input_types``: lines of Python that declare the slots, if the ``init_hook`` decides
    them (as in the ready-made providers), else ''. ``findings``: the first bad samples, and the first files whose
    generator raised; ``found``: number of all findings. ``repeat``: result for the file that ran twice, None if this
    was not wanted. A difference counts as one finding, with the values of both runs as ``expected`` and ``got``."""

    provider: str
    input_types: str = ""
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
            "input_types": self.input_types,
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
    of one file twice, in two other processes, and report the first sample that differs. If the provider can begin at
    any sample, begin each file at a few of them, too, and compare what it gives with the whole reading.

    ``files``, ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.
    While it runs, ``root`` is the working directory.

    Args:
        limit: number of samples to check in each file; None: all.
        max_errors: largest number of bad samples, and of files whose generator raised, in ``findings``; others are only
            counted.
        repeat: run a file twice: the first file with good samples, at most 1,000 of them; compare starts.
        progress: called now and then with the file and its number of samples so far.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: an argument is not valid.
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
        keep = partial(_first, most=max_errors)
        report = Report(f"{generator.__module__}.{generator.__qualname__}")
        if running.slots_by_hook:
            report.input_types = declaration_text(running.schema.slots)
        for number, name in enumerate(source.files):
            run = FileRun(running, name, number, keep, progress)
            run.run(limit)
            if repeat:
                run.compare_starts()
            report.files.append(run.report)
            report.findings = keep(report.findings + run.findings)
            report.found += run.found
        report.slots = merge_figures(running.schema.slots, [file.slots for file in report.files])
    if repeat:
        report.repeat = _run_twice(report, source, input_order, limit, started)
        if (difference := report.repeat.difference) is not None:
            report.findings.append(_repeat_finding(difference))
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
        spec = provider_spec(source, input_order)
    except AddressError as error:
        return RepeatCheck(report.files[number].file, skipped=str(error))
    seconds = started + report.files[number].seconds
    names = [slot.slot for slot in report.slots]
    return check_repeats(spec, source.files, number, limit=limit, seconds=seconds, slots=names)


def _repeat_finding(difference: Difference) -> Finding:
    values = (difference.slot, difference.first, difference.second, difference.text)
    return Finding(difference.file, difference.sample, False, *values)


def _first(findings: list[Finding], most: int) -> list[Finding]:
    """Return the first ``most`` bad samples and the first ``most`` exceptions, so that neither kind displaces the
    other."""
    first: list[Finding] = []
    counts = {False: 0, True: 0}
    for finding in findings:
        counts[finding.raised] += 1
        if counts[finding.raised] <= most:
            first.append(finding)
    return first


class FileRun:
    """Run of file number ``number``, ``name``. ``keep``: function that selects the findings to keep from those of the
    file, which are in order."""

    def __init__(
        self,
        running: StartedProvider,
        name: str,
        number: int,
        keep: Callable[[list[Finding]], list[Finding]],
        progress: Callable[[str, int], None] | None = None,
    ) -> None:
        self.name = name
        self.length = 0
        """Number of samples that were yielded."""
        self.findings: list[Finding] = []
        self.found = 0
        """Number of all findings."""
        self.report = FileReport(name, merge_figures(running.schema.slots, []))
        self._running, self._number = running, number
        self._keep, self._progress = keep, progress
        self._starts = StartCheck(running, name, number) if running.can_start else None

    def run(self, limit: int | None, position: memoryview | None = None) -> None:
        """Draw samples until the file ends, its generator raises, or ``limit`` is reached. ``position``: as for
        :class:`LocalReader`."""
        began = time.perf_counter()
        opened = self._running.open_file(self.name, file_index=self._number, seed=0, pass_id=0)
        look = self._look
        reader = LocalReader(self._running, opened, count=_SAMPLES, limit=limit, look=look, position=position)
        try:
            for samples in reader:
                self._add(samples)
        finally:
            try:
                reader.close()
            except Error as error:
                self._add_errors([(reader.drawn, error)], raised=True)
        self.length = reader.drawn
        self.report.seconds = time.perf_counter() - began
        self._show_progress()

    def compare_starts(self) -> None:
        """Begin the file at a few samples, and note where that gives others than :meth:`run` did."""
        if self._starts is None:
            return
        self.report.starts = self._starts.starts
        for difference in self._starts.differences():
            self.findings = self._keep([*self.findings, _repeat_finding(difference)])
            self.found += 1

    def _look(self, values: list[Any]) -> None:
        for slot, value in zip(self.report.slots, values, strict=True):
            slot.add_value(value)

    def _add(self, samples: LocalSamples) -> None:
        report, columns = self.report, samples.packed.columns
        if self._starts is not None:
            self._starts.add(samples)
        report.samples += len(samples.indices)
        report.weight += sum(samples.weights)
        report.bytes += columns.nbytes
        for slot, arrays in zip(report.slots, columns.arrays, strict=True):
            slot.add(arrays)
        self._add_errors(samples.errors, raised=samples.raised)
        self._show_progress()

    def _add_errors(self, errors: Sequence[tuple[int, Error]], *, raised: bool) -> None:
        """Add ``errors``, in order. ``raised``: the last one ended the file."""
        self.report.raised |= raised
        self.report.bad += len(errors) - raised
        findings = [_finding(self.name, index, error) for index, error in errors]
        if raised:
            findings[-1] = replace(findings[-1], raised=True)
        self.found += len(findings)
        self.findings = self._keep(self.findings + findings)

    def _show_progress(self) -> None:
        if self._progress is not None:
            self._progress(self.name, self.report.samples)


def _finding(file: str, sample: int, error: Error) -> Finding:
    slot = expected = got = ""
    if isinstance(error, BadSample):
        slot, expected, got = error.slot, error.expected, error.got
    exception = builtin_name_of_mixed(error) if isinstance(error, ProviderError) else ""
    return Finding(file, sample, False, slot, expected, got, str(error), exception)

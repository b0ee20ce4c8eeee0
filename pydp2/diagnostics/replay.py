"""``replay``: run the files of a quarantine again, in this process, and check for each loss whether it still occurs.

The errors are those of ``check``. Only a file that killed its workers or hung runs in a child process.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Never

from pydp2.diagnostics.check import FileRun, Finding
from pydp2.diagnostics.isolated_run import run_isolated
from pydp2.diagnostics.local_provider import foreground
from pydp2.errors import OptionError
from pydp2.options.tables import check_keywords, takes
from pydp2.providers import Provider, StartedProvider
from pydp2.server.actions import ENDED_EARLY, TIMED_OUT, Loss
from pydp2.server.quarantine import read

BAD, GOOD, GONE, DAMAGED = "still bad", "now good", "no longer there", "damaged"
NO_FILE = "file missing"
_DROPPED = "dropped"
_DEADLY = ("condemned", TIMED_OUT)
_MISSING = FileNotFoundError.__name__


@dataclass(frozen=True)
class Verdict:
    """Verdict on line ``line`` of the quarantine (from 1). ``verdict``: "still bad", "now good", "no longer there" (the
    file ends before that sample), "file missing" (so the sample cannot be checked), or "damaged" (the line cannot be
    read; ``text`` says why).

    ``pass_id``, ``file``, ``sample``, ``kind``: from the line. ``slot``, ``expected``, ``got``, ``text``: the present
    error, ``text`` in full, with the traceback if there is one.
    """

    line: int
    verdict: str
    pass_id: int = 0
    file: str = ""
    sample: int = 0
    kind: str = ""
    slot: str = ""
    expected: str = ""
    got: str = ""
    text: str = ""


@dataclass
class Replay:
    """Result of :func:`replay`: one verdict for each line of the quarantine, in its order."""

    provider: str
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no line is still bad, and every file is there."""
        return not any(verdict.verdict in (BAD, NO_FILE) for verdict in self.verdicts)

    @property
    def counts(self) -> dict[str, int]:
        """Number of lines with each verdict."""
        found = Counter(verdict.verdict for verdict in self.verdicts)
        return {name: found[name] for name in (BAD, NO_FILE, GOOD, GONE, DAMAGED)}

    def plain(self) -> dict[str, Any]:
        """Return the result as dicts, lists and numbers."""
        lines = [vars(verdict) for verdict in self.verdicts]
        return {"ok": self.ok, "provider": self.provider, "counts": self.counts, "lines": lines}


@takes()
def replay(
    quarantine: str | os.PathLike[str],
    provider: str | Provider,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    input_order: Sequence[str] | None = None,
    progress: Callable[[str, int], None] | None = None,
    **others: Never,
) -> Replay:
    """Run the files that a quarantine names again; return for each line whether it is still bad.

    A dropped sample is looked for at its sample index. A file that ended early must now reach its end. Files run as in
    :func:`pydp2.check`: in this process, in pass 0, with seed 0. A file that killed its workers runs in a child
    process, without a time limit. A file that timed out also runs in a child process, with the same time limit for each
    sample as before.

    ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.

    Args:
        quarantine: path of the file that a service wrote (its option ``quarantine``).
        progress: called now and then with the file and its number of samples so far.

    Raises:
        OptionError, OptionTypeError, AddressError: an argument is not valid, or the quarantine cannot be read.
        ProviderError: the provider's module or its ``init_hook`` raised.
    """
    check_keywords(replay, others)
    try:
        lines = [(number, _readable(loss)) for number, loss in read(quarantine)]
    except OSError as error:
        raise OptionError(f"the quarantine {os.fspath(quarantine)} cannot be read: {error.strerror}") from None
    if lines and not any(isinstance(loss, Loss) for _, loss in lines):
        raise OptionError(
            f"the quarantine {os.fspath(quarantine)} must be a file that a service wrote (its option quarantine), and "
            f"none of its {len(lines)} lines can be read: {lines[0][1]}"
        )
    losses: dict[str, list[Loss]] = {}
    for _, loss in lines:
        if isinstance(loss, Loss):
            losses.setdefault(loss.file, []).append(loss)
    files = list(losses) or [""]
    with foreground(files, provider, args=args, is_train=is_train, root=root, input_order=input_order) as (_, running):
        generator = running.settings.generator
        report = Replay(f"{generator.__module__}.{generator.__qualname__}")
        runs = {file: _run(running, n, file, losses[file], progress) for n, file in enumerate(losses)}
        drops = running.schema.check_fail_continue
    for number, loss in lines:
        if isinstance(loss, Loss):
            verdict, finding = _judged(loss, runs[loss.file], drops)
            slot, expected, got, text = (
                ("",) * 4 if finding is None else (finding.slot, finding.expected, finding.got, finding.text)
            )
            at = (number, verdict, loss.pass_id, loss.file, loss.y, loss.kind)
            report.verdicts.append(Verdict(*at, slot, expected, got, text))
        else:
            report.verdicts.append(Verdict(number, DAMAGED, text=loss))
    return report


def _readable(loss: Loss | str) -> Loss | str:
    """Return ``loss``, unless its file cannot be an entry of a list."""
    try:
        if isinstance(loss, Loss):
            loss.file.encode()
    except UnicodeEncodeError:
        return "'file' must be a text that UTF-8 can hold"
    return loss


@dataclass(frozen=True)
class _Seen:
    """Observations of a run of a file: number of yielded samples, findings at the samples of the quarantine, and the
    first of all findings."""

    length: int
    findings: Mapping[int, Finding]
    raised: Finding | None
    first: Finding | None
    missing: Finding | None  # set if there is no such file


def _run(
    running: StartedProvider,
    number: int,
    file: str,
    losses: Sequence[Loss],
    progress: Callable[[str, int], None] | None,
) -> _Seen:
    samples = {loss.y for loss in losses}
    only_samples = all(loss.kind == _DROPPED for loss in losses)
    limit = max(samples) + 1 if only_samples else None
    deadly = [loss for loss in losses if loss.kind in _DEADLY]
    run = FileRun(running, file, number, partial(_for_verdicts, samples), None if deadly else progress)
    if deadly:
        times = [loss.sample_timeout for loss in deadly if loss.sample_timeout is not None]
        length, findings = run_isolated(run, limit, max(times, default=math.inf))
    else:
        run.run(limit)
        length, findings = run.length, run.findings
    # In a service, only bad values are dropped; an exception of a value or of calc_batch_size ends the file.
    raised = next((finding for finding in findings if not finding.slot), None)
    bad = {finding.sample: finding for finding in findings if finding.slot}
    missing = None
    if raised is not None and raised.exception == _MISSING and not Path(file).exists():
        missing = replace(raised, text=_missing_text(file))
    return _Seen(length, bad, raised, findings[0] if findings else None, missing)


def _for_verdicts(samples: Collection[int], findings: list[Finding]) -> list[Finding]:
    """Return those of ``findings`` that verdicts need: those at ``samples``, an exception of the generator, and the
    first finding of each kind, bad values and exceptions."""
    selected: list[Finding] = []
    kinds: set[bool] = set()
    for finding in findings:
        if finding.sample in samples or finding.raised or bool(finding.slot) not in kinds:
            selected.append(finding)
        kinds.add(bool(finding.slot))
    return selected


def _missing_text(file: str) -> str:
    remedy = "put it back"
    if not Path(file).is_absolute():
        remedy = f"relative paths start at {Path.cwd()}: run this where the service ran, or name that folder as root"
    return f"file {file} must be there to be read again, and is not; {remedy}; if it is gone for good, remove its lines"


def _judged(loss: Loss, seen: _Seen, drops: bool) -> tuple[str, Finding | None]:
    """Return the verdict on ``loss``, and the present finding. ``drops``: a bad sample does not end its file."""
    y = loss.y
    if seen.raised is not None and (seen.raised.sample <= y or loss.kind != _DROPPED):
        if seen.missing is not None and loss.exception != _MISSING and loss.kind != ENDED_EARLY:
            return NO_FILE, seen.missing
        return BAD, seen.findings.get(y, seen.raised)
    if loss.kind == _DROPPED:
        if y in seen.findings:
            return BAD, seen.findings[y]
        return (GOOD if y < seen.length else GONE), None
    if not drops and seen.first is not None:
        return BAD, seen.first
    return (GOOD if y <= seen.length else GONE), None

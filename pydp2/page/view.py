"""Make what the page shows from the statistics of a service: plain data, without a clock or IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pydp2.diagnostics.live import LiveAdvice, Stats, explain, percent
from pydp2.page.history import Point

_LOOKS = 10  # looks over which an answer is made
_BANDS = 16  # workers or ranks, above which quantiles are kept in place of a line each
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
STAGES = {
    "storage": "storage",
    "generator": "process",
    "packing": "checks and packing",
    "waiting": "waiting for room ahead",
}
"""Names of the parts of the workers' time."""


class Looks:
    """Last looks at a service, about a second apart, and which of them an answer goes back to."""

    def __init__(self) -> None:
        self._looks: deque[Stats] = deque(maxlen=_LOOKS)

    def clear(self) -> None:
        """Forget them: the service did not answer meanwhile."""
        self._looks.clear()

    def add(self, now: Stats) -> Stats:
        """Add a look, and return the earlier one that ``now`` is compared with; ``now`` itself if there is none."""
        looks = self._looks
        if looks and now["uptime_seconds"] < looks[-1]["uptime_seconds"]:
            looks.clear()  # the service was started again
        # What came before a job began says nothing of it.
        known = (look for look in looks if look["jobs"].keys() >= now["jobs"].keys())
        before = next(known, looks[0] if looks else now)
        looks.append(now)
        return before


def point_of(now: Stats, finding: LiveAdvice, time: float) -> Point:
    """Return what is kept of a look at a service."""
    point: Point = {
        "time": time,
        "samples_per_second": float(now["samples_per_second"]),
        "pool": float(now["pool"].get("samples", 0)),
        "memory": float(now["memory"] + sum(worker["memory"] for worker in now["workers"])),
        "server": finding.server,
        "cache": float(now["cache"].get("bytes", 0)),
    }
    if finding.exposed is not None:
        point["exposed"] = finding.exposed
    for name, share in (finding.shares or {}).items():
        point[f"share {name}"] = share
    rates = [worker["samples_per_second"] for worker in now["workers"] if worker["active"]]
    point |= _lines("worker", {str(w["worker"]): w["samples_per_second"] for w in now["workers"] if w["active"]}, rates)
    ranks = {f"{job} {rank['name']}": rank["exposed"] for job, found in now["jobs"].items() for rank in found["ranks"]}
    return point | _lines("rank", ranks, [*ranks.values()])


def _lines(what: str, by_name: Mapping[str, float], values: Sequence[float]) -> Point:
    """Return a line for each of a few, or quantiles of many."""
    if len(by_name) <= _BANDS:
        return {f"{what} {name}": float(value) for name, value in by_name.items()}
    ordered = sorted(values)
    return {f"{what} quantile {part}": float(ordered[round(part * (len(ordered) - 1))]) for part in _QUANTILES}


def view_of(before: Stats, now: Stats) -> dict[str, Any]:
    """Return what the page shows of a look at a service, with the look some seconds ``before``."""
    finding = explain(before, now)
    names = {host["number"]: host["host"] for host in now["hosts"]}
    return {
        "answer": {
            "exposed": finding.exposed,
            "stage": finding.stage,
            "headline": finding.headline,
            "cause": finding.cause,
            "who": finding.who,
            "remedy": finding.remedy,
            "server": finding.server,
            "shares": [[STAGES[name], share] for name, share in (finding.shares or {}).items()],
        },
        "uptime_seconds": now["uptime_seconds"],
        "jobs": [_job(name, job) for name, job in now["jobs"].items()],
        "workers": [
            worker | {"host": names.get(worker["host"], "this one")} for worker in now["workers"] if worker["active"]
        ],
        "hosts": now["hosts"],
        "losses": _losses(now),
        "events": now["events"],
        "memory": now["memory"],
        "read_ahead": now["read_ahead"],
        "cache": now["cache"],
        "remote": now["remote"],
    }


def _job(name: str, job: Stats) -> dict[str, Any]:
    """Return what is shown of a job."""
    progress = job["progress"]
    return {
        "name": name,
        "pass": job["pass"],
        "attached": job["attached"],
        "ranks_to_come": job["ranks_to_come"],
        "batch": progress["batch"],
        "share": progress["share"],
        "is_estimate": progress["is_estimate"],
        "seconds_left": job["seconds_left"],
        "samples_per_second": job["samples_per_second"],
        "pool": job["pool"].get("samples", 0),
        "pool_bytes": job["pool"].get("bytes", 0),
        "ranks": job["ranks"],
    }


def _losses(now: Stats) -> list[list[Any]]:
    """Return what was lost, as text and number."""
    found = [
        ["samples dropped in a pass", now["dropped"]],
        ["files cut short in a pass", now["ended_early"]],
        ["samples on the block list", now["blocked"]],
        ["workers that died", now["workers_lost"]],
        ["peers that were refused", sum(peer["count"] for peer in now["refused"])],
        ["socket files that were removed", len(now["removed_files"])],
    ]
    return [item for item in found if item[1]]


def first_line(view: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the sentence about the trainers, and what follows of it, for a reader without the script."""
    if view is None:
        return "The service was not seen yet.", ""
    answer = view["answer"]
    return answer["headline"], " ".join(filter(None, (answer["cause"], answer["who"], answer["remedy"])))


__all__ = ["first_line", "percent", "point_of", "view_of"]

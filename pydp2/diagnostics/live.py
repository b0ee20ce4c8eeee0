"""Say why training waits for data, while it runs: from two looks at the statistics of a service (docs/watching.md).

Pure: texts from figures. A trainer is *exposed* while it waits for a batch. Workers spend their time on storage (they
wait for a store), in the generator, on checks and packing, or they wait for room ahead. The server spends its own on
order and pool. The narrowest stage is the first in this order that has no time left while the trainer waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydp2.errors import count_text
from pydp2.system.late_rank import LITTLE, STALLED_SECONDS, Lateness, late_rank, longest_wait, seconds_of_work
from pydp2.system.long_sample import long_sample

Stats = Mapping[str, Any]
_SERVER_BUSY = 0.85  # share of its time from which the server's loop is the limit
_SHORT_PASSES = 3  # passes between two looks, seconds apart
_IDLE = 0.3  # share of their time that workers may wait before they are no limit
_STAGES = ("storage", "generator", "packing", "waiting")


@dataclass(frozen=True)
class LiveAdvice:
    """Why training waits for data, or does not.

    ``exposed``: share of their time that the trainers waited, of the job that waits most; None: not known. ``stage``:
    the narrowest one: "storage", "generator", "packing", "pool", "filling", "files", "trainer", "rank" (the others wait
    for it), or "" for nothing to say. ``headline``: one sentence about the trainers; ``cause``: one about the stage;
    ``who``: the worker, host, rank or file; ``remedy``: what to change; each "" if there is none. ``shares``: of the
    workers' time, by storage, generator, packing and waiting. ``server``: share of its time that the server's loop was
    busy."""

    exposed: float | None
    stage: str
    headline: str
    cause: str = ""
    who: str = ""
    remedy: str = ""
    shares: Mapping[str, float] | None = None
    server: float = 0.0


def explain(before: Stats, now: Stats) -> LiveAdvice:
    """Return what the time between two looks says. ``before``: the earlier look at the same service."""
    seconds = now["uptime_seconds"] - before["uptime_seconds"]
    if not now["attached"]:
        return LiveAdvice(None, "", "No trainer is attached.", remedy=_trainerless(now))
    if seconds <= 0:
        return LiveAdvice(None, "", "Nothing to say yet: the service was seen once.")
    found = _exposed(before, now)
    exposed = None if found is None else found[0]
    shares = _worker_shares(before, now)
    server = min(1.0, (now["busy_seconds"] - before["busy_seconds"]) / seconds)
    stage, cause, remedy = _narrowest(before, now, exposed, shares, server)
    who = _who(now, stage)
    if who and stage in ("filling", "files", ""):  # the order waits for this sample
        cause, remedy = "", "Find out why this sample takes so long; sample_timeout ends it."
    return LiveAdvice(exposed, stage, _headline(now, found, stage), cause, who, remedy, shares, server)


def _trainerless(now: Stats) -> str:
    to_come = now["ranks_to_come"]
    return f"{count_text(to_come, 'rank')} did not come yet." if to_come else ""


def _exposed(before: Stats, now: Stats) -> tuple[float, str] | None:
    """Return the share of its time that the job waited which waits most, and its name; None: no trainer has reported a
    step meanwhile, and none waits."""
    found = list[tuple[float, str]]()
    for name, job in now["jobs"].items():
        past = before["jobs"].get(name, {"trainer": {}})["trainer"]
        waited, worked = (job["trainer"][key] - past.get(key, 0.0) for key in ("waited_seconds", "worked_seconds"))
        if waited >= 0 and worked >= 0 and waited + worked >= 0.001:  # else another job has its name, or a step is long
            found.append((float(waited / (waited + worked)), name))
    return max(found, default=None)


def ranks_of(stats: Stats) -> list[tuple[str, Stats]]:
    """Return job and statistics of each rank that is connected, the one that waits most first."""
    found = [(name, rank) for name, job in stats["jobs"].items() for rank in job["ranks"] if rank["connected"]]
    return sorted(found, key=lambda item: -item[1]["exposed"])


def _headline(now: Stats, exposed: tuple[float, str] | None, stage: str) -> str:
    ranks = ranks_of(now)
    if stage == "rank":
        most, longest = (max((rank[key] for _, rank in ranks), default=0.0) for key in ("exposed", "waiting_seconds"))
        if longest > STALLED_SECONDS:
            return f"Ranks wait for another rank, for {longest:.0f} s now."
        if most <= LITTLE:
            return "Ranks wait for another rank once they have used their batches."
        return f"Ranks wait for another rank, up to {percent(most)} of each step."
    if exposed is None:
        return _headline_without_steps([rank for _, rank in ranks])
    share, job = exposed
    whose = f"Job {job}" if len(now["jobs"]) > 1 else "Training"
    if share <= LITTLE:
        return f"{whose} does not wait for data: {percent(share)} of its time."
    if len(ranks) > 1:
        name, rank = ranks[0]
        return (
            f"{whose} waits for data {percent(share)} of its time; {rank['name']} of job {name} most, "
            f"{percent(rank['exposed'])} of each step."
        )
    return f"{whose} waits for data {percent(share)} of its time."


def _headline_without_steps(ranks: list[Stats]) -> str:
    """Return the headline while no step ends, and no trainer waits. ``ranks``: those that are connected."""
    silent = min((rank["silent_seconds"] for rank in ranks), default=0.0)
    if not any(rank["state"] == "in" for rank in ranks):
        return f"No trainer is in a pass: none has asked for data for {silent:.0f} s."
    return f"The trainer is at work on a long step, or stopped, for {silent:.0f} s; batches are ready."


def _worker_shares(before: Stats, now: Stats) -> dict[str, float] | None:
    """Return the shares of the workers' time; None if there was none, or nobody looked at these workers."""
    known = {worker["worker"]: worker for worker in before["workers"]}
    names = ("busy_seconds", "idle_seconds", "generator_seconds", "storage_seconds")
    busy, idle, generator, storage = (
        sum(worker[name] - known.get(worker["worker"], {}).get(name, 0.0) for worker in now["workers"])
        for name in names
    )
    total = busy + idle
    if total <= 0:
        return None
    estimated = min(busy, generator + storage)  # from looks, so it may be more than what the workers say
    scale = estimated / (generator + storage) if generator + storage > 0 else 0.0
    parts = (scale * storage, scale * generator, busy - estimated, idle)
    return {name: part / total for name, part in zip(_STAGES, parts, strict=True)}


def _narrowest(
    before: Stats, now: Stats, exposed: float | None, shares: Mapping[str, float] | None, server: float
) -> tuple[str, str, str]:
    """Return the narrowest stage, a sentence about it, and the remedy."""
    remote = now["remote"]
    if remote is not None and remote["waits_for"]:
        waited = f"{remote['waiting_seconds']:.0f} s"
        cause = f"The store {remote['waits_for']} has not answered for {waited}: {remote['reason']}."
        return "storage", cause, "pydp2 tries again until remote_timeout; other files go on."
    if (late := _late_rank(now)) is not None:
        return "rank", *late
    if exposed is None:
        return "trainer", "", ""
    if exposed <= LITTLE:
        return "trainer", "The trainer is the narrowest stage.", "Nothing to change for the data."
    if (short := _short_passes(before, now)) is not None and (shares is None or shares["waiting"] > _IDLE):
        return "filling", *short
    if (filling := _filling(now)) is not None:
        return "filling", filling, "A smaller pool_size in @provider, or a smaller pool_bytes, starts earlier."
    if shares is None:
        return "", "", ""
    if server > _SERVER_BUSY:
        cause = f"The server is busy {percent(server)} of its time with order and pool: more workers do not help."
        return "pool", cause, 'Larger batches, fewer small values in a sample, or order="relaxed".'
    if shares["waiting"] > _IDLE:
        return "files", *_idle_workers(now, shares["waiting"])
    stage = max(_STAGES[:3], key=lambda name: shares[name])
    return stage, *_busy_stage(now, stage, shares[stage])


def _late_rank(now: Stats) -> tuple[str, str] | None:
    """Return a sentence about a rank that the others of its job wait for, and the remedy."""
    for name, job in now["jobs"].items():
        ranks = job["ranks"]
        if (late := late_rank(ranks)) is not None:
            return _about_late_rank(name, ranks, *late)
        if job["ranks_to_come"] and longest_wait(ranks) > STALLED_SECONDS:
            missing = count_text(job["ranks_to_come"], "rank")
            return f"The others wait for {missing} of job {name} that did not come yet.", "Start them."
    return None


def _about_late_rank(job: str, ranks: Sequence[Stats], rank: Stats, why: Lateness) -> tuple[str, str]:
    who, seconds = f"{rank['name']} of job {job} ({rank['process']})", f"{rank['silent_seconds']:.0f} s"
    match why:
        case Lateness.GONE:
            what, remedy = f", which is gone for {seconds}", "Start it again: it goes on where it was."
        case Lateness.SLOW:
            others = max(seconds_of_work(other) for other in ranks if other is not rank)
            what = f": it works {1000 * seconds_of_work(rank):.3g} ms with a batch, they {1000 * others:.3g} ms"
            remedy = 'Find out what slows it down, or let whoever is ready take the next batch (share="dynamic").'
        case Lateness.STALLED:
            what = f", which has not asked for data for {seconds}"
            remedy = "Find out what its process does: a long step, an evaluation, or a stop."
    return f"The others wait for {who}{what}.", remedy


def _filling(now: Stats) -> str | None:
    for name, job in now["jobs"].items():
        fill, pool = job.get("fill") or {}, job["pool"]
        if job["attached"] and not job["batches_in_pass"] and fill and not fill["is_full"]:
            return f"The pool of job {name} fills: {pool.get('samples', 0):,} samples before the first batch."
    return None


def _short_passes(before: Stats, now: Stats) -> tuple[str, str] | None:
    """Return a sentence about a job whose passes end so fast that the begin of each shows, and the remedy."""
    seconds = now["uptime_seconds"] - before["uptime_seconds"]
    for name, job in now["jobs"].items():
        passes = job["pass"] - before["jobs"].get(name, job)["pass"]
        if passes >= _SHORT_PASSES:
            return (
                f"Passes of job {name} are short, {seconds / passes:.2g} s, and each begins with a wait until its pool "
                "is filled.",
                "Keep the samples in memory (cache=CacheType.CACHE_PASS_IN_MEM), or begin earlier (min_pool_size in "
                "@provider).",
            )
    return None


def _idle_workers(now: Stats, waiting: float) -> tuple[str, str]:
    active = [worker for worker in now["workers"] if worker["active"]]
    reading = sum(worker["files"] > 0 for worker in active)
    begin = f"Workers wait {percent(waiting)} of their time although the trainer waits, too"
    if reading < len(active):
        text = f"{begin}: {reading} of {count_text(len(active), 'worker')} have a file."
        return text, "Cut the files into parts (?part=1/8), or shuffle more of them at a time (interleave)."
    return (
        f"{begin}: for their turn in the order, or for room ahead of it.",
        "A larger interleave, a larger pool_size, or a larger memory_limit.",
    )


def _busy_stage(now: Stats, stage: str, share: float) -> tuple[str, str]:
    more = _more_workers(now["scaling"])
    match stage:
        case "storage":
            return (
                f"Workers wait for the store of remote files {percent(share)} of their time.",
                f"{more}, also more than cores; read files in order; keep copies (remote_cache).",
            )
        case "packing":
            return (
                f"Checks and packing take {percent(share)} of the workers' time.",
                f"Yield numpy arrays, or many samples at once (pydp2.rows); `pydp2 bench` names the slot. {more}.",
            )
    return (
        f"process takes {percent(share)} of the workers' time.",
        f"{more}, make process faster, or read once (cache=CacheType.CACHE_PASS_IN_MEM).",
    )


def _more_workers(scaling: Mapping[str, Any]) -> str:
    """Return the advice on the number of workers, without its full stop."""
    wanted, workers = scaling["wanted"], scaling["workers"]
    if wanted > workers:
        more = f"Take {wanted} workers in place of {workers}"
        return f"{more} (as many as there are files)" if scaling["limited_by"] == "files" else more
    match scaling["limited_by"]:
        case "files":
            return "Cut the files into parts (?part=1/8) for more workers"
        case "cores":
            return "All cores here are in use: add workers of other hosts (pydp2 worker)"
    return "Take more workers"


def _who(now: Stats, stage: str) -> str:
    """Return the worker and file of the sample that takes longest, if one takes long."""
    if stage == "trainer":
        return ""
    found = long_sample(now["workers"])
    return f"{found[0].upper()}{found[1:]}." if found else ""


def percent(share: float) -> str:
    """Return a share as text; a small one with a digit behind the point."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"

"""Compute the number of batches of a pass before its end, from counts of samples or from the pass before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.stream_identity import check_int

NO_DATASET = ". (torch's DataLoader takes no client: use pydp2.torch.loader or pydp2.torch.dataset)"
"""End of the text that says why the length of a client is unknown."""
_HINT = "; operator.length_hint(client) gives an estimate"
_NUMBERS = ("files", "counted", "samples", "weight")


class PassLength:
    """Number of batches that rank ``rank`` of ``world_size`` ranks gets in a pass of a job with ``options``
    (docs/caching.md, "Counts")."""

    def __init__(self, options: Mapping[str, Any], rank: int, world_size: int) -> None:
        self._batch_size = int(options["batch_size"])
        self._last_batch = options.get("last_batch", "keep")
        self._buckets = options.get("bucket_by") is not None
        self._dynamic = options.get("share") == "dynamic"
        self._mix, self._is_packed = options.get("mix"), options.get("pack") is not None
        points = [] if self._mix is None else self._mix["points"]
        self._reads_all_sources = all(Fraction(weight) for _, weights in points for weight in weights.values())
        self._rank, self._world = rank, world_size
        self._counts: dict[str, int] = dict.fromkeys(_NUMBERS, 0)
        self._is_told = self._plain = self._remembered = False
        self.is_loading = False
        """True while the service loads the remembered counts."""
        self._last: int | None = None  # batches of the last pass
        self._is_repeated = False  # True if later passes are known to have as many

    def learn(self, counts: Any) -> None:
        """Store the counts of the service in the form of
        :meth:`pydp2.server.dispatch.file_counts.FileCounts.summary`; {} if it has none. Raises RemoteProtocolError for
        anything else."""
        if not counts:
            return
        try:
            self._counts = {name: check_int(counts[name]) for name in _NUMBERS}
            self._plain, self.is_loading = counts["plain"] is True, counts["loading"] is True
            self._remembered = bool(counts["key"])
            self._is_told = True
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"invalid counts of samples: {error}") from None

    def note_weights(self, changes: Sequence[Any]) -> None:
        """Note ``changes`` of the weights of a mixture, as a state has them: pass, step, weights."""
        if any(not Fraction(weight) for _, _, weights in changes for weight in weights):
            self._reads_all_sources = False

    def note_pass(self, batches: int, *, is_repeated: bool) -> None:
        """Note that a whole pass had ``batches`` batches. ``is_repeated``: later passes are known to have as many."""
        self._last, self._is_repeated = batches, is_repeated and not self._dynamic

    @property
    def _all_counted(self) -> bool:
        return self._is_told and self._counts["counted"] == self._counts["files"]

    @property
    def exact(self) -> int | None:
        """Number of batches; None if it is not known."""
        if self._is_repeated:
            return self._last
        return self._batches(self._counts["samples"]) if self._follows_from_counts else None

    @property
    def _follows_from_counts(self) -> bool:
        return self._all_counted and self._plain and not self._buckets and not self._dynamic and self._has_all_rows

    @property
    def _has_all_rows(self) -> bool:
        """True if a pass has each sample as a row, once, cut into batches as one stream."""
        mix = self._mix
        if self._is_packed or mix is None:
            return not self._is_packed
        reads_each_once = mix["stopping_strategy"] == "all_exhausted_without_replacement" and self._reads_all_sources
        return bool(reads_each_once and mix["batching_method"] == "random")

    @property
    def estimate(self) -> int | None:
        """Estimated number of batches; None if there is no estimate."""
        if (known := self.exact) is not None or (known := self._last) is not None:
            return known
        counts = self._counts
        if not counts["counted"] or not self._has_all_rows:
            return None
        return self._batches(counts["weight"] * counts["files"] // counts["counted"])

    def _batches(self, weight: int) -> int:
        full, rest = divmod(weight, self._batch_size)
        batches = full + (rest > 0 and self._last_batch != "drop")
        if self._last_batch == "drop":
            return batches // self._world
        behind = 0 if self._last_batch == "pad" else self._rank  # ranks that get their batch of a group before this one
        return max(0, -(-(batches - behind) // self._world))

    def reason(self) -> str:
        """Return the reason why :attr:`exact` is None, and a remedy."""
        counts = self._counts
        if self._is_packed:
            return (
                "the number of batches of packed rows is not known: it follows from the lengths of the sequences; "
                f"count the steps{_HINT}"
            )
        if not self._has_all_rows:
            return (
                "the number of batches of this mixture is not known: it follows from what is drawn; count the steps, "
                'or mix with stopping_strategy="all_exhausted_without_replacement", batching_method="random" and '
                f"weights above 0{_HINT}"
            )
        if self._dynamic:
            return (
                'the number of batches of a trainer is not known with share="dynamic", which gives each to the trainer '
                f"that asks first; count the batches, or share by ranks{_HINT}"
            )
        if (self._last is not None and self._mix is None) or (self._all_counted and not self._plain):
            return (
                "the number of batches is not known, because not every sample weighs 1 (calc_batch_size), and which "
                f"samples come together differs from pass to pass; count the batches{_HINT}"
            )
        if self._buckets:
            return (
                "the number of batches is not known yet: with bucket_by it is known after one full pass, because each "
                f"bucket ends with a batch of its own{_HINT}"
            )
        later = "it is known after one full pass, if every sample weighs 1"
        if self._mix is not None:
            later = "that of a mixture follows from counts of the files of all sources"
        if self.is_loading:
            return f"the number of batches is not known yet: the service looks for counts of samples; ask again{_HINT}"
        if self._remembered:
            return (
                f"the number of batches is not known yet: {counts['counted']} of {counts['files']} files are counted; "
                f"{later}, and from the start once `pydp2 count`, or pydp2.count() in Python, has counted "
                f"the files{NO_DATASET}"
            )
        none = "the service remembers no counts of samples"
        return f"the number of batches is not known yet: {later} ({none}){NO_DATASET}"

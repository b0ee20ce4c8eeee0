"""Read a file in this process, without a service: draw samples, arrange, pack and check them, as a worker does.

``provider.samples()``, ``check``, ``peek`` and ``replay`` read through :class:`LocalReader`, so an error has the same
class, location and text in all of them, and in a worker. They decide what follows from an error: for this class, a bad
sample does not end the file.
"""

from __future__ import annotations

import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass
from typing import Any

from pydp2.data.packers.packer import PackedSamples, Packer
from pydp2.errors import BadSample, Error, ProviderError
from pydp2.providers.error_location import user_error, with_location
from pydp2.providers.started_provider import OpenFile, StartedProvider

NO_USER_ERRORS = (KeyboardInterrupt, GeneratorExit, BdbQuit)
"""Exceptions that pass through the user's code and are not its errors."""
_MAX_BYTES = 1 << 20  # bytes that are packed before they are checked
_MAX_LOGGED_DROPS = 10


@dataclass(slots=True)
class LocalSamples:
    """Samples of a file that were checked together: the good ones, and the errors of the others.

    ``indices`` and ``weights`` have one entry for each row of ``packed``. ``values``: the arranged values of the last
    sample. ``errors``: pairs of sample index and error, in order. ``raised``: ``process`` raised the last error, so the
    file has ended.
    """

    indices: list[int]
    weights: list[int]
    packed: PackedSamples
    values: list[Any]
    errors: list[tuple[int, Error]]
    raised: bool


class LocalReader(Iterator[LocalSamples]):
    """Reader of ``opened``. ``next`` draws and checks ``count`` samples, or fewer at the end or if they are large.

    The user's code runs only in ``next`` and :meth:`close`; meanwhile the global random generators have the states of
    the file.

    Args:
        limit: largest number of samples to draw; None: all.
        look: called with the arranged values of each sample, bad ones included.
        position: its first item is set to the index of each sample before the sample is drawn.
    """

    def __init__(
        self,
        started: StartedProvider,
        opened: OpenFile,
        *,
        count: int = 1,
        limit: int | None = None,
        look: Callable[[list[Any]], None] | None = None,
        position: MutableSequence[int] | memoryview | None = None,
    ) -> None:
        self._started, self._opened, self._count, self._look = started, opened, count, look
        self._filename = filename = opened.context.filename
        self._position: Any = [0] if position is None else position
        self._position[0] = opened.start
        logger, asked = started.settings.logger, self._position  # no reference to the provider: it would be a cycle
        self._limit = sys.maxsize if limit is None else limit
        self._packer = Packer(started.schema.slots, started.schema.check)
        # For the samples since the last check: index and weight of each packed one, and the errors of the others.
        self._packed: list[tuple[int, int]] = []
        self._errors: list[tuple[int, Error]] = []
        self._values: list[Any] = []
        self._is_over = False
        started.slot_order.on_unknown = lambda text: logger.warning("file %s, sample %d: %s", filename, asked[0], text)

    @property
    def drawn(self) -> int:
        """Index of the next sample: the number of samples that were yielded and of those before the start."""
        return int(self._position[0])

    def __next__(self) -> LocalSamples:
        raised = None
        with self._opened.user_code():
            try:
                while not self._is_over and not self._is_full:
                    self._draw()
            except Error as error:
                raised, self._is_over = error, True
            samples = self._judge()
        if raised is not None:
            samples.errors.append((self.drawn, raised))
            samples.raised = True
        if not (samples.indices or samples.errors):
            raise StopIteration
        return samples

    @property
    def _is_full(self) -> bool:
        return len(self._packed) + len(self._errors) >= self._count or self._packer.nbytes >= _MAX_BYTES

    def _draw(self) -> None:
        """Draw and pack one sample, or note the end. If ``process`` raises, raises an Error that names file and
        sample."""
        index = self.drawn
        if index >= self._limit:
            self._is_over = True
            return
        try:
            sample = next(self._opened)
        except StopIteration:
            self._is_over = True
            return
        except NO_USER_ERRORS:
            raise
        except BaseException as error:
            raise self._user_error(error) from None
        try:
            self._packed.append((index, self._pack(sample)))
        except (BadSample, ProviderError) as error:
            self._errors.append((index, with_location(error, self._filename, index)))
        except NO_USER_ERRORS:
            raise
        except Exception as error:  # the value itself raised it
            self._errors.append((index, self._user_error(error)))
        self._position[0] = index + 1

    def _pack(self, sample: Any) -> int:
        """Pack ``sample`` and return its weight; 1 if it is found to be bad later."""
        started, packer = self._started, self._packer
        self._values = values = started.arrange(sample)
        if self._look is not None:
            self._look(values)
        packer.add(values)
        if not started.schema.weighted or packer.verify():  # calc_batch_size sees good samples only
            return 1
        try:
            return started.weight_of(values)
        except BaseException:
            packer.undo_last()
            raise

    def _judge(self) -> LocalSamples:
        """Check the values of the samples that were drawn since the last check."""
        packed, self._packed = self._packed, []
        errors, self._errors = self._errors, []
        cut = self._packer.finish()
        if cut.bad:
            bad = dict(cut.bad)
            indices = [index for index, _ in packed]
            errors += [(indices[row], with_location(error, self._filename, indices[row])) for row, error in cut.bad]
            errors.sort(key=lambda found: found[0])
            packed = [sample for row, sample in enumerate(packed) if row not in bad]
        indices, weights = ([sample[part] for sample in packed] for part in (0, 1))
        return LocalSamples(indices, weights, cut, self._values, errors, raised=False)

    def _user_error(self, error: BaseException) -> ProviderError:
        return user_error(error, self._filename, self.drawn, self._started.settings.file_list)

    def close(self) -> None:
        """Close the generator. If that raises, raises an Error that names file and sample."""
        try:
            self._opened.close()
        except NO_USER_ERRORS:
            raise
        except BaseException as error:
            raise self._user_error(error) from None


def checked_samples(
    started: StartedProvider, filename: str, *, file_index: int = 0, seed: int, pass_id: int
) -> Iterator[list[Any]]:
    """Yield the values of the good samples of a file, one at a time. Bad ones are left out and logged with
    ``check_fail_continue``; otherwise the first one raises."""
    reader = LocalReader(started, started.open_file(filename, file_index=file_index, seed=seed, pass_id=pass_id))
    logger, dropped = started.settings.logger, 0
    try:
        for samples in reader:
            for _, error in samples.errors:
                if not (isinstance(error, BadSample) and started.schema.check_fail_continue):
                    raise error from None
                dropped += 1
                if dropped <= _MAX_LOGGED_DROPS:
                    logger.warning("dropped: %s", error)
            if samples.indices:
                yield samples.values
    finally:
        reader.close()
        if dropped > _MAX_LOGGED_DROPS:
            logger.warning("dropped %d of %d samples of file %s", dropped, reader.drawn, filename)

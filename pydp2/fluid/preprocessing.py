"""Preprocessor: a function, or a block between ``inputs`` and ``outputs``, over every instance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from pydp2.errors import ClientUseError, OptionError, OptionTypeError
from pydp2.fluid.base import GeneratedDecorator, Source, rest_of
from pydp2.fluid.tensors import Instance, instance_of


class Preprocessor(GeneratedDecorator):
    """The instances of ``reader`` as ``function(*tensors)`` gives them, called once for each of them, where it is read.

    ``function`` returns a list or tuple of tensors and arrays, or a single one. An array has no LoD;
    ``tensor.with_data(array)`` keeps that of ``tensor``. Instead of a function there may be a block::

        preprocessor = Preprocessor(reader)

        @preprocessor.block
        def scale() -> None:
            image, label = preprocessor.inputs()
            preprocessor.outputs(np.asarray(image) / 255, label)

    Raises OptionTypeError for a function that cannot be called or that gives no tensors, OptionError when it is read
    without either, ClientUseError for ``inputs()`` and ``outputs()`` outside of the block. See docs/fluid.md.
    """

    def __init__(self, reader: Source, function: Callable[..., Any] | None = None) -> None:
        super().__init__(reader)
        if function is not None and not callable(function):
            raise OptionTypeError(f"function must take tensors and return some, got {type(function).__name__}")
        self._function = function
        self._inside = _Inside()

    def block(self, body: Callable[[], object]) -> Callable[[], object]:
        """Decorates the function without arguments that is the block. Raises OptionError if there is one already."""
        if not callable(body):
            raise OptionTypeError(f"a block must be a function without arguments, got {type(body).__name__}")
        if self._function is not None:
            raise OptionError("the preprocessor has a function or block already")
        inside = self._inside  # and not self, which would hold itself
        self._function = lambda *tensors: _run(inside, body, tensors)
        return body

    def inputs(self) -> Instance:
        """The tensors of the present instance. Raises ClientUseError outside of the block."""
        self._inside.check("inputs()")
        self._inside.asked = True
        assert self._inside.given is not None
        return self._inside.given

    def outputs(self, *tensors: Any) -> None:
        """Set what the present instance becomes. Raises ClientUseError outside of the block, or without an instance."""
        self._inside.check("outputs()")
        if not tensors:
            raise ClientUseError("outputs() needs at least one tensor")
        self._inside.result = tensors

    def _instances(self) -> Iterator[Instance]:
        if self._function is None:
            raise OptionError("a preprocessor needs a function, or a block with inputs() and outputs()")
        return _mapped(self._function, rest_of(self.underlying))


def _mapped(function: Callable[..., Any], instances: Iterator[Instance]) -> Iterator[Instance]:
    for instance in instances:
        yield instance_of(function(*instance), "a preprocessor")


class _Inside(threading.local):
    """What the block that runs in this thread was given, and what it gave."""

    given: Instance | None = None
    result: tuple[Any, ...] | None = None
    asked = False

    def check(self, what: str) -> None:
        if self.given is None:
            raise ClientUseError(f"{what} has a meaning only inside the block of the preprocessor, while it is read")


def _run(inside: _Inside, body: Callable[[], object], tensors: Instance) -> tuple[Any, ...]:
    inside.given, inside.result, inside.asked = tensors, None, False
    try:
        body()
        if not inside.asked or inside.result is None:
            missing = "outputs()" if inside.asked else "inputs()"
            raise ClientUseError(f"the block of a preprocessor must call {missing}")
        return inside.result
    finally:
        inside.given = inside.result = None

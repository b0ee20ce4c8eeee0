"""Apply a function, or a block between ``inputs`` and ``outputs``, to every instance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from pydp2.errors import ClientUseError, OptionError, OptionTypeError
from pydp2.fluid.base import GeneratedDecorator, Source, rest_of
from pydp2.fluid.tensors import Instance, instance_of


class Preprocessor(GeneratedDecorator):
    """A reader that calls ``function(*tensors)`` once for each instance of ``reader``; the result is the new instance.

    The call runs in the thread that reads. ``function`` returns a list or tuple of tensors and arrays, or a single one.
    An array has no LoD; ``tensor.with_data(array)`` keeps the LoD of ``tensor``. You can give a block instead of a
    function::

        preprocessor = Preprocessor(reader)

        @preprocessor.block
        def scale() -> None:
            image, label = preprocessor.inputs()
            preprocessor.outputs(np.asarray(image) / 255, label)

    Raises OptionTypeError for a function that cannot be called or that does not return tensors, OptionError if you read
    it without a function or block, and ClientUseError for ``inputs()`` and ``outputs()`` outside the block. See
    docs/fluid.md.
    """

    def __init__(self, reader: Source, function: Callable[..., Any] | None = None) -> None:
        super().__init__(reader)
        if function is not None and not callable(function):
            raise OptionTypeError(f"function must take tensors and return some, got {type(function).__name__}")
        self._function = function
        self._inside = _Inside()

    def block(self, body: Callable[[], object]) -> Callable[[], object]:
        """Set ``body``, a function without arguments, as the block, and return it; used as a decorator. Raises
        OptionTypeError for an object that cannot be called, OptionError if there is a function or block already."""
        if not callable(body):
            raise OptionTypeError(f"a block must be a function without arguments, got {type(body).__name__}")
        if self._function is not None:
            raise OptionError("the preprocessor has a function or block already")
        inside = self._inside  # not self: then the reader would refer to itself
        self._function = lambda *tensors: _run(inside, body, tensors)
        return body

    def inputs(self) -> Instance:
        """Return the tensors of the present instance. Raises ClientUseError outside the block."""
        self._inside.check("inputs()")
        self._inside.asked = True
        assert self._inside.given is not None
        return self._inside.given

    def outputs(self, *tensors: Any) -> None:
        """Set the tensors and arrays of the new instance. Raises ClientUseError outside the block, or without any
        tensor."""
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
    """The inputs and outputs of the block that runs in this thread."""

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

from collections.abc import Iterator
from typing import Any

from pydp2.inputs.spec import InputType

class Adder:
    def __init__(self, spare: Any, declared: InputType, depth: int, strict: bool) -> None: ...
    def add(self, value: Any, /) -> int: ...
    def add_checked(self, value: object, /) -> int: ...
    def rollback(self, rows: int, /) -> None: ...
    def hand_over(self) -> tuple[list[Any], list[Any], bool]: ...

class Drawer:
    away: bool
    sending: bool
    met: bool
    def __init__(
        self,
        adders: tuple[Any, ...],
        names: tuple[str, ...] | None,
        single: bool,
        mark: memoryview,
        fields: tuple[int, int, int],
        timed: bool,
    ) -> None: ...
    def taken(self) -> tuple[int, int]: ...
    def draw(
        self, iterator: Iterator[Any], ordinal: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any: ...

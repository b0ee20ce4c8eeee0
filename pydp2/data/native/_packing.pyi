from collections.abc import Iterator
from typing import Any

from pydp2.data.schema.input_types import InputType

class NativeSlotWriter:
    def __init__(self, spare: Any, declared: InputType, depth: int, strict: bool) -> None: ...
    def add(self, value: Any, /) -> int: ...
    def add_checked(self, value: object, /) -> int: ...
    def rollback(self, rows: int, /) -> None: ...
    def finish(self) -> tuple[list[Any], list[Any], bool]: ...

class NativeSampleLoop:
    in_user_code: bool
    send_pending: bool
    counts_collected: bool
    measures: bool
    packing_ns: int
    def __init__(
        self,
        adders: tuple[Any, ...],
        names: tuple[str, ...] | None,
        other_names: tuple[str, ...],
        single: bool,
        mark: memoryview,
        fields: tuple[int, int, int],
        timed: bool,
    ) -> None: ...
    def collect_counts(self) -> tuple[int, int]: ...
    def next_unpacked(
        self, iterator: Iterator[Any], ordinal: int, rows: int, room: int, credit: int, cost: int, ns: int, /
    ) -> Any: ...

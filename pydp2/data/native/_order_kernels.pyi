from typing import Any

def philox(low_key: int, high_key: int, first: int, out: Any) -> None: ...
def pick(rows: Any, words: Any, out: Any) -> None: ...
def cut_batches(
    state: Any,
    limits: Any,
    block_lengths: Any,
    addresses: Any,
    available: Any,
    pool: Any,
    sizes: Any,
    keys: Any,
    levels: Any,
    rows: Any,
    batches: Any,
) -> tuple[int, int]: ...

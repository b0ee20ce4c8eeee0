"""Read documents of JSON lines as bytes: a tokenizer of your own goes into the one line that makes the tokens."""

import json
from collections.abc import Iterator
from typing import Any

from pydp2 import integer_value_sequence, provider

END = 256  # the token behind each document


@provider(input_types={"tokens": integer_value_sequence(END + 1)})
def process(settings: Any, filename: str) -> Iterator[dict[str, Any]]:
    with open(filename, encoding="utf-8") as lines:
        for line in lines:
            yield {"tokens": [*json.loads(line)["text"].encode(), END]}

"""Rows that stay on their host: trainers fetch them there, and the stream is that of a local service, whatever becomes
of the hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2

from .test_hosts import (
    KINDS,
    OPTIONS,
    ROWS,
    Host,
    active,
    elsewhere,
    hosts,
    local,
    serving,
    stream,
)
from .test_hosts import file as file
from .test_hosts import joined as joined
from .test_hosts import short_host_timeout as short_host_timeout
from tests.conftest import wait_until

pytestmark = pytest.mark.usefixtures("short_host_timeout")

HERE = "tcp://127.0.0.1:*"


@pytest.mark.parametrize("code", [KINDS, ROWS], ids=["all kinds of slots", "rows"])
def test_the_stream_of_rows_that_stay_on_three_hosts_is_that_of_a_local_service(
    code: str, provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(code)
    whole = local(provider, passes=2)
    with serving(provider, file) as service:
        for n in (1, 2, 3):
            joined(workers=n, row_server=HERE)
        assert wait_until(lambda: active(service) == 6)
        for where in (file, elsewhere(file)):  # with shared memory, and without
            with pydp2.connect(where, job=where.name, **OPTIONS) as data:
                assert stream(data, 2) == whole
        assert wait_until(lambda: not any(each["rows_kept"] for each in hosts(service)))
        print(hosts(service))

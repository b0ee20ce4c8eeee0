"""The order of a pass as pure rules: which file, which sample, which batch. No IO, no clock, no generator state.

``words`` (random words) < ``files`` (file order and turns) < ``merge`` (lanes) < ``pool`` (pick, tail) < ``stream``
(fill, batches) < ``buckets`` (batches of samples alike in length). The rules and the reasons for them stand in
docs/order.md.
"""

from pydp2.order.buckets import stream_of
from pydp2.order.files import file_order
from pydp2.order.plan import Buckets, Plan
from pydp2.order.source import END, WAIT, Failure, Run, Source
from pydp2.order.stream import Blocked, Cut, Done, Failed, Stream

__all__ = [
    "END",
    "WAIT",
    "Blocked",
    "Buckets",
    "Cut",
    "Done",
    "Failed",
    "Failure",
    "Plan",
    "Run",
    "Source",
    "Stream",
    "file_order",
    "stream_of",
]

"""Decide the order of a pass by pure rules: which file, which sample, which batch. No IO, no clock, no generator state.

``random_bits`` < ``file_order`` < ``merge`` (interleaves files) < ``pool`` (pick, tail) < ``batcher`` (fill, batches) <
``bucketing`` (batches of samples alike in length). The rules and the reasons for them stand in docs/order.md.
"""

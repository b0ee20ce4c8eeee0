"""Assigns files to workers and keeps the ledger of what each of them has delivered. Pure: no IO, no clock.

``ledger`` < ``file_queue``, ``worker_load``, ``losses``, ``reread`` < ``credit``, ``cache_fill`` < ``file_dispatcher``:
one pass over the files. The rules stand in docs/order.md.
"""

"""Assigns files to workers and keeps the ledger of what each of them has delivered. Pure: no IO, no clock.

``ledger`` < ``worker_load``, ``losses``, ``reread`` < ``credit``, ``cache_fill``, ``pass_checksums`` <
``file_dispatcher``: files to workers < ``ledger_source``: samples to the merge. The rules stand in docs/order.md.
"""

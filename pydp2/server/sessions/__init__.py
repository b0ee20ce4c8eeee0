"""Serve trainers: their jobs, the batches of each pass, and which trainer gets which of them.

``pass_runner`` cuts the batches of a pass; ``trainer_group`` hands them to the trainers of a job; ``job_session`` is
one job with both; ``gateway`` has the jobs of a service. The rules stand in docs/order.md, "Ranks".
"""

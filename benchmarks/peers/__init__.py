"""Measure each contestant, with one module for each: ``measure(job)`` returns its passes, ``versions()`` its libraries.

Each peer is set up as in its documentation for a stream of files, with the options that were the fastest for this job
on two cores. Only ``with_pydp2`` and ``provided`` import pydp2.
"""

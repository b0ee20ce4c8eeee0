"""One module for each contestant: ``measure(job)`` gives its passes, ``versions()`` what is installed.

Each peer is set up as its documentation says for a stream of files, and then as was found to be quickest for this job
on two cores. Only ``with_pydp2`` and ``provided`` import pydp2.
"""

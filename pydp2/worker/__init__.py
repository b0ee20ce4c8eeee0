"""A worker: takes a file, runs the provider over it, sends columns. The only part that runs the user's code.

``task`` (one file's run) < ``builder`` (samples to ranges) < ``runner`` (which generator runs) < ``main``.
"""

IN_WORKER = "PYDP2_WORKER"
"""Set in the environment of workers, and so of what they start: there, no service is started. It stands here for
programs, which import nothing else of this part."""

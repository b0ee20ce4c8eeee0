"""Run the provider over a file and send columns. This is the only part that runs the user's code.

``task`` (one file's run) < ``chunk_builder`` (samples to ranges) < ``loop`` (which generator runs) < ``main``.
"""

IN_WORKER = "PYDP2_WORKER"
"""Environment variable that is set in workers, and so in what they start: no service is started there. It is defined
here for programs, which import nothing else of this part."""

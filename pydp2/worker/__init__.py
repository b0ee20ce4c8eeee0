"""A worker: takes a file, runs the provider over it, sends columns. The only part that runs the user's code.

``task`` (one file's run) < ``builder`` (samples to ranges) < ``runner`` (which generator runs) < ``main``.
"""

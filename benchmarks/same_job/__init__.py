"""Write one job for several loaders as in their documentation, to compare the amount of code.

The job: read the digits of ``sample_data``, whose files have samples as lines of text, with two workers; shuffle them;
make batches of 32 for two epochs; and after a stop continue at the same step. A module ``with_LOADER`` has
``steps(checkpoint)``, which yields the pixels and the labels of each step, and the checkpoint after it.
"""

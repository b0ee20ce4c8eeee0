"""One job, written for several loaders as their documentation has it, to compare how much a user writes for it.

The job: read the digits of ``sample_data``, of which each file has samples as lines of text, with two workers; shuffle
them; make batches of 32 for two epochs; and go on after a stop at the step where it was. A module ``with_LOADER`` has
``steps(checkpoint)``, which yields the pixels and the labels of each step, and the checkpoint after it.
"""

"""Jobs and their trainers: ``agreement`` decides where they go on, ``membership`` knows who takes part, ``pass_runner``
cuts the batches of a pass, ``delivery`` hands them to trainers, ``group`` joins these, ``session`` is one job. The
``gateway`` accepts clients and opens jobs, with the ``peers`` that are connected and the ``resources`` that all share.
"""

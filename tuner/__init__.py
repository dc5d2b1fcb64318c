"""Tuning: what the planner predicts, tried for real on the user's own model.

:func:`comm_plan.tuner.tune.tune` measures (profiler, commbench), lists what could be
best within the model's error (``candidates``), and holds a ``session``: it runs those
plans interleaved, the slower half dropped after each round (``halving``), each from the
same state, which is restored afterwards (``trials``), keeps what they took
(``ledger``), and says what to do (``advice``). Where the loss decides, ``judging``
trains lossy plans beside a dense one, and ``loss`` compares them. What is left is
``tuned``.
"""

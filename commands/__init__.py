"""The verbs of the command line, a module each: parse, call one function, print.

The other modules are what they share: ``options`` and what their words mean
(``arguments``, ``workload``, ``planned``), ``launching`` of ranks, and ``output``.

Results go to files, progress and tables to stderr; ``--json`` prints the result to
stdout. Heavy imports wait inside the verbs, so that ``--help`` is instant.

Under torchrun, mpirun or srun every rank runs the same command and finds its rank in
the environment; ``--local-ranks N`` starts N ranks on this host.
"""
